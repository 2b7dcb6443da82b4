"""The scan of one fragment for a local checkpoint: its rows as of the end of an epoch, while commits continue.

On rows that the scan has not reached, the checkpoint bit is set exactly if the row has changed since that epoch. A
commit that is about to change a row whose bit is clear copies the old row to the checkpoint and sets the bit (D6).
Fragments of a running local checkpoint are pinned: none is dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.rows.lcp_kernels import abandon_lcp, scan_lcp, start_lcp

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store

SCAN_SLOTS = 4_096  # of one call
END = -1  # of `FragmentScan.next`


class FragmentScan:
    """The scan of one fragment. One thread calls `next`; `start` and `abandon` need the commit latch."""

    def __init__(self, store: Store, fragment: int) -> None:
        self._store = store
        self._fragment = fragment

    def start(self, epoch: int) -> None:
        """Begin a scan of the rows at the end of `epoch`, which has just been closed."""
        start_lcp(self._store.mem, self._fragment, epoch)

    def next(self, out: Words, state: Words) -> int:
        """Write entries of the next rows to `out` from word state[0] on, and count them in state[1].

        Return 0 if more rows are left, `END` if none is; if the next row does not fit in `out`, the words it needs.

        Raises: InvariantBroken, with the store failed, if a row's checkpoint bit disagrees with its epoch.
        """
        status = int(scan_lcp(self._store.mem, self._fragment, out, SCAN_SLOTS, state))
        if status <= a.ST_SPACE:
            return a.ST_SPACE - status
        if status not in (a.OK, a.ST_MORE):
            raise self._store.failure.latch(self._disagrees())
        return END if status == a.OK else 0

    def abandon(self) -> None:
        """Stop writing rows. `finish_abandoned` clears the checkpoint bits that are left."""
        abandon_lcp(self._store.mem, self._fragment)

    def finish_abandoned(self) -> None:
        """Run the scan to its end without writing. Raises: as `next`."""
        state = np.zeros(2, dtype=np.int64)
        while self.next(self._store.resources.no_words, state) != END:
            self._store.failure.check()

    def _disagrees(self) -> InvariantBroken:
        """Return an error that describes the row at the scan's position."""
        mem, fragment = self._store.mem, address_of(self._fragment)
        with self._store.latch:
            position, epoch = int(mem[fragment + a.F_LCP_POSITION]), int(mem[fragment + a.F_LCP_EPOCH])
            page = position >> 16
            middle = mem[fragment + a.F_MAP + (page >> 18)]
            page = int(mem[mem[middle + (page >> 9 & 511)] + (page & 511)])
            row = (
                (page << a.PAGE_SHIFT) + a.PAGE_HEADER_WORDS + (position & 0xFFFF) * int(mem[fragment + a.F_ROW_WORDS])
            )
            bit, found = int(mem[row]) & a.LCP_BIT != 0, int(mem[row + 1])
        table, number = int(mem[fragment + a.F_TABLE]), int(mem[fragment + a.F_NUMBER])
        return InvariantBroken(
            f"row {position >> 16}.{position & 0xFFFF} of table {table}, fragment {number}, has epoch {found} and"
            f" checkpoint bit {int(bit)} in a local checkpoint of epoch {epoch}; the store stopped, reopen it"
        )
