"""Schema changes of open stores: rows from before and after them, transactions and scans across them, refusals."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.elsewhere import beside
from tests.engine.arena_check import check_arena
from tests.index.stage import order_of
from tests.index.values import KINDS, value_of
from tests.rows.strategies import of_arrow
from tests.store.support import open_memory
from tidemark.engine.schema.partition import HashPartition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

OPTIONS: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "2 MiB", "undo_log": "2 MiB", "background": False}
PLAIN = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32, nullable=True)]
WITH_VAR = [*PLAIN, tm.Column("s", tm.VarChar(5), nullable=True)]
ON_DISK = [*PLAIN, tm.Column("d", tm.Int64, storage="disk"), tm.Column("t", tm.Text, nullable=True, storage="disk")]
SHAPES = pytest.mark.parametrize("columns", [PLAIN, WITH_VAR, ON_DISK], ids=["plain", "var", "disk"])
EVERY_KIND = [*KINDS, tm.Text, tm.Blob]


def made(db: Any, columns: list[tm.Column], rows: int = 20, **options: Any) -> Any:
    table = db.create_table("t", columns, "id", **options)
    for number in range(rows):
        table.insert(base_row(columns, number))
    return table


def stored(columns: list[tm.Column], rows: int = 20, **options: Any) -> tuple[Any, Any]:
    """A store with a table, and the table."""
    db = open_memory()
    return db, made(db, columns, rows, **options)


def base_row(columns: list[tm.Column], number: int) -> dict[str, Any]:
    values = {"id": number, "n": number or None, "s": "x" * (number % 5), "d": number * 3, "t": None}
    return {column.name: values[column.name] for column in columns}


def all_rows(db: Any, name: str = "t") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in db[name]), key=lambda row: row[0])


def reopened(db: Any) -> Any:
    """Open again as after a power failure: from the log alone, then also from a local checkpoint. The rows are the
    same.
    """
    disk = db.parts.files.disk
    rows = {name: repr(all_rows(db, name)) for name in db.tables()}
    db.close()
    db = open_memory(MemoryFiles(disk))
    assert {name: repr(all_rows(db, name)) for name in db.tables()} == rows
    db.checkpoint()
    db.close()
    db = open_memory(MemoryFiles(disk))
    assert {name: repr(all_rows(db, name)) for name in db.tables()} == rows
    assert db.check()["is_sound"]
    return db


def expected(kind: Any, value: Any) -> Any:
    return None if value is None else kind.loaded(kind.stored(value))


@SHAPES
@pytest.mark.parametrize("kind", EVERY_KIND, ids=repr)
def test_added_column_of_each_type_has_its_default_before_and_values_after(columns: Any, kind: Any) -> None:
    random = np.random.default_rng(5)
    draw: Callable[[], Any] = lambda: (  # noqa: E731
        {"Text": "é" * 9_000, "Blob": b"\0b" * 9}[repr(kind)] if kind.is_lob else value_of(kind, random)
    )
    db, table = stored(columns, 6)
    default = draw()
    db.add_column("t", tm.Column("a", kind, default=default))
    db.add_column("t", tm.Column("b", kind, nullable=True))
    model = {number: [default, None] for number in range(6)}
    for number in (1, 2, 6, 7):
        model[number] = [draw(), draw() if number % 2 else None]
        call = table.write if number < 6 else table.insert
        call({**base_row(columns, number), "a": model[number][0], "b": model[number][1]})
    model[3][1] = draw()
    table.update(3, {"b": model[3][1]})
    model[9] = [default, None]
    table.insert_many([base_row(columns, 9)])
    model[10] = [draw(), draw()]
    table.insert_many([{**base_row(columns, 10), "a": model[10][0], "b": model[10][1]}])
    wanted = {key: [repr(expected(kind, value)) for value in values] for key, values in model.items()}
    assert {row.id: [repr(row.a), repr(row.b)] for row in table} == wanted
    db = reopened(db)
    table = db["t"]
    batch = table.get_many(sorted(model)).to_pylist()
    utc = "zoneinfo.ZoneInfo(key='UTC')"
    shown = {row["id"]: [repr(of_arrow(row[name], kind)) for name in "ab"] for row in batch}
    found = {key: [text.replace(utc, "datetime.timezone.utc") for text in texts] for key, texts in shown.items()}
    assert found == wanted
    assert {key: [repr(table[key].a), repr(table[key].b)] for key in model} == wanted
    nulls = sorted(key for key, values in model.items() if values[1] is None)
    assert sorted(row.id for row in table.scan(where=tm.col("b").is_null())) == nulls
    if kind.keyable:
        db.create_index("t", "by", ["b", "a"])
        shown = {column.name: column for column in table.definition.columns}
        order = sorted(model, key=lambda key: [order_of(shown[n], getattr(table[key], n)) for n in ("b", "a")])
        keys = [[order_of(shown[n], getattr(table[key], n)) for n in ("b", "a")] for key in order]
        found = [row.id for row in table.scan(index="by")]
        assert [[order_of(shown[n], getattr(table[key], n)) for n in ("b", "a")] for key in found] == keys
    assert db.check()["is_sound"]


@pytest.mark.parametrize("kind", [tm.Int8, tm.UInt16, tm.Int64, tm.Float32, tm.Float64, tm.Date], ids=repr)
def test_conditions_and_sums_over_an_added_number_see_defaults_and_values(kind: Any) -> None:
    random = np.random.default_rng(3)
    db, table = stored(WITH_VAR, 30)
    db.add_column("t", tm.Column("text", tm.VarChar(9), default="odd"))  # so that numbers begin at any byte
    db.add_column("t", tm.Column("a", kind, default=value_of(kind, random)))
    for number in range(0, 30, 2):
        table.update(number, {"a": value_of(kind, random), "text": "x" * int(random.integers(9))})
    rows = {row.id: row.a for row in table}
    limit = rows[4]
    above = sorted(key for key, value in rows.items() if value == value and limit == limit and value > limit)
    if limit == limit and not any(value != value for value in rows.values()):
        assert sorted(row.id for row in table.scan(where=tm.col("a") > limit)) == above
    if kind in (tm.Int8, tm.UInt16, tm.Int64):
        assert table.scan().sum("a") == sum(rows.values())
        assert table.scan().max("a") == max(rows.values())
    assert table.update_where({"n": tm.col("id") + 1}, where=tm.col("a").is_not_null()) == 30
    assert all(row.n == row.id + 1 for row in table)


@SHAPES
def test_open_transaction_commits_what_it_did_before_and_after_a_change(columns: Any) -> None:
    db, _ = stored(columns)
    txn = db.transaction()
    txn.insert("t", base_row(columns, 50))
    txn.update("t", 3, {"n": 33})
    txn.delete("t", 4)
    txn.write("t", base_row(columns, 5))
    txn.insert_many("t", [base_row(columns, number) for number in (51, 52)])
    db.add_column("t", tm.Column("a", tm.VarChar(9), default="before"))
    db.set_default("t", "a", "behind")
    txn.update("t", 3, {"a": "own"})
    txn.update("t", 50, {"a": "mine"})
    txn.insert("t", base_row(columns, 53))
    txn.update("t", 6, {"n": 66})
    with pytest.raises(KeyError), txn.savepoint():
        txn.write("t", {**base_row(columns, 51), "a": "gone"})
        txn.insert("t", {**base_row(columns, 60), "a": "gone"})
        raise KeyError
    assert (txn.get("t", 3).a, txn.get("t", 3).n, txn.get("t", 51).a) == ("own", 33, "before")
    assert db["t"][3].a == "before"
    txn.commit(True)
    found = {row.id: row.a for row in db["t"]}
    assert found == {
        **{number: "before" for number in [*range(20), 51, 52] if number != 4},
        3: "own",
        50: "mine",
        53: "behind",
    }
    assert (db["t"][6].n, db["t"][6].a) == (66, "before")
    check_arena(db)
    db = reopened(db)


@SHAPES
def test_transaction_rolled_back_across_a_change_leaves_nothing(columns: Any) -> None:
    db, _ = stored(columns)
    txn = db.transaction()
    txn.insert_many("t", [base_row(columns, number) for number in range(30, 40)])
    txn.update("t", 3, {"n": 1})
    db.add_column("t", tm.Column("a", tm.Int64, default=5))
    txn.insert_many("t", [{**base_row(columns, number), "a": number} for number in range(40, 50)])
    txn.update("t", 5, {"a": 9})
    txn.update("t", 30, {"a": 9})
    txn.rollback()
    assert [row[:1] + row[-1:] for row in all_rows(db)] == [(number, 5) for number in range(20)]
    check_arena(db)
    assert db.check()["is_sound"]


@SHAPES
def test_scan_open_across_changes_continues_with_the_columns_it_began_with(columns: Any) -> None:
    db, table = stored(columns, 60)
    db.create_index("t", "by_n", ["n"])
    names = [column.name for column in columns]
    txn = db.transaction()
    txn.update("t", 7, {"n": 700})
    scans = [
        iter(table.scan()),
        iter(table.scan(where=tm.col("n") >= 0)),
        iter(table.scan(index="by_n")),
        iter(txn.scan("t", index="by_n")),
        iter(txn.scan("t", lock="exclusive")),
    ]
    arrow = table.scan().batches()
    begun = [next(scan) for scan in scans]
    db.add_column("t", tm.Column("a", tm.Text, default="a"))
    db.rename_column("t", "n", "m")
    for number in range(0, 60, 3):
        if number != 7 and number != begun[4].id:
            table.update(number, {"a": "x" * 5_000})
    for first, scan in zip(begun, scans, strict=True):
        rows = [first, *scan]
        assert all(list(row._fields) == names for row in rows)
        assert sorted(row.id for row in rows) in ([*range(60)], [*range(1, 60)])
    assert sum(batch.num_rows for batch in arrow) == 60
    txn.rollback()
    assert list(next(iter(table))._fields) == ["id", "m", *names[2:], "a"]


@SHAPES
def test_running_local_checkpoint_has_the_rows_of_its_epoch_across_changes(columns: Any) -> None:
    db, _ = stored(columns, 40, partition=HashPartition(4))
    done: list[int] = []

    def beside(*_: Any) -> None:
        number = len(done)
        db.add_column("t", tm.Column(f"a{number}", tm.VarChar(20), default=f"default {number}"))
        for key in range(number, 40, 5):
            db["t"].update(key, {f"a{number}": "changed", "n": key})
        db["t"].delete(number)
        done.append(number)

    db.checkpoint(beside)
    assert len(done) >= 4
    check_arena(db)
    db = reopened(db)
    check_arena(db)


def test_partition_added_after_a_change_takes_rows_with_the_new_column() -> None:
    db, _ = stored(PLAIN, 9, partition=tm.RangePartition("id", [("p", 10)]))
    db.add_column("t", tm.Column("a", tm.Int64, default=5))
    db.add_partition("t", "q", 20)
    db["t"].insert({"id": 15, "a": 6})
    db["t"].insert_many([{"id": 16}])
    db.rename_column("t", "id", "key")
    assert [row[::2] for row in all_rows(db)][-2:] == [(15, 6), (16, 5)]
    db = reopened(db)
    db.drop_partition("t", "p")
    assert [row.key for row in db["t"]] == [15, 16]
    check_arena(db)


@SHAPES
def test_dropped_columns_are_gone_and_their_names_may_come_back(columns: Any) -> None:
    db, table = stored(columns)
    old = {row.id: row.n for row in table}
    for column in columns[1:]:
        db.drop_column("t", column.name)
    assert all_rows(db) == [(number,) for number in range(20)]
    table.insert((30,))
    table.insert_many([(31,)])
    with pytest.raises(tm.NoSuchColumn):
        table.update(3, {"n": 1})
    db.add_column("t", tm.Column("n", tm.VarChar(9), default="new"))
    assert set(old.values()) - {None} and all(row.n == "new" for row in table)
    table.update(3, {"n": "again"})
    db = reopened(db)
    assert db["t"][3] == (3, "again") and db["t"][4] == (4, "new") and db["t"][31] == (31, "new")


def test_renamed_table_is_found_by_its_new_name_alone_and_handles_follow() -> None:
    db, table = stored(WITH_VAR, 3)
    db.create_index("t", "by", ["n"])
    db.rename("t", "far.away")
    assert db.tables() == ["far.away"] and table.name == "far.away" and "main.t" not in db
    with pytest.raises(tm.NoSuchTable):
        db["t"]
    table.insert({"id": 9})
    other = db.create_table("t", PLAIN, "id")
    other.insert((1, 1))
    with pytest.raises(tm.TableExists):
        db.rename("far.away", "t")
    db = reopened(db)
    assert len(db["far.away"]) == 4 and all_rows(db) == [(1, 1)]
    assert [row.id for row in db["far.away"].scan(index="by", lower=1)] == [1, 2]


def test_widened_columns_take_more_and_keep_what_they_have() -> None:
    db = open_memory()
    columns = [tm.Column("e", tm.Enum("a", "b")), tm.Column("d", tm.Decimal(5, 2)), tm.Column("b", tm.VarBinary(2))]
    table = db.create_table("t", [*WITH_VAR, *columns], "id")
    table.insert((1, None, "abcde", "b", 3, b"xy"))
    with pytest.raises(tm.ValueOutOfRange):
        table.update(1, {"s": "abcdef"})
    db.widen_column("t", "s", tm.VarChar(6))
    db.widen_column("t", "e", tm.Enum("a", "b", "c"))
    db.widen_column("t", "d", tm.Decimal(17, 2))
    db.widen_column("t", "b", tm.Blob)
    assert [repr(value) for value in table[1]] == ["1", "None", "'abcde'", "'b'", "Decimal('3.00')", "b'xy'"]
    table.insert((2, None, "abcdef", "c", 10**14, b"z" * 5_000))
    db.widen_column("t", "s", tm.Text)
    table.update(1, {"s": "long" * 3_000})
    db = reopened(db)
    assert (db["t"][2].e, db["t"][1].s[-4:], len(db["t"][2].b)) == ("c", "long", 5_000)


REFUSED: list[tuple[type[tm.Error], Callable[[Any], None]]] = [
    (tm.NoSuchTable, lambda db: db.add_column("no", tm.Column("a", tm.Int8, nullable=True))),
    (tm.SchemaInvalid, lambda db: db.add_column("t", tm.Column("n", tm.Int8, nullable=True))),
    (tm.SchemaInvalid, lambda db: db.add_column("t", tm.Column("a", tm.Int8))),
    (tm.SchemaInvalid, lambda db: db.add_column("t", "a")),
    (tm.Unsupported, lambda db: db.add_column("t", tm.Column("a", tm.Int8, nullable=True, storage="disk"))),
    (tm.SchemaInvalid, lambda db: db.add_column("t", tm.Column("a", tm.VarBinary(31_990), nullable=True))),
    (tm.NoSuchColumn, lambda db: db.drop_column("t", "no")),
    (tm.SchemaInvalid, lambda db: db.drop_column("t", "id")),
    (tm.SchemaInvalid, lambda db: db.drop_column("t", "n")),
    (tm.NoSuchColumn, lambda db: db.rename_column("t", "no", "a")),
    (tm.SchemaInvalid, lambda db: db.rename_column("t", "n", "s")),
    (tm.InvalidName, lambda db: db.rename_column("t", "n", "")),
    (tm.InvalidName, lambda db: db.rename("t", "a.b.c")),
    (tm.TableExists, lambda db: db.rename("t", "other")),
    (tm.SchemaInvalid, lambda db: db.set_default("t", "n", "text")),
    (tm.SchemaInvalid, lambda db: db.set_default("t", "id", None)),
    (tm.NoSuchColumn, lambda db: db.set_default("t", "no", 1)),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "s", tm.VarChar(4))),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "n", tm.Text)),
    (tm.SchemaInvalid, lambda db: db.widen_column("t", "s", tm.VarChar)),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refused_change_names_the_table_and_nothing_has_happened(number: int) -> None:
    error, call = REFUSED[number]
    db, _ = stored(WITH_VAR, 3)
    db.create_table("other", PLAIN, "id")
    db.create_index("t", "by", ["n"])
    before, memory = db["t"].definition, db.status()["memory"] if "memory" in db.status() else None
    with pytest.raises(error) as raised:
        call(db)
    assert "\n" not in str(raised.value)
    assert db["t"].definition == before and sorted(db.tables()) == ["main.other", "main.t"]
    assert memory is None or db.status()["memory"] == memory


def test_column_of_an_index_that_is_being_built_cannot_be_changed() -> None:
    db, _ = stored(PLAIN, 50)
    met: list[str] = []

    def beside(*_: Any) -> None:
        for call in (lambda: db.drop_column("t", "n"), lambda: db.rename_column("t", "n", "m")):
            with pytest.raises(tm.SchemaInvalid):
                call()
        if not met:
            db.add_column("t", tm.Column("a", tm.Int64, default=5))
        met.append("x")

    db.create_index("t", "by", ["n"], progress=beside)
    assert met and [row.a for row in db["t"].scan(index="by", lower=48)] == [5, 5]
    assert [index["name"] for index in db.indexes("t")] == ["by"] and db.check()["is_sound"]


def test_restart_through_an_epoch_before_a_change_has_the_table_as_it_was() -> None:
    db, _ = stored(PLAIN, 5)
    db.sync()
    epoch = db.sync()
    db.add_column("t", tm.Column("a", tm.Int64, default=5))
    db["t"].update(3, {"a": 9})
    db.drop_column("t", "n")
    db.close()
    db = open_memory(MemoryFiles(db.parts.files.disk), through=epoch)
    assert all_rows(db) == [(number, number or None) for number in range(5)]
    db.add_column("t", tm.Column("b", tm.Int8, default=1))
    db["t"].insert((7, 7, 7))
    reopened(db)


def test_read_only_view_shows_the_columns_of_its_local_checkpoint(tmp_path: Any) -> None:
    options: dict[str, Any] = {"data_memory": "16 MiB", "redo_log": "2 MiB", "background": False}
    with tm.open(tmp_path / "s", **options) as db:
        made(db, PLAIN, 5)
        db.checkpoint()
        db.add_column("t", tm.Column("a", tm.Int64, default=5))
        db["t"].update(3, {"a": 9})
        with tm.open(tmp_path / "s", read_only=True, data_memory="16 MiB") as view:
            assert all_rows(view) == [(number, number or None) for number in range(5)]
            db.checkpoint()
            view.refresh()
            assert all_rows(view)[3] == (3, 3, 9) and all_rows(view)[4] == (4, 4, 5)


def test_defaults_of_nan_survive_changes_and_restarts() -> None:
    """Story: a definition with NaN among its defaults equals no definition, not even itself when read back. A restart
    after any change of indexes or partitions of such a table took its own log for damaged.
    """
    db, _ = stored([*PLAIN, tm.Column("f", tm.Float64, default=float("nan"))][:2], 3)
    db.create_table("u", [*PLAIN, tm.Column("f", tm.Float64, default=float("nan"))], "id").insert({"id": 1})
    db.create_index("u", "by", ["n"])
    db.add_column("t", tm.Column("f", tm.Float32, default=float("nan")))
    db.rename_column("t", "f", "g")
    db = reopened(db)
    assert repr(db["t"][1].g) == repr(db["u"][1].f) == "nan"


def test_writers_never_see_half_a_change() -> None:
    db = open_memory(data_memory="32 MiB")
    made(db, PLAIN, 100)
    stop = threading.Event()
    written: dict[int, int] = {}

    def write(number: int) -> None:
        try:
            while not stop.is_set():
                number += 1
                key = number % 100
                names = [column.name for column in db["t"].definition.columns if column.name.startswith("a")]
                db["t"].update(key, {"n": number, **dict.fromkeys(names, number)})
                db["t"].update_many([{"id": (key + 1) % 100, **dict.fromkeys(names or ["n"], number)}])
                db["t"].insert_many([{"id": 1_000 * number + each} for each in range(3)])
                db["t"].update_where({"n": tm.col("n") + 0}, where=tm.col("id") == key)
                written[key] = number
        finally:
            stop.set()

    with beside(stop, write, [0]):
        for number in range(12):
            count = len(written)
            while len(written) == count and not stop.is_set() and len(written) < 100:
                pass
            db.add_column("t", tm.Column(f"a{number}", tm.Int64, default=-number))
    assert all(len(row) == 14 for row in db["t"])
    check_arena(db)
    assert db.check()["is_sound"]


@pytest.mark.parametrize("unique", [False, True])
def test_renamed_column_of_an_index_is_replayed(unique: bool) -> None:
    """Story: the log had the new version. To find out whether only its indexes differ, the restart gave them to the old
    version, which had no such column. The store could not be opened until a local checkpoint followed the change.
    """
    db, _ = stored(PLAIN, 20)
    db.create_index("t", "by_n", ["n"], unique=unique)
    db.rename_column("t", "n", "m")
    db["t"].update(7, {"m": 700})
    db.sync()
    again = open_memory(db.parts.files.kill())
    assert [row.id for row in again["t"].scan(where=tm.col("m") == 700)] == [7]
    assert again.indexes("t")[0]["columns"] in (["m"], ("m",))
    assert again.check()["problems"] == []


@SHAPES
def test_truncate_is_one_transaction_that_snapshots_and_locks_know(columns: Any) -> None:
    db, table = stored(columns, 20)
    db.create_index("t", "by_n", "n")
    rows = all_rows(db)
    with db.snapshot() as before, db.transaction() as holder:
        holder.get("t", 3, lock="exclusive")
        with pytest.raises(tm.Rejected, match="this thread"):
            db.truncate("t")
        assert all_rows(db) == rows, "nothing of it was done"
        holder.rollback()
        db.truncate("t")
        assert len(table) == 0 and table.name in db and before["t"].count() == 20
        assert [row.id for row in table.scan(index="by_n")] == []
    table.insert(base_row(columns, 7))
    db = reopened(db)
    assert [row[0] for row in all_rows(db)] == [7] and db.indexes("t")[0]["entries"] == 1
    check_arena(db)


@SHAPES
def test_a_crash_leaves_all_rows_of_a_truncated_table_or_none(columns: Any) -> None:
    files = MemoryFiles()
    db = open_memory(files, durability="epoch")
    made(db, columns)
    db.sync()
    rows = all_rows(db)
    db.truncate("t")
    policies: tuple[Any, ...] = ("drop", "keep", "sectors", "torn")
    disks = [files.crash(random.Random(seed), policy) for policy in policies for seed in range(3)]
    db.sync()
    disks += [files.crash(random.Random(seed), "drop") for seed in range(2)]
    left = []
    for disk in disks:
        again = open_memory(disk)
        left.append(all_rows(again))
        assert again.check()["is_sound"]
    assert left[0] == rows and left[-1] == [] and all(each in (rows, []) for each in left)


def test_truncate_is_durable_on_return() -> None:
    files = MemoryFiles()
    db = open_memory(files, durability="commit")
    made(db, PLAIN)
    db.truncate("t")
    assert all_rows(open_memory(files.crash(random.Random(1), "drop"))) == []


def test_truncate_is_a_deletion_of_each_row_to_readers_of_changes(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", server_id=1, log_bin="binlog", **OPTIONS) as db:
        made(db, PLAIN, 3)
        since = db.sync()
        db.truncate("t")
        db.sync()
        with db.changes(since) as changes:
            found = [(row.operation, row.before.id) for epoch in changes for row in epoch]
    assert sorted(found) == [("delete", 0), ("delete", 1), ("delete", 2)]


def test_decimal_takes_no_type_with_fewer_digits_on_a_side() -> None:
    """Decimal(12, 4) has eight digits before the point: as many as Decimal(10, 2), fewer than Decimal(20, 2)."""
    db = open_memory()
    table = db.create_table("t", [tm.Column("id", tm.Int32), tm.Column("d", tm.Decimal(10, 2))], "id")
    db.widen_column("t", "d", tm.Decimal(20, 2))
    table.insert((1, Decimal(10) ** 17))
    for kind in (tm.Decimal(12, 4), tm.Decimal(22, 1)):
        with pytest.raises(tm.SchemaInvalid, match=r"Decimal\(20, 2\), and .* no fewer digits before and after"):
            db.widen_column("t", "d", kind)
    assert table[1].d == Decimal(10) ** 17
