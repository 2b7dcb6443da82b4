"""What of the log goes to the binlog, and the own binlog read back as changes.

Read `injector`, `attached` (beside an open store), `images`; then `changes`.
"""
