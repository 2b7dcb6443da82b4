"""Values as bytes: what goes out comes back; invalid bytes and values are refused."""

from __future__ import annotations

import datetime
import decimal
import random
import threading
import tracemalloc
from collections import namedtuple

import msgpack
import numpy as np
import pytest

import tidemark as tm
from tests.seeds import fresh_seeds
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.base.errors import FrameRejected, Rejected, TypeMismatch
from tidemark.replication.calls.values import EXTENSIONS, FIELDS_MAX, KINDS, NESTING_MAX, ROW_CLASSES_MAX, pack, unpack

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
    made = assembler.finish()
    packed = pack(made)
    program = unpack(packed, lambda name: db[name].definition)
    assert program.words.tolist() == made.words.tolist()
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


def _expression(*nodes: object) -> bytes:
    return msgpack.packb(msgpack.ExtType(EXTENSIONS.index("expression"), pack(list(nodes))))


COL, ONE = ["Col", 0, "a"], ["Constant", 0, 1]


@pytest.mark.parametrize(
    "nodes",
    [
        [],
        [COL, ONE],
        [["Col", 0, 3]],
        [["Col", 0]],
        [["Col", 1, "a"]],
        [COL, ["Col", 1, "a"]],
        [COL, ["Compare", 1, "eq"]],
        [COL, ONE, ["Compare", 3, "eq"]],
        [COL, ONE, ["Compare", -2, "eq"]],
        [COL, ONE, ["Compare", 2.0, "eq"]],
        [COL, ONE, ["Compare", 2, "like"]],
        [COL, ["Junction", 1, 1]],
        [["Junction", 0, True]],
        [["Junction", 1 << 63, True]],
        [COL, ["Member", 0]],
        [["Member", 1]],
        [COL, ["Like", 1, "text"]],
        [["Constant", 0, tm.col("a")]],
        [["object", 0]],
        [["__class__", 0, 1]],
        [[["Col"], 0, "a"]],
        ["Col"],
        [None],
        [[]],
    ],
)
def test_expression_of_wrong_parts_is_refused(nodes: list[object]) -> None:
    with pytest.raises((FrameRejected, tm.ProgramInvalid)):
        unpack(_expression(*nodes))


def wrapped(times: int, code: int, inner: bytes = b"\x90") -> bytes:
    """A value in as many extensions."""
    for _ in range(times):
        inner = msgpack.packb(msgpack.ExtType(code, inner))
    return inner


@pytest.mark.parametrize("name", [name for name, (is_nested, *_) in KINDS.items() if is_nested])
def test_nested_types_are_refused_by_their_depth(name: str) -> None:
    """Story: 200 nested tuples, a call of 9.9 KB, ended the server by SIGSEGV. Each level is a call of the unpacker
    inside the last one, takes 40 KiB of the C stack, and escapes Python's recursion limit.
    """
    for times in (NESTING_MAX, 200, 5_000):
        with pytest.raises(FrameRejected, match="nests deeper than|contradicts itself"):
            unpack(wrapped(times, EXTENSIONS.index(name)))


def test_values_nest_as_deep_as_they_may_in_threads_of_small_stacks() -> None:
    """The deepest value takes a quarter of the smallest stack of a thread."""
    deepest = wrapped(NESTING_MAX - 1, EXTENSIONS.index("tuple"))
    found: list[object] = []
    before = threading.stack_size(2 << 20)
    try:
        thread = threading.Thread(target=lambda: found.append(unpack(deepest)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert found == [()]


def _list_in_lists(levels: int) -> list[object]:
    made: list[object] = []
    for _ in range(levels - 1):
        made = [made]
    return made


def test_sender_refuses_what_the_other_side_would() -> None:
    assert unpack(pack(_list_in_lists(NESTING_MAX))) == _list_in_lists(NESTING_MAX)
    endless: list[object] = []
    endless.append(endless)
    deep: tuple[object, ...] = ()
    for _ in range(3_000):
        deep = (deep,)
    for value in (endless, deep, {1: 2}, {"a": {("x",): 1}}):
        with pytest.raises(TypeMismatch, match="cannot be sent"):
            pack(value)
    for value in (_list_in_lists(NESTING_MAX + 1), deep):
        with pytest.raises(TypeMismatch, match="cannot be sent: it nests deeper"):
            pack(value)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xdd\x01\x00\x00\x00" + b"\x90" * (1 << 24), "too much memory"),  # 16 MiB that make lists of 1.5 GiB
        (b"\xdd\xff\xff\xff\xff" * 16, "too much memory"),  # room for lists that never come
        (b"\xdd\x00\x10\x00\x00" * 16 + b"\xc0" * 1_000, "contradicts itself"),
        (b"\xdf\x00\x10\x00\x00" * 2, "contradicts itself"),
        (b"\xc6\xff\xff\xff\xff", "too much memory|contradicts itself"),
        (b"\xdb\x00\x00\x00\x05abc", "contradicts itself"),
        (b"\x81\x01\x02", "contradicts itself"),  # a number as key
        (b"\x81\xc4\x01k\x02", "contradicts itself"),
        (b"\xd6\xff\x00\x00\x00\x00", "contradicts itself"),  # MessagePack's own timestamp
        (b"\x92\xc7\x02\x00\x90\xc0", "contradicts itself"),  # a payload longer than its value
        (b"\x91" * NESTING_MAX + b"\x80", "nests deeper"),
        (b"\x91" * NESTING_MAX + b"\x90", "nests deeper"),
        (b"\xc1", "contradicts itself"),
        (b"", "contradicts itself"),
        (b"\xc0\xc0", "contradicts itself"),
        (msgpack.packb(msgpack.ExtType(EXTENSIONS.index("integer"), b"9" * 4_401)), "contradicts itself"),
        (msgpack.packb(msgpack.ExtType(EXTENSIONS.index("absent"), b"x")), "contradicts itself"),
        (msgpack.packb(msgpack.ExtType(EXTENSIONS.index("tuple"), b"\x90\x90")), "contradicts itself"),
        (msgpack.packb(msgpack.ExtType(len(EXTENSIONS), b"")), "contradicts itself"),
        (msgpack.packb(msgpack.ExtType(EXTENSIONS.index("definition"), b"[" * (1 << 24) + b" ")), "contradicts itself"),
    ],
)
def test_value_is_measured_before_it_is_built(data: bytes, why: str) -> None:
    """Story: one byte made a list of 56, and a header of five bytes reserved room for four billion values: a message of
    a few kilobytes took all memory. And keys that are numbers can be made to collide in a dict.
    """
    assert unpack(b"\xc0") is None  # loads what is loaded only once
    tracemalloc.start()
    try:
        with pytest.raises(FrameRejected, match=why):
            unpack(data)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_rows_of_many_kinds_are_refused_before_their_classes_are_made() -> None:
    """Story: each received row made a class with its column names, compiled from text. A message of rows that all have
    other names took hours, and the last 256 classes stayed.
    """

    def row(*names: str) -> bytes:
        return msgpack.packb(msgpack.ExtType(EXTENSIONS.index("row"), pack([list(names), [0] * len(names)])))

    def listed(rows: list[bytes]) -> bytes:
        return b"\xdc" + len(rows).to_bytes(2, "big") + b"".join(rows)

    kinds = [row(f"name{number}") for number in range(ROW_CLASSES_MAX)]
    assert len(unpack(listed(kinds * 3))) == 3 * ROW_CLASSES_MAX
    for rows in ([*kinds, row("one_more")], [row("x" * 300)], [row(*map(str, range(FIELDS_MAX + 1)))]):
        with pytest.raises(FrameRejected, match="row"):
            unpack(listed(rows))


def test_errors_that_are_none_are_refused() -> None:
    for parts in (
        ["DuplicateKey", 5, {}],
        ["DuplicateKey", "m", [1]],
        [5, "m", {}],
        ["DuplicateKey", "m", {"message": 1}],
    ):
        with pytest.raises(FrameRejected):
            unpack(msgpack.packb(msgpack.ExtType(EXTENSIONS.index("error"), pack(parts))))
    for name in ("Exception", "annotations", "__name__"):
        assert type(unpack(msgpack.packb(msgpack.ExtType(EXTENSIONS.index("error"), pack([name, "m", {}]))))) is (
            tm.PeerRefused
        )


def _drawn(draw: random.Random, depth: int) -> object:
    """Return a random value of any kind that may be sent."""
    texts = ["", "a", "é", "名", "🜚", "a" * draw.randrange(300), "é" * 40, "名a" * 30, "a" * 99 + "🜚"]
    plain: list[object] = [None, True, draw.randrange(-(1 << 63), 1 << 64), draw.random(), draw.choice(texts)]
    plain += [b"x" * draw.randrange(300), 1 << draw.randrange(200), decimal.Decimal(draw.random()), tm.Int64]
    plain += [datetime.date(2020, 1, 1), datetime.timedelta(1), tm.Column("x", tm.VarChar(10), default="q")]
    plain += [tm.col("a").isin(range(draw.randrange(9))), tm.NoSuchTable("m", table="t"), Row(1, "a")]
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(plain)
    inner = [_drawn(draw, depth - 1) for _ in range(draw.choice((0, 1, 2, 3, 6)))]
    return draw.choice(
        [
            inner,
            tuple(inner),
            {f"k{number}": each for number, each in enumerate(inner)},
            namedtuple("Some", [f"c{number}" for number in range(len(inner))])(*inner),
            inner * (1 if depth > 1 else 20),
        ]
    )


@pytest.mark.parametrize("seed", fresh_seeds(3))
def test_values_take_no_more_memory_than_was_measured(seed: int) -> None:
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(60):
        data = pack(_drawn(draw, 3))
        counted: list[int] = []
        unpack(data)  # creates what is created only once
        tracemalloc.start()
        try:
            unpack(data, room=counted.append)
            assert tracemalloc.get_traced_memory()[1] <= counted[0] + 20_000, data[:200]
        finally:
            tracemalloc.stop()
