"""How rows are seen, read and changed inside a transaction or a snapshot: by key, in batches, by scan, by index.

Read `engine/txn/views.py`, `row_operations` and `batch_operations`, then `snapshot_reads` and `index_scans`. Calls here
keep no state.
"""
