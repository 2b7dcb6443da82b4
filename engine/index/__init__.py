"""Ordered indexes (trees) and unique indexes (hashes) over rows in memory.

Read `ordered` and `tree_nodes_kernels`, then `unique` and `unique_entries_kernels`. How transactions read and change
them is in `engine/txn` and `engine/access`.
"""
