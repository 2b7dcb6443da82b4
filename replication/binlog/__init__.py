"""MySQL's binlog, version 4: events, column types, row bodies, files (docs/internals/replication.md).

Read `binlog_layout`, `events`, `table_map`, `types`, `row_plan`, `images`; then `index`, `writer`, `recovery` and
`reader`.
"""
