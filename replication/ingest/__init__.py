"""Ingest of a MySQL or MariaDB server: a first copy of its tables, then its row events, applied to a store.

Read `ingest` (the loop), `source_position` (the position), `transactions` (events as steps), `applier`, `rows`; then
`copy`.
"""
