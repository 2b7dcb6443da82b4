"""Disk columns: page cache, double-write file."""
