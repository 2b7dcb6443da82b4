"""Stores with a binlog, backed up, and stores made of the backup and the binlog."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import tidemark as tm
from tests.replication.site import open_site
from tests.store.support import SMALL, open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.backup.plan import Plan, make_plan
from tidemark.recovery.backup.restore import Restore, RestoreSettings
from tidemark.recovery.backup.segments import Until
from tidemark.recovery.backup.writer import BackupWriter
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.injector.binlog_restore import RestoreBinlog

HIDDEN = [tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]
SYSTEM = ("mysql.ndb_apply_status", "mysql.ndb_schema")
ROOM: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "8 MiB",
    "undo_log": "8 MiB",
    "page_buffer": "512 KiB",
}
Tables = dict[str, list[tuple[Any, ...]]]


def new_site(files: Any = None, **options: Any) -> Any:
    """A store whose binlog records the full effect of every change."""
    return open_site(files, **{**ROOM, "log_empty_update": True, "log_gtids": True, **options})


def backed_up(db: Any, place: Any, incremental: bool = False) -> dict[str, Any]:
    """A backup that records the identity of its store."""
    opened = db.parts.opened
    db.sync()
    if db.binlog is not None:
        db.binlog.write_closed_epochs()  # and with them rows of ndb_schema
    writer = BackupWriter(
        db.parts.store, place, opened.identity, opened.keeper.content.timeline, db.parts.values["server_id"] or 0
    )
    return asdict(writer.run(incremental))


def noted(db: Any, history: dict[int, Tables]) -> int:
    """Close the epoch, and keep the content of the store at its end; an epoch without logged changes counts under the
    last one.
    """
    db.sync()
    db.binlog.write_closed_epochs()
    epoch = int(db.binlog.newest_epoch)
    history[epoch] = content(db)
    return epoch


def files_of(db: Any) -> MemoryFiles:
    """Files of an open store as they are now."""
    db.binlog.write_closed_epochs()
    return MemoryFiles.from_snapshot(db.parts.files.snapshot())


def log_of(source: Any) -> RestoreBinlog:
    """The binlog of an open store, or in files."""
    return RestoreBinlog(source if isinstance(source, MemoryFiles) else files_of(source), "binlog")


def planned(place: Any, source: Any, until: int | None = None, wall_us: int | None = None) -> Plan:
    """The plan of a restore with the binlog of a store."""
    return make_plan(place, Until(epoch=until, wall_us=wall_us), None, log_of(source))


def run(files: Any, place: Any, source: Any, **where: Any) -> dict[str, Any]:
    """Restore into some files; the report. where: `until`, `wall_us`, and options."""
    ends = {name: where.pop(name) for name in ("until", "wall_us") if name in where}
    log = log_of(source)
    plan = make_plan(place, Until(epoch=ends.get("until"), wall_us=ends.get("wall_us")), None, log)
    options = Options.from_keywords({**SMALL, **ROOM, **where})
    restoring = Restore(place, plan, files, options, ManualClock(), RestoreSettings(later=log))
    return asdict(restoring.run())


def restored(place: Any, source: Any, **where: Any) -> MemoryFiles:
    """Restore a store and return its files; no store is open on them."""
    files = MemoryFiles()
    run(files, place, source, **where)
    return MemoryFiles.from_snapshot(files.snapshot())


def content(source: Any) -> Tables:
    """Every row of every table of a store with epoch, author and fragment, and the values of tables of the system."""
    found: Tables = {}
    for name in [*source.tables(), *SYSTEM]:
        hidden = [] if name in SYSTEM else HIDDEN
        columns = [*(column.name for column in source[name].definition.columns), *hidden]
        found[name] = sorted((tuple(row) for row in source[name].scan(columns=columns)), key=repr)
    return found


def definitions(source: Any) -> dict[str, Any]:
    """The definitions of tables, without their numbers and versions."""
    return {
        name: (table.definition.columns, table.definition.primary_key, table.definition.indexes)
        for name, table in source.parts.store.tables.by_name.items()
        if not name.startswith("mysql.")
    }


def content_of(files: MemoryFiles, **options: Any) -> Tables:
    """The content of a store after a normal restart; a check must find it sound."""
    db = open_memory(MemoryFiles.from_snapshot(files.snapshot()), **{**ROOM, **options})
    try:
        assert db.check()["problems"] == []
        return content(db)
    finally:
        db.close()
