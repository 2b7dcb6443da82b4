"""Backups of stores in memory into places in memory, and stores made of them."""

from __future__ import annotations

from typing import Any

import tidemark as tm
from tests.store.support import SMALL, open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.backup.archive import Archiver
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.restore import Restore, RestoreSettings
from tidemark.recovery.backup.segments import Until
from tidemark.recovery.backup.writer import BackupWriter
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

HIDDEN = [tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
Tables = dict[str, list[tuple[Any, ...]]]


def take(db: Any, place: Any, incremental: bool = False, **how: Any) -> dict[str, Any]:
    """A backup, as `db.backup` makes it."""
    opened = db.parts.opened
    timeline = opened.keeper.content.timeline
    writer = BackupWriter(db.parts.store, place, opened.identity, timeline, **how)
    return writer.run(incremental).to_dict()


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
