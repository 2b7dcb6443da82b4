"""Backups: written beside writers, incremental by row epoch, restored into a new store (docs/backup.md)."""
