"""What a table is: types, columns, keys, partitions, and the catalog that keeps definitions.

Read `definition`, then `types` and `row_shape` (where each column lies in a row; `row_layout` has the words of an
image). A definition that exists is valid.
"""
