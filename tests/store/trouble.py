"""Proof that a refused call left a store as it was: rows, hidden columns, locks, reservations; now and
after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tidemark as tm
from tests.store.support import let_read_ahead_end, open_memory
from tidemark.engine.disk import cache_layout as c
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import F_DISK_EXTENTS, S_COPY_RESERVED, S_REDO_RESERVED, S_UNDO
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


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
    """Resources that operations take and must return, except memory that stays on free lists."""
    store = db.parts.store
    let_read_ahead_end(store)
    found = _disk_promises(store) if store.disk is not None and store.disk.is_started else {}
    return found | {
        "transactions": len(store.locks.by_slot),
        "shared": store.locks.counters()["shared"],
        "waiting": store.locks.counters()["waiting"],
        "redo": int(store.mem[S_REDO_RESERVED]),
        "copies": int(store.mem[S_COPY_RESERVED]),
    }


def after_crash(db: Any, **options: Any) -> dict[str, list[Any]]:
    """The content of a store opened on the files as they are now."""
    files: MemoryFiles = db.parts.files
    again = open_memory(MemoryFiles.from_snapshot(files.snapshot()), **options)
    found = dump(again)
    again.close()
    return found


def _disk_promises(store: Any) -> dict[str, Any]:
    mem = store.mem
    open_pages = []
    for table in store.tables.by_name.values():
        for fragment in table.fragments if table.format.has_disk else ():
            extent = int(mem[address_of(fragment) + F_DISK_EXTENTS])
            while extent:
                pages = mem[extent + c.EX_PAGES :][: int(mem[store.space.tablespaces()[0].address + c.TS_EXTENT_PAGES])]
                open_pages += [-int(word) for word in pages if word < 0]
                extent = int(mem[extent + c.EX_OWNED])
    caches = store.disk.caches.values()
    return {
        "pinned pages": sum(cache.counters()["pinned"] for cache in caches),
        "frames": sum(cache.reserved for cache in caches),
        "undo": int(mem[int(mem[S_UNDO]) + c.U_RESERVED]),
        "words on pages": sum(int(mem[each + c.OP_RESERVED]) for each in open_pages),
    }


@contextmanager
def nothing_happens(db: Any, error: type[tm.Error], reopen: bool = True, **options: Any) -> Iterator[Any]:
    """The block must raise exactly this class and leave rows and reservations as they were, here and after a crash."""
    before, promised, head = dump(db), promises(db), db.parts.store.log.head_lsn
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
    assert db.parts.store.log.head_lsn == head and not db.parts.store.log.has_records(), (
        "a refused call must log nothing"
    )
    if reopen:
        assert after_crash(db, **options) == before
