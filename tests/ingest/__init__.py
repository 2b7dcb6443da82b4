"""A MySQL or MariaDB server taken into a store."""
