"""A Binary value has all its bytes, the zero bytes at its end too, in every condition.

A row with b"a" in a Binary(4) is read as b"a\\0\\0\\0". A scan for values that start with b"a\\0" did not find it, and
a VarBinary column with the same four bytes was not equal to it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

WIDTH = 4
VALUES = sorted(bytes(each) for each in itertools.product(b"\0a%", repeat=WIDTH))
STARTS = [bytes(each) for n in range(WIDTH + 2) for each in itertools.product(b"\0a", repeat=n)]
col = tm.col


@pytest.fixture(params=["memory", "disk", "key", "added"])
def table(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A table with every value, and in `v` the value as its VarBinary, in `w` without zero bytes at the end."""
    is_disk, is_added = request.param == "disk", request.param == "added"
    db = open_memory(MemoryFiles(), page_buffer="1 MiB")
    if is_disk:
        db.create_tablespace("ts", "8 MiB")
    columns = [
        tm.Column("id", tm.Int64),
        tm.Column("b", tm.Binary(WIDTH), storage="disk" if is_disk else "memory"),
        tm.Column("v", tm.VarBinary(WIDTH)),
        tm.Column("w", tm.VarBinary(WIDTH)),
        tm.Column("wide", tm.Binary(WIDTH + 2), storage="disk" if is_disk else "memory"),
    ]
    key = ["v", "b"] if request.param == "key" else ["id"]
    late = columns[1::3] if is_added else []
    made = db.create_table(
        "t", [each for each in columns if each not in late], primary_key=key, tablespace="ts" if is_disk else None
    )
    for each in late:
        db.add_column("t", dataclasses.replace(each, default=b""))
    made = db["t"]
    made.insert_many(
        [{"id": n, "b": each, "v": each, "w": each.rstrip(b"\0"), "wide": each} for n, each in enumerate(VALUES)]
    )
    if not is_disk:
        db.create_index("t", "by_b", ["b"])
    yield made
    db.close()


def found(rows: Any) -> list[bytes]:
    return sorted(row.b for row in rows)


@pytest.mark.parametrize("start", STARTS, ids=repr)
def test_starts_of_values_have_their_zero_bytes(table: Any, start: bytes) -> None:
    wanted = [each for each in VALUES if each.startswith(start)]
    assert found(table.scan(where=col("b").starts_with(start))) == wanted
    assert found(table.scan(where=~col("b").starts_with(start))) == [each for each in VALUES if each not in wanted]
    if "by_b" in {each["name"] for each in table.indexes()}:
        assert found(table.scan(index="by_b", prefix=start)) == wanted
        assert found(table.scan(index="by_b", prefix=start, reverse=True)) == wanted


def test_patterns_match_the_whole_value(table: Any) -> None:
    assert found(table.scan(where=col("b").like(b"a\0\0\0"))) == [b"a\0\0\0"]
    assert found(table.scan(where=col("b").like(b"a"))) == []
    assert found(table.scan(where=col("b").like(b"a___"))) == [each for each in VALUES if each.startswith(b"a")]
    assert found(table.scan(where=col("b").like(b"%\0"))) == [each for each in VALUES if each.endswith(b"\0")]


def test_columns_compare_as_their_values(table: Any) -> None:
    assert found(table.scan(where=col("b") == col("v"))) == found(table.scan(where=col("v") == col("b"))) == VALUES
    full = [each for each in VALUES if not each.endswith(b"\0")]
    assert found(table.scan(where=col("b") == col("w"))) == full
    assert found(table.scan(where=col("w") < col("b"))) == [each for each in VALUES if each not in full]
    assert found(table.scan(where=col("b") < col("wide"))) == VALUES


def test_constants_are_padded_as_values_are(table: Any) -> None:
    for each in VALUES:
        assert found(table.scan(where=col("b") == each.rstrip(b"\0"))) == [each]
        assert found(table.scan(where=col("b") == each)) == [each]
