"""Disk columns: tablespaces and data files, the page cache, the double-write file, the UNDO log.

Read `disk_layout` (a page), `cache`, `page_writer`, `undo`. Before a page is written in place, the UNDO log is durable
through its LSN, and a copy of the page is durable in the double-write file.
"""
