"""Table schemas: types, columns, keys, partitions, and the catalog of definitions.

Read `definition`, then `types` and `row_shape` (the position of each column in a row; `row_layout` has the words of an
image). A definition that exists is valid.
"""
