"""An UNDO log on a disk in memory, without a store around it, and the records it was given."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidemark.engine.disk.cache_layout import U_FREE, U_RESERVED
from tidemark.engine.disk.disk_layout import (
    UNDO_KIND_MASK,
    UNDO_MARK_WORDS,
    UNDO_RECORD_WORDS,
    UNDO_UPDATE,
    UNDO_WORDS_SHIFT,
)
from tidemark.engine.disk.undo import UndoLog
from tidemark.engine.disk.undo_kernels import append_undo, release_undo, reserve_undo, setup_undo, undo_region_words
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.engine.disk.undo_ring import UndoPosition, create_undo_files, undo_ring
from tidemark.engine.log.geometry import Geometry
from tidemark.engine.memory.arena_layout import OK
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

STORE = b"0123456789abcdef"
AT = 256  # the descriptor; transactions lie below
TRANSACTION = 64
NO_EPOCH = -1


@dataclass(frozen=True)
class Made:
    """A record as it was given to the log."""

    lsn: int
    kind: int
    values: tuple[int, ...]  # words 2 and on
    epoch: int = NO_EPOCH


def geometry_of(file_bytes: int = 1 << 17, file_count: int = 3) -> Geometry:
    return undo_ring(file_bytes, file_count)


class Undo:
    """A log in an arena of its own. `wrap` puts a double over the files."""

    def __init__(
        self,
        geometry: Geometry | None = None,
        buffer_words: int = 2_000,
        memory: MemoryFiles | None = None,
        position: UndoPosition | None = None,
        incarnation: int = 1,
        wrap: Any = None,
        is_filtering: bool = True,
    ) -> None:
        self.geometry = geometry or geometry_of()
        self.memory = memory or MemoryFiles()
        if memory is None:
            create_undo_files(self.memory, self.geometry)
        self.files = self.memory if wrap is None else wrap(self.memory)
        self.mem = np.zeros(AT + undo_region_words(buffer_words), dtype=np.int64)
        setup_undo(self.mem, AT, buffer_words)
        self.latch = threading.Lock()
        self.restorable = NO_EPOCH
        self.log = UndoLog(
            self.files,
            self.geometry,
            self.mem,
            self.latch,
            (STORE, incarnation),
            position or UndoPosition(),
            lambda: self.restorable,
            is_filtering,
        )
        self.made: list[Made] = []

    def append(self, kind: int, *piece: int, epoch: int = 1, reference: int = 7, owner: int = 9) -> Made:
        """A record into the active buffer, flushed before if it must be."""
        self.log.make_room(UNDO_RECORD_WORDS + len(piece))
        source = np.array(piece, dtype=np.int64)
        with self.latch:
            lsn = int(append_undo(self.mem, kind, reference, owner, epoch, source, 0, len(piece)))
            assert lsn > 0
            made = Made(lsn, kind, (reference, owner, epoch, *piece), epoch)
            self.made.append(made)
        return made

    def write(self, kind: int, *piece: int, epoch: int = 1) -> Made:
        """`append`, durable on return."""
        made = self.append(kind, *piece, epoch=epoch)
        self.log.flush_through(made.lsn)
        return made

    def mark(self, lcp_id: int, epoch: int) -> Made:
        """The UNDO_LCP record of a local checkpoint."""
        self.log.make_room(UNDO_MARK_WORDS)
        with self.latch:
            made = Made(self.log.mark_lcp(lcp_id, epoch), 6, (lcp_id, epoch, 0, 0))
            self.made.append(made)
        return made

    def promise(self, words: int, transaction: int = TRANSACTION) -> bool:
        return bool(reserve_undo(self.mem, transaction, words) == OK)

    def end(self, transaction: int = TRANSACTION) -> None:
        assert release_undo(self.mem, transaction) == OK

    @property
    def free(self) -> int:
        return int(self.mem[AT + U_FREE])

    @property
    def promised(self) -> int:
        return int(self.mem[AT + U_RESERVED])

    def filterable(self, made: Made) -> bool:
        return made.kind == UNDO_UPDATE and made.epoch <= self.restorable

    def after_power_loss(self) -> MemoryFiles:
        """The disk with only its synced data."""
        return self.memory.image(lambda piece: False)


def reader(files: MemoryFiles, geometry: Geometry, store: bytes = STORE) -> UndoReader:
    files.read_errors_latch = False
    return UndoReader(files, geometry, store, writable=True)


def read_backward(found: UndoReader) -> list[Made]:
    """Every record the reader yields, newest first."""
    records = []
    for group, offsets in found.backward():
        for at in offsets.tolist():
            word = int(group.words[at])
            kind, size = word & UNDO_KIND_MASK, word >> UNDO_WORDS_SHIFT
            values = tuple(int(each) for each in group.words[at + 2 : at + size])
            records.append(Made(int(group.words[at + 1]), kind, values, values[2] if kind <= 3 else NO_EPOCH))
    return records


def read(
    files: MemoryFiles, geometry: Geometry, sequence: int = 1, position: int = 0, needed: int = 0
) -> tuple[UndoReader, list[Made]]:
    """A reader that has found the end, and all records, oldest first."""
    found = reader(files, geometry)
    found.find_end(sequence, position, needed)
    return found, read_backward(found)[::-1]
