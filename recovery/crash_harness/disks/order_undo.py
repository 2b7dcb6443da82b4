"""The rings of both logs for the order monitor, and its rule O9: where and when the UNDO log may be written.

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
    return _UNDO.fullmatch(name) is not None


class Ring:
    """The files of a log as one ring, and the writes to it that are not durable yet."""

    def __init__(self, folder: str, is_name: Callable[[str], bool]) -> None:
        self.sizes: dict[str, int] = {}  # by name, in order; measured again after files were created or removed
        self._folder = folder
        self._is_name = is_name
        self._continued: tuple[str, int] | None = None
        self._unsynced: set[tuple[str, int]] = set()

    def measure(self, disk: RawFiles) -> None:
        """Read names and sizes of the ring's files, unless they are known."""
        if not self.sizes:
            names = sorted(name for leaf in disk.names(self._folder) if self._is_name(name := f"{self._folder}/{leaf}"))
            # Assign all sizes at once: a signal may interrupt any of these calls.
            self.sizes = {name: disk.size_of(name) for name in names}

    @property
    def capacity(self) -> int:
        return sum(self.sizes.values())

    @property
    def is_pending(self) -> bool:
        """Whether there is a write that is not durable yet."""
        return bool(self._unsynced)

    def place(self, name: str, offset: int) -> int:
        """Return the place in the ring of an offset in one of its files."""
        names = list(self.sizes)
        return sum(self.sizes[each] for each in names[: names.index(name)]) + offset

    def is_new(self, name: str, offset: int) -> bool:
        """Whether a write is neither the rest of one that was short or crosses into the next file, nor a repetition at
        the same place after a signal.
        """
        return (name, offset) != self._continued and (name, offset) not in self._unsynced

    def begun(self, name: str, offset: int) -> None:
        """Record that a write has begun; after a signal the same bytes go to the same place again."""
        self._unsynced.add((name, offset))

    def written(self, name: str, offset: int, done: int, is_short: bool) -> None:
        """Record that `done` bytes of a write were written."""
        end = offset + done
        names = list(self.sizes)
        if end < self.sizes.get(name, 0):
            self._continued = (name, end) if is_short else None
        else:
            self._continued = (names[(names.index(name) + 1) % len(names)], 0) if names else None

    def synced(self) -> None:
        """Record that everything written so far is durable."""
        self._unsynced.clear()


class UndoOrder(Ring):
    """Follows the writes of UNDO groups."""

    def __init__(self) -> None:
        super().__init__("undo", is_undo_name)
        self.tail: int | None = None  # of an opened log; a restart makes its end durable before

    def fault(self, name: str, offset: int, view: memoryview, unsynced: Callable[[], list[str]]) -> str:
        """Return the fault of this write, empty if there is none. unsynced: returns the unsynced files of the ring."""
        place = f"UNDO write at {name} {offset}+{view.nbytes}"
        if self.is_new(name, offset):
            waiting = unsynced()
            if waiting:
                return f"{place} while {waiting[0]} is unsynced"
        if view.nbytes < UNDO_GROUP.itemsize:
            return ""
        header = np.frombuffer(view[: UNDO_GROUP.itemsize], dtype=UNDO_GROUP)[0]
        is_group = int(header["kind"]) == KIND_UNDO_GROUP
        if not is_group or int(header["position"]) % self.capacity != self.place(name, offset):
            return ""
        end = int(header["position"]) + int(header["words"]) * 8
        is_over = self.tail is not None and end > self.tail + self.capacity
        return f"{place} ends at {end}, over the tail at {self.tail}" if is_over else ""
