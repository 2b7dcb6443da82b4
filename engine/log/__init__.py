"""Logs: REDO with group commit, UNDO of disk columns."""
