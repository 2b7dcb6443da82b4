"""Proof that a refused call left a store as it was: rows, hidden columns, locks, promises; now and after a crash."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tidemark as tm
from engine.file_doubles.memory import MemoryFiles
from engine.layout.arena import S_COPY_RESERVED, S_REDO_RESERVED
from tests.store.support import open_memory


def dump(db: Any) -> dict[str, list[Any]]:
    """Every row of every table with ROWID, epoch, author and fragment, in order."""
    found = {}
    for name in db.tables():
        names = [column.name for column in db[name].definition.columns]
        rows = db[name].to_arrow([*names, tm.ROWID, tm.EPOCH, tm.AUTHOR, tm.FRAGMENT]).to_pylist()
        found[name] = sorted((tuple(row.values()) for row in rows), key=repr)
        assert len(db[name]) == len(rows), f"{name} counts {len(db[name])} rows and shows {len(rows)}"
    return found


def promises(db: Any) -> dict[str, Any]:
    """What operations take and must give back, but for memory that stays on free lists."""
    store = db._store
    return {
        "transactions": len(store.locks.by_slot),
        "shared": store.locks.counters()["shared"],
        "waiting": store.locks.counters()["waiting"],
        "redo": int(store.mem[S_REDO_RESERVED]),
        "copies": int(store.mem[S_COPY_RESERVED]),
    }


def after_crash(db: Any, **options: Any) -> dict[str, list[Any]]:
    """What a store opened on the files as they are now shows."""
    files: MemoryFiles = db._files
    again = open_memory(MemoryFiles.from_snapshot(files.snapshot()), **options)
    found = dump(again)
    again.close()
    return found


@contextmanager
def nothing_happens(db: Any, error: type[tm.Error], reopen: bool = True, **options: Any) -> Iterator[Any]:
    """The block must raise exactly this class and leave rows and promises as they were, here and after a crash."""
    before, promised, head = dump(db), promises(db), db._store.log.head_lsn
    caught: list[tm.Error] = []
    try:
        yield caught
    except tm.Error as raised:
        caught.append(raised)
    assert caught, f"no {error.__name__} was raised"
    assert type(caught[0]) is error, f"{error.__name__} was due, got {caught[0]!r}"
    assert "\n" not in str(caught[0])
    assert dump(db) == before
    assert promises(db) == promised
    assert db._store.log.head_lsn == head and not db._store.log.has_records(), "a refused call must log nothing"
    if reopen:
        assert after_crash(db, **options) == before
