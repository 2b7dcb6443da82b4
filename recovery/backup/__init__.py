"""Backups: written while transactions go on, incremental by row epoch, restored into a new store (docs/backup.md)."""
