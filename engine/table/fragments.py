"""Memory of tables and fragments in the arena: allocate it, and free it after its handles are withdrawn.

An interrupted drop is repeated from its beginning. The kernels return ST_DROPPED for a handle that is already
withdrawn, or whose memory is free; the functions here skip it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.memory.arena import NOTHING, memory_full, next_handle
from tidemark.engine.memory.arena_layout import ST_MORE
from tidemark.engine.memory.handles_kernels import withdraw
from tidemark.engine.schema.partitions_kernels import put_partition_words
from tidemark.engine.table import setup_kernels as kernels

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

DROP_PAGES_PER_CALL = 256


def make_table(mem: Words, shape: list[int]) -> tuple[int, list[int]]:
    """Create an empty table (see the kernel for `shape`); return its handle and those of its fragments. Raises:
    MemoryExhausted.
    """
    table = int(kernels.make_table(mem, np.array(shape, dtype=np.int64)))
    if table == 0:
        raise memory_full(mem, "another table")
    return table, fragments_of(mem, table)


def fragments_of(mem: Words, table: int) -> list[int]:
    """Return the handles of a table's fragments."""
    held = np.zeros(max(0, kernels.fragment_handles(mem, table, NOTHING)), dtype=np.int64)
    kernels.fragment_handles(mem, table, held)
    return [int(fragment) for fragment in held if fragment]


def add_fragment(mem: Words, table: int, number: int) -> int:
    """Create a fragment that the table does not list yet; return its handle. Raises: MemoryExhausted."""
    fragment = kernels.add_fragment(mem, table, number)
    if fragment == 0:
        raise memory_full(mem, "another partition")
    return int(fragment)


def put_words(mem: Words, words: Words, start: int, makes_room: bool) -> int:
    """Copy the partition words at words[start] into the arena; return the address. makes_room: they are for a drop.
    Raises: MemoryExhausted.
    """
    address = put_partition_words(mem, words, start, makes_room)
    if address == 0:
        raise memory_full(mem, "the bounds of partitions")
    return int(address)


def withdraw_table(mem: Words, table: int) -> int:
    """Withdraw a table that is no longer pinned; return the handle for freeing its memory."""
    kernels.withdraw_table(mem, table)
    return next_handle(table)


def withdraw_fragment(mem: Words, fragment: int) -> int:
    """Withdraw a fragment that no table lists and nothing pins; return the handle for freeing its memory."""
    withdraw(mem, fragment)
    return next_handle(fragment)


def drop_fragment(mem: Words, fragment: int) -> None:
    """Free all memory of a withdrawn fragment."""
    _drop_pages(mem, fragment)
    kernels.drop_fragment_rest(mem, fragment)


def drop_table(mem: Words, table: int) -> None:
    """Free all memory of a withdrawn table."""
    for fragment in fragments_of(mem, table):
        _drop_pages(mem, fragment)
    kernels.drop_table_rest(mem, table)


def _drop_pages(mem: Words, fragment: int) -> None:
    while kernels.drop_fragment_pages(mem, fragment, DROP_PAGES_PER_CALL) == ST_MORE:
        pass
