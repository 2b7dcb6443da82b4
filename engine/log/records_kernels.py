"""Size and form of a record of the log, as kernels read them."""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper
from tidemark.engine.log import redo_layout as L
from tidemark.engine.memory import arena_layout as A


@helper
def record_has_var(mem, fragment, identity):
    """Whether images of a record have a var part, given its word 1."""
    if mem[fragment + A.F_HAS_VAR] == 0:
        return 0
    version = (identity >> L.SCHEMA_VERSION_SHIFT) & L.SCHEMA_VERSION_MASK
    return 1 if version >= mem[fragment + A.F_VAR_SINCE] else 0


@helper
def record_words(words, at, stop):
    """Return the words of the record at words[at:stop], -1 if it is invalid; and whether it is an operation."""
    kind = words[at] & L.KIND_MASK
    size = L.TRANSACTION_WORDS if kind == L.KIND_TRANSACTION else words[at] >> L.WORDS_SHIFT
    is_operation = kind == L.KIND_INSERT or kind == L.KIND_UPDATE or kind == L.KIND_DELETE
    if size < 2 or at + size > stop or (is_operation and size < L.OPERATION_WORDS):
        return -1, False
    return size, is_operation
