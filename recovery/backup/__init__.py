"""Backups: written while transactions continue, incremental by row epoch, restored into a new store (docs/backup.md).
"""
