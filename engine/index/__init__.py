"""Ordered indexes (trees) and unique indexes (hashes) over rows in memory.

Read `ordered` and `tree_nodes_kernels`, then `unique` and `unique_entries_kernels`. `txn` and `access` have how
transactions read and change them.
"""
