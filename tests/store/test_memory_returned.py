"""A store's memory is freed with the last reference to it, without the collector of cycles."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import let_read_ahead_end, open_memory
from tidemark.engine.base.owner import call_owner
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def worked(files: Any, storage: str) -> Any:
    """A store that has used every feature once."""
    db = open_memory(files)
    table = db.create_table("x", [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(500), storage=storage)], "id")
    table.insert_many([(key, "q" * 400) for key in range(500)])
    with pytest.raises(tm.DuplicateKey):
        table.insert((3, "z"))
    with db.transaction() as txn:
        txn.update("x", 4, {"v": "k"})
    with pytest.raises(tm.RowNotFound), db.transaction() as txn:
        txn.update("x", 1_000, {"v": "k"})
    assert len(list(table.scan())) == len(table.to_arrow()) == 500
    db.checkpoint()
    assert db.check()["problems"] == []
    db.create_table("y", [tm.Column("id", tm.Int64), tm.Column("v", tm.Text, storage=storage)], "id")
    db.drop_table("y")
    return db


def close(db: Any) -> None:
    db.close()


def leave(db: Any) -> None:
    """As tests of crashes do. A load under way holds the store until it ends."""
    let_read_ahead_end(db.parts.store)


@pytest.mark.parametrize("end", [close, leave])
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_memory_of_a_store_is_free_when_its_last_reference_is_gone(storage: str, end: Callable[[Any], None]) -> None:
    # Story: store and log, page cache and read-ahead, tablespaces and caches held each other. Hundreds of megabytes of
    # arena stayed until the collector ran, and programs that open many stores ran out of memory.
    files = MemoryFiles()
    db = worked(files, storage)
    for _ in range(2):
        arena = weakref.ref(db.parts.store.mem)
        end(db)
        del db
        assert arena() is None
        files = files.kill()
        db = open_memory(files)  # replays the log
        assert len(db["x"]) == 500
    db.close()


PROGRAM = """
import gc, sys, threading, weakref
gc.disable()
import tidemark as tm
directory, storage = sys.argv[1:]
with tm.open(directory, data_memory="64 MiB", redo_log="8 MiB", undo_log="4 MiB", page_buffer="1 MiB") as db:
    table = db.create_table("x", [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(500), storage=storage)], "id")
    table.insert_many([(key, "q" * 400) for key in range(5_000)])
    assert len(list(table.scan())) == 5_000
    db.checkpoint()
    assert db.check()["problems"] == []
    arena = weakref.ref(db.parts.store.mem)
del db, table
assert arena() is None
assert threading.enumerate() == [threading.main_thread()]
for _ in range(2):
    with tm.open(directory, read_only=True) as view:
        assert len(list(view["x"].scan(["id"]))) == 5_000
    del view
ROOMS = ("tidemark.engine.store.store", "tidemark.engine.memory.arena")
assert not [found for found in gc.get_objects() if type(found).__module__ in ROOMS]
print("free")
"""


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_memory_of_a_store_with_threads_and_socket_is_free_after_close(storage: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "store"), storage]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.stdout == "free\n", done.stderr


def test_call_of_an_owner_that_is_gone_says_so_and_holds_nothing() -> None:
    class Owner:
        def double(self, number: int) -> int:
            return 2 * number

    owner = Owner()
    held = weakref.ref(owner)
    double = call_owner(owner.double)
    assert double(4) == double(number=4) == 8
    del owner
    assert held() is None
    with pytest.raises(tm.StoreClosed):
        double(4)
