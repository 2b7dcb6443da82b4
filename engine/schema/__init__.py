"""Table schemas: columns, keys, partitions, and the catalog of definitions.

Read `definition`, then `row_shape` (the position of each column in a row; `row_layout` has the words of an
image). A definition that exists is valid.
"""
