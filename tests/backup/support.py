"""Backups of stores in memory into places in memory, and stores made of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

import tidemark as tm
from tests.load.support import NAME, published, rows
from tests.load.support import new_store as load_store
from tests.store.support import SMALL, open_memory
from tidemark.engine.access import snapshot_reads
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.queries import column_scans
from tidemark.recovery.backup import writer as writer_room
from tidemark.recovery.backup.archive import Archiver
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.restore import Restore, RestoreSettings
from tidemark.recovery.backup.segments import Until
from tidemark.recovery.backup.writer import BackupWriter
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

HIDDEN = [tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
Tables = dict[str, list[tuple[Any, ...]]]
Contents = dict[str, bytes]
ROOM: dict[str, Any] = {"data_memory": "32 MiB", "redo_log": "8 MiB", "transaction_memory": "64 KiB"}
DISK = "test.d"


def take(db: Any, place: Any, incremental: bool = False, **how: Any) -> dict[str, Any]:
    """A backup, as `db.backup` makes it."""
    opened = db.parts.opened
    timeline = opened.keeper.content.timeline
    writer = BackupWriter(db.parts.store, place, opened.identity, timeline, **how)
    return asdict(writer.run(incremental))


def archived(db: Any, place: Any) -> Archiver:
    """The archive of a store, with every closed segment copied."""
    content = db.parts.opened.keeper.content
    about = (content.geometry, db.parts.opened.identity, content.timeline)
    archive = Archiver(db.parts.store, db.parts.files, *about, "the place", lambda: place)
    archive.copy()
    return archive


def restored(
    place: Any, until: int | None = None, number: int | None = None, how: RestoreSettings | None = None, **options: Any
) -> MemoryFiles:
    """Restore a store and return its files; no store is open on them."""
    files = MemoryFiles()
    merged = Options.from_keywords({**SMALL, **options})
    plan = make_plan(place, Until(epoch=until), number)
    Restore(place, plan, files, merged, ManualClock(), how or RestoreSettings()).run()
    return MemoryFiles.from_snapshot(files.snapshot())


def content(source: Any) -> Tables:
    """Every row of every table of a store or snapshot, with ROWID, epoch, author and fragment."""
    found: Tables = {}
    for name in source.tables():
        columns = [*HIDDEN, *(column.name for column in source[name].definition.columns)]
        found[name] = sorted(
            (tuple(row) for row in source[name].scan(columns=columns)), key=lambda row: (row[3], row[0])
        )
    return found


def content_of(files: MemoryFiles, **options: Any) -> Tables:
    """The content of a store after a normal restart; a check must find it sound."""
    db = open_memory(MemoryFiles.from_snapshot(files.snapshot()), **options)
    try:
        assert db.check()["problems"] == []
        return content(db)
    finally:
        db.close()


def whole_place() -> tuple[Contents, Tables]:
    """Files of a full backup, an incremental one, archived log with a spooled transaction and a load; what they restore
    to.
    """
    db, files = load_store(**ROOM), MemoryFiles()
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.VarChar(20))]
    columns.append(tm.Column("d", tm.Int64, nullable=True, storage="disk"))
    db.create_tablespace("pages", page_size="4 KiB", extent="64 KiB", size="256 KiB")
    db.create_table(DISK, columns, "id", tm.HashPartition(1), tablespace="pages")
    archive = archived(db, files)
    db[NAME].insert_many(rows(0, 12))
    db[DISK].insert_many([(key, f"n{key}", key) for key in range(10)])
    take(db, files)
    db[NAME].delete(3)
    db[DISK].update(4, {"d": -4})
    take(db, files, incremental=True)
    archive.copy()
    db[NAME].insert_many(rows(100, 3))
    with db.transaction() as txn:
        txn.insert_many(DISK, [(key, "s", None) for key in range(1_000, 2_500)])
    assert db.status()["spool"]["committed"] == 1
    db.adopt(published(db, rows(200, 6)))
    db.sync()
    archive.copy()
    want = content(db)
    db.close()
    return {name: text for name, text in files.snapshot().items() if name != "LOCK" and not name.endswith("/")}, want


def small_batches(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let a backup read so many rows at a time, on each of its ways."""
    for room in (writer_room, column_scans, snapshot_reads):
        monkeypatch.setattr(room, "SCAN_BATCH_ROWS", rows)
