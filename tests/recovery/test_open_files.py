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
