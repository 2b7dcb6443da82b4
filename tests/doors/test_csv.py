"""CSV as a door: what a text means, quotes, long rows, and files without rows."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import tidemark as tm
from tests.doors.rules import same
from tests.shares import few
from tests.store.support import open_memory
from tidemark import sources
from tidemark.engine.rows import csv_kernels as k


def table(*columns: Any) -> Any:
    db: Any = open_memory(data_memory="64 MiB", transaction_memory="16 MiB", redo_log="64 MiB")
    db.create_table("test.t", [tm.Column("id", tm.Int64), *columns], "id", tm.HashPartition(1))
    return db


def loaded(db: Any, path: Path, text: str | bytes) -> list[tuple[Any, ...]]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    db["test.t"].delete_where(tm.col("id") >= 0)
    db.load("test.t", path)
    return sorted(map(tuple, db["test.t"].scan()))


CELLS: list[tuple[Any, str, Any]] = [
    *(
        (kind, text, float(text))
        for kind in (tm.Float32, tm.Float64)
        for text in ("inf", "-inf", "Infinity", "nan", "-0")
    ),
    *((tm.Float64, text, None) for text in ("1e999", "-1e400", "x")),
    *((tm.Float32, text, None) for text in ("1e39", "-4e38", "1e999")),
    # A number of hundreds of digits was loaded as what was left of it modulo 2**128.
    *((tm.Decimal(38, 2), text, None) for text in ("1" + "0" * 400, "9" * 401 + ".5", "-" + "3" * 500, "1e400")),
    *((tm.Decimal(38, 2), text, Decimal("1.50")) for text in ("0" * 400 + "1.5", "1.5" + "0" * 400)),
    *((tm.Float64, "1e308", 1e308), (tm.Float64, "1e-999", 0.0), (tm.Float32, "1e-60", 0.0)),
    *(
        (tm.Int8, "127", 127),
        (tm.Int8, "128", None),
        (tm.UInt8, "-1", None),
        (tm.Int64, "1.0", None),
        (tm.Int64, "", ""),
    ),
    *((tm.Int64, str(2**63 - 1), 2**63 - 1), (tm.Int64, str(2**63), None), (tm.UInt64, str(2**64 - 1), 2**64 - 1)),
    *((tm.Binary(4), "ab", b"ab\0\0"), (tm.Binary(4), "abcde", None), (tm.VarBinary(4), "ab", b"ab")),
    *((tm.Char(3), "abc", "abc"), (tm.Char(3), "abcd", None), (tm.Enum("a"), "b", None), (tm.Bool, "2", None)),
    *((tm.Date, "2024-02-30", None), (tm.Date, "0000-01-01", None), (tm.Time, "24:00:00", None)),
    *((tm.DateTime, "2024-02-29 12:00:00.1234567", None), (tm.DateTime, "2024-02-29T12:00:00Z", None)),
]


@pytest.mark.parametrize(("kind", "text", "right"), CELLS, ids=lambda each: repr(each)[:30])
def test_cell_is_its_value_or_refused(tmp_path: Path, kind: Any, text: str, right: Any) -> None:
    """Story: "1e999" was loaded as an infinite number. A right value of None stands for a refusal."""
    db = table(tm.Column("v", kind, nullable=True))
    try:
        found = loaded(db, tmp_path / "f.csv", f"id,v\n1,\n2,{text}\n")
    except tm.Error as error:
        assert right is None
        assert any(each in str(error) for each in ("ow #3", "row 3", "row 1"))
        return
    assert len(found) == 2
    assert same(found[1][1], None if right == "" else right)


def test_error_of_a_later_block_names_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CSV_BLOCK_BYTES", 64)
    db = table(tm.Column("v", tm.Float32, nullable=True))
    rows = "".join(f"{number},{number}\n" for number in range(100))
    assert len(loaded(db, tmp_path / "f.csv", "id,v\n" + rows)) == 100
    for wrong in ("100,1e39\n", "x,1\n", "100,1,2\n"):
        with pytest.raises(tm.Rejected, match="ow #102"):
            loaded(db, tmp_path / "f.csv", "id,v\n" + rows + wrong + rows)


@pytest.mark.parametrize("block", [16, 1 << 20])
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('id,v\n1,"abc\n2,d\n3,e\n', 2),
        ('id,v\r\n1,abc\r\n2,"d', 3),
        ('id,v\n1,a"b\n2,"a\n\n""\n' + "3,x\n" * 2_000, 3),
        ('id,v\n1,"abc\n2,"def"\n', 2),
        ('id,v\n1,"abc" \n', 2),
        ('"id,v\n1,a\n', 1),
    ],
)
def test_quote_without_end_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, text: str, line: int
) -> None:
    """Story: one quote that was never closed made the rest of a file, 5,000 rows, the text of one row."""
    monkeypatch.setattr(sources, "CSV_BLOCK_BYTES", block)
    db = table(tm.Column("v", tm.Text, nullable=True))
    with pytest.raises(tm.Rejected, match=rf"line {line}\b"):
        loaded(db, tmp_path / "f.csv", text)
    assert len(db["test.t"]) == 0


@pytest.mark.parametrize("block", [16, 100, 1 << 20])
def test_rows_longer_than_a_block_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Story: a Text of 20 MB in a file that `dump` wrote was "straddling two block boundaries" for `load`."""
    monkeypatch.setattr(sources, "CSV_BLOCK_BYTES", block)
    db = table(tm.Column("v", tm.Text, nullable=True))
    rows = [(1, "é" * 5_000), (2, None), (3, 'a "quoted"\r\n\r\n,x\r' * 30), (4, ""), (5, "x")]
    cells = ["" if value is None else '"' + value.replace('"', '""') + '"' for _, value in rows]
    for end in ("\n", "\r\n", "\r"):
        text = "\ufeffid,v" + end + "".join(f"{key},{cell}{end}" for (key, _), cell in zip(rows, cells, strict=True))
        assert loaded(db, tmp_path / "f.csv", text) == rows
        assert loaded(db, tmp_path / "f.csv", text.rstrip("\r\n")) == rows


@pytest.mark.parametrize("name", ["f.csv", "f.parquet", "f.arrow"])
def test_columns_of_a_file_without_rows_are_checked(tmp_path: Path, name: str) -> None:
    """Story: a file with a header alone was accepted with any columns, as if it had been read."""
    db, path = table(tm.Column("v", tm.Int8, nullable=True)), tmp_path / name
    for columns, error in ((["id", "v"], None), (["id", "w"], tm.NoSuchColumn), (["v"], tm.NotNullViolation)):
        rows = pa.table({each: pa.array([], pa.int8()) for each in columns})
        if name.endswith("csv"):
            path.write_text(",".join(columns) + "\n")
        elif name.endswith("parquet"):
            parquet.write_table(rows, path)
        else:
            with pa.ipc.new_file(str(path), rows.schema) as writer:
                writer.write_table(rows)
        if error is None:
            assert db.load("test.t", path) == 0
        else:
            with pytest.raises(error):
                db.load("test.t", path)
    for data in (pa.table({"w": pa.array([], pa.int8())}), pa.table({"id": pa.array([], pa.string())})):
        with pytest.raises((tm.NoSuchColumn, tm.TypeMismatch)):
            db["test.t"].insert_many(data)


def read_naively(text: bytes) -> tuple[list[bytes], bool, int | None]:
    """(Rows that have ended, whether a quote is open, position of the byte that follows a closing quote wrongly)."""
    rows, row, at, field = [], b"", 0, b""
    while at < len(text):
        byte = text[at : at + 1]
        if field.startswith(b'"') and (len(field) == 1 or field[1:].replace(b'""', b"").count(b'"') == 0):
            field += byte
            row += byte
        elif byte in b"\r\n":
            rows.append(row)
            row, field = b"", b""
            if text[at : at + 2] == b"\r\n":
                at += 1
        elif byte == b",":
            row, field = row + byte, b""
        elif field.startswith(b'"') and byte != b'"':
            return rows, False, at
        else:
            row, field = row + byte, field + byte
        at += 1
    is_open = field.startswith(b'"') and (len(field) == 1 or field[1:].replace(b'""', b"").count(b'"') == 0)
    return rows, is_open, None


def test_rows_and_quotes_of_any_bytes_equal_twin() -> None:
    r = random.Random("csv")
    for _ in range(few(3_000, 60_000)):
        text = bytes(r.choices(b'a,"\r\n', k=r.randint(0, 16)))
        rows, is_open, wrong = read_naively(text)
        state = np.zeros(k.CSV_WORDS, np.int64)
        state[k.W_LINE] = 1
        data, at = np.frombuffer(text + b"x", np.uint8).copy(), 0
        while at < len(text):  # in pieces
            stop = r.randint(at + 1, len(text))
            read = k.scan_csv(data, at, stop, state)
            if read != stop:
                break
            at = stop
        assert (read if text and read != stop else None) == wrong if text else wrong is None, text
        if wrong is None:
            assert state[k.W_ROWS] == len(rows), text
            assert (state[k.W_STATE] == k.IN_QUOTES) == is_open, text
            if not is_open:
                line = len(text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
                assert state[k.W_LINE] == line, text
    assert k.scan_csv(np.zeros(3, np.uint8), 2, 4, np.zeros(k.CSV_WORDS, np.int64)) == -1
