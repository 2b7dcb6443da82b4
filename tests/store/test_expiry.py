"""Expiry of rows: which are deleted, by whom, and which stay. Times are those of a clock that tests move."""

from __future__ import annotations

import datetime
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.cli.support import document, run
from tests.load.support import own_place
from tests.replication.site import open_site
from tests.seeds import fresh_seeds
from tests.store.support import client_of, open_memory
from tests.waiting import wait_until
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.schema.expiry_definition import Expiry
from tidemark.engine.store import expiry
from tidemark.recovery import load
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.session"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("seen", tm.Timestamp, nullable=True),
    tm.Column("note", tm.VarChar(20), nullable=True),
]
# The clock of these stores, and moments for a store of any clock.
NOW = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
PAST, FUTURE = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1980, 9999))


def ago(seconds: float) -> datetime.datetime:
    return NOW - datetime.timedelta(seconds=seconds)


@contextmanager
def store(expires: str | None = "seen + 30 min", **options: Any) -> Iterator[Any]:
    with open_memory(**options) as db:
        db.create_table(NAME, COLUMNS, "id", expires=expires)
        yield db


def ids(db: Any, name: str = NAME) -> list[int]:
    return sorted(row.id for row in db[name].scan())


# --- which rows -----------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", fresh_seeds(3))
@pytest.mark.parametrize("kind", [tm.Timestamp, tm.DateTime, tm.Date], ids=repr)
@pytest.mark.parametrize("way", ["memory", "index", "disk", "partitions"])
def test_rows_expire_as_plain_python_says(way: str, kind: Any, seed: int) -> None:
    rng = random.Random(seed)
    unit, seconds = rng.choice([("s", 1), ("min", 60), ("h", 3_600), ("d", 86_400)])
    count = rng.randrange(0, 100)
    span = datetime.timedelta(seconds=count * seconds)
    columns = [tm.Column("id", tm.Int64), tm.Column("at", kind, nullable=True)]
    if way == "disk":
        columns.append(tm.Column("text", tm.Text, default="x" * 300, storage="disk"))
    partition = tm.RangePartition("id", [("low", 40), ("high", tm.MAXVALUE)]) if way == "partitions" else None
    with open_memory() as db:
        table = db.create_table(NAME, columns, "id", partition, expires=f"at + {count} {unit}")
        if way == "index":
            db.create_index(NAME, "by_at", "at")
        rows: dict[int, Any] = {}
        for number in range(100):
            shift = rng.choice([0, 1, -1, rng.randrange(-(10**12), 10**12), rng.randrange(-(10**8), 10**8)])
            moment = NOW - span + datetime.timedelta(microseconds=shift)
            made = moment.date() if kind == tm.Date else moment if kind == tm.Timestamp else moment.replace(tzinfo=None)
            rows[number] = rng.choice([made, made, made, None])
        table.insert_many([{"id": number, "at": at} for number, at in rows.items()])

        def has_expired(at: Any) -> bool:
            if at is None:
                return False
            if kind == tm.Date:
                at = datetime.datetime.combine(at, datetime.time())
            return bool(at.replace(tzinfo=datetime.UTC) + span <= NOW)

        left = sorted(number for number, at in rows.items() if not has_expired(at))
        assert ids(db) == list(range(100)), "they are seen until they are deleted"
        assert db.expire() == 100 - len(left)
        assert ids(db) == left and db.expire() == 0
        found = db.status()["expiry"]
        assert (found["rows"], found["runs"], found["failures"], found["error"]) == (100 - len(left), 2, 0, None)
        assert found["last_run_us"] == int(NOW.timestamp() * 1e6)
        assert db.check()["is_sound"]


def test_rows_expire_as_time_passes() -> None:
    clock = ManualClock()
    with open_memory(clock=clock) as db:
        db.create_table(NAME, COLUMNS, "id", expires="seen + 30 min")
        start = datetime.datetime.fromtimestamp(clock.wall_us() / 1e6, datetime.UTC)
        db[NAME].insert((1, start, None))
        clock.advance(30 * 60 - 1)
        assert db.expire() == 0
        clock.advance(1)
        assert db.expire() == 1
        clock.jump(-(10**9))
        db[NAME].insert((2, start, None))
        assert db.expire() == 0, "a clock that went back"
        clock.jump(10**9)
        assert db.expire() == 1


def test_a_clock_of_any_year_makes_a_moment_that_a_column_can_have() -> None:
    for kind in (tm.Timestamp, tm.DateTime, tm.Date):
        column = tm.Column("at", kind)
        early, late = (Expiry("at", 60).latest(column, now_us) for now_us in (-(1 << 63), 1 << 63))
        assert (kind.stored(early), kind.stored(late)) == kind.stored_range


def test_many_rows_go_in_small_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one search finds, of keys that are texts, with rows in between that stay."""
    monkeypatch.setattr(expiry, "PIECE_ROWS", 7)
    monkeypatch.setattr(expiry, "FOUND_ROWS", 100)
    with open_memory() as db:
        columns = [tm.Column("token", tm.VarChar(40)), *COLUMNS[1:]]
        table = db.create_table(NAME, columns, ["token"], expires="seen")
        table.insert_many([(f"token {number}", FUTURE if number % 3 == 0 else PAST, None) for number in range(999)])
        table.insert(("touched", ago(0), None))
        before = db.status()["log"]["transactions_written"]
        assert db.expire() == 667
        assert db.status()["log"]["transactions_written"] - before >= 667 // 7
        assert len(table) == 333 and all(row.seen == FUTURE for row in table)


def test_only_tables_with_an_expiry_lose_rows_and_an_error_of_one_keeps_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with store() as db:
        for name in ("a", "b", "c"):
            db.create_table(name, COLUMNS, "id", expires=None if name == "b" else "seen")
            db[name].insert((1, PAST, None))
        db[NAME].insert((1, PAST, None))
        inner = expiry.delete_unlocked

        def fail(txn: Any, table: Any, *rest: Any) -> Any:
            if table.name == "main.a":
                raise tm.RedoOverloaded("planted; run it again")
            return inner(txn, table, *rest)

        monkeypatch.setattr(expiry, "delete_unlocked", fail)
        with pytest.raises(tm.RedoOverloaded, match="planted"):
            db.expire()
        assert [len(db[name]) for name in ("a", "b", "c", NAME)] == [1, 1, 0, 0]
        found = db.status()["expiry"]
        assert (found["rows"], found["failures"], found["error"]) == (2, 1, "main.a: planted; run it again")
        monkeypatch.undo()
        assert db.expire() == 1 and db.status()["expiry"]["error"] is None


# --- between threads ------------------------------------------------------------------------------
def test_a_row_that_is_touched_after_it_was_found_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a session whose `seen` was moved between the search and the deletion would have been logged out."""
    with store() as db:
        db[NAME].insert_many([(number, PAST, None) for number in range(5)])
        transactions = db.parts.store.transactions
        begin = transactions.begin

        def touch(*given: Any) -> Any:
            monkeypatch.setattr(transactions, "begin", begin)
            db[NAME].update(1, {"seen": NOW})
            db[NAME].update(2, {"seen": None})
            db[NAME].delete(3)
            db[NAME].update(4, {"note": "read"})
            return begin(*given)

        monkeypatch.setattr(transactions, "begin", touch)
        assert db.expire() == 2
        assert ids(db) == [1, 2] and db[NAME][1].seen == NOW


@pytest.mark.parametrize("lock", ["shared", "exclusive"])
def test_a_row_that_another_transaction_has_locked_is_left_to_a_later_run(lock: str) -> None:
    with store(lock_timeout_ms=60_000) as db:
        db[NAME].insert_many([(number, PAST, None) for number in range(6)])
        txn = db.transaction()
        for key in (0, 2, 3):
            txn.get(NAME, key, lock=lock)
        txn.update(NAME, 3, {"seen": FUTURE})
        txn.insert(NAME, (7, PAST, None))
        assert db.expire() == 3, "it waits for no lock"
        assert ids(db) == [0, 2, 3] and db.status()["expiry"]["locked"] == 3
        assert db.status()["locks"]["waits"] == 0
        txn.commit()
        assert db.expire() == 3 and ids(db) == [3]


def test_an_expiry_that_is_dropped_during_a_run_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "PIECE_ROWS", 2)
    for change, left in (
        (lambda db: db.set_expiry(NAME, None), 8),
        (lambda db: db.set_expiry(NAME, "seen + 1 h"), 8),
        (lambda db: db.add_column(NAME, tm.Column("more", tm.VarChar(5), default="x")), 0),
        (lambda db: db.rename(NAME, "test.other"), 0),
    ):
        with store() as db:
            table = db[NAME]
            table.insert_many([(number, PAST, None) for number in range(10)])
            inner = expiry.delete_unlocked

            def during(*given: Any, change: Any = change, db: Any = db, inner: Any = inner) -> Any:
                monkeypatch.setattr(expiry, "delete_unlocked", inner)
                change(db)
                return inner(*given)

            monkeypatch.setattr(expiry, "delete_unlocked", during)
            assert db.expire() == 10 - left
            monkeypatch.setattr(expiry, "delete_unlocked", inner)
    with store() as db:
        db[NAME].insert_many([(number, PAST, None) for number in range(10)])
        begin = db.parts.store.transactions.begin

        def drop(*given: Any) -> Any:
            monkeypatch.undo()
            db.drop_table(NAME)
            return begin(*given)

        monkeypatch.setattr(db.parts.store.transactions, "begin", drop)
        assert db.expire() == 0 and NAME not in db


# --- the background task --------------------------------------------------------------------------
def opened(path: Path, **options: Any) -> tm.Database:
    return tm.open(path, data_memory="16 MiB", redo_log="2 MiB", **options)


def test_an_open_store_deletes_by_itself_and_goes_on_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inner, failures = expiry.delete_unlocked, [tm.StorageFull("planted; make room"), MemoryError("planted")]

    def fail(*given: Any) -> Any:
        if failures:
            raise failures.pop()
        return inner(*given)

    monkeypatch.setattr(expiry, "delete_unlocked", fail)
    with opened(tmp_path / "s", expiry_interval_ms=1) as db:
        table = db.create_table("t", COLUMNS, "id", expires="seen")
        table.insert_many([(1, PAST, None), (2, FUTURE, None), (3, None, None)])
        wait_until(lambda: db.status()["expiry"]["rows"] == 1)
        assert ids(db, "t") == [2, 3] and not failures
        assert db.status()["expiry"]["failures"] == 2 and db.status()["store"]["state"] == "open"
        table.insert((4, PAST, None))
        wait_until(lambda: ids(db, "t") == [2, 3])
    assert "planted; make room" in caplog.text
    with opened(tmp_path / "s") as db:  # the interval lasts, and so does the expiry
        db["t"].insert((4, PAST, None))
        wait_until(lambda: ids(db, "t") == [2, 3])
    others = set(threading.enumerate())
    with opened(tmp_path / "s", expiry_interval_ms=0) as db:
        assert "tidemark-expiry" not in {each.name for each in set(threading.enumerate()) - others}
        db["t"].insert((4, PAST, None))
        assert ids(db, "t") == [2, 3, 4] and db.expire() == 1
    with tm.open(tmp_path / "s", read_only=True) as view:
        with pytest.raises(tm.ReadOnly):
            view.expire()
        with pytest.raises(tm.ReadOnly):
            view.set_expiry("t", None)


def test_a_run_of_the_background_does_not_wait_for_another_and_stops_when_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with store() as db:
        db[NAME].insert_many([(number, PAST, None) for number in range(2_500)])
        expirer, transactions = db.parts.clockwork.expirer, db.parts.store.transactions
        begin = transactions.begin

        def meanwhile(*given: Any) -> Any:
            monkeypatch.undo()
            assert expirer.run(lambda: False) == 0
            return begin(*given)

        monkeypatch.setattr(transactions, "begin", meanwhile)
        first = expirer.run(lambda: True)
        assert 0 < first <= 1_000 and db.expire() == 2_500 - first


def test_a_store_that_follows_another_one_does_not_run_the_task_by_itself() -> None:
    """Story: a replica that deletes by its own clock meets later changes of the source to rows that it has not."""
    a, b = (open_site(MemoryFiles(), server_id=each) for each in (1, 2))
    try:
        assert not a.parts.clockwork.is_replica() and not b.parts.clockwork.is_replica()
        a.create_table(NAME, COLUMNS, "id", expires="seen + 30 min")
        a[NAME].insert_many([(1, PAST, None), (2, FUTURE, None)])
        a.parts.clockwork.advance_epoch()
        with tm.Channel(a, b) as channel:
            assert b.parts.clockwork.is_replica(), "before the first change too"
            channel.apply_all()
            assert b[NAME].definition.expires == "seen + 30 min" and ids(b) == [1, 2]
            assert a.expire() == 1
            a.set_expiry(NAME, "seen + 1 d")
            a.rename_column(NAME, "seen", "at")
            a.parts.clockwork.advance_epoch()
            channel.apply_all()
            assert ids(b) == ids(a) == [2] and b[NAME].definition.expires == "at + 1 d"
            a.set_expiry(NAME, None)
            a.parts.clockwork.advance_epoch()
            channel.apply_all()
            assert b[NAME].definition == a[NAME].definition and b[NAME].definition.expires is None
        assert b.parts.clockwork.is_replica() and not a.parts.clockwork.is_replica()
        b.set_expiry(NAME, "at")
        b[NAME].insert((3, PAST, None))
        assert b.expire() == 1, "a call always runs"
    finally:
        a.close()
        b.close()


# --- every way in and out -------------------------------------------------------------------------
_SCHEMA = pa.schema([("id", pa.int64()), ("seen", pa.timestamp("us", "UTC")), ("note", pa.string())])


def _loaded(db: Any, rows: list[dict[str, Any]]) -> None:
    """By load files, as tasks write them anywhere."""
    job, place = db.plan_load(NAME), own_place(db)
    batches = [
        each.columns
        for each in to_columns(pa.Table.from_pylist(rows, schema=_SCHEMA), db[NAME].definition, fill_in=True)
    ]
    load.publish(job, load.write_parts(job, 0, batches, 0, place), place)
    db.adopt(job)


def _by_client(db: Any, rows: list[dict[str, Any]]) -> None:
    with client_of(db) as remote:
        remote[NAME].insert_many(rows)
        assert remote[NAME].definition.expires == "seen + 30 min"


DOORS: dict[str, Callable[[Any, list[dict[str, Any]]], Any]] = {
    "insert": lambda db, rows: [db[NAME].insert(row) for row in rows],
    "write": lambda db, rows: [db[NAME].write(row) for row in rows],
    "upsert": lambda db, rows: [db[NAME].upsert(row) for row in rows],
    "update": lambda db, rows: [
        (db[NAME].insert({"id": row["id"]}), db[NAME].update(row["id"], {"seen": row["seen"]})) for row in rows
    ],
    "rows": lambda db, rows: db[NAME].insert_many(rows),
    "Arrow": lambda db, rows: db[NAME].write_many(pa.Table.from_pylist(rows, schema=_SCHEMA)),
    "polars": lambda db, rows: db[NAME].upsert_many(
        pl.DataFrame(rows, schema={"id": pl.Int64, "seen": pl.Datetime("us", "UTC"), "note": pl.Utf8})
    ),
    "load": lambda db, rows: db.load(NAME, pa.Table.from_pylist(rows, schema=_SCHEMA)),
    "load files": _loaded,
    "client": _by_client,
}


@pytest.mark.parametrize("door", DOORS)
def test_rows_that_have_expired_already_are_written_by_every_door_and_then_deleted(door: str) -> None:
    rows = [{"id": number, "seen": (PAST, FUTURE, None)[number % 3], "note": "x"} for number in range(30)]
    files = MemoryFiles()
    db = open_memory(files, data_memory="32 MiB", redo_log="8 MiB")
    db.create_table(NAME, COLUMNS, "id", expires="seen + 30 min")
    DOORS[door](db, rows)
    assert ids(db) == list(range(30))
    db.close()
    with open_memory(files.kill(), data_memory="32 MiB", redo_log="8 MiB") as again:
        assert again[NAME].definition.expires == "seen + 30 min" and ids(again) == list(range(30))
        if door == "client":
            with client_of(again) as remote:
                assert remote.expire() == 10
        else:
            assert again.expire() == 10
        assert ids(again) == [number for number in range(30) if number % 3]
        assert again.check()["is_sound"]


def test_a_restored_store_keeps_the_expiry_and_its_rows_until_a_run(tmp_path: Path) -> None:
    with opened(tmp_path / "s") as db:
        db.create_table("t", COLUMNS, "id", expires="seen + 2 h").insert_many([(1, PAST, None), (2, FUTURE, None)])
        db.backup(tmp_path / "backups")
        assert db.expire() == 1
    tm.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as db:
        assert db["t"].definition.expires == "seen + 2 h" and ids(db, "t") == [1, 2]
        assert not db.parts.clockwork.is_replica()
        assert db.expire() == 1 and ids(db, "t") == [2]


def test_the_command_line_shows_an_expiry_and_what_was_deleted(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with opened(store) as db:
        db.create_table("t", COLUMNS, "id", expires="seen + 90 s")
    (tmp_path / "rows.csv").write_text("id,seen,note\n1,1980-01-01T00:00:00Z,a\n2,9999-01-01T00:00:00Z,b\n")
    document("load", store, "t", tmp_path / "rows.csv")
    assert document("schema", store, "t")["expires"] == "seen + 90 s"
    assert "  expires      seen + 90 s" in run("schema", store).output.splitlines()
    with opened(store) as db:
        assert ids(db, "t") == [1, 2] and db.expire() == 1
        lines = tm.metrics(db).splitlines()
        assert "tidemark_expired_rows_total 1.0" in lines and "tidemark_expiry_failures_total 0.0" in lines
        assert any(line.startswith("tidemark_expiry_last_run_seconds 1.") for line in lines)


# --- the definition -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("seen + 30 min", "seen + 30 min"),
        ("  seen+90s ", "seen + 90 s"),
        ("seen + 120 min", "seen + 2 h"),
        ("seen + 24 h", "seen + 1 d"),
        ("seen", "seen"),
        ("seen + 0 s", "seen"),
        ("seen + 36600 d", "seen + 36600 d"),
    ],
)
def test_an_expiry_has_one_text(text: str, kept: str) -> None:
    with store(text) as db:
        definition = db[NAME].definition
        assert definition.expires == kept
        assert f"\n    expires={kept!r},\n)" in repr(definition)
        assert db.create_table(NAME, COLUMNS, "id", expires=kept, exist_ok=True).name == NAME
        with pytest.raises(tm.TableExists, match=f"its expires is '{kept.replace('+', '.')}', not None"):
            db.create_table(NAME, COLUMNS, "id", exist_ok=True)


def test_a_column_of_any_name_can_be_that_of_an_expiry() -> None:
    for name in ("a + 5 min", "a+b", "+", "d", "with blank", "ü + ", "+ 1 s"):
        if name != name.strip():
            continue
        with open_memory() as db:
            table = db.create_table("t", [COLUMNS[0], tm.Column(name, tm.Timestamp)], "id", expires=f"{name} + 0 s")
            expires = table.definition.expires
            assert expires is not None and table.definition.expiry.column == name
            db.set_expiry("t", expires)
            assert table.definition.expires == expires
            table.insert((1, PAST))
            assert db.expire() == 1


def test_an_expiry_that_cannot_be_is_refused_and_changes_nothing() -> None:
    columns = [*COLUMNS, tm.Column("cold", tm.Timestamp, nullable=True, storage="disk"), tm.Column("t", tm.Time)]
    with open_memory() as db:
        wrong: list[tuple[Any, type[tm.Error], str]] = [
            ("seen + 30 minutes", tm.SchemaInvalid, 'as "seen . 30 min", or "seen" alone; got str'),
            ("seen + 1.5 h", tm.SchemaInvalid, "or .seen. alone"),
            ("seen + -1 h", tm.SchemaInvalid, "or .seen. alone"),
            ("seen + 1 h + 1 min", tm.NoSuchColumn, "no column 'seen . 1 h'"),
            ("", tm.SchemaInvalid, "alone; got"),
            (" + 1 h", tm.SchemaInvalid, "alone; got"),
            (30, tm.SchemaInvalid, "alone; got int 30"),
            (True, tm.SchemaInvalid, "alone; got"),
            ("saen + 30 min", tm.NoSuchColumn, "no column 'saen'; did you mean seen"),
            ("seen + 36601 d", tm.SchemaInvalid, "at most 36,600 d"),
            ("seen + 9999999999 d", tm.SchemaInvalid, "at most 36,600 d"),
            ("id + 1 d", tm.SchemaInvalid, "and id is Int64; name another column"),
            ("t + 1 d", tm.SchemaInvalid, "and t is Time; name another column"),
            ("cold + 1 d", tm.SchemaInvalid, "and cold is Timestamp on disk; name another column"),
        ]
        for text, kind, said in wrong:
            with pytest.raises(kind, match=said):
                db.create_table(NAME, columns, "id", expires=text)
            assert NAME not in db
        db.create_table(NAME, columns, "id", expires="seen")
        for text, kind, said in wrong:
            with pytest.raises(kind, match=said):
                db.set_expiry(NAME, text)
        assert db[NAME].definition.expires == "seen"
        with pytest.raises(tm.SchemaInvalid, match="belongs to every store"):
            db.set_expiry("mysql.ndb_apply_status", None)
        with pytest.raises(tm.NoSuchTable):
            db.set_expiry("none", None)


def test_the_column_of_an_expiry() -> None:
    files = MemoryFiles()
    with open_memory(files) as db:
        db.create_table(NAME, COLUMNS, "id", expires="seen + 30 min")
        with pytest.raises(tm.SchemaInvalid, match="expire by column seen, which cannot be dropped; call set_expiry"):
            db.drop_column(NAME, "seen")
        db.rename_column(NAME, "seen", "at")
        db.widen_column(NAME, "note", tm.VarChar(90))
        db.drop_column(NAME, "note")
        db.rename(NAME, "test.visit")
        db["test.visit"].insert((1, PAST))
    files = files.kill()
    with open_memory(files) as db:
        assert db["test.visit"].definition.expires == "at + 30 min"
        assert db.expire() == 1
        db.set_expiry("test.visit", None)
        db["test.visit"].insert((1, PAST))
        db.drop_column("test.visit", "at")
        assert db.expire() == 0 and ids(db, "test.visit") == [1]
    with open_memory(files.kill()) as db:
        assert db["test.visit"].definition.expires is None
