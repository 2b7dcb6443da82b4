"""The door to the disk: one store's directory, its lock, checked reads and durable writes.

Read `protocol` (what the store asks of a disk), `layer` (what all implementations share), `directory` (the real one).
No other module of the product opens a file of a store.
"""
