"""Rule O15 of the order monitor: a group of the log refers to a spool file only after its content and entry are
durable. After that the file must not be written, and is removed only after the log was cut past the group (W1 to
W3). The same holds for load files (Q1 to Q3).

Such a group is the only one in its write, so the bytes of the write show the file to which it refers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.log.load_files import LoadFile
from tidemark.engine.log.redo_layout import (
    FILES_LOAD,
    GROUP_WORDS,
    KIND_FILES,
    KIND_MASK,
    LOAD_FILE_WORDS,
    LOAD_PLACE_WORDS,
    LOAD_WORDS,
    TRANSACTION_WORDS,
)
from tidemark.engine.log.spool_files import spool_name
from tidemark.engine.sealed.sealed_layout import KIND_GROUP

_RECORD = GROUP_WORDS + TRANSACTION_WORDS


def _names(record: NDArray[np.int64]) -> list[str]:
    if int(record[1]) != FILES_LOAD:
        return [spool_name(int(record[2]))]
    each_words = LOAD_FILE_WORDS + LOAD_PLACE_WORDS
    starts = [LOAD_WORDS + number * each_words for number in range(int(record[5]))]
    files = [[int(word) for word in record[start : start + LOAD_FILE_WORDS]] for start in starts]
    return [LoadFile(int(record[3]), int(record[4]), *file).name for file in files]


class SpoolOrder:
    """The files to which groups seen so far refer, and the LSN of each group."""

    def __init__(self) -> None:
        self._referred: dict[str, int] = {}

    def redo_fault(self, view: memoryview, is_durable: Callable[[str], bool]) -> str:
        """Return the fault of a write to the log, empty if there is none."""
        if view.nbytes < (_RECORD + LOAD_WORDS) * 8 or view.nbytes % 8:
            return ""
        header = np.frombuffer(view[: GROUP.itemsize], dtype=GROUP)[0]
        words = np.frombuffer(view, dtype=np.int64)
        if int(header["kind"]) != KIND_GROUP or int(words[_RECORD]) & KIND_MASK != KIND_FILES:
            return ""
        for name in _names(words[_RECORD:]):
            if not is_durable(name):
                return f"REDO group {int(header['sequence'])} refers to {name} before that is durable"
            self._referred[name] = int(header["lsn"])
        return ""

    def write_fault(self, name: str) -> str:
        """Return the fault of a write to a file, empty if there is none."""
        return f"write to {name}, to which the log refers" if name in self._referred else ""

    def unlink_fault(self, name: str, tail: int | None) -> str:
        """Return the fault of removing a file while the log's tail is at an LSN, empty if there is none."""
        lsn = self._referred.get(name)
        if lsn is None or (tail is not None and lsn < tail):
            return ""
        return f"unlink of {name}, to which the log refers at LSN {lsn}, while its tail is at {tail}"
