"""The frame of a record of the log, as kernels read it."""

# mypy: ignore-errors

from __future__ import annotations

from engine.jit.kernel import helper
from engine.log.redo_layout import (
    KIND_DELETE,
    KIND_INSERT,
    KIND_MASK,
    KIND_TRANSACTION,
    KIND_UPDATE,
    OPERATION_WORDS,
    SCHEMA_VERSION_MASK,
    SCHEMA_VERSION_SHIFT,
    TRANSACTION_WORDS,
    WORDS_SHIFT,
)
from engine.memory.arena_layout import (
    F_HAS_VAR,
    F_VAR_SINCE,
)


@helper
def record_has_var(mem, fragment, identity):
    """Whether images of a record have a var part, given its word 1."""
    if mem[fragment + F_HAS_VAR] == 0:
        return 0
    version = (identity >> SCHEMA_VERSION_SHIFT) & SCHEMA_VERSION_MASK
    return 1 if version >= mem[fragment + F_VAR_SINCE] else 0


@helper
def record_words(words, at, stop):
    """Words of the record at words[at:stop], -1 if it cannot be one; and whether it is an operation."""
    kind = words[at] & KIND_MASK
    size = TRANSACTION_WORDS if kind == KIND_TRANSACTION else words[at] >> WORDS_SHIFT
    is_operation = kind == KIND_INSERT or kind == KIND_UPDATE or kind == KIND_DELETE
    if size < 2 or at + size > stop or (is_operation and size < OPERATION_WORDS):
        return -1, False
    return size, is_operation
