"""Rule O9 of the order monitor: what may be written into the ring of the UNDO log, and when.

Groups say their own position, so nothing has to be guessed: a write that begins with a group's header is a new group;
any other is the rest of one, or the zeroing of the block behind the end by a restart.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import numpy as np

from tidemark.engine.disk.disk_layout import UNDO_GROUP
from tidemark.engine.files.protocol import RawFiles
from tidemark.engine.sealed.sealed_layout import KIND_UNDO_GROUP

_UNDO = re.compile(r"undo/\d+\.undo")


@functools.cache
def is_undo_name(name: str) -> bool:
    """Whether a file is one of the ring."""
    return _UNDO.fullmatch(name) is not None


class UndoOrder:
    """Follows the writes of groups; `sizes` are measured anew after files were made or removed."""

    def __init__(self) -> None:
        self.tail: int | None = None  # of a log that was opened; a restart makes its end firm before
        self.sizes: dict[str, int] = {}
        self._continued: tuple[str, int] | None = None
        self._unsynced: set[tuple[str, int]] = set()

    def measure(self, disk: RawFiles) -> None:
        """Learn the ring's files."""
        if not self.sizes:
            names = [f"undo/{leaf}" for leaf in disk.names("undo") if is_undo_name(f"undo/{leaf}")]
            self.sizes = {name: disk.size_of(name) for name in sorted(names)}

    def fault(self, name: str, offset: int, view: memoryview, unsynced: Callable[[], list[str]]) -> str:
        """What is wrong with this write, empty if nothing is. unsynced: which files of the ring are not durable."""
        place = f"UNDO write at {name} {offset}+{view.nbytes}"
        if (name, offset) != self._continued and (name, offset) not in self._unsynced:
            waiting = unsynced()
            if waiting:
                return f"{place} while {waiting[0]} is unsynced"
        if view.nbytes < UNDO_GROUP.itemsize:
            return ""
        header = np.frombuffer(view[: UNDO_GROUP.itemsize], dtype=UNDO_GROUP)[0]
        names = sorted(self.sizes)
        capacity = sum(self.sizes.values())
        start = sum(self.sizes[each] for each in names[: names.index(name)]) + offset
        if int(header["kind"]) != KIND_UNDO_GROUP or int(header["position"]) % capacity != start:
            return ""
        end = int(header["position"]) + int(header["words"]) * 8
        is_over = self.tail is not None and end > self.tail + capacity
        return f"{place} ends at {end}, over the tail at {self.tail}" if is_over else ""

    def begun(self, name: str, offset: int) -> None:
        """The write is on its way; after a signal the same bytes go to the same place again."""
        self._unsynced.add((name, offset))

    def written(self, name: str, offset: int, done: int, is_short: bool) -> None:
        """So much of the write was done."""
        end = offset + done
        names = sorted(self.sizes)
        if end < self.sizes.get(name, 0):
            self._continued = (name, end) if is_short else None
        else:
            self._continued = (names[(names.index(name) + 1) % len(names)], 0) if names else None

    def synced(self) -> None:
        """Everything written so far is durable."""
        self._unsynced.clear()
