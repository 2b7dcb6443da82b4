"""The engine floor: one store in one process, without the files that let it restart.

Imports nothing from the floors above (`recovery`, `replication`, `tidemark`). Rooms, each importing only rooms before
it: `base`, `files`, `jit`, `sealed`, `memory`, `schema`, `rows`, `log`, `programs`, `index`, `disk`, `table`, `txn`,
`access`, `store`.

In every room `*_kernels.py` is compiled by numba and touches bytes in bulk, and `*_layout.py` says where the bytes are:
dtypes of structures on disk, word positions in structures of the arena.
"""
