"""What a scan with pushed columns and filters reads, at which epoch, and what it leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import tidemark as tm
from tests.store.read_only import attach
from tests.store.support import client_of, open_memory
from tests.waiting import wait_until
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

duckdb = pytest.importorskip("duckdb")
pl = pytest.importorskip("polars")

ROWS = 200_000  # several batches
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("n", tm.Int32, nullable=True),
    tm.Column("v", tm.Float64),
    tm.Column("note", tm.VarChar(20), storage="disk"),
]
Spans = list[tuple[str, int, int, dict[str, Any]]]


def filled(rows: int = ROWS, **options: Any) -> tuple[Any, Any, Spans]:
    spans: Spans = []
    sizes: dict[str, Any] = {"data_memory": "96 MiB", "redo_log": "64 MiB", "undo_log": "64 MiB"}
    db = open_memory(**{**sizes, "page_buffer": "1 MiB", "tracer": lambda *span: spans.append(span), **options})
    table = db.create_table("test.t", COLUMNS, "id")
    ids = list(range(rows))
    columns = {"id": ids, "n": pa.array([each % 1_000 for each in ids], pa.int32()), "v": [each / 2 for each in ids]}
    table.insert_many(pa.table({**columns, "note": [f"note {each % 9}" for each in ids]}))
    spans.clear()
    return db, table, spans


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[Any, Any, Spans]]:
    """A table that no test changes."""
    found = filled()
    yield found
    assert found[0].status()["snapshots"]["open"] == 0
    found[0].close()


def ask(readings: Any, query: str) -> list[Any]:
    """The rows that DuckDB finds; it knows the argument by its name."""
    return list(duckdb.sql(query).fetchall())


def read(spans: Spans) -> list[int]:
    """The rows of each scan since the last call."""
    found = [noted["rows"] for name, _, _, noted in spans if name == "tidemark.scan"]
    spans.clear()
    return found


def pages_touched(db: Any) -> int:
    return sum(each["hits"] + each["misses"] for each in db.status()["disk"]["page_buffer"].values())


def test_filter_and_columns_of_duckdb_reach_the_scan(made: tuple[Any, Any, Spans]) -> None:
    db, table, spans = made
    readings = table.dataset()
    spans.clear()
    touched = pages_touched(db)
    assert ask(readings, "select sum(v), count(*) from readings where id < 10") == [(22.5, 10)]
    assert ask(readings, "select sum(v) from readings where n in (7, 8) and id < 2000") == [(1_015.0,)]
    assert read(spans) == [10, 4]
    assert pages_touched(db) == touched  # `note` was not read
    assert ask(readings, "select note from readings where id = 10") == [("note 1",)]
    assert read(spans) == [1]
    # What is not translated is judged by DuckDB.
    assert ask(readings, "select count(*) from readings where n % 500 = 1 and id < 1000") == [(2,)]
    assert read(spans) == [1_000]


def test_filter_columns_and_limit_of_polars_reach_the_scan(made: tuple[Any, Any, Spans]) -> None:
    db, table, spans = made
    readings = table.scan_polars()
    spans.clear()
    touched = pages_touched(db)
    few = readings.filter(pl.col("id").is_between(5, 8), pl.col("n") != 6).select("v")
    assert sorted(few.collect()["v"].to_list()) == [2.5, 3.5, 4.0]
    assert readings.select("n").head(5).collect().shape == (5, 1)
    assert read(spans) == [3, 5]
    assert pages_touched(db) == touched
    # A limit before a filter is of the rows before it.
    assert readings.limit(7).filter(pl.col("id") >= 0).collect(engine="streaming").height == 7
    assert read(spans) == [7]
    assert readings.filter(pl.col("id") < 0).collect().schema == table.scan_polars().collect_schema()
    assert readings.select(pl.len()).collect().item() == ROWS


def test_limit_of_duckdb_does_not_read_the_whole_table(made: tuple[Any, Any, Spans]) -> None:
    db, table, spans = made
    readings = table.dataset()
    spans.clear()
    assert len(ask(readings, "select id from readings limit 10")) == 10
    gc.collect()
    wait_until(lambda: db.status()["snapshots"]["open"] == 0)
    assert sum(read(spans)) < ROWS
    assert readings.head(3).num_rows == 3
    assert sum(read(spans)) < ROWS


def test_filter_leads_to_an_index() -> None:
    db, table, _ = filled(20_000)
    with db:
        db.create_index("test.t", "by_n", "n")
        with db.snapshot() as snapshot:
            assert snapshot["test.t"].explain(["v"], where=tm.col("n") == 7)["index"] == "by_n"
        readings = table.dataset()
        assert ask(readings, "select count(*), min(id) from readings where n = 7") == [(20, 7)]


def test_scan_is_of_one_epoch_and_ends_its_snapshot() -> None:
    db, table, _ = filled()
    with db:

        def opened() -> int:
            return int(db.status()["snapshots"]["open"])

        reader = table.dataset().scanner(columns=["v"]).to_reader()
        assert opened() == 0  # it begins with the first batch
        batches = [reader.read_next_batch()]
        assert opened() == 1
        assert table.delete_where(tm.col("id") >= 100) == ROWS - 100
        batches += reader
        assert opened() == 0
        assert pa.Table.from_batches(batches).num_rows == ROWS and len(table) == 100
        reader = table.dataset().scanner().to_reader()
        reader.read_next_batch()
        del reader  # dropped before its end
        gc.collect()
        assert opened() == 0
        nothing = table.dataset().scanner(columns={"q": pc.divide(pc.field("id"), 0)})
        with pytest.raises(pa.ArrowInvalid, match="divide by zero"):
            nothing.to_table()
        assert opened() == 0
        with pytest.raises(pl.exceptions.PolarsError):
            table.scan_polars().select((pl.col("v") - 1_000).cast(pl.UInt8)).collect()
        # polars drops the reader of a query that failed when it is called again.
        wait_until(lambda: pl.select(1).height == 1 and opened() == 0)


def test_stream_that_duckdb_leaves_ends_its_snapshot() -> None:
    db, table, _ = filled()
    with db:
        readings = table.dataset()
        stream = pa.RecordBatchReader.from_stream(duckdb.from_arrow(readings))
        stream.read_next_batch()
        del stream
        gc.collect()
        wait_until(lambda: db.status()["snapshots"]["open"] == 0)


def test_scans_of_a_snapshot_see_the_same_rows(made: tuple[Any, Any, Spans]) -> None:
    db, _, _ = filled(100)
    with db, db.snapshot() as snapshot:
        readings, frame = snapshot["test.t"].dataset(), snapshot["test.t"].scan_polars()
        db["test.t"].delete_where(tm.col("id") < 50)
        query = "select count(*) from readings a join readings b on a.id = b.id where a.id < 60"
        assert ask(readings, query) == [(60,)]
        assert frame.filter(pl.col("id") < 60).collect().height == 60
        assert db.status()["snapshots"]["open"] == 1


def test_dataset_keeps_its_schema_while_the_table_changes() -> None:
    db, table, _ = filled(100)
    with db:
        columns = [tm.Column("id", tm.Int64), tm.Column("c", tm.VarChar(5)), tm.Column("d", tm.Decimal(5, 2))]
        db.create_table("test.w", columns, "id").insert((1, "a", 7))
        readings, narrow = table.dataset(), db["test.w"].dataset()
        db.add_column("test.t", tm.Column("more", tm.Int64, default=5))
        db.widen_column("test.w", "c", tm.Text)
        db.widen_column("test.w", "d", tm.Decimal(9, 2))
        assert ask(readings, "select * from readings where id = 1") == [(1, 1, 0.5, "note 1")]
        assert narrow.to_table(filter=pc.field("c") == "a").schema.types == [
            pa.int64(),
            pa.string(),
            pa.decimal128(5, 2),
        ]
        db["test.w"].write((2, "b", 1_000_000))
        with pytest.raises(pa.ArrowInvalid, match="precision"):
            narrow.to_table()
        db.drop_column("test.t", "v")
        assert ask(readings, "select count(n) from readings") == [(100,)]
        with pytest.raises(tm.NoSuchColumn):
            readings.to_table()
        db.drop_table("test.t")
        db.create_table("test.t", COLUMNS, "id")
        with pytest.raises(tm.NoSuchTable):
            readings.to_table()
        assert db.status()["snapshots"]["open"] == 0


def test_ways_past_the_scanner_are_refused(made: tuple[Any, Any, Spans]) -> None:
    readings = made[1].dataset()
    calls: list[Callable[[], Any]] = [
        lambda: readings.filter(pc.field("id") < 1),
        lambda: readings.get_fragments(),
        lambda: readings.join(readings, "id"),
        lambda: readings.sort_by("id"),
        lambda: readings.take([0]),
        lambda: readings.replace_schema(readings.schema),
    ]
    for call in calls:
        with pytest.raises(tm.Unsupported, match="to_table"):
            call()
    with pytest.raises(OSError, match="read the dataset of a Tidemark table by its own calls"):
        ds.Scanner.from_dataset(readings).to_table()
    with pytest.raises(pa.ArrowInvalid, match="nope"):
        readings.to_table(columns=["nope"])


def test_calls_of_a_scanner_agree(made: tuple[Any, Any, Spans]) -> None:
    readings, where = made[1].dataset(), pc.field("id") < 30
    assert readings.count_rows() == ROWS and readings.count_rows(filter=where) == 30
    assert sorted(readings.to_table(columns=["id"], filter=where)["id"].to_pylist()) == list(range(30))
    assert sum(batch.num_rows for batch in readings.to_batches(filter=where)) == 30
    assert readings.head(4, filter=where).num_rows == 4
    assert readings.to_table(columns=[], filter=where).num_rows == 30
    computed = readings.to_table(columns={"twice": pc.field("id") * 2}, filter=pc.field("id") == 8)
    assert computed.to_pydict() == {"twice": [16]}


def test_read_only_store_and_table_of_another_process() -> None:
    files = MemoryFiles()
    db, table, _ = filled(100, files=files)
    with db, client_of(db) as remote:
        db.checkpoint()
        assert answers(remote["test.t"]) == answers(table)
        with attach(MemoryFiles(files.disk), data_memory="96 MiB") as view:
            assert answers(view["test.t"]) == answers(table)


def answers(table: Any) -> list[Any]:
    """What DuckDB and polars find."""
    readings = table.dataset()
    found = ask(readings, "select sum(v), count(n) from readings where id between 10 and 20 or n = 99")
    wanted = (pl.col("id") < 7) & ((pl.col("n") == 3) | pl.col("n").is_null())
    return [found, table.scan_polars().filter(wanted).select("v").collect().rows()]
