"""Values as bytes: what goes out comes back; what cannot be is refused."""

from __future__ import annotations

import datetime
import decimal
import random
from collections import namedtuple

import msgpack
import numpy as np
import pyarrow as pa
import pytest

import tidemark as tm
from engine.errors import FrameRejected, Rejected, TypeMismatch
from replication.calls.values import EXTENSIONS, pack, unpack
from tests.store.support import ACCOUNT, open_memory

Row = namedtuple("Row", ["id", "owner"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(1 << 63),
        (1 << 64) - 1,
        1 << 100,
        1.5,
        "ünï",
        b"\0\xff",
        decimal.Decimal("-1.20"),
        datetime.date(2026, 1, 2),
        datetime.time(1, 2, 3, 4),
        datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        datetime.timedelta(days=-1, microseconds=5),
        (1, (2, "x"), [3]),
        {"a": [1, {"b": None}]},
        Row(1, "ann"),
        tm.Column("x", tm.VarChar(10), default="q"),
        tm.Decimal(10, 2),
    ],
)
def test_value_comes_back_as_it_was(value: object) -> None:
    back = unpack(pack(value))
    assert back == value and type(back) is type(value) or isinstance(value, Row)
    if isinstance(value, Row):
        assert back == value and back._fields == value._fields


def test_numpy_scalars_become_plain_values() -> None:
    assert unpack(pack([np.int64(3), np.float32(0.5), np.bool_(True)])) == [3, 0.5, True]


def test_expressions_come_back_with_all_their_parts() -> None:
    made = (tm.col("a") + 1 > 2) & tm.col("b").isin([1, 2]) | ~tm.col("c").like("x%") & tm.col("d").is_null()
    assert repr(unpack(pack(made))) == repr(made)


def test_arrow_tables_come_back_and_are_validated() -> None:
    table = pa.table({"a": [1, None], "b": ["x", "y"]})
    assert unpack(pack(table)).equals(table)
    batch = pa.record_batch({"a": pa.array([], pa.int32())})
    assert unpack(pack(batch)).schema == batch.schema
    with pytest.raises(FrameRejected):
        unpack(msgpack.packb(msgpack.ExtType(EXTENSIONS.index("arrow table"), b"none")))
    offsets = pa.py_buffer(np.array([0, 1 << 20, 2], dtype=np.int32))
    outside = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"xy"))
    with pytest.raises(FrameRejected, match="no Arrow stream"):
        unpack(pack(pa.table({"a": outside})))


def test_errors_come_back_as_their_leaf_with_their_evidence() -> None:
    error = unpack(pack(tm.DuplicateKey("a row has this key; choose another", key=(1, "x"), row=3, odd=object)))
    assert type(error) is tm.DuplicateKey and error.key == (1, "x") and error.row == 3
    assert error.message == "a row has this key; choose another" and "object" in error.odd


def test_programs_travel_with_the_version_they_were_made_for_and_are_verified_again() -> None:
    db = open_memory()
    db.create_table("test.account", ACCOUNT, "id")
    definition = db["test.account"].definition
    assembler = tm.Assembler(definition)
    assembler.branch_column("eq", "id", 3, "yes")
    assembler.exit_refuse()
    assembler.label("yes")
    assembler.exit_ok()
    packed = pack(assembler.finish())
    program = unpack(packed, lambda name: db[name].definition)
    assert [row.id for row in db["test.account"].scan(where=program)] == []
    db.add_column("test.account", tm.Column("more", tm.Int32, nullable=True))
    with pytest.raises(Rejected, match="assemble it again"):
        unpack(packed, lambda name: db[name].definition)
    with pytest.raises(FrameRejected):
        unpack(packed)
    db.close()


@pytest.mark.parametrize("value", [object(), {1, 2}, lambda: None])
def test_what_no_call_takes_is_refused_before_anything_is_sent(value: object) -> None:
    with pytest.raises(TypeMismatch, match="cannot be sent"):
        pack([value])


def test_bytes_that_are_no_value_are_refused_whatever_they_are() -> None:
    seed = 20
    print(f"seed {seed}")
    draw = random.Random(seed)
    good = [
        pack([Row(1, "a"), tm.col("a") > decimal.Decimal(1), {"x": datetime.date(2026, 1, 1)}]),
        pack(tm.DuplicateKey("m", row=1)),
        pack(tm.Column("x", tm.VarChar(10), default="q")),
        pack(pa.table({"a": ["x", "yy"]})),
    ]
    refused = 0
    for _ in range(3_000):
        data = bytearray(draw.choice(good))
        for _ in range(draw.choice((1, 1, 3))):
            data[draw.randrange(len(data))] = draw.randrange(256)
        try:
            unpack(bytes(data[: draw.randrange(1, len(data) + 1)]))
        except (FrameRejected, Rejected):
            refused += 1
    assert refused > 1_500


@pytest.mark.parametrize(
    "parts",
    [
        ["Col", 3],
        ["Col"],
        ["Compare", "eq", 1, 2],
        ["Junction", 1, None, None],
        ["Member", "x", ()],
        ["object"],
        ["__class__", 1],
    ],
)
def test_expression_of_wrong_parts_is_refused(parts: list[object]) -> None:
    with pytest.raises(FrameRejected):
        unpack(msgpack.packb(msgpack.ExtType(EXTENSIONS.index("expression"), pack(parts))))


def test_lists_without_end_are_refused() -> None:
    with pytest.raises(FrameRejected):
        unpack(b"\x91" * 100_000 + b"\x00")
