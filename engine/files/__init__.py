"""The door to the disk: one store's directory, its lock, checked reads and durable writes.

Read `protocol` (the calls the store makes), `layer` (the code all implementations share), `directory` (the real disk),
`synced_write_kernels` (its write and sync in one call).
No other module of the product opens a file of a store.
"""
