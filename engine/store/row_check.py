"""Verification of the rows and the primary index of a fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.memory.arena_layout import OK, ST_MORE
from tidemark.engine.rows.check_kernels import check_index, check_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.engine.store.store import Store

SLICE_SLOTS = 512
SLICE_SEGMENTS = 8
EPOCH_MAX = (1 << 63) - 1


class RowCheck:
    """Verifies one fragment, in slices that do not block writers for long. A dropped fragment has no faults."""

    def __init__(self, store: Store, fragment: int, is_live: bool) -> None:
        """is_live: transactions commit meanwhile; then no row may have an epoch after the current one."""
        self._store = store
        self._fragment = fragment
        self._is_live = is_live
        self.rows = 0  # committed rows without a fault

    def row_faults(self) -> Iterator[tuple[int, int]]:
        """Yield a FAULT_ number and the ROWID for each fault of a row. Raises: StoreFailed."""
        state = np.zeros(3, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE or status > OK:
            self._store.failure.check()
            # Epochs close under the latch. Without it an epoch could close, and a row be committed in the next one,
            # after the epoch was read.
            with self._store.latch:
                newest_epoch = self._store.epochs.current if self._is_live else EPOCH_MAX
                status = int(check_rows(self._store.mem, self._fragment, SLICE_SLOTS, newest_epoch, state))
            self.rows = int(state[1])
            if status > OK:
                yield status, int(state[2])

    def index_faults(self) -> Iterator[tuple[int, int]]:
        """Yield a FAULT_ number and the directory entry for each fault of the primary index. Raises: StoreFailed."""
        state = np.zeros(3, dtype=np.int64)
        status = ST_MORE
        while status == ST_MORE or status > OK:
            self._store.failure.check()
            status = int(check_index(self._store.mem, self._fragment, SLICE_SEGMENTS, state))
            if status > OK:
                yield status, int(state[2])
