"""Node restart on the live node: the slices of a fragment that a joiner lacks (docs/internals/node-group.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.memory.arena_layout import OK, ST_MORE, ST_SPACE
from tidemark.engine.store import node_copy_layout as n
from tidemark.engine.store.node_copy_kernels import list_items, scan_changed

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table


class Changes(NamedTuple):
    """The changes in the slots of a fragment from one ROWID to another, as items of a slice without disk parts."""

    start: int
    stop: int
    words: Words
    rows: int
    slots: int  # looked at; a missing page counts as one


class ChangeScan:
    """Scans fragments of an arena for changes; one buffer serves all calls."""

    def __init__(self, mem: Words, buffer_words: int) -> None:
        self._mem = mem
        self._out: Words = np.empty(buffer_words, dtype=np.int64)

    def next(self, fragment: int, start: int, since: int, with_empty: bool, slots: int) -> Changes:
        """Return the changes after epoch `since` in about `slots` slots from ROWID `start` on, fewer if the buffer is
        full; with_empty: with ranges of empty slots. The commit latch must be held. Raises: InvariantBroken.
        """
        state = np.zeros(n.NODE_COPY_STATE_WORDS, dtype=np.int64)
        state[n.N_POSITION] = start
        while True:
            status = int(scan_changed(self._mem, fragment, since, int(with_empty), slots, self._out, state))
            if status > ST_SPACE or int(state[n.N_POSITION]) != start:
                break
            self._out = np.empty(ST_SPACE - status, dtype=np.int64)  # the first row needs that much
        if status > ST_SPACE and status not in (OK, ST_MORE):
            raise InvariantBroken(f"the scan of a fragment for a joiner ended with status {status}; join again")
        words = self._out[: int(state[n.N_USED])].copy()
        return Changes(start, int(state[n.N_POSITION]), words, int(state[n.N_ROWS]), int(state[n.N_LOOKED]))


class Items(NamedTuple):
    """The items of a slice: rows and ranges without a row."""

    entries: Words
    images: Words  # offsets
    ranges: Words  # pairs


def items_of(words: Words, table: Table, with_disk: bool = False) -> Items:
    """Return the items of a slice. with_disk: whether its rows have disk parts. Raises: InvariantBroken."""
    layout = table.format.layout
    state = np.zeros(n.NODE_COPY_STATE_WORDS, dtype=np.int64)
    images: Words = np.empty(words.size, dtype=np.int64)
    ranges: Words = np.empty(words.size, dtype=np.int64)
    shape = (layout.fixed_words, int(layout.has_var), int(with_disk))
    status = list_items(words, words.size, *shape, images, ranges, state)
    if status != OK:
        raise InvariantBroken(f"a scan of {table.name} gave an invalid row (status {status}); join again")
    return Items(words, images[: int(state[n.N_ROWS])].copy(), ranges[: 2 * int(state[n.N_RANGES])].copy())
