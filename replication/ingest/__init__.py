"""Row events of a MySQL or MariaDB server applied to a store."""
