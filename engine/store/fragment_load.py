"""Load rows into fragments of a store that is not in use yet: from a local checkpoint, a backup or a live node.

Memory is private until the load succeeds, so nothing is undone after an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.memory.arena_layout import OK, ST_MEMORY
from tidemark.engine.rows.lcp_kernels import finish_entries, finish_load, load_copies
from tidemark.engine.store.load_entries_kernels import load_entries, stamp_rows
from tidemark.engine.store.replay import PartsOutOfMemory

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words


class EntryDoesNotFit(Exception):
    """An entry of a file is invalid for its fragment. `at` is its word in the block, `status` that of the kernel."""

    def __init__(self, at: int, status: int) -> None:
        super().__init__(at, status)
        self.at = at
        self.status = status


def _check_status(status: int, at: int = 0) -> None:
    if status == ST_MEMORY:
        raise PartsOutOfMemory
    if status != OK:
        raise EntryDoesNotFit(at, status)


class FragmentLoad:
    """The load of one fragment. Its index must have room for the rows (`Table.reserve_index`).

    Each call raises PartsOutOfMemory if the rows do not fit into the memory of the load, EntryDoesNotFit for an invalid
    entry.
    """

    def __init__(self, mem: Words, fragment: int) -> None:
        self._mem = mem
        self._fragment = fragment
        self._state: Words = np.zeros(2, dtype=np.int64)

    @property
    def rows(self) -> int:
        """How many rows `take` has taken."""
        return int(self._state[1])

    def take(self, words: Words, start: int, stop: int) -> None:
        """Take all entries words[start:stop] of a block."""
        status = load_entries(self._mem, self._fragment, words, start, stop, self._state)
        _check_status(int(status), int(self._state[0]))

    def stamp(self, words: Words, start: int, stop: int, shape: Words) -> None:
        """Give the rows of a block, which are in the fragment, the epochs and authors of their entries.

        shape: as for `stamp_rows`.
        """
        _check_status(int(stamp_rows(self._mem, self._fragment, words, start, stop, shape)))

    def finish(self) -> None:
        """Complete the index after the last call of `take`."""
        _check_status(int(finish_entries(self._mem, self._fragment)))


def end_load(mem: Words, fragment: int, epoch: int) -> None:
    """End the load of a fragment. epoch: of the file; the fragment's empty slots get it."""
    finish_load(mem, fragment, epoch)


class CopiesLoad:
    """The load of rows that commits copied during a local checkpoint: entries of all tables in one file.

    shapes, targets: of the tables, as `load_copies` reads them; target 0: check the entry and take no row.
    """

    def __init__(self, mem: Words, shapes: Words, targets: Words) -> None:
        self._place = (mem, shapes, targets)
        self._state: Words = np.zeros(3, dtype=np.int64)

    @property
    def rows(self) -> int:
        """How many rows were taken."""
        return int(self._state[1])

    @property
    def entries(self) -> int:
        """How many entries were read."""
        return int(self._state[2])

    def take(self, words: Words, start: int, stop: int) -> None:
        """Take the entries words[start:stop] of a block. Raises: as `FragmentLoad`."""
        status = load_copies(*self._place, words, start, stop, self._state)
        _check_status(int(status), int(self._state[0]))
