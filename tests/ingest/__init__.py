"""Ingest from a MySQL or MariaDB server into a store."""
