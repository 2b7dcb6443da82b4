"""Logs: REDO with group commit."""
