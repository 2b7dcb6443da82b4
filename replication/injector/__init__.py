"""The path of changes from the log to the binlog, and the store's own binlog read back as changes.

Read `injector`, `attached` (the binlog of an open store), `table_rules`; then `changes`.
"""
