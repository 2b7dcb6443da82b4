"""How rows are seen, read and changed inside a transaction or a snapshot: by key, in batches, by scan, by index.

Read `engine/txn/views.py`, then `snapshot_reads` and `index_scans`: a place gives ROWIDs, a view says how their rows
are seen. Then `statuses`, which says what stops a change, `batch_operations` and `row_operations`. Calls here keep no
state.
"""
