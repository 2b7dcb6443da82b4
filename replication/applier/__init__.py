"""Epoch transactions of a binlog or relay log, applied to a store: each whole and exactly once.

Read `applier`, `intake` (events as batches), `one_pass`; then `apply_status`, `schema_statements`, `replay`.
"""
