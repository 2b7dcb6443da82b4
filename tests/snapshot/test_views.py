"""What one call shows of commits beside it: one instant; and what a transaction sees of a large commit: all or nothing.

The oracle is a dictionary, copied when a scan begins.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.elsewhere import elsewhere
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tests.waiting import wait_until
from tidemark.engine.access import batch_operations, index_scans, snapshot_reads, unique_reads
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.queries import column_scans, conditions, key_columns, program_scans
from tidemark.engine.txn.transaction import Transaction
from tidemark.engine.txn.views import Views

COLUMNS = ["id", "k", "t", "d"]
LARGE = 3_000  # rows of a commit that is applied in slices


def made(on_disk: bool = False, partition: Any = None, **options: Any) -> tm.Database:
    """A store with a table t: by_k is ordered, by_t unique."""
    given = {"data_memory": "64 MiB", "redo_log": "64 MiB", "durability": "epoch", "lock_timeout_ms": 60_000}
    db = open_memory(clock=SystemClock(), **{**given, **options})  # type: ignore[arg-type]
    if on_disk:
        db.create_tablespace("main", size="8 MiB", page_size="4 KiB", extent="32 KiB")
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("k", tm.Int64),
        tm.Column("t", tm.VarChar(40), nullable=True),
        tm.Column("d", tm.Int64, storage="disk" if on_disk else "memory"),
    ]
    db.create_table("t", columns, primary_key="id", partition=partition)
    db.create_index("t", "by_k", ["k", "id"])
    return db


def row(rng: random.Random, key: int) -> tuple[Any, ...]:
    return key, rng.randrange(50), rng.choice([None, "", "x" * rng.randrange(40)]), rng.randrange(1_000)


def change(db: tm.Database, model: dict[int, tuple[Any, ...]], rng: random.Random) -> None:
    """Commit some changes of the table: a few, or so many that they are applied in slices."""
    kind = rng.randrange(8)
    with db.transaction() as txn:
        if kind == 0:
            txn.update_where("t", {"k": tm.col("k") + 1})
            model.update({key: (key, k + 1, t, d) for key, (_, k, t, d) in model.items()})
        elif kind == 1:
            border = rng.randrange(400)
            txn.delete_where("t", tm.col("id") < border)
            for key in [key for key in model if key < border]:
                del model[key]
        elif kind == 2:
            rows = [row(rng, key) for key in range(LARGE) if rng.random() < 0.5 and key not in model]
            txn.insert_many("t", rows)
            model.update({each[0]: each for each in rows})
        else:
            for _ in range(rng.randrange(1, 30)):
                key = rng.randrange(600)
                if key in model and rng.random() < 0.3:
                    txn.delete("t", key)
                    del model[key]
                else:
                    model[key] = row(rng, key)
                    txn.write("t", model[key])


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scans take few rows at a time."""
    for module in (snapshot_reads, column_scans, program_scans):
        monkeypatch.setattr(module, "SCAN_BATCH_ROWS", 40)
    for name in ("BATCH_ROWS_FIRST", "BATCH_ROWS_MAX", "CALL_ENTRIES"):
        monkeypatch.setattr(index_scans, name, 30)


def kinds_of_scans(rng: random.Random) -> tuple[dict[str, Any], Callable[[tuple[Any, ...]], bool]]:
    """A scan of any kind, and which rows it shows."""
    border, kind = rng.randrange(50), rng.randrange(5)
    if kind == 0:
        return {}, lambda each: True
    if kind == 1:
        return {"where": tm.col("d") >= 10 * border}, lambda each: each[3] >= 10 * border
    if kind == 2:
        return {"where": tm.col("t").like("x%")}, lambda each: bool(each[2])
    if kind == 3:
        return {"index": "by_k", "lower": border, "reverse": rng.random() < 0.5}, lambda each: each[1] >= border
    return {"index": "by_k", "columns": ["k", "id"]}, lambda each: True


def rows_of_columns(scan: Any) -> Iterator[Any]:
    """The rows of a scan, read as Arrow columns."""
    for batch in scan.batches():
        yield from (tuple(each.values()) for each in batch.to_pylist())


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", fresh_seeds(2))
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("partition", [None, tm.HashPartition(3)])
def test_scans_show_the_rows_of_the_instant_they_began(seed: int, on_disk: bool, partition: Any) -> None:
    """Story: a sum over accounts beside transfers was not the sum of any instant, and iteration showed one account
    before a transfer and the other one after it.
    """
    rng = random.Random(seed)
    with made(on_disk, partition) as db:
        model: dict[int, tuple[Any, ...]] = {}
        change(db, model, rng)
        scans: list[tuple[Iterator[Any], list[Any], list[Any], bool]] = []
        for _ in range(80):
            change(db, model, rng)
            if len(scans) < 5:
                how, shows = kinds_of_scans(rng)
                expected = [each for each in model.values() if shows(each)]
                if "columns" in how:
                    expected = [(each[1], each[0]) for each in expected]
                scan = db["t"].scan(**how)
                rows = rows_of_columns(scan) if "index" not in how and rng.random() < 0.5 else iter(scan)
                scans.append((rows, [], expected, "index" in how))
                found = next(scans[-1][0], None)  # the scan begins now
                scans[-1][1].extend([] if found is None else [found])
            number = rng.randrange(len(scans))
            rows, found, expected, is_ordered = scans[number]
            found.extend(islice(rows, rng.randrange(300)))
            if rng.random() < 0.4:
                found.extend(rows)
                assert sorted(map(tuple, found)) == sorted(expected)
                if is_ordered:
                    keys = [(each.k, each.id) for each in found]
                    assert keys in (sorted(keys), sorted(keys, reverse=True))
                del scans[number]
        for rows, *_ in scans:
            rows.close()  # type: ignore[attr-defined]
        assert int(db.parts.store.mem[a.S_VIEW_COUNT]) == 0
        assert db.check()["problems"] == []


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("seed", fresh_seeds(2))
@pytest.mark.parametrize("on_disk", [False, True])
def test_scans_of_a_transaction_show_its_own_changes_over_one_instant(seed: int, on_disk: bool) -> None:
    rng = random.Random(seed)
    with made(on_disk) as db:
        model: dict[int, tuple[Any, ...]] = {}
        for key in range(500):
            model[key] = row(rng, key)
        db["t"].insert_many(list(model.values()))
        for _ in range(12):
            with db.transaction() as txn:
                own: dict[int, tuple[Any, ...] | None] = {}
                for _ in range(60):
                    key = rng.randrange(700)
                    if key in {**model, **own} and ({**model, **own}[key] is not None) and rng.random() < 0.4:
                        txn.delete("t", key)
                        own[key] = None
                    else:
                        own[key] = row(rng, key)
                        txn.write("t", own[key])
                how, shows = kinds_of_scans(rng)
                seen = [each for each in {**model, **own}.values() if each is not None and shows(each)]
                if "columns" in how:
                    seen = [(each[1], each[0]) for each in seen]
                scan = txn.scan("t", **how)
                rows = rows_of_columns(scan) if "index" not in how and rng.random() < 0.5 else iter(scan)
                found = list(islice(rows, 5))

                def beside(own: Any = own) -> None:
                    with db.transaction() as other:
                        for key in rng.sample(sorted(set(range(700)) - set(own)), 100):
                            model[key] = row(rng, key)
                            other.write("t", model[key])

                elsewhere(beside)
                found.extend(rows)
                assert sorted(map(tuple, found)) == sorted(seen)
                txn.rollback()


@contextmanager
def after_call(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, work: Callable[[], Any]) -> Iterator[list[int]]:
    """Do `work` after the first call of a function that a module calls."""
    real, calls = getattr(module, name), [0]

    def call(*arguments: Any) -> Any:
        result = real(*arguments)
        calls[0] += 1
        if calls[0] == 1:
            work()
        return result

    with monkeypatch.context() as patched:
        patched.setattr(module, name, call)
        yield calls


def transfer(db: tm.Database) -> None:
    """Between the first and the last row, and a row that comes for one that goes."""
    with db.transaction() as txn:
        txn.update("t", 0, {"d": tm.col("d") + 5, "t": "changed"})
        txn.update("t", 4_999, {"d": tm.col("d") - 5, "t": "changed"})
        txn.delete("t", 4_998)
        txn.insert("t", (9_998, 1, None, 7))


CHANGES: list[Callable[[tm.Database], Any]] = [
    lambda db: db["t"].update(4_899, {"t": "new"}),
    transfer,
    lambda db: db["t"].write((9_999, 1, "late", 7)),
    lambda db: db["t"].delete_where(tm.col("id") >= 4_900),
    lambda db: db["t"].update_where({"t": "all", "d": 5}),  # it is applied in slices
]
QUESTIONS: dict[str, tuple[Any, str, Callable[[tm.TableHandle], Any]]] = {
    "a sum by a filter": (program_scans, "scan_filter", lambda table: table.sum("d", tm.col("k") >= 0)),
    "a sum by a program": (program_scans, "scan_program", lambda table: table.sum("d", tm.col("k") + 0 >= 0)),
    "columns": (column_scans, "scan_columns", lambda table: by_id(table.to_arrow())),
    "some columns": (column_scans, "scan_columns", lambda table: by_id(table.to_arrow(None, tm.col("d") > 0))),
    "groups": (program_scans, "scan_program", lambda table: table.aggregate(by=["id", "t"], n=("sum", "d"))),
    "counts of groups": (program_scans, "scan_program", lambda table: table.aggregate(by="t", n=("count",))),
}


def by_id(found: pa.Table) -> Any:
    return found.sort_by("id").to_pylist()


@pytest.mark.parametrize("question", QUESTIONS)
def test_answers_are_those_of_the_instant_the_call_began(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    for where, name in ((program_scans, "FILTER_SLOTS"), (column_scans, "COLUMN_SLOTS"), (conditions, "SLOTS_MAX")):
        monkeypatch.setattr(where, name, 512)
    module, kernel, ask = QUESTIONS[question]
    with made(partition=tm.HashPartition(2)) as db:
        db["t"].insert_many([(key, 1, f"s{key % 7}", 7) for key in range(5_000)])
        for change in CHANGES:
            before = ask(db["t"])
            with after_call(monkeypatch, module, kernel, partial(change, db)) as calls:
                assert ask(db["t"]) == before
            assert calls[0] > 1, "the answer is made in several steps"


def test_many_rows_by_key_are_those_of_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    with made() as db:
        db["t"].insert_many([(key, 1, None, 0) for key in range(10_000)])

        def add() -> None:
            db["t"].update_where({"d": tm.col("d") + 1})
            db["t"].delete(9_999)

        with after_call(monkeypatch, batch_operations, "read_rows", add) as calls, monkeypatch.context() as patched:
            patched.setattr(key_columns, "read_columns_by_key", lambda *_: None)
            found = db["t"].get_many(list(range(10_000)))
        assert calls[0] > 1
        assert found.num_rows == 10_000 and set(found["d"].to_pylist()) == {0}
        # A kernel that copies columns leaves all keys to the general path, which reads them again.
        db["t"].write((9_999, 1, None, 1))
        with after_call(monkeypatch, key_columns, "read_columns", add) as calls:
            found = db["t"].get_many(list(range(10_000)))
        assert calls[0] > 1
        assert found.num_rows == 9_999 and set(found["d"].to_pylist()) == {2}


@pytest.mark.parametrize("by_condition", [False, True])
@pytest.mark.parametrize("on_disk", [False, True])
def test_many_rows_by_a_unique_key_are_those_of_one_instant(
    monkeypatch: pytest.MonkeyPatch, on_disk: bool, by_condition: bool
) -> None:
    """Rows exchange their keys between two steps of the call."""
    with made(on_disk) as db:
        db.create_index("t", "by_t", "t", unique=True)
        db["t"].insert_many([(key, 1, f"t{key}", key) for key in range(20_000 if by_condition else 1_200)])

        def exchange() -> None:
            with db.transaction() as txn:
                txn.update("t", 1_199, {"t": "x"})
                txn.update("t", 0, {"t": "t1199"})
                txn.update("t", 1_199, {"t": "t0"})
                txn.delete("t", 1_198)
                txn.insert("t", (30_000, 1, "t1198", 30_000))

        keys = [f"t{key}" for key in range(1_200)]
        with after_call(monkeypatch, unique_reads, "find_by_unique", exchange) as calls:
            if by_condition:
                rows = sorted((row.id, row.d) for row in db["t"].scan(where=tm.col("t").isin(keys)))
            else:
                rows = [(row["id"], row["d"]) for row in db["t"].get_many(keys, index="by_t").to_pylist()]
        assert calls[0] > 1
        assert rows == [(key, key) for key in range(1_200)]
        found = db["t"].get_many(keys, index="by_t")
        assert found["id"].to_pylist() == [1_199, *range(1, 1_198), 30_000, 0]


def test_counts_of_an_index_are_those_of_one_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidemark.engine.queries import index_only

    monkeypatch.setattr(index_only, "CALL_LEAVES", 2)
    with made() as db:
        db["t"].insert_many([(key, key, None, 0) for key in range(5_000)])
        with after_call(monkeypatch, index_only, "count_entries", lambda: db["t"].delete_where(tm.col("k") > 100)):
            assert db["t"].scan(index="by_k", lower=1).count() in (4_999, 100)
        assert db["t"].scan(index="by_k", lower=1).count() == 100


# --- large commits --------------------------------------------------------------------------------
class Beside:
    """Reads by another thread between the slices of a large commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slice_number: int, read: Callable[[], Any]) -> None:
        self.result: list[Any] = []
        self.waits = threading.Event()
        self.thread: threading.Thread | None = None
        real_slice, real_wait, slices = Transaction.apply_slice, Views.wait, [0]

        def run() -> None:
            self.result.append(read())

        def apply_slice(txn: Transaction, group: Any) -> int:
            slices[0] += 1
            if slices[0] == slice_number and self.thread is None:
                self.thread = threading.Thread(target=run)
                self.thread.start()
                wait_until(lambda: bool(self.result) or self.waits.is_set())
            return real_slice(txn, group)

        def wait(views: Views) -> None:
            self.waits.set()
            real_wait(views)

        monkeypatch.setattr(Transaction, "apply_slice", apply_slice)
        monkeypatch.setattr(Views, "wait", wait)

    def end(self) -> Any:
        assert self.thread is not None, "the commit had too few slices"
        self.thread.join()
        return self.result[0]


MEMORY = pytest.mark.parametrize("memory", ["64 MiB", "64 KiB"])  # 64 KiB: the transaction spools
WAYS: dict[str, Callable[[Any, int], Any]] = {
    "key": lambda txn, key: txn.get("t", key),
    "unique key": lambda txn, key: txn.get("t", key, index="by_u"),
    "condition": lambda txn, key: next(iter(txn.scan("t", where=tm.col("k") == key)), None),
}


@pytest.mark.parametrize(("way", "memory"), [*((way, "64 MiB") for way in WAYS), ("key", "64 KiB")])
@pytest.mark.parametrize("first", [0, LARGE - 1])
@pytest.mark.parametrize("slice_number", [2, 3])
@pytest.mark.parametrize("after", [1, None], ids=["rows that it changes", "rows that it removes"])
def test_transaction_sees_all_of_a_large_commit_or_nothing(
    monkeypatch: pytest.MonkeyPatch, way: str, memory: str, first: int, slice_number: int, after: int | None
) -> None:
    """Story: a transaction read a row that a commit of 20,000 rows had changed, and then another row of that commit as
    it was before.
    """
    with made(transaction_memory=memory) as db:
        db["t"].insert_many([(key, key, None, 0) for key in range(LARGE)])
        db.create_index("t", "by_u", "k", unique=True)

        def read() -> list[Any]:
            with db.transaction() as txn:
                rows = [WAYS[way](txn, first), txn.get("t", LARGE - 1 - first)]
                return [None if row is None else row.d for row in rows]

        beside = Beside(monkeypatch, slice_number, read)
        db["t"].delete_where(tm.col("id") >= 0) if after is None else db["t"].update_where({"d": after})
        assert beside.end() in [[0, 0], [0, after], [after, after]]


@MEMORY
@pytest.mark.parametrize("how", ["insert_many", "load"])
def test_rows_that_a_large_commit_adds_appear_at_once_and_nothing_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, memory: str, how: str
) -> None:
    """Story: README says that a load is visible at once; readers saw it grow."""
    with made(transaction_memory=memory) as db:
        table = db["t"]
        db.create_index("t", "by_u", "d", unique=True)

        def read() -> Any:
            with db.transaction() as txn:
                by_key = [*(txn.get("t", key) for key in (0, LARGE - 1, LARGE + 5)), txn.get("t", 5, index="by_u")]
            rows = [table.scan(), table.scan(where=tm.col("k") == 0), table.scan(index="by_k"), table.get_many([0, 5])]
            rows += [table.scan(where=tm.col("d") == 7)]
            counted = len(table), table.scan().count(), table.scan().sum("d"), table.scan(index="by_k").count()
            return (
                by_key,
                [len(list(each)) if not hasattr(each, "num_rows") else each.num_rows for each in rows],
                counted,
            )

        beside = Beside(monkeypatch, 2, read)
        columns = {"id": range(LARGE), "k": [0] * LARGE, "t": [None] * LARGE, "d": range(LARGE)}
        rows = pa.table({name: pa.array(values) for name, values in columns.items()})
        rows = rows.set_column(2, "t", rows["t"].cast(pa.string()))
        table.insert_many(rows) if how == "insert_many" else db.load("t", rows)
        assert beside.end() == ([None] * 4, [0] * 5, (0, 0, None, 0))
        assert not beside.waits.is_set()
        assert len(table) == LARGE and table.scan().sum("d") == sum(range(LARGE))


def test_writers_wait_for_rows_that_a_large_commit_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    with made() as db:
        db["t"].insert_many([(key, 0, None, 0) for key in range(LARGE)])

        def read() -> tuple[int, int]:
            with db.transaction() as txn:
                txn.update("t", 0, {"d": tm.col("d") + 10})
                return txn.get("t", 0).d, txn.get("t", LARGE - 1).d

        beside = Beside(monkeypatch, 2, read)
        db["t"].update_where({"d": 1})
        assert beside.end() == (11, 1) and beside.waits.is_set()


def test_key_that_a_large_commit_gives_away_can_be_taken_when_it_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    with made() as db:
        db.create_index("t", "by_d", ["d"], unique=True)
        db["t"].insert_many([(key, 0, None, key) for key in range(LARGE)])

        def read() -> int:
            with db.transaction() as txn:
                txn.insert("t", (LARGE, 0, None, 0))
                return int(txn.get("t", LARGE - 1).d)

        beside = Beside(monkeypatch, 3, read)
        db["t"].update_where({"d": tm.col("d") + LARGE})
        assert beside.end() == 2 * LARGE - 1
        assert db.check()["problems"] == []


def test_scan_that_began_before_a_large_commit_shows_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_reads, "SCAN_BATCH_ROWS", 100)
    monkeypatch.setattr(snapshot_reads, "CALL_SLOTS", 64)
    with made() as db:
        db["t"].insert_many([(key, 0, None, 0) for key in range(LARGE)])
        rows = iter(db["t"].scan())
        found = [next(rows)]
        beside = Beside(monkeypatch, 2, lambda: [next(rows) for _ in range(500)])
        db["t"].update_where({"d": 1})
        found += [*beside.end(), *rows]
        assert sorted(each.id for each in found) == list(range(LARGE)) and {each.d for each in found} == {0}


# --- instants -------------------------------------------------------------------------------------
def test_scans_between_commits_use_up_no_instants() -> None:
    """Without background threads no epoch closes by itself."""
    with made() as db:
        db["t"].insert_many([(key, 0, None, 0) for key in range(100)])
        scans = []
        for turn in range(a.TICKS_USED + 50):
            rows = iter(db["t"].scan())
            found = [next(rows)]
            db["t"].update_where({"d": turn + 1})
            if turn % 100 == 0:
                scans.append((turn, rows, found))
            else:
                found.extend(rows)
                assert {each.d for each in found} == {turn}
        for turn, rows, found in scans:
            assert {each.d for each in (*found, *rows)} == {turn}


def test_scan_whose_old_rows_do_not_fit_into_memory_says_so() -> None:
    with made(snapshot_memory="64 KiB") as db:
        db["t"].insert_many([(key, 0, "x" * 30, 0) for key in range(70_000)])
        rows = db["t"].scan().batches()
        next(rows)
        for turn in range(3):
            db["t"].update_where({"d": turn + 1})
        with pytest.raises(tm.SnapshotTooOld, match="snapshot_memory"):
            list(rows)
        assert db["t"].scan().sum("d") == 3 * 70_000


def test_loop_that_updates_what_it_scans_needs_no_memory_for_old_rows() -> None:
    with made(snapshot_memory="64 KiB") as db:
        table = db["t"]
        table.insert_many([(key, 0, None, 0) for key in range(5_000)])
        seen = 0
        for each in table.scan(["id", "d"]):
            assert each.d == 0
            table.update(each.id, {"d": 1})
            seen += 1
        assert seen == table.scan().sum("d") == 5_000


def test_scan_by_an_index_over_disk_columns_leaves_out_a_partition_dropped_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Story: the last partition was dropped between the look at the index and the read of the disk parts: the scan read
    page numbers that no kernel had written, and a sound store was reported as damaged.
    """
    ranges = tm.RangePartition("id", [("a", 100), ("b", 200)])
    with made(on_disk=True, partition=ranges) as db:
        db["t"].insert_many([(key, key, None, key) for key in range(200)])

        def drop() -> None:
            thread = threading.Thread(target=db.drop_partition, args=("t", "b"))
            thread.start()
            thread.join()

        with after_call(monkeypatch, index_scans, "index_entries", drop):
            found = [(each.id, each.d) for each in db["t"].scan(index="by_k")]
        assert found[:100] == [(key, key) for key in range(100)]
        assert set(found[100:]) <= {(key, key) for key in range(100, 200)}
