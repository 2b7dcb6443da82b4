"""Rule O9 of the order monitor: where and when the ring of the UNDO log may be written.

The header of a group has its position, so a write that begins with such a header is a new group. Any other write is the
rest of a group, or the block after the end of the log that a restart zeroes.
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
    """Whether a file belongs to the ring."""
    return _UNDO.fullmatch(name) is not None


class UndoOrder:
    """Follows the writes of groups; `sizes` are measured again after files were created or removed."""

    def __init__(self) -> None:
        self.tail: int | None = None  # of an opened log; a restart makes its end durable before
        self.sizes: dict[str, int] = {}
        self._continued: tuple[str, int] | None = None
        self._unsynced: set[tuple[str, int]] = set()

    def measure(self, disk: RawFiles) -> None:
        """Read names and sizes of the ring's files."""
        if not self.sizes:
            names = [f"undo/{leaf}" for leaf in disk.names("undo") if is_undo_name(f"undo/{leaf}")]
            self.sizes = {name: disk.size_of(name) for name in sorted(names)}

    def fault(self, name: str, offset: int, view: memoryview, unsynced: Callable[[], list[str]]) -> str:
        """Return the fault of this write, empty if there is none. unsynced: returns the unsynced files of the ring."""
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
        """Record that the write has begun; after a signal the same bytes go to the same place again."""
        self._unsynced.add((name, offset))

    def written(self, name: str, offset: int, done: int, is_short: bool) -> None:
        """Record that `done` bytes of the write were written."""
        end = offset + done
        names = sorted(self.sizes)
        if end < self.sizes.get(name, 0):
            self._continued = (name, end) if is_short else None
        else:
            self._continued = (names[(names.index(name) + 1) % len(names)], 0) if names else None

    def synced(self) -> None:
        """Record that everything written so far is durable."""
        self._unsynced.clear()
