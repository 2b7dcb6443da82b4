"""Every file that a store has opened is closed with it, at the latest.

Story: mutants of the restart and of the making of logs left files open, and no test saw it; a process that opens many
stores would run out of descriptors.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.files.durable_files import copy_file
from tidemark.engine.log.geometry import Geometry, create_files, open_files
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

OPTIONS: dict[str, Any] = {"redo_log": "8 MiB", "undo_log": "16 MiB", "transaction_memory": "1 MiB"}


class Counted(MemoryFiles):
    """Knows which of its files are open."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.held: list[Any] = []

    def open(self, *given: Any, **named: Any) -> Any:
        file = super().open(*given, **named)
        self.held.append(file)
        return file

    def create(self, *given: Any, **named: Any) -> Any:
        file = super().create(*given, **named)
        self.held.append(file)
        return file

    def close(self, file: Any) -> None:
        self.held.remove(file)
        super().close(file)

    def names(self) -> list[str]:
        """Of the open files."""
        return sorted(file.name for file in self.held)


def work(db: Any, storage: str) -> None:
    """Rows small and spooled, a local checkpoint, and rows after it."""
    if storage == "disk":
        db.create_tablespace("main", "4 MiB", extent="256 KiB")
    columns = [*ACCOUNT, tm.Column("more", tm.VarChar(40), nullable=True, storage=storage)]
    db.create_table("t", columns, primary_key="id")
    db.create_index("t", "by_owner", ("owner",))
    db["t"].insert_many([(number, "a", 1.0, "n" * 90, "m") for number in range(6_000)])
    db.checkpoint()
    db["t"].insert((6_000, "b", 1.0, None, None))
    db.sync()


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_closed_store_has_no_file_open(storage: str) -> None:
    files = Counted()
    db = open_memory(files, **OPTIONS)
    work(db, storage)
    assert any(name.startswith("redo/") for name in files.names())
    db.close()
    assert files.names() == []
    # As the store was closed, for readers and for writers, and as a power loss left it.
    crashed = open_memory(MemoryFiles.from_snapshot(files.snapshot()), **OPTIONS)
    crashed["t"].insert((7_000, "b", 1.0, None, None))
    crashed.sync()
    view_files = Counted.from_snapshot(files.snapshot())
    view = tm.ReadOnlyDatabase(view_files, Options.from_keywords({"data_memory": "32 MiB"}), ManualClock())
    assert len(view["t"]) == 6_000, "as of the local checkpoint"
    view.close()
    assert view_files.names() == []
    for contents in (files.snapshot(), crashed.parts.files.crash(random.Random(1)).snapshot()):
        again = Counted.from_snapshot(contents)
        db = open_memory(again, **OPTIONS)
        assert len(db["t"]) >= 6_001
        db.close()
        assert again.names() == []


@pytest.mark.parametrize("trouble", ["missing", "short"])
def test_log_with_a_file_that_cannot_be_used_leaves_none_open(trouble: str) -> None:
    """Story: the third file of a log was missing. The first two, opened before, stayed open."""
    files, geometry = Counted(), Geometry(1 << 16, 4)
    create_files(files, geometry)
    if trouble == "missing":
        files.unlink(geometry.name(2))
    else:
        file = files.open(geometry.name(2), True)
        files.truncate(file, 512)
        files.close(file)
    with pytest.raises(tm.FileMissing if trouble == "missing" else tm.FileTruncated):
        open_files(files, geometry, False)
    assert files.names() == []


@pytest.mark.parametrize("trouble", ["missing source", "target exists"])
def test_copy_that_cannot_begin_leaves_no_file_open(trouble: str) -> None:
    """Story: the target of a copy could not be created, and its source stayed open."""
    files, target = Counted.from_snapshot({"here": b"a" * 600}), Counted.from_snapshot({"there": b""})
    with pytest.raises(tm.FileMissing if trouble == "missing source" else tm.Rejected):
        copy_file(files, "gone" if trouble == "missing source" else "here", target, "there", 600)
    assert files.names() == target.names() == []
    assert copy_file(files, "here", target, "new", 700) == 600
    assert target.snapshot()["new"] == b"a" * 600
    assert files.names() == target.names() == []
