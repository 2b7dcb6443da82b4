"""The bytes of rows: one at a time (`row_format`), by column (`columnar`), and in pages of the arena.

Read `row_format` and `primary_kernels` (the hash index over primary keys) first. This room finds rows, grows their
memory, checks them and writes them as entries of files. It knows nothing of transactions and their order.
"""
