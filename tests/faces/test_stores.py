"""Calls of a store, of its snapshots and of its scans do the same on every face."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tidemark as tm
from tests.faces.faces import ROWS, STORAGES, TABLE, Calls, Faces, listed, plain
from tests.waiting import wait_until
from tidemark.calls import READ_ONLY, SCAN_CALLS, calls_of

STORES = ("store", "remote store", "awaited store")
SCANS = ("scan", "remote scan", "awaited scan", "read-only scan", "snapshot scan", "remote snapshot scan")
SNAPSHOTS = ("snapshot", "remote snapshot", "awaited snapshot", "read-only snapshot")


@pytest.fixture(scope="module", params=STORAGES)
def faces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faces]:
    with ExitStack() as at_end:
        yield Faces(tmp_path_factory.mktemp("faces") / "store", request.param, at_end)


@pytest.mark.parametrize("face", STORES)
def test_every_store_gives_numbers(faces: Faces, face: str) -> None:
    with faces.face(face) as made:
        sequence = Calls(faces, made.sequence("given"))
        first = sequence.next()
        assert sequence.take(3) == range(first + 1, first + 4)
        assert faces.db.sequence("given").next() == first + 4


def opened(faces: Faces) -> int:
    return int(faces.db.status()["snapshots"]["open"])


@pytest.mark.parametrize("face", STORES)
def test_every_change_of_the_schema_is_made_by_every_store(faces: Faces, face: str) -> None:
    with faces.face(face) as made:
        db, here = Calls(faces, made), faces.db
        columns = [tm.Column("year", tm.Int16), tm.Column("price", tm.Decimal(10, 2), default=decimal.Decimal("1.50"))]
        old = tm.RangePartition("year", [("old", 2025)])
        db.create_table("sale", columns, "year", old, checks={"late": tm.col("year") > 1990})
        db.add_partition("sale", "now", 2026)
        assert [each["name"] for each in db.partitions("sale")] == ["old", "now"]
        db.drop_partition("sale", "old")
        assert [each["name"] for each in here.partitions("sale")] == ["now"]
        # Story: a client could neither add a partition up to MAXVALUE nor list one: "a value cannot be sent".
        db.add_partition("sale", "later", tm.MAXVALUE)
        assert db.partitions("sale") == here.partitions("sale") and db.partitions("sale")[1]["upper"] is tm.MAXVALUE
        if face == "remote store":
            assert made["sale"].definition.partition == here["sale"].definition.partition
        db.drop_partition("sale", "later")
        db.add_column("sale", tm.Column("note", tm.VarChar(4), default="none"))
        here["sale"].insert({"year": 2025})
        db.widen_column("sale", "note", tm.VarChar(80))
        db.set_default("sale", "note", "many more")
        here["sale"].insert({"year": 2024})
        db.rename_column("sale", "note", "text")
        assert [row.text for row in map(here["sale"].get, (2025, 2024))] == ["none", "many more"]
        db.create_index("sale", "by_text", "text", unique=True)
        assert db.indexes("sale") == here.indexes("sale") and not here.indexes("sale")[0]["ordered"]
        assert here["sale"].get("none", index="by_text").year == 2025
        db.drop_index("sale", "by_text")
        db.create_index("sale", "by_text", "text", unique=True, ordered=True)
        assert [row.year for row in here["sale"].scan(index="by_text", reverse=True)] == [2025, 2024]
        assert here.indexes("sale")[0]["ordered"]
        # Story: a program that starts a second time had to look whether its indexes exist.
        db.create_index("sale", "by_text", "text", True, ordered=True, exist_ok=True)
        has = "has another index by_text, over text, unique, ordered and not"
        others = (("text", False, "over text;"), (["text", "year"], True, "over text, year, unique;"))
        for names, unique, said in others:
            with pytest.raises(tm.IndexExists, match=f"{has} {said}"):
                db.create_index("sale", "by_text", names, unique, exist_ok=True)
        with pytest.raises(tm.IndexExists, match="has an index by_text; choose another name"):
            db.create_index("sale", "by_text", "text", True, ordered=True)
        db.drop_index("sale", "by_text")
        db.drop_index("sale", "by_text", missing_ok=True)
        with pytest.raises(tm.NoSuchIndex):
            db.drop_index("sale", "by_text")
        with pytest.raises(tm.NoSuchTable):
            db.drop_index("sle", "by_text", missing_ok=True)
        with pytest.raises(tm.NoSuchTable):
            db.create_index("sle", "by_text", "text", exist_ok=True)
        db.create_index("sale", "by_text", "text", exist_ok=True)
        assert [each["name"] for each in here.indexes("sale")] == ["by_text"]
        db.drop_index("sale", "by_text")
        db.drop_column("sale", "text")
        with pytest.raises(tm.CheckFailed, match="check dear cannot be added"):
            db.add_check("sale", "dear", tm.col("price") > decimal.Decimal("1.50"))
        db.add_check("sale", "cheap", tm.col("price") < decimal.Decimal("9.99"))
        for row, check in (((1990, decimal.Decimal(1)), "late"), ((2000, decimal.Decimal(10)), "cheap")):
            with pytest.raises(tm.CheckFailed) as caught:
                Calls(faces, made.table("sale")).insert(row)
            assert (caught.value.evidence["check"], caught.value.evidence["key"]) == (check, row[0])
        db.drop_check("sale", "cheap")
        assert [check.name for check in here["sale"].definition.checks] == ["late"]
        db.add_column("sale", tm.Column("seen", tm.Timestamp, nullable=True))
        db.set_expiry("sale", "seen+60 min")
        assert here["sale"].definition.expires == "seen + 1 h"
        long_ago = datetime.datetime(1980, 1, 1, tzinfo=datetime.UTC)
        here["sale"].insert({"year": 1999, "seen": long_ago})
        assert db.expire() == 1 and db.expire() == 0 and here["sale"].get(1999) is None
        db.set_expiry("sale", None)
        db.drop_column("sale", "seen")
        with pytest.raises(tm.NoSuchColumn):
            db.set_expiry("sale", "seen")
        session = db.create_table("session", [columns[0], tm.Column("at", tm.Date)], "year", expires="at")
        Calls(faces, session).insert((2000, long_ago.date()))
        assert here["session"].definition.expires == "at" and db.expire() == 1
        db.drop_table("session")
        db.rename("sale", "shop.sale")
        sale = Calls(faces, made.table("shop.sale"))
        assert here["shop.sale"][2025] == sale.get(2025) == (2025, decimal.Decimal("1.50"))
        assert sale.count(where=tm.col("price") > 1.25) == 2
        assert set(db.tables(system=True)) == set(here.tables(True)) > set(here.tables())
        assert db.tables() == here.tables() == ["shop.sale", TABLE]
        db.truncate("shop.sale")
        assert len(here["shop.sale"]) == 0
        with pytest.raises(tm.NoSuchTable):
            db.truncate("shop.none")
        db.drop_table("shop.sale")
        with pytest.raises(tm.NoSuchTable):
            db.drop_table("shop.sale")
        db.drop_table("shop.sale", missing_ok=True)
        before = here.tablespaces()
        db.create_tablespace("archive", "4 MiB", limit="1 GiB")
        db.add_datafile("archive", "2 MiB")
        assert db.tablespaces() == here.tablespaces() == sorted([*before, "archive"])
        db.drop_tablespace("archive")
        assert here.tablespaces() == before
        with pytest.raises(tm.Rejected):
            db.set_conflict_function(TABLE, "NDB$EPOCH")  # the store has no server_id
        assert Calls(faces, db.create_replication_table()).count() == 0
        assert "mysql.ndb_replication" in here
        db.drop_table("mysql.ndb_replication")


@dataclasses.dataclass
class Sale:
    """A row of a table."""

    year: int
    note: str | None


@pytest.mark.parametrize("face", STORES)
def test_a_table_is_created_once_and_like_data(faces: Faces, face: str) -> None:
    """Story: a program that starts a second time had to look whether its tables exist."""
    with faces.face(face) as made:
        db, here = Calls(faces, made), faces.db
        parts = tm.RangePartition("year", [("old", 2025), ("now", tm.MAXVALUE)])
        columns = [tm.Column("year", tm.Int16), tm.Column("note", tm.Text, default="x")]
        for _ in range(2):
            table = Calls(faces, db.create_table("sale", columns, "year", parts, exist_ok=True))
            table.write({"year": 2025})
            here.create_index("sale", "by_year", "year") if not here.indexes("sale") else None  # does not count
        assert table.count() == 1
        with pytest.raises(tm.TableExists, match="choose another name"):
            db.create_table("sale", columns, "year", parts)
        others: dict[str, tuple[Any, Any, Any]] = {
            "it has a column 'note'": (columns[:1], "year", parts),
            "it has no column 'more'": ([*columns, tm.Column("more", tm.Bool)], "year", parts),
            "it has Column.'note', Text, default='x'., not Column.'note', Text.;": (
                [columns[0], tm.Column("note", tm.Text)],
                "year",
                parts,
            ),
            "its partition is RangePartition.'year', .*, not HashPartition.4.;": (columns, "year", None),
            "its primary_key is .'year',., not .'year', 'month'.": (
                [*columns, tm.Column("month", tm.Int8)],
                ["year", "month"],
                parts,
            ),
            "the order of its columns is year, note": (columns[::-1], "year", parts),
        }
        for said, (given, key, partition) in others.items():
            with pytest.raises(tm.TableExists, match=f"another definition: .*{said}"):
                db.create_table("sale", given, key, partition, exist_ok=True)
        db.drop_table("sale")
        # Story: bytes of polars come as views, which had no type.
        frame = {"id": [1, 2], "at": [1.5, None], "name": ["a", "b"], "octets": [b"x", b""]}
        for like in (
            pa.table(frame),
            pa.table(frame).schema,
            pd.DataFrame(frame),
            pl.DataFrame(frame),
            pl.LazyFrame(frame),
        ):
            table = Calls(faces, db.create_table("like", like, "id"))
            kinds = [(each.name, repr(each.type), each.nullable) for each in here["like"].columns]
            varying = [("name", "Text", True), ("octets", "Blob", True)]
            assert kinds == [("id", "Int64", False), ("at", "Float64", True), *varying], type(like)
            assert table.count() == 0 and table.insert_many(pa.table(frame)) == 2
            db.drop_table("like")
        assert repr(here.create_table("key", pa.schema({"s": pa.string()}), "s").columns[0].type) == "VarChar(255)"
        db.drop_table("key")
        for _ in range(2):
            sales = Calls(faces, db.create_table("sale", Sale, "year", exist_ok=True))
            sales.write(Sale(2026, None))
        assert sales.get(2026) == Sale(2026, None)
        db.drop_table("sale")


@pytest.mark.parametrize("face", STORES)
def test_every_store_runs_work_and_tells_its_outcome(faces: Faces, face: str) -> None:
    with faces.face(face) as made:
        db, txids = Calls(faces, made), []

        def work(txn: Any) -> Any:
            txids.append(txn.txid)
            if len(txids) % 3:
                raise tm.LockTimeout("planted; run it again")
            return txn.update(TABLE, 1, {"n": 11})

        assert db.run(work, isolation="snapshot") is True and faces.db[TABLE][1].n == 11
        faces.restore()
        assert [db.outcome(txid) for txid in txids] == ["aborted", "aborted", "committed"] and db.sync() >= 1
        with pytest.raises(tm.LockTimeout, match="planted"):
            db.run(work, retries=1)
        assert len(set(txids)) == 5
        with pytest.raises(tm.Rejected):
            db.run(work, retries=-1)
        with pytest.raises(tm.Rejected, match="is not open"):
            db.kill(txids[2])
        assert db.checkpoint()["lcp_id"] >= 1 and db.check()["is_sound"] is True
        assert db.status()["tables"][TABLE]["rows"] == 3
        table = made.table(TABLE)
        assert plain("", Calls(faces, table).get(1)) == ROWS[0]


def test_every_change_is_refused_by_a_store_opened_for_reading(faces: Faces) -> None:
    with faces.face("read-only store") as made:
        refused = [call.name for call, reason in calls_of("read-only store") if reason == READ_ONLY]
        assert len(refused) > 20
        for name in refused:
            with pytest.raises(tm.ReadOnly):
                getattr(made, name)()
        assert made.tables() == [TABLE] and made.run(lambda txn: txn.count(TABLE)) == 3
        assert made.indexes(TABLE)[0]["name"] == "by_n" and made.replication_rows() == []


@pytest.mark.parametrize("face", SNAPSHOTS)
def test_a_snapshot_shows_what_was(faces: Faces, face: str) -> None:
    if face == "read-only snapshot" and faces.storage == "disk":
        return  # a view has what a local checkpoint has of memory
    with faces.face(face) as made:
        snapshot, table = Calls(faces, made), Calls(faces, made.table(TABLE))
        epoch = made.epoch
        faces.db[TABLE].delete(1)
        try:
            assert snapshot.tables() == [TABLE] and epoch < faces.db.sync()
            if face == "read-only snapshot":
                assert faces.db.checkpoint()["epoch"] > epoch and faces.view.refresh() > epoch
                assert faces.view[TABLE].get(1) is None
            assert "mysql.ndb_apply_status" not in snapshot.tables() and set(snapshot.tables(True)) >= {TABLE}
            assert plain("", table.get(1)) == ROWS[0] and table.count() == 3 and table.sum("n") == 15
            assert table.get("pen", index="by_name").id == 1
            with pytest.raises(tm.NoSuchTable):
                Calls(faces, made.table("none")).get(1)
        finally:
            faces.restore()
            faces.db.checkpoint()
            faces.view.refresh()


@pytest.mark.parametrize("face", ["snapshot", "remote snapshot", "read-only snapshot"])
def test_a_snapshot_that_is_closed_refuses_every_call(faces: Faces, face: str) -> None:
    if face == "read-only snapshot" and faces.storage == "disk":
        return  # a view has what a local checkpoint has of memory
    with faces.face(face) as snapshot:
        table = snapshot[TABLE]
        scan = iter(table.scan())
        next(scan)
        assert opened(faces) == (face != "read-only snapshot")
        assert TABLE in snapshot and "x" not in snapshot and len(table) == 3
        of = " of another process" if face == "remote snapshot" else ""
        if face != "read-only snapshot":
            assert repr(table).startswith(f"<tidemark table {TABLE}{of} at epoch {snapshot.epoch}")
        snapshot.close()
        snapshot.close()
        assert opened(faces) == 0 and repr(snapshot).endswith("closed>")
        calls = (lambda: table.get(1), lambda: len(table), lambda: snapshot[TABLE], table.count, table.to_arrow)
        for call in (*calls, lambda: table.get("pen", index="by_name")):
            with pytest.raises(tm.SnapshotClosed, match=r"open another one with (db.)?snapshot\(\)"):
                call()


def test_a_snapshot_of_a_client_ends_with_it(faces: Faces) -> None:
    other = faces.connected()
    left = other.snapshot()
    other.close()
    with pytest.raises(tm.StoreClosed):
        left[TABLE]
    wait_until(lambda: opened(faces) == 0)


def test_a_snapshot_whose_link_breaks_says_so_and_is_closed_there(faces: Faces) -> None:
    snapshot = faces.remote.snapshot()
    table = snapshot[TABLE]
    snapshot.link.opened.wire.connection.shutdown(socket.SHUT_RDWR)
    with pytest.raises(tm.PeerError):
        table.get(1)
    with pytest.raises(tm.SnapshotClosed, match="open another one"):
        table.get(1)
    snapshot.close()
    wait_until(lambda: opened(faces) == 0)


def test_a_snapshot_of_a_client_that_its_process_has_dropped_says_so(faces: Faces) -> None:
    with faces.remote.snapshot() as snapshot:
        table = snapshot[TABLE]
        faces.db.parts.store.snapshots.close_all()
        with pytest.raises(tm.SnapshotClosed):
            table.get(1)


@pytest.mark.parametrize("face", SCANS)
def test_a_scan_answers_the_same_on_every_face(faces: Faces, face: str) -> None:
    with faces.face(face.replace("scan", "table")) as table:

        def ask(name: str, *arguments: Any, **named: Any) -> Any:
            return getattr(Calls(faces, table.scan(where=tm.col("id") < 3)), name)(*arguments, **named)

        if face == "read-only scan" and faces.storage == "disk":
            return  # a view has what a local checkpoint has of memory
        for name in ("to_arrow", "to_pandas", "to_polars"):
            assert sorted(plain(name, ask(name))) == ROWS[:2], name
        assert sorted(ask("to_numpy")["id"].tolist()) == [1, 2] and ask("schema").names == ["id", "name", "n", "note"]
        batches = ask("batches")
        if hasattr(batches, "__aiter__"):
            batches = faces.awaited(listed(batches))
        assert sum(batch.num_rows for batch in batches) == 2
        assert (ask("count"), ask("count", "note"), ask("sum", "n"), ask("min", "n")) == (2, 1, 15, 5)
        assert (ask("max", tm.col("n") + 1), ask("mean", "n")) == (11, 7.5)
        assert ask("aggregate", rows=("count",), most=("max", "name")) == (2, "pen")
        assert sorted(plain("sample", ask("sample", 5))) == ROWS[:2] and ask("sample", 1, seed=7).num_rows == 1
        assert ask("explain")["access"] == "full scan"
        with pytest.raises(tm.ProgramInvalid):
            ask("sum", "name")


def test_every_call_of_a_scan_has_a_case() -> None:
    asked = {"to_arrow", "to_pandas", "to_polars", "to_numpy", "schema", "batches", "explain", "aggregate", "sample"}
    assert asked | {"count", "sum", "min", "max", "mean"} == {call.name for call in SCAN_CALLS}
