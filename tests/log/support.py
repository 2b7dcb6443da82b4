"""A REDO log on a disk in memory, without a store around it."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from tidemark.engine.base.clock import ManualClock
from tidemark.engine.log.geometry import Geometry, create_files
from tidemark.engine.log.group import Position
from tidemark.engine.log.reader import GroupRead, LogReader
from tidemark.engine.log.redo import RedoLog
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

STORE = b"0123456789abcdef"
BLOCK = 4_096
RANDOM = random.Random(4_711)


def patched(content: bytes, at: int, new: bytes) -> bytes:
    """The content with some bytes in place of those at an offset."""
    return content[:at] + new + content[at + len(new) :]


def any_bit(content: bytes, at: int, size: int) -> bytes:
    """The content with one bit of a range inverted."""
    place = at + RANDOM.randrange(size)
    return patched(content, place, bytes([content[place] ^ 1 << RANDOM.randrange(8)]))


# What may become of a group: of its file, its offset and its bytes there.
DAMAGE: dict[str, Callable[[bytes, int, int], bytes]] = {
    "zeroed": lambda content, at, size: patched(content, at, bytes(size)),
    "ones": lambda content, at, size: patched(content, at, b"\xff" * size),
    "any bit": any_bit,
    "header bit": lambda content, at, size: any_bit(content, at, 192),
    "last sector": lambda content, at, size: patched(content, at + size - 512, b"\x5a" * 512),
    "first sector of the last block": lambda content, at, size: patched(content, at + size - BLOCK, bytes(512)),
    "another group": lambda content, at, size: patched(content, at, content[:BLOCK]),  # of a right checksum (F55)
}


class Log:
    """A log that takes bare words for records."""

    def __init__(
        self,
        files: Any = None,
        file_bytes: int = 1 << 20,
        file_count: int = 3,
        memory: MemoryFiles | None = None,
        position: Position | None = None,
        unmade_count: int = 0,
    ) -> None:
        """memory, position: a disk that has the files already, and the position at which the log continues.
        unmade_count: files that the log lacks at first.
        """
        self.memory = memory or MemoryFiles()
        self.geometry = Geometry(file_bytes, file_count, unmade_count=unmade_count)
        if memory is None:
            create_files(self.memory, self.geometry)
        self.files = self.memory if files is None else files(self.memory)
        self.latch = threading.Lock()
        mem = np.zeros(4_096, dtype=np.int64)
        counter = itertools.count(1)
        identity = (STORE, 1)
        self.redo = RedoLog(
            self.files,
            self.geometry,
            mem,
            self.latch,
            ManualClock(),
            identity,
            lambda: next(counter),
        )
        self.redo.open(position or Position())

    def put(self, *values: int, words: int = 0) -> int:
        """Commit these words and `words` more; the ticket to wait for."""
        count = len(values) + words
        with self.latch:
            fill = self.redo.room(count)
            at = int(fill[0])
            fill[at : at + count] = 0
            fill[at : at + len(values)] = values
            fill[0] = at + count
            fill[1] += 1
            return self.redo.sequence

    def write(self, *values: int, words: int = 0) -> None:
        """`put`, durable on return."""
        self.redo.wait(self.put(*values, words=words))

    def place(self, lsn: int) -> tuple[str, int]:
        """Name and offset of an LSN."""
        number, offset, _, _ = self.geometry.pieces(lsn, 8)[0]
        return self.geometry.name(number), offset

    def after_power_loss(self) -> MemoryFiles:
        """The disk with only its synced data."""
        return self.memory.image(lambda piece: False)


def reader(files: MemoryFiles, geometry: Geometry, store: bytes = STORE, is_writing: bool = False) -> LogReader:
    files.read_errors_latch = False
    return LogReader(files, geometry, store, is_writing)


def read(files: MemoryFiles, geometry: Geometry, lsn: int = 0, sequence: int = 1) -> list[GroupRead]:
    """All groups from a position on."""
    return list(reader(files, geometry).groups(lsn, sequence))


def records(group: GroupRead) -> list[int]:
    """The words of a group's records that are not zero."""
    words = group.words[GROUP_WORDS : GROUP_WORDS + group.records_words]
    return [int(word) for word in words if word]
