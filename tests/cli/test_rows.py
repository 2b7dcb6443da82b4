"""scan, load and dump: round trips, batches, and bad input."""

from __future__ import annotations

import csv
import datetime
import decimal
import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tidemark as tm
from tests.cli.processes import Command
from tests.cli.support import SMALL, document, json_lines, refused, run
from tidemark import sources
from tidemark.cli import user_files
from tidemark.engine.rows.column_output import arrow_schema
from tidemark.engine.schema.column_inference import columns_from_arrow
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery import load

HEADER = "id,owner,balance,note\n"
EVERY_TYPE = [
    tm.Column("id", tm.Int64),
    tm.Column("u8", tm.UInt8),
    tm.Column("i16", tm.Int16, nullable=True),
    tm.Column("u64", tm.UInt64),
    tm.Column("f32", tm.Float32),
    tm.Column("f64", tm.Float64, nullable=True),
    tm.Column("truth", tm.Bool, nullable=True),
    tm.Column("money", tm.Decimal(20, 4), nullable=True),
    tm.Column("char", tm.Char(8)),
    tm.Column("text", tm.Text, nullable=True),
    tm.Column("blob", tm.Blob, nullable=True),
    tm.Column("fixed", tm.Binary(4)),
    tm.Column("day", tm.Date, nullable=True),
    tm.Column("clock", tm.Time, nullable=True),
    tm.Column("moment", tm.DateTime, nullable=True),
    tm.Column("stamp", tm.Timestamp, nullable=True),
    tm.Column("kind", tm.Enum("red", "a,b", 'q"q'), nullable=True),
]
SEED = 20_261_121


def every_type_row(rng: random.Random, key: int) -> dict[str, Any]:
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, rng.randrange(10**6))
    row = {
        "id": key - 50,
        "u8": rng.randrange(256),
        "i16": rng.randrange(-(1 << 15), 1 << 15),
        "u64": rng.randrange(1 << 64),
        "f32": float(rng.randrange(1 << 20)) / 8,
        "f64": rng.choice([rng.random(), -0.0, 1e300, float("inf")]),
        "truth": rng.random() < 0.5,
        "money": decimal.Decimal(rng.randrange(-(10**18), 10**18)).scaleb(-4),
        "char": rng.choice(["", "ä,", 'say "x"', " blank "]),
        "text": rng.choice(["", "two\nlines", "NA", "null", "\r\n", "käse"]),
        "blob": rng.choice([b"", b"plain", b"a,b\n"]),
        "fixed": rng.choice([b"", b"abcd"]),
        "day": moment.date(),
        "clock": moment.time(),
        "moment": moment,
        "stamp": moment.replace(tzinfo=datetime.UTC),
        "kind": rng.choice(["red", "a,b", 'q"q']),
    }
    for column in EVERY_TYPE:
        if column.nullable and rng.random() < 0.2:
            row[column.name] = None
    return row


def rows_of(store: Path, table: str) -> dict[Any, Any]:
    with tm.open(store, **SMALL) as db:
        return {row[0]: tuple(row) for row in db[table].scan()}


def write_csv(path: Path, *lines: str) -> Path:
    path.write_text(HEADER + "".join(line + "\n" for line in lines))
    return path


# --- round trips ----------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_every_type_dumped_and_loaded_is_the_same(suffix: str, tmp_path: Path) -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    with tm.open(tmp_path / "store", **SMALL) as db:
        for name in ("one", "two"):
            db.create_table(name, EVERY_TYPE, "id")
        db["one"].insert_many([every_type_row(rng, key) for key in range(100)])
    file = tmp_path / f"rows{suffix}"
    assert document("dump", tmp_path / "store", "one", file)["rows"] == 100
    loaded = document("load", tmp_path / "store", "two", file, "--batch-rows", 33)
    assert loaded == {"table": "two", "files": 1, "rows": 100, "transactions": 4}
    assert rows_of(tmp_path / "store", "two") == rows_of(tmp_path / "store", "one")
    assert not (tmp_path / f"rows{suffix}.part").exists()


def test_dump_to_standard_output_is_csv_any_reader_takes(store: Path) -> None:
    result = run("dump", store, "test.account", "--columns", "id,note,state")
    assert result.exit_code == 0
    rows = list(csv.reader(result.stdout.splitlines(keepends=True)))
    assert rows[0] == ["id", "note", "state"]
    assert {row[0]: row[1:] for row in rows[1:]}["4"] == ["two\nlines", "open"]
    assert len(rows) == 10


def test_dump_of_an_empty_table_is_loaded_as_no_rows(store: Path, tmp_path: Path) -> None:
    with tm.open(store, **SMALL) as db:
        db.create_table("test.none", EVERY_TYPE, "id")
    for suffix in (".csv", ".parquet", ".arrow"):
        file = tmp_path / f"none{suffix}"
        assert document("dump", store, "test.none", file)["rows"] == 0
        assert document("load", store, "test.none", file)["rows"] == 0


def test_dump_that_fails_leaves_the_old_file(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("old")
    (tmp_path / "rows.csv.part").mkdir()
    assert f"Is a directory: {file}.part; " in refused("dump", store, "test.account", file)
    assert file.read_text() == "old"


def test_dump_on_a_full_disk_leaves_no_part(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.parquet"

    def full(target: Any, suffix: str, schema: Any) -> Any:
        target.write(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(user_files, "open_writer", full)
    assert "No space left" in refused("dump", store, "test.account", file)
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_unknown_suffix_is_wrong_usage(store: Path, tmp_path: Path) -> None:
    result = run("dump", store, "test.account", tmp_path / "rows.xls")
    assert (result.exit_code, (tmp_path / "rows.xls").exists()) == (2, False)
    assert run("dump", store, "test.account", "--json").exit_code == 2


# --- loading --------------------------------------------------------------------------------------
def test_csv_with_some_columns_takes_defaults_for_the_rest(store: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv", "100,ann,1.5,", '101,"b,ob",,"quoted ""x"""', '102,,3,""')
    assert document("load", store, "test.account", file)["rows"] == 3
    rows = rows_of(store, "test.account")
    assert rows[100] == (100, "ann", 1.5, None, decimal.Decimal("0.00"), "open")
    assert rows[101][1:4] == ("b,ob", None, 'quoted "x"')
    assert rows[102][1:4] == ("", 3.0, "")


def test_csv_of_many_blocks_keeps_rows_of_many_lines_whole(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "CSV_BLOCK_BYTES", 4_096)
    lines = [f'{key},x,1,"{chr(10) * (key % 97)}"' for key in range(1_000, 2_000)]
    assert document("load", store, "test.account", write_csv(tmp_path / "many.csv", *lines))["rows"] == 1_000
    rows = rows_of(store, "test.account")
    assert all(rows[key][3] == "\n" * (key % 97) for key in range(1_000, 2_000))
    lines = [f"{key},x,1,note" for key in range(3_000, 4_000)]
    lines[900] = "3900,x,much,note"
    text = refused("load", store, "test.account", write_csv(tmp_path / "bad.csv", *lines), "--batch-rows", 100)
    assert "row 901: " in text and "'much'" in text
    reported = int(text.split("; ")[-1].split(" rows were loaded")[0])
    assert reported % 100 == 0 and len(rows_of(store, "test.account")) == 1_009 + reported


def test_bulk_load_has_all_rows_of_all_files_or_none(store: Path, tmp_path: Path) -> None:
    before = rows_of(store, "test.account")
    many = write_csv(tmp_path / "many.csv", *[f"{key},x,1,note" for key in range(1_000, 56_000)])
    few = write_csv(tmp_path / "few.csv", "60000,x,1,")
    report = document("load", store, "test.account", many, few, "--bulk")
    assert report == {"table": "test.account", "files": 2, "rows": 55_001, "transactions": 1}
    after = rows_of(store, "test.account")
    assert len(after) == len(before) + 55_001 and after[60_000][1] == "x"
    again = write_csv(tmp_path / "again.csv", *[f"{key},x,1,note" for key in range(99_000, 154_000)], "1001,y,1,")
    text = refused("load", store, "test.account", again, "--bulk")
    assert "LoadRefused" in text and "1 row has a key that exists" in text and "id=1001" in text
    bad = write_csv(tmp_path / "bad.csv", *[f"{key},{'x' * 41},1," for key in range(200_000, 251_000)])
    text = refused("load", store, "test.account", bad, "--bulk")
    assert "rows refused, the first: " in text and "holds 40 characters" in text
    assert rows_of(store, "test.account") == after
    assert run("load", store, "test.account", few, "--bulk", "--mode", "write").exit_code == 2
    assert run("load", store, "test.account", few, "--bulk", "--batch-rows", 3).exit_code == 2
    assert "no column 'nope'" in refused("load", store, "test.account", write_nope(tmp_path), "--bulk")


def test_sweep_lists_and_removes_what_broken_off_loads_left(store: Path, tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    with tm.open(store, **SMALL) as db, tm.open(tmp_path / "other", **SMALL) as other:
        begun, published = db.plan_load("test.account", jobs), db.plan_load("test.account", jobs)
        row = {"id": 70_000, "owner": "x", "balance": 1, "note": None}
        load.publish(published, load.write_parts(published, 0, [pa.RecordBatch.from_pylist([row])]))
        load.write_parts(begun, 0, [pa.RecordBatch.from_pylist([row])])
        other.create_table("t", [tm.Column("id", tm.Int64)], "id")
        foreign = other.plan_load("t", jobs)
    before = rows_of(store, "test.account")
    found = document("load", store, "--sweep", jobs)
    assert {(each["name"], each["state"], each["table"]) for each in found["removed"]} == {
        (begun.name, "open", "test.account"),
        (published.name, "published", "test.account"),
    }
    assert [each["name"] for each in found["left"]] == [foreign.name]
    assert {path.name for path in jobs.glob("*.*")} == {f"{foreign.name}.open"}
    said = run("load", store, "--sweep", jobs).output
    assert f"left: {foreign.name} (open, main.t, " in said and "0 loads removed, 1 left in " in said
    assert "1 load removed, 0 left" in run("load", tmp_path / "other", "--sweep", jobs).output
    assert rows_of(store, "test.account") == before
    assert "FileMissing" in refused("load", store, "--sweep", tmp_path / "nothing")
    assert run("load", store, "test.account", "--sweep", jobs).exit_code == 2


def write_nope(folder: Path) -> Path:
    (folder / "nope.csv").write_text("id,nope\n1,2\n")
    return folder / "nope.csv"


def test_mode_write_replaces_rows(store: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv", "1,new,1,", "200,new,1,")
    assert "DuplicateKey" in refused("load", store, "test.account", file)
    assert 200 not in rows_of(store, "test.account")
    assert document("load", store, "test.account", file, "--mode", "write")["rows"] == 2
    rows = rows_of(store, "test.account")
    assert (rows[1][1], rows[200][1], len(rows)) == ("new", "new", 10)


def test_duplicate_key_names_file_row_and_what_is_in(store: Path, tmp_path: Path) -> None:
    good = write_csv(tmp_path / "good.csv", "50,x,1,", "51,x,1,")
    bad = write_csv(tmp_path / "bad.csv", "60,x,1,", "61,x,1,", "62,x,1,", "3,x,1,", "64,x,1,")
    text = refused("load", store, "test.account", good, bad, "--batch-rows", 2)
    assert text.startswith("Error: DuplicateKey: ") and f"{bad}: test.account: row 4 has key 3" in text
    assert text.endswith("; 4 rows were loaded")
    assert {50, 51, 60, 61} <= set(rows_of(store, "test.account"))
    assert not {62, 64} & set(rows_of(store, "test.account"))


def test_value_the_column_refuses_names_its_row(store: Path, tmp_path: Path) -> None:
    long = "x" * 41
    file = write_csv(tmp_path / "long.csv", "60,x,1,", "61,x,1,", f"62,{long},1,")
    text = refused("load", store, "test.account", file, "--batch-rows", 2)
    assert "ValueOutOfRange" in text and "test.account.owner in row 3" in text and "2 rows were loaded" in text


def test_unknown_column_names_those_there_are(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "columns.csv"
    file.write_text("id,ownr\n1,x\n")
    text = refused("load", store, "test.account", file)
    assert f"NoSuchColumn: {file}: test.account has no column 'ownr'" in text and "owner" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", b""),
        ("ragged.csv", b"id,owner\n1,x\n2,y,z\n"),
        ("no.parquet", b"garbage"),
        ("empty.parquet", b""),
        ("no.arrow", b"garbage" * 100),
        ("binary.csv", b"id,owner\n1,\xff\xfe\n"),
        ("no.csv.gz", b"not compressed"),
    ],
)
def test_file_that_is_none_is_refused_in_one_line(store: Path, tmp_path: Path, name: str, content: bytes) -> None:
    before = rows_of(store, "test.account")
    (tmp_path / name).write_bytes(content)
    text = refused("load", store, "test.account", tmp_path / name)
    assert str(tmp_path / name) in text and text.endswith("no rows were loaded")
    assert rows_of(store, "test.account") == before


def test_truncated_parquet_file_is_refused(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.parquet"
    document("dump", store, "test.account", file)
    file.write_bytes(file.read_bytes()[:-20])
    assert str(file) in refused("load", store, "test.account", file, "--mode", "write")


def test_table_made_from_parquet_has_its_columns(store: Path, tmp_path: Path) -> None:
    table = pa.table(
        {
            "code": pa.array(["a", "b"]),
            "n": pa.array([1, None], pa.int16()),
            "when": pa.array([datetime.datetime(2024, 1, 1)] * 2, pa.timestamp("us")),
            "stamp": pa.array([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)] * 2, pa.timestamp("us", "UTC")),
            "price": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(9, 2)),
            "raw": pa.array([b"x", None]),
            "word": pa.array(["w", "w"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "made.parquet")
    report = document("load", store, "test.made", tmp_path / "made.parquet", "--create", "--key", "code")
    assert report["rows"] == 2
    with tm.open(store, **SMALL) as db:
        columns = {each.name: (repr(each.type), each.nullable) for each in db["test.made"].definition.columns}
        assert columns == {
            "code": ("VarChar(255)", False),
            "n": ("Int16", True),
            "when": ("DateTime", True),
            "stamp": ("Timestamp", True),
            "price": ("Decimal(9, 2)", True),
            "raw": ("Blob", True),
            "word": ("Text", True),
        }
        assert db["test.made"]["a"].price == decimal.Decimal("1.50")


def test_rows_of_every_kind_of_load_count_from_1(store: Path, tmp_path: Path) -> None:
    """Story: `load --bulk` counted rows from 0, and the header of a CSV file as a row; other loads did not."""
    first, bad, null = (tmp_path / name for name in ("first.csv", "bad.csv", "null.csv"))
    first.write_text("id,owner\n100,a\n101,b\n")
    bad.write_text("id,owner\n200,a\nx,b\n")
    null.write_text("id,owner\n300,a\n301,\n,c\n")
    for more in ((), ("--bulk",), ("--batch-rows", 1)):
        text = refused("load", store, "test.account", bad, *more)
        assert "bad.csv" in text and "row 2:" in text
        if not more:
            assert f"{bad}: In CSV column #0: row 2: " in text and "'x'" in text
            assert text.endswith("no rows were loaded")
        text = refused("load", store, "test.account", null, *more)
        assert "null.csv" in text and "row 3 is not nullable" in text
    text = refused("load", store, "test.account", first, null, "--bulk")
    assert "2 files, whose rows are counted together" in text and "row 5 is not nullable" in text


def test_load_makes_the_store_too_but_not_for_a_file_that_makes_no_table(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("id,name\n1,pen\n2,cup\n")
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.mkdir()
    assert "no column 'key'" in refused("load", missing, "item", tmp_path / "items.csv", "--create", "--key", "key")
    assert run("load", missing, "item", tmp_path / "items.csv").exit_code == 2
    assert not missing.exists()
    for place in (missing, empty):
        report = document("load", place, "test.item", tmp_path / "items.csv", "--create", "--key", "id")
        assert report["rows"] == 2
        assert {row["id"]: row["name"] for row in json_lines("scan", place, "test.item")} == {1: "pen", 2: "cup"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    text = refused("load", tmp_path / "mine", "test.item", tmp_path / "items.csv", "--create", "--key", "id")
    assert "ForeignFile" in text and [each.name for each in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_columns_made_from_a_tables_own_arrow_schema_hold_the_same_values() -> None:
    definition = TableDefinition(0, 1, "t", tuple(EVERY_TYPE), ("id",))
    made = {each.name: each for each in columns_from_arrow(arrow_schema(definition), ["id"])}
    longer = {"char": tm.Text, "kind": tm.Text}
    for column in EVERY_TYPE:
        assert made[column.name].type == longer.get(column.name, column.type), column.name
        assert made[column.name].nullable == column.nullable
    keys = columns_from_arrow(pa.schema([("a", pa.string()), ("b", pa.binary()), ("c", pa.binary(7))]), ["a", "b", "c"])
    assert [repr(each.type) for each in keys] == ["VarChar(255)", "VarBinary(255)", "Binary(7)"]
    views = pa.schema([("a", pa.binary_view()), ("b", pa.binary_view()), ("c", pa.string_view())])
    assert [repr(each.type) for each in columns_from_arrow(views, ["a"])] == ["VarBinary(255)", "Blob", "Text"]
    runs = pa.run_end_encoded(pa.int32(), pa.dictionary(pa.int8(), pa.string()))
    encoded = columns_from_arrow(pa.schema([("a", runs), ("b", pa.uuid()), ("c", pa.bool8())]), ["b"])
    assert [repr(each.type) for each in encoded] == ["Text", "UUID", "Int8"]
    with pytest.raises(tm.SchemaInvalid, match="column 'a' has Arrow type list<item: int64>, which no column holds"):
        columns_from_arrow(pa.schema([("a", pa.list_(pa.int64()))]), ["a"])


def test_columns_named_for_disk_get_disk_storage_and_unknown_ones_are_refused() -> None:
    schema = pa.schema([("id", pa.int64()), ("note", pa.string()), ("n", pa.int32())])
    made = columns_from_arrow(schema, ["id"], ["note"])
    assert [column.storage for column in made] == ["memory", "disk", "memory"]
    with pytest.raises(tm.NoSuchColumn, match="no column 'nota' to put on disk; the columns are id, note, n"):
        columns_from_arrow(schema, ["id"], ["note", "nota"])


def test_load_puts_only_columns_of_a_new_table_on_disk(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "made.csv"
    file.write_text("id,note\n1,x\n")
    assert run("load", store, "made", file, "--disk", "note").exit_code == 2
    text = refused("load", store, "made", file, "--create", "--key", "id", "--disk", "nota")
    assert "no column 'nota' to put on disk" in text and text.endswith("no table was created")
    text = refused("load", store, "made", file, "--create", "--key", "id", "--disk", "id")
    assert "key columns live in memory" in text


def test_table_made_from_csv_with_a_key_of_two_columns(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "made.csv"
    file.write_text("a,b,day\n1,x,2024-02-29\n1,y,\n")
    assert document("load", store, "made", file, "--create", "--key", "a, b")["rows"] == 2
    with tm.open(store, **SMALL) as db:
        assert db["made"].definition.primary_key == ("a", "b")
        assert db["made"][(1, "x")].day == datetime.date(2024, 2, 29)
    assert "TableExists" in refused("load", store, "made", file, "--create", "--key", "a,b")


def test_table_is_not_made_from_a_file_that_cannot_be_read(store: Path, tmp_path: Path) -> None:
    lists = tmp_path / "lists.parquet"
    pq.write_table(pa.table({"id": [1], "many": [[1, 2]]}), lists)
    assert "'many' has Arrow type list" in refused("load", store, "test.made", lists, "--create", "--key", "id")
    assert "no column 'key'" in refused("load", store, "test.made", lists, "--create", "--key", "key")
    (tmp_path / "none.parquet").write_bytes(b"garbage")
    text = refused("load", store, "test.made", tmp_path / "none.parquet", "--create", "--key", "id")
    assert text.endswith("no table was created")
    assert "test.made" not in {f"{each['database']}.{each['name']}" for each in document("tables", store)}


def test_create_without_key_and_key_without_create_are_wrong_usage(store: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv", "60,x,1,")
    assert run("load", store, "made", file, "--create").exit_code == 2
    assert run("load", store, "test.account", file, "--key", "id").exit_code == 2
    assert run("load", store, "test.account", tmp_path / "none.csv").exit_code == 2
    assert run("load", store, "test.account", file, "--batch-rows", 0).exit_code == 2


def test_load_larger_than_the_log_continues_through_local_checkpoints(store: Path, tmp_path: Path) -> None:
    rows = 40_000
    table = pa.table({"id": range(1_000, 1_000 + rows), "owner": ["o" * 40] * rows, "note": ["n" * 200] * rows})
    pq.write_table(table, tmp_path / "many.parquet")
    report = document("load", store, "test.account", tmp_path / "many.parquet", "--batch-rows", 2_000)
    assert (report["rows"], report["transactions"]) == (rows, 20)
    assert document("tables", store)[0]["rows"] == rows + 9


def test_interrupted_load_says_what_is_in(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_csv(tmp_path / "new.csv", *(f"{key},x,1," for key in range(50, 60)))
    run_once = tm.Database.run
    calls = []

    def interrupted(db: tm.Database, work: Any, retries: int) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run_once(db, work, retries)

    monkeypatch.setattr(tm.Database, "run", interrupted)
    result = run("load", store, "test.account", file, "--batch-rows", 2)
    assert result.exit_code == 1 and "interrupted; 4 rows were loaded" in result.stderr
    assert len(rows_of(store, "test.account")) == 9 + 4


def test_reader_that_leaves_early_ends_dump_and_scan_quietly(store: Path, tmp_path: Path) -> None:
    with tm.open(store, **SMALL) as db:
        db["test.account"].write_many([{"id": key, "owner": "o", "note": "n" * 500} for key in range(3_000)])
    for name in ("dump", "scan"):
        command = Command(tmp_path, name, store, "test.account")
        assert command.readline()
        assert command.leave() == ("", "", 1)


# --- scan -----------------------------------------------------------------------------------------
def test_scan_prints_json_lines_and_hidden_columns(store: Path) -> None:
    rows = json_lines("scan", store, "test.account", "--columns", "id,price", "--rowid", "--gci64", "--author")
    assert len(rows) == 9
    assert set(rows[0]) == {"id", "price", "$ROWID", "$EPOCH", "$AUTHOR"}
    assert all(row["price"] == "0.00" and row["$EPOCH"] >= 1 << 32 for row in rows)
    assert len(json_lines("scan", store, "test.account", "--limit", 2)) == 2


def test_scan_for_people_is_aligned_and_keeps_a_row_on_a_line(store: Path) -> None:
    lines = run("scan", store, "test.account").stdout.splitlines()
    assert len(lines) == 10
    assert {line.index("open", 10) for line in lines[1:]} == {lines[0].index("state")}
    assert any("two\\nlines" in line for line in lines)


def test_scan_prints_what_json_has_no_form_for(tmp_path: Path) -> None:
    rng = random.Random(SEED)
    with tm.open(tmp_path / "store", **SMALL) as db:
        db.create_table("one", EVERY_TYPE, "id")
        db["one"].insert({**every_type_row(rng, 0), "f64": float("nan"), "blob": b"\xff\x00", "clock": None})
    (row,) = json_lines("scan", tmp_path / "store", "one")
    assert (row["f64"], row["blob"], row["clock"]) == ("nan", "ff00", None)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_scan_of_what_is_not_there_is_refused(store: Path) -> None:
    assert "NoSuchTable" in refused("scan", store, "test.none")
    assert "NoSuchColumn" in refused("scan", store, "test.account", "--columns", "id,none")
    assert run("scan", store, "test.account", "--limit", -1).exit_code == 2
