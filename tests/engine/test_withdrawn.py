"""Structures that are withdrawn between two calls of kernels: readers find them gone, and never another one's memory.

Each test holds one thread at the place where the interpreter may switch anyway, between two calls, and lets another
thread drop what the first is about to use.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.elsewhere import at_once, elsewhere
from tidemark.engine.access import disk_reading, snapshot_reads
from tidemark.engine.access import disk_reads_kernels as disk_reads
from tidemark.engine.access.reads_kernels import read_rows
from tidemark.engine.access.versions_reads_kernels import scan_rows
from tidemark.engine.disk.space_kernels import tablespace_of
from tidemark.engine.index.tree_scans_kernels import tree_estimate
from tidemark.engine.index.unique_check_kernels import unique_counters
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory import handles_kernels as handles
from tidemark.engine.memory.arena import NOTHING, address_of, next_handle
from tidemark.engine.memory.handles_kernels import descriptor_word, withdraw
from tidemark.engine.queries import program_scans
from tidemark.engine.table.setup_kernels import drop_fragment_pages
from tidemark.engine.txn.operations_kernels import touch_rows
from tidemark.handles import TableHandle

RANGES = [("a", 100), ("b", 200), ("c", 300)]
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("k", tm.Int64)]


@contextmanager
def store_at(path: Path) -> Iterator[tm.Database]:
    """A store with a table `t` of three ranges, 300 rows."""
    with tm.open(path, data_memory="32 MiB", page_buffer="256 KiB", background=False) as db:
        db.create_table("t", COLUMNS, primary_key="id", partition=tm.RangePartition("id", RANGES))
        db["t"].insert_many({"id": list(range(300)), "k": list(range(300))})
        yield db


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    """Such a store."""
    with store_at(tmp_path / "store") as db:
        yield db


def before_first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, work: Callable[[], Any]) -> None:
    """Let another thread do `work` on the way into the first call of a function."""
    real, done = getattr(owner, name), []

    def call(*arguments: Any) -> Any:
        if not done:
            done.append(True)
            elsewhere(work)
        return real(*arguments)

    monkeypatch.setattr(owner, name, call)


def refill(db: tm.Database, columns: list[tm.Column]) -> None:
    """Drop the first range, and give its memory to another table of many fragments. One of them takes over its
    descriptor: the descriptor that `spare` returned last goes to that table itself.
    """
    db.create_table("spare", columns, primary_key="id")
    (gone,) = db.parts.store.tables.named("t").fragments[:1]
    db.drop_partition("t", "a")
    db.drop_table("spare")
    db.create_table("new", columns, primary_key="id", partition=tm.HashPartition(64))
    assert address_of(gone) in map(address_of, db.parts.store.tables.named("new").fragments)
    db["new"].insert_many({"id": list(range(900_000, 902_000)), "k": list(range(2_000))})


def test_scan_by_an_index_that_no_commit_maintains_any_more_ends(db: tm.Database, monkeypatch: Any) -> None:
    """Story: `drop_index` took the tree from the list that commits maintain, and marked it after its record was synced:
    a scan begun before gave rows at old places, out of order, and once the pages were another table's, rows of that.
    """
    db.create_index("t", "by_k", ("k",))
    rows = iter(db["t"].scan(index="by_k"))
    next(rows)
    store = db.parts.store
    seen: list[Any] = []

    def beside() -> None:
        db["t"].delete_many(list(range(256, 300)))
        try:
            seen.extend(tuple(row) for row in rows)
        except tm.NoSuchIndex as error:
            seen.append(error)

    before_first(monkeypatch, store.log, "wait", beside)
    db.drop_index("t", "by_k")
    assert isinstance(seen[-1], tm.NoSuchIndex), seen[-3:]
    assert all(row[0] == row[1] for row in seen[:-1])


def test_lookup_in_a_unique_index_that_is_being_dropped_finds_it_gone(db: tm.Database, monkeypatch: Any) -> None:
    """Story: as the scan; a lookup with locks could even write into a row that was another table's by then."""
    db.create_index("t", "once_k", ("k",), unique=True)
    met: list[Exception] = []

    def beside() -> None:
        with pytest.raises(tm.NoSuchIndex) as found:
            db["t"].get(7, index="once_k")
        met.append(found.value)
        with pytest.raises(tm.NoSuchIndex), db.transaction() as txn:
            txn.get("t", 7, index="once_k", lock="exclusive")

    index = db.parts.store.tables.named("t").uniques["once_k"]
    before_first(monkeypatch, db.parts.store.log, "wait", beside)
    monkeypatch.setattr(type(db.parts.store.tables.named("t")), "unique", lambda self, name: index)
    db.drop_index("t", "once_k")
    assert met


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_scan_of_a_partition_whose_memory_is_another_tables_gives_none_of_its_rows(
    db: tm.Database, monkeypatch: Any, storage: str
) -> None:
    """Story: between the look at the partitions and the kernel the fragment was freed and given to another table: the
    scan gave 24 rows of that one; of disk columns the address was kept over whole reads of pages.
    """
    columns = [tm.Column("id", tm.Int64), tm.Column("k", tm.Int64, storage=storage)]
    if storage == "disk":
        db.drop_table("t")
        db.create_tablespace("main", size="1 MiB", page_size="4 KiB", extent="32 KiB")
        db.create_table("t", columns, primary_key="id", partition=tm.RangePartition("id", RANGES))
        db["t"].insert_many({"id": list(range(300)), "k": list(range(300))})
        before_first(monkeypatch, disk_reading.Gatherer, "run", lambda: refill(db, columns))
    else:
        before_first(monkeypatch, snapshot_reads, "scan_rows", lambda: refill(db, columns))
    rows = [tuple(row) for row in db["t"].scan()]
    assert rows == [(key, key) for key in range(100, 300)]


@pytest.mark.parametrize("name", ["scan_program", "scan_filter"])
def test_sums_skip_a_partition_that_was_dropped_meanwhile(db: tm.Database, monkeypatch: Any, name: str) -> None:
    before_first(monkeypatch, program_scans, name, lambda: refill(db, COLUMNS))
    where = tm.col("k") >= 0 if name == "scan_filter" else tm.col("k") + 0 >= 0
    assert db["t"].scan(where=where).sum("k") == sum(range(100, 300))


def test_calls_on_a_table_that_is_dropped_on_the_way_find_it_gone(db: tm.Database, monkeypatch: Any) -> None:
    """Story: a check of the table, then a kernel on the table's address: `drop_table` came between."""
    table = db.parts.store.tables.named("t")
    db.drop_table("t")
    monkeypatch.setattr(type(table), "is_dropped", False)
    mem, out, key = db.parts.store.mem, np.zeros(64, dtype=np.int64), (np.array([7]), NOTHING, 1, 0, 1)
    assert read_rows(mem, table.handle, 0, 0, NOTHING, *key, out, out, out) == a.ST_DROPPED
    assert table.count() == 0
    with db.transaction() as txn:
        assert touch_rows(mem, table.handle, txn.desc, txn.buf, *key, a.MODE_LOCK, NOTHING) == a.ST_DROPPED
    handle = TableHandle(db.parts.store, table)
    for call in (
        lambda: handle[7],
        lambda: handle.get_many([7]),
        lambda: handle.insert((7, 7)),
        lambda: handle.delete(7),
    ):
        with pytest.raises(tm.NoSuchTable):
            call()


def test_user_that_leaves_while_a_partition_is_dropped_is_not_waited_for(db: tm.Database, monkeypatch: Any) -> None:
    """Story: the users of a dropped object were read first, and the entry made afterwards. A transaction that ended
    between the two found nothing to leave, and the dropped partition was kept for ever.
    """
    store = db.parts.store
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        with db.transaction() as txn:
            txn.update("t", 150, {"k": 1_000})
            begun.set()
            over.wait()

    worker = threading.Thread(target=work)
    worker.start()
    begun.wait()

    class Looked(dict[int, Any]):
        """by_slot: the first look at the open transactions lets one end before it continues."""

        def values(self) -> Any:
            found = list(super().values())
            over.set()
            worker.join()
            return found

    monkeypatch.setattr(store.locks, "by_slot", Looked(store.locks.by_slot))
    db.drop_partition("t", "a")
    assert store.users.dropped == []


def test_pin_released_by_a_finalizer_under_the_latch_waits_for_nothing(db: tm.Database) -> None:
    """Story: a generator that a collection of garbage ends closes its snapshot; in the middle of a change of the schema
    that waited for the latch of its own thread.
    """
    store = db.parts.store

    def shown() -> Iterator[int]:
        with db.snapshot() as snapshot:
            yield len(list(snapshot["t"].scan()))

    reader: Any = shown()
    assert next(reader) == 300
    db.drop_partition("t", "a")
    assert len(store.users.dropped) == 1
    with store.schema.latch:
        del reader
        gc.collect()
        assert len(store.users.dropped) == 1
    db["t"].delete(250)  # the next to leave
    assert store.users.dropped == []


def test_withdrawn_handle_is_refused_for_good(db: tm.Database) -> None:
    """The block comes again as a descriptor, of whatever kind, and never with a handle it had."""
    store = db.parts.store
    mem, seen = store.mem, set()
    for turn in range(30):
        name = f"x{turn}"
        db.create_table(name, COLUMNS, primary_key="id")
        table = store.tables.named(name)
        if turn % 3 == 0:
            db.create_index(name, "i", ("k",), unique=turn % 2 == 0)
            seen.add(store.tables.named(name).parts_of("i")[0].tree.handle)
        seen |= {table.handle, *table.fragments}
        db.drop_table(name)
        assert all(descriptor_word(mem, handle, 0) == a.ST_DROPPED for handle in seen)
    assert len(seen) == 160
    assert len({address_of(handle) for handle in seen}) < 10, "blocks are used again"


def test_block_whose_generations_are_used_up_is_not_used_again(db: tm.Database) -> None:
    store = db.parts.store
    db.create_table("x", COLUMNS, primary_key="id")
    table = store.tables.named("x")
    at = address_of(table.handle)
    store.mem[at + a.D_GENERATION] = a.GENERATION_MAX - 2
    object.__setattr__(table, "handle", (a.GENERATION_MAX - 2) << a.HANDLE_BLOCK_BITS | at >> a.BLOCK_SHIFT)
    assert table.handle > 0 and len(db["x"]) == 0
    db.drop_table("x")
    for turn in range(20):
        db.create_table(f"y{turn}", COLUMNS, primary_key="id")
        made = store.tables.named(f"y{turn}")
        assert at not in map(address_of, [made.handle, *made.fragments])


def test_only_the_next_handle_gives_memory_back(db: tm.Database) -> None:
    """What is withdrawn stays where it is until the thread that withdrew it has given it back."""
    store = db.parts.store
    table = store.tables.named("t")
    fragment = table.fragments[0]
    assert withdraw(store.mem, fragment) == a.OK
    assert withdraw(store.mem, fragment) == a.ST_DROPPED
    state, out = np.zeros(3, dtype=np.int64), np.zeros(4_096, dtype=np.int64)
    assert scan_rows(store.mem, fragment, 0, 0, NOTHING, 1, 100, out, out[:100].copy(), state) == a.ST_DROPPED
    assert tree_estimate(store.mem, fragment, out, out) == a.ST_DROPPED
    assert drop_fragment_pages(store.mem, fragment, 0) == a.ST_DROPPED
    assert descriptor_word(store.mem, next_handle(fragment), a.F_ROWS) == 100
    table.by_number[0] = next_handle(fragment)  # as it was, for the close


def test_words_of_descriptors_equal_those_in_the_arena(db: tm.Database) -> None:
    store = db.parts.store
    db.create_tablespace("main", size="1 MiB", page_size="4 KiB", extent="32 KiB")
    db.create_table("d", [tm.Column("id", tm.Int64), tm.Column("x", tm.Int64, storage="disk")], primary_key="id")
    db.create_index("t", "once_k", ("k",), unique=True)
    mem, tree = store.mem, store.tables.named("t").uniques["once_k"].tree
    every = [
        store.tables.named("t").handle,
        *store.tables.named("t").fragments,
        tree.handle,
        *store.tables.named("d").fragments,
    ]
    for handle in every:
        at, words = address_of(handle), np.zeros(a.BLOCK_WORDS, dtype=np.int64)
        assert handles.descriptor_words(mem, handle, 0, words) == a.OK
        assert words.tolist() == mem[at : at + a.BLOCK_WORDS].tolist()
        assert [descriptor_word(mem, handle, word) for word in range(40)] == words[:40].tolist()
    assert handles.sum_words(mem, np.array(every[1:4]), a.F_ROWS) == 300 == tree.counters()["entries"]
    assert handles.set_descriptor_word(mem, every[1], a.F_CAPTURE, 2) == a.OK
    assert mem[address_of(every[1]) + a.F_CAPTURE] == 2
    fragment, space = every[-1], store.space.named("main")
    assert tablespace_of(mem, fragment) == space.definition.tablespace_id
    assert 400 < disk_reads.chunk_words_of(mem, fragment) < 4_096 // 8
    db.drop_table("t")
    db.drop_table("d")
    for handle in every:
        assert handles.descriptor_words(mem, handle, 0, np.zeros(3, dtype=np.int64)) == a.ST_DROPPED
        assert handles.set_descriptor_word(mem, handle, 0, 7) == a.ST_DROPPED
    assert handles.sum_words(mem, np.array(every), a.F_ROWS) == 0
    assert tablespace_of(mem, fragment) == disk_reads.chunk_words_of(mem, fragment) == a.ST_DROPPED
    assert unique_counters(mem, tree.handle, np.zeros(4, dtype=np.int64)) == a.ST_DROPPED


def test_transaction_ids_of_threads_are_never_past_what_is_said_to_be_given(db: tm.Database) -> None:
    """Story: the newest id was noted after it was taken: of two threads the slower one let it go back, and a group of
    the log said of an id in it that no group up to here had it.
    """
    store = db.parts.store
    given: list[int] = []
    start = threading.Barrier(4)

    def take(_: int) -> None:
        start.wait()
        for _ in range(3_000):
            txid = store.resources.next_txid()
            given.append(txid)
            assert store.resources.txid_limit() > txid

    at_once(take, range(4))
    assert len(set(given)) == 12_000 and max(given) == store.resources.txid_limit() - 1
