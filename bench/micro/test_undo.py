"""The UNDO log: one record into the buffer, and flushing a full buffer to a real disk, filtered or not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tidemark.engine.disk.cache_layout import U_USED
from tidemark.engine.disk.disk_layout import UNDO_UPDATE
from tidemark.engine.disk.undo import UndoLog
from tidemark.engine.disk.undo_kernels import append_undo, setup_undo, undo_region_words
from tidemark.engine.disk.undo_ring import UndoPosition, buffer_words_of, create_undo_files, undo_geometry
from tidemark.engine.files.directory import PosixFiles

AT = 256
PIECE_WORDS = 33  # a row of 256 bytes and its back reference


def arena(buffer_words: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    mem = np.zeros(AT + undo_region_words(buffer_words), dtype=np.int64)
    setup_undo(mem, AT, buffer_words)
    return mem


def test_append_of_a_piece_of_256_bytes(benchmark: Any) -> None:
    mem = arena(1 << 18)
    piece = np.arange(PIECE_WORDS, dtype=np.int64)

    def append() -> int:
        mem[AT + U_USED] = 0
        return int(append_undo(mem, UNDO_UPDATE, 1, 2, 3, piece, 0, PIECE_WORDS))

    assert benchmark(append) >= 0


@pytest.mark.parametrize("restorable", [0, 9], ids=["nothing filtered", "everything filtered"])
def test_flush_of_a_full_buffer(benchmark: Any, tmp_path: Path, restorable: int) -> None:
    """2 MiB of records a round; MB/s in the extra information."""
    files = PosixFiles(tmp_path)
    geometry = undo_geometry(64 << 20)
    create_undo_files(files, geometry)
    words = buffer_words_of(geometry)
    mem = arena(words)
    latch = threading.Lock()
    log = UndoLog(files, geometry, mem, latch, (b"0123456789abcdef", 1), UndoPosition(), lambda: restorable)
    piece = np.arange(PIECE_WORDS, dtype=np.int64)
    sizes: list[int] = []

    def fill() -> None:
        before = log.counters()["bytes_made"]
        while append_undo(mem, UNDO_UPDATE, 1, 2, 3, piece, 0, PIECE_WORDS) > 0:
            pass
        sizes.append(log.counters()["bytes_made"] - before)
        with latch:
            log.set_tail(log.sequence, log.head)

    benchmark.pedantic(lambda: log.flush_through(1 << 60), setup=fill, rounds=40)
    assert log.counters()["records_filtered"] == (log.counters()["records_made"] if restorable else 0)
    benchmark.extra_info["MB/s"] = round(sizes[0] / benchmark.stats.stats.median / 1e6)
    log.close()
    files.close_all()
