"""Rule O15 of the order monitor: a group of the log refers to a spool file only when that is durable, entry included;
from then on the file is never written, and removed only when the log was cut behind the group (W1 to W3).

Such a group is alone in its write, so the write itself tells which file it refers to.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from engine.layout.log import GROUP
from engine.layout.redo import FILES_WORDS, GROUP_WORDS, KIND_FILES, KIND_MASK, TRANSACTION_WORDS
from engine.layout.sealed import KIND_GROUP
from engine.spool_files import spool_name

_RECORD = GROUP_WORDS + TRANSACTION_WORDS


class SpoolOrder:
    """The files that groups seen so far refer to, and the LSN of each group."""

    def __init__(self) -> None:
        self._referred: dict[str, int] = {}

    def redo_fault(self, view: memoryview, is_durable: Callable[[str], bool]) -> str:
        """What is wrong with a write to the log, empty if nothing is."""
        if view.nbytes < (_RECORD + FILES_WORDS) * 8:
            return ""
        header = np.frombuffer(view[: GROUP.itemsize], dtype=GROUP)[0]
        words = np.frombuffer(view[: (_RECORD + FILES_WORDS) * 8], dtype=np.int64)
        if int(header["kind"]) != KIND_GROUP or int(words[_RECORD]) & KIND_MASK != KIND_FILES:
            return ""
        name = spool_name(int(words[_RECORD + 2]))
        if not is_durable(name):
            return f"REDO group {int(header['sequence'])} refers to {name} before that is durable"
        self._referred[name] = int(header["lsn"])
        return ""

    def write_fault(self, name: str) -> str:
        """What is wrong with a write to a file, empty if nothing is."""
        return f"write to {name}, to which the log refers" if name in self._referred else ""

    def unlink_fault(self, name: str, tail: int | None) -> str:
        """What is wrong with removing a file while the log's tail is at an LSN, empty if nothing is."""
        lsn = self._referred.get(name)
        if lsn is None or (tail is not None and lsn < tail):
            return ""
        return f"unlink of {name}, to which the log refers at LSN {lsn}, while its tail is at {tail}"
