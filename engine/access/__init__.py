"""How rows are read and changed inside a transaction or a snapshot: by key, in batches, by scan, by index.

Read `row_operations` and `batch_operations`, then `program_scans` and `snapshot`. Calls here keep no state.
"""
