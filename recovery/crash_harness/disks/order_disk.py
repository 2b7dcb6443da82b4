"""Rules O10 to O14 of the order monitor: pages of disk columns, their copies, and the UNDO log before them (D7).

The written bytes identify themselves: pages, the header of the double-write file and UNDO groups are sealed units with
kind, number and LSN. Filtered UNDO records are never written; the log reports them by the mark `undo_durable`.
"""

from __future__ import annotations

import re

import numpy as np

from tidemark.engine.disk import disk_layout as d
from tidemark.engine.sealed.sealed_layout import KIND_DISK_PAGE, KIND_DOUBLE_WRITE, KIND_UNDO_GROUP

_DATA_FILE = re.compile(r"space/\d+\.data")
DOUBLE_WRITE_NAME = "double-write"
_KIND_MASK = 0xFFFF
_CHECKSUM_MASK = 0xFFFFFFFF
_SEAL_WORDS = 5


class DiskOrder:
    """Follows pages by number and checksum. A method that judges a write returns its fault, empty if there is none."""

    def __init__(self) -> None:
        self._durable_lsn: int | None = None
        # Checksums by page number in the double-write file as last written (None until a write to it is seen), and
        # whether they are durable.
        self._copies: dict[int, int] | None = None
        self._are_copies_durable = True
        self._lowest_unsynced: dict[str, int] = {}  # by data file: LSN of its oldest page that is not durable
        self._lcp_lsns: dict[int, int] = {}
        self._lcp_unsynced: set[int] = set()

    def durable(self, lsn: int) -> None:
        """Record that UNDO records with lower LSNs are durable, or were filtered."""
        self._durable_lsn = lsn

    def fault(self, name: str, view: memoryview) -> str:
        """Judge and follow a write that does not grow its file; return its fault."""
        if view.nbytes % 8 or view.nbytes < _SEAL_WORDS * 8:
            return ""
        words = np.frombuffer(view, dtype=np.int64)
        kind = int(words[1]) & _KIND_MASK
        if name == DOUBLE_WRITE_NAME and kind == KIND_DOUBLE_WRITE:
            return self._batch(words)
        if _DATA_FILE.fullmatch(name) and kind == KIND_DISK_PAGE:
            return self._pages(name, words)
        if name.endswith(".undo") and kind == KIND_UNDO_GROUP and words.size > d.UNDO_GROUP_WORDS + 2:
            return self._group(words[d.UNDO_GROUP_WORDS :])
        return ""

    def _batch(self, words: np.ndarray) -> str:
        header = np.frombuffer(words[: d.DOUBLE_WRITE.itemsize // 8].tobytes(), dtype=d.DOUBLE_WRITE)[0]
        count = int(header["pages"])
        self._copies = dict(zip(header["numbers"][:count].tolist(), header["checksums"][:count].tolist(), strict=True))
        self._are_copies_durable = False
        unsynced = sorted(self._lowest_unsynced)
        return f"O12: {DOUBLE_WRITE_NAME} is written over while pages in {unsynced[0]} are unsynced" if unsynced else ""

    def _pages(self, name: str, words: np.ndarray) -> str:
        size = int(words[1]) >> 32
        for page in words.reshape(-1, size):
            number, lsn = int(page[d.DP_PAGE]), int(page[d.DP_LSN])
            place = f"page {number:#x} of {name}"
            if self._durable_lsn is not None and lsn >= self._durable_lsn:
                return f"O10: {place} with LSN {lsn} while the UNDO log is durable below {self._durable_lsn} only"
            copy = None if self._copies is None else self._copies.get(number, -1)
            if copy is not None and (copy != int(page[0]) & _CHECKSUM_MASK or not self._are_copies_durable):
                return f"O11: {place} before its copy in {DOUBLE_WRITE_NAME} is durable"
        self._unsynced(name, words)
        return ""

    def landed(self, name: str, view: memoryview) -> None:
        """Record that a write has ended: a sync that began earlier does not cover it."""
        if view.nbytes % 8 == 0 and view.nbytes >= _SEAL_WORDS * 8 and _DATA_FILE.fullmatch(name):
            words = np.frombuffer(view, dtype=np.int64)
            if int(words[1]) & _KIND_MASK == KIND_DISK_PAGE:
                self._unsynced(name, words)

    def _unsynced(self, name: str, words: np.ndarray) -> None:
        lowest = int(words.reshape(-1, int(words[1]) >> 32)[:, d.DP_LSN].min())
        self._lowest_unsynced[name] = min(lowest, self._lowest_unsynced.get(name, lowest))

    def _group(self, records: np.ndarray) -> str:
        kind = int(records[0]) & d.UNDO_KIND_MASK
        if kind == d.UNDO_LCP:
            self._lcp_lsns[int(records[2])] = int(records[1])
            self._lcp_unsynced.add(int(records[2]))
        if kind == d.UNDO_RESTART and self._lowest_unsynced:
            return f"O14: UNDO_RESTART record while pages in {min(self._lowest_unsynced)} are unsynced"
        return ""

    def control_fault(self, lcp_id: int) -> str:
        """Return the fault of writing the control file of this local checkpoint now."""
        if lcp_id in self._lcp_unsynced:
            return f"O13: control file {lcp_id} before the UNDO group of its mark is durable"
        mark = self._lcp_lsns.get(lcp_id, 0)
        early = sorted(name for name, lsn in self._lowest_unsynced.items() if lsn < mark)
        return (
            f"O13: control file {lcp_id} while pages in {early[0]} from before its mark are unsynced" if early else ""
        )

    def synced(self, name: str) -> None:
        """Record that all earlier writes to this file are durable."""
        self._lowest_unsynced.pop(name, None)
        if name == DOUBLE_WRITE_NAME:
            self._are_copies_durable = True
        elif name.endswith(".undo"):
            self._lcp_unsynced.clear()
