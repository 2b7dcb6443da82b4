"""How each table is replicated: pure functions over rows of `mysql.ndb_replication`, table definitions and options; and
the system tables of replication.

Read `options`, `match` (the row that applies to a table), `binlog_type` and `conflict_function` (its meaning), then
`setup`, `exceptions_table` and `check`; then `system_tables`.
"""
