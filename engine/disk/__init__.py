"""Disk columns: tablespaces and their data files, page cache, double-write file."""
