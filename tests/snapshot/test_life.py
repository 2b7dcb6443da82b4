"""When snapshots open and close, what the schema does meanwhile, and which threads may read them."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, Literal

import pytest

import tidemark as tm
from tests.snapshot import walk
from tests.store.support import open_memory
from tidemark.engine.base.errors import LimitExceeded
from tidemark.engine.base.limits import SNAPSHOTS_OPEN_MAX
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.txn.transaction import Transaction

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("text", tm.VarChar(60), nullable=True)]


def opened(partition: Any = None, **options: Any) -> tuple[Any, Any]:
    db = open_memory(**{"redo_log": "16 MiB", **options})
    table = db.create_table("test.t", COLUMNS, "id", partition)
    table.insert_many([(i, i % 10, "a" * (i % 50)) for i in range(300)])
    return db, table


def test_closing_the_store_closes_its_snapshots() -> None:
    db, table = opened()
    snapshots = [db.snapshot() for _ in range(3)]
    table.update(1, {"n": 77})
    shown = snapshots[0]["test.t"]
    mem = db.parts.store.mem
    db.close()
    assert walk.open_epochs(mem) == [] and list(walk.versions(mem)) == []
    with pytest.raises(tm.StoreClosed):
        shown.get(1)
    with pytest.raises(tm.StoreClosed):
        db.snapshot()
    snapshots[0].close()


def test_memory_of_a_store_is_free_after_close_though_its_snapshots_are_not_collected() -> None:
    gc.collect()
    gc.disable()
    try:
        db, table = opened()
        with db.snapshot() as snapshot:
            table.delete(3)
            assert snapshot["test.t"].get(3).n == 3 and len(list(snapshot["test.t"].scan())) == 300
        db.snapshot()
        mem = weakref.ref(db.parts.store.mem)
        db.close()
        del db, table, snapshot
        assert mem() is None
    finally:
        gc.enable()


def test_nothing_is_kept_without_a_snapshot_and_nothing_for_inserts() -> None:
    db, table = opened()
    table.update(1, {"n": 5})
    assert db.status()["snapshots"]["versions_kept"] == 0
    with db.snapshot():
        table.insert_many([(1_000 + i, 1, None) for i in range(100)])
        table.update_many([{"id": 1_000 + i, "n": 2} for i in range(100)])
        table.delete_many([1_000 + i for i in range(100)])
        assert db.status()["snapshots"]["versions_kept"] == 0
        table.update(1, {"n": 6})
        table.update(1, {"n": 7})
        assert db.status()["snapshots"]["versions_kept"] == 1
    db.close()


def test_snapshots_closed_in_any_order_leave_the_others_right_and_the_ring_empty_at_last() -> None:
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]):
        db, table = opened()
        snapshots = []
        for turn in range(4):
            snapshots.append(db.snapshot())
            table.update_many([{"id": i, "n": 100 * (turn + 1)} for i in range(turn, 290, 7)])
            table.delete(290 + turn)
        kept: list[int] = []
        for done, place in enumerate(order):
            for other in order[done:]:
                shown = snapshots[other]["test.t"]
                assert len(shown) == 300 - other
                last = [turn for turn in range(other) if (20 - turn) % 7 == 0]
                assert shown[20].n == (100 * (last[-1] + 1) if last else 0)
            snapshots[place].close()
            kept.append(db.status()["snapshots"]["used_bytes"])
        assert kept == sorted(kept, reverse=True) and kept[-1] == 0
        db.close()


def test_more_snapshots_than_allowed_are_refused_without_a_trace() -> None:
    db, table = opened()
    snapshots = [db.snapshot() for _ in range(SNAPSHOTS_OPEN_MAX)]
    with pytest.raises(LimitExceeded, match="close some"):
        db.snapshot()
    assert db.status()["snapshots"]["open"] == SNAPSHOTS_OPEN_MAX
    assert len(db.parts.store.users.pins) == SNAPSHOTS_OPEN_MAX
    table.delete(4)
    assert snapshots[0]["test.t"].get(4).n == 4
    snapshots.pop().close()
    assert db.snapshot()["test.t"].get(4) is None
    db.close()


def test_dropped_table_and_partition_are_still_shown_and_their_memory_goes_with_the_snapshot() -> None:
    ranges = tm.RangePartition("id", [("low", 100), ("middle", 200), ("high", tm.MAXVALUE)])
    db, table = opened(ranges)
    db.create_index("test.t", "by_n", ["n"])
    other = db.create_table("test.gone", COLUMNS, "id")
    other.insert_many([(i, i, "b") for i in range(50)])
    used = db.status()["memory"]["used_bytes"]
    with db.snapshot() as snapshot, db.snapshot() as second:
        table.update(50, {"n": -1})
        with db.transaction() as txn:
            txn.update("test.t", 51, {"n": -2})
            db.drop_partition("test.t", "low")
            db.drop_table("test.gone")
            txn.delete("test.t", 150)
        table.insert((60, 7, "new"))  # belongs to the partition above now
        assert len(table) == 200
        for each in (snapshot, second):
            shown = each["test.t"]
            assert sorted(row.id for row in shown.scan()) == list(range(300))
            assert shown.get(50).n == 0 and shown.get(51).n == 1 and shown.get(60).text == "a" * 10
            assert [row.n for row in shown.scan(index="by_n")] == sorted(i % 10 for i in range(300))
            assert shown.scan(partitions=["low"]).count() == 100
            assert len(each["test.gone"]) == 50 and each["test.gone"][7].n == 7
            assert "test.gone" in each.tables()
    assert db.status()["memory"]["used_bytes"] < used
    with db.snapshot() as snapshot:
        with pytest.raises(tm.NoSuchTable):
            snapshot["test.gone"]
        assert snapshot["test.t"].get(60).text == "new" and snapshot["test.t"].get(50) is None
    db.close()


def test_what_is_made_after_a_snapshot_is_unknown_to_it() -> None:
    db, _ = opened(tm.RangePartition("id", [("low", 100), ("high", 1_000)]))
    with db.snapshot() as snapshot:
        db.create_table("test.late", COLUMNS, "id")
        db.create_index("test.t", "by_n", ["n"])
        db.add_partition("test.t", "more", 2_000)
        db["test.t"].insert((1_500, 1, None))
        shown = snapshot["test.t"]
        with pytest.raises(tm.NoSuchTable):
            snapshot["test.late"]
        with pytest.raises(tm.NoSuchIndex):
            shown.scan(index="by_n")
        with pytest.raises(tm.NoSuchPartition):
            shown.scan(partitions=["more"])
        assert shown.get(1_500) is None and len(shown) == 300 and shown.definition.indexes == ()
    with db.snapshot() as snapshot:
        scan = iter(snapshot["test.t"].scan(index="by_n"))
        assert next(scan).n == 0
        db.drop_index("test.t", "by_n")
        with pytest.raises(tm.NoSuchIndex):
            list(scan)
    db.close()


@pytest.mark.parametrize("has_index", [False, True])
def test_snapshot_waits_for_a_commit_in_slices_and_shows_it_whole(
    has_index: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, table = opened()
    if has_index:
        db.create_index("test.t", "by_n", ["n"])
    table.insert_many([(1_000 + i, 3, None) for i in range(2_000)])
    early = db.snapshot()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(db.snapshot()))
    steps: list[int] = []
    original = Transaction.apply_slice

    def sliced(self: Any, group: Any) -> int:
        status = original(self, group)
        if not steps:
            waiting.start()
        steps.append(status)
        assert not found, "half a commit must not be shown"
        shown = early["test.t"]
        assert len(shown) == 2_300 and shown.sum("n") == 1_350 + 6_000
        return status

    monkeypatch.setattr(Transaction, "apply_slice", sliced)
    with db.transaction() as txn:
        txn.update_many("test.t", [{"id": 1_000 + i, "n": 4} for i in range(1_900)])
        txn.delete_many("test.t", [1_000 + i for i in range(1_900, 2_000)])
    waiting.join()
    assert len(steps) > 1
    late = found[0]["test.t"]
    assert len(late) == 2_200 and late.sum("n") == 1_350 + 4 * 1_900
    assert len(early["test.t"]) == 2_300 and early["test.t"].sum("n") == 1_350 + 6_000
    db.close()


@pytest.mark.parametrize("on_disk", [False, True])
def test_rows_of_pages_freed_and_made_again_in_part_are_shown(on_disk: bool) -> None:
    # A page that is made again has slots that were never used since, or held only an insert that was undone: only the
    # page's "emptied through" epoch shows that rows were there.
    db = open_memory(redo_log="16 MiB", undo_log="16 MiB")
    columns = [tm.Column("id", tm.Int64), *(tm.Column(f"pad{i}", tm.Binary(255)) for i in range(8))]
    columns.append(tm.Column("text", tm.VarChar(100), storage="disk" if on_disk else "memory"))
    table = db.create_table("test.t", columns, "id", tm.HashPartition(1))
    rows = {i: (i, *[bytes([i]) * 255] * 8, "t" * (i % 90)) for i in range(80)}
    table.insert_many(list(rows.values()))
    fragment, mem = db.parts.store.tables.named("test.t").fragments[0], db.parts.store.mem
    slots = int(mem[address_of(fragment) + a.F_SLOTS])
    with db.snapshot() as snapshot:
        epoch, shown = snapshot.epoch, snapshot["test.t"]

        def look() -> None:
            assert {row[0]: tuple(row) for row in shown.scan()} == rows and len(shown) == len(rows)
            assert shown.scan(columns=[tm.ROWID]).to_arrow().num_rows == len(rows)
            assert [row["id"] for row in shown.get_many(list(rows)).to_pylist()] == list(rows)
            assert len(walk.shown(mem, snapshot.by_name["test.t"], epoch)) == len(rows)

        table.delete_many(list(range(3 * slots)))
        released = int(mem[address_of(fragment) + a.F_RELEASED])
        assert released >= 2
        look()
        table.insert_many([(1_000 + i, *rows[i][1:]) for i in range(slots + slots // 2)])
        assert int(mem[address_of(fragment) + a.F_RELEASED]) < released
        look()
        with pytest.raises(ZeroDivisionError), db.transaction() as txn:
            txn.insert_many("test.t", [(2_000 + i, *rows[i][1:]) for i in range(slots)])
            look()
            raise ZeroDivisionError
        look()
        leaf = int(mem[int(mem[address_of(fragment) + a.F_MAP])])
        bases = [
            int(mem[leaf + i]) << a.PAGE_SHIFT
            for i in range(int(mem[address_of(fragment) + a.F_PAGES]))
            if mem[leaf + i] > 0
        ]
        emptied = [int(mem[base + a.PG_EMPTIED]) for base in bases]
        for base in bases:
            mem[base + a.PG_EMPTIED] = 0
        assert len(shown) < len(rows), "nothing else tells"
        for base, each in zip(bases, emptied, strict=True):
            mem[base + a.PG_EMPTIED] = each
        table.insert_many([(3_000 + i, *rows[i][1:]) for i in range(4 * slots)])
        look()
    db.close()


def test_progress_is_reported_and_what_it_raises_ends_the_scan() -> None:
    db, table = opened()
    db.create_index("test.t", "by_n", ["n"])
    with db.snapshot() as snapshot:
        reported: list[tuple[int, int, str]] = []
        shown = snapshot["test.t"]
        assert shown.to_arrow(progress=lambda *each: reported.append(each)).num_rows == 300
        assert reported and reported[-1][0] == reported[-1][1] and reported[-1][2] == "pages"
        reported.clear()
        list(shown.scan(index="by_n", limit=290, progress=lambda *each: reported.append(each)))
        assert reported[-1] == (290, -1, "rows")

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shown.to_pandas(progress=stop)
        assert len(shown) == 300
    table.delete(1)
    db.close()


def test_snapshot_memory_is_checked_and_named() -> None:
    with pytest.raises(tm.SchemaInvalid, match="snapshot_memory"):
        open_memory(snapshot_memory="1 KiB")
    db = open_memory(snapshot_memory="1 MiB")
    assert 0.8 * (1 << 20) < db.status()["snapshots"]["size_bytes"] < 1 << 20
    db.close()


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_partition_dropped_before_a_snapshot_is_not_shown_by_an_index(storage: Literal["memory", "disk"]) -> None:
    """Story: entries of a dropped partition stay in an index as long as any reader needs its rows, for example an older
    snapshot. A scan of a newer snapshot by the index showed those rows, and ended in an IndexError for disk columns.
    """
    db = open_memory(data_memory="16 MiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("k", tm.Int64), tm.Column("note", tm.Int64, storage=storage)]
    ranges = tm.RangePartition("id", [("a", 100), ("b", 200), ("c", 300)])
    table = db.create_table("t", columns, primary_key="id", partition=ranges)
    table.insert_many([(n, -n, n) for n in range(300)])
    db.create_index("t", "by_k", ("k",))
    with db.snapshot() as older:
        db.drop_partition("t", "c")
        with db.snapshot() as newer:
            table.update(150, {"k": 7})
            for reverse in (False, True):
                expected = sorted((row for row in newer["t"].scan()), key=lambda row: row.k, reverse=reverse)
                assert sorted(row.id for row in expected) == list(range(200))
                assert list(newer["t"].scan(index="by_k", reverse=reverse)) == expected
                assert len(list(older["t"].scan(index="by_k", reverse=reverse))) == 300
            assert newer["t"].scan(index="by_k").count() == 200
