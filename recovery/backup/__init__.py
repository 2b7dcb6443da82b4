"""Backups: written while transactions run, incremental by row epoch, restored into a new store (docs/backup.md)."""
