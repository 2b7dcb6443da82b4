"""The arena: one anonymous mapping that holds all rows, indexes and buffers, in pages and blocks.

Read `arena_layout` (every word that kernels share), `arena`, then the kernels of pools and handles. Python refers to
tables, fragments and indexes by handles, which kernels check before use.
"""
