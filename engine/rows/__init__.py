"""The bytes of rows: one at a time (`row_format`), by column (`columnar`), and in pages of the arena.

Read `row_format` and `primary_kernels` (the hash index over primary keys) first. What finds a row, grows its memory,
checks it or writes it as an entry of a file is here. Transactions and their order are not.
"""
