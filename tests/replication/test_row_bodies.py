"""Row images and MySQL's row bodies: kernels against the naive twin, in both directions, and hostile bytes."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import binlog as naive
from tests.replication.support import entries_of, every_type, extreme_rows
from tests.rows.strategies import definitions, disk_definitions, expected_row, of_arrow
from tests.rows.strategies import rows as row_strategy
from tidemark.engine import types as t
from tidemark.engine.base.errors import BinlogDamaged, LimitExceeded, PageDamaged, Unsupported, ValueOutOfRange
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types import VarChar
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import bodies_kernels as binlog_bodies
from tidemark.replication.binlog import rows_kernels as binlog_rows
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.row_plan import (
    NO_PLAN,
    BodyReader,
    BodyWriter,
    RowImages,
    TablePlans,
    bitmap_of,
    positions_of,
)
from tidemark.replication.binlog.types import MySqlType, outgoing

ORIGIN = Position("binlog/base.000001", 4)
seeds = st.integers(0, 2**32 - 1)


def kinds_of(definition):
    return {position: column.type for position, column in enumerate(definition.columns)}


def types_of(plans):
    return [outgoing(column.type) for column in plans.definition.columns]


def written(plans, rows, before, after):
    """Return all rows of a batch as one body."""
    return b"".join(
        bytes(octets) for octets, _ in BodyWriter().bodies(plans.definition.name, rows, before, after, 0, rows.count)
    )


def decoded(definition, row_format, reader, body):
    """Return rows of the after-image as Python values, through Arrow and the batch encoder."""
    found = []
    for chunk in reader.chunks(body, ORIGIN):
        names = [definition.columns[position].name for position in chunk.after]
        batch = pa.RecordBatch.from_arrays(list(chunk.after.values()), names=names)
        encoded = encode_rows(row_format, batch)
        places = encoded.offsets if encoded.offsets.size else np.arange(encoded.count) * encoded.stride_words
        found += [tuple(row_format.decode_row(encoded.images, int(at))) for at in places[: encoded.count]]
    return found


def normal(definition, rows):
    """Return rows with the values they come back with (Binary padded, float keys without -0.0)."""
    row_format = RowFormat(definition)
    return [tuple(row_format.decode_row(row_format.encode_row(tuple(row)), 0)) for row in rows]


def there_and_back(definition, rows):
    row_format = RowFormat(definition)
    plans = TablePlans(row_format)
    words, starts = entries_of(row_format, rows)
    body = written(plans, RowImages(words, None, starts), NO_PLAN, plans.every)
    kinds = kinds_of(definition)
    twin = b"".join(naive.image(list(kinds.values()), row) for row in normal(definition, rows))
    assert body == twin
    reader = BodyReader(types_of(plans), (), range(len(kinds)), kinds)
    found = decoded(definition, row_format, reader, body)
    assert [expected_row(row, definition) for row in found] == [
        expected_row(row, definition) for row in normal(definition, rows)
    ]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_every_type_at_its_extremes_equals_twin_and_comes_back(storage):
    there_and_back(every_type(storage), extreme_rows())


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_rows_of_any_table_equal_twin_and_come_back(data):
    definition = data.draw(definitions() | disk_definitions())
    there_and_back(definition, data.draw(st.lists(row_strategy(definition), max_size=8)))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_columns_of_two_images_equal_twin_and_come_back(data):
    definition = data.draw(definitions() | disk_definitions())
    row_format = RowFormat(definition)
    plans = TablePlans(row_format)
    columns = len(definition.columns)
    subset = st.lists(st.integers(0, columns - 1), min_size=1, unique=True).map(sorted).map(tuple)
    old, new = data.draw(subset), data.draw(subset)
    pairs = data.draw(st.lists(st.tuples(row_strategy(definition), row_strategy(definition)), max_size=5))
    words, starts = entries_of(row_format, [row for pair in pairs for row in pair])
    rows = RowImages(words, starts[::2].copy(), starts[1::2].copy())
    body = written(plans, rows, plans.of(old), plans.of(new))
    kinds = kinds_of(definition)
    flat = normal(definition, [row for pair in pairs for row in pair])
    twin = b"".join(
        naive.image([kinds[position] for position in present], [row[position] for position in present])
        for number, row in enumerate(flat)
        for present in ((old, new)[number % 2],)
    )
    assert body == twin
    found = {}
    for chunk in BodyReader(types_of(plans), old, new, kinds).chunks(body, ORIGIN):
        for image, columns in enumerate((chunk.before, chunk.after)):
            for position, array in columns.items():
                values = [of_arrow(value, kinds[position]) for value in array.to_pylist()]
                found.setdefault((image, position), []).extend(values)
    for (image, position), values in found.items():
        wanted = [row[position] for row in flat[image::2]]
        kind = [kinds[position]]
        assert [naive.image(kind, [value]) for value in values] == [naive.image(kind, [value]) for value in wanted]
    assert set(found) == ({(0, position) for position in old} | {(1, position) for position in new} if pairs else set())


def test_rows_larger_than_the_buffer_and_many_rows_pass_in_pieces():
    definition = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("x", t.Blob)), ("id",))
    row_format = RowFormat(definition)
    plans = TablePlans(row_format)
    data = [(number, bytes([number]) * size) for number, size in enumerate((1, 3_000_000, 5, 300_000, 0))]
    data += [(number, b"") for number in range(5, 10_000)]
    words, starts = entries_of(row_format, data)
    pieces = [
        (bytes(octets), list(ends))
        for octets, ends in BodyWriter().bodies("t", RowImages(words, None, starts), NO_PLAN, plans.every, 0, len(data))
    ]
    assert len(pieces) >= 4
    assert sum(len(ends) for _, ends in pieces) == len(data)
    assert all(ends[-1] == len(octets) for octets, ends in pieces)
    assert b"".join(octets for octets, _ in pieces) == b"".join(naive.image([t.Int64, t.Blob], row) for row in data)


def test_absent_var_column_is_written_as_its_default():
    old = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("a", t.VarChar(9))), ("id",))
    new = dataclasses.replace(
        old,
        version=2,
        columns=(*old.columns, Column("b", t.Text, True), Column("c", t.VarBinary(300), default=b"\0x")),
    )
    words, starts = entries_of(RowFormat(old), [(1, "one"), (2, "")])
    plans = TablePlans(RowFormat(new))
    body = written(plans, RowImages(words, None, starts), NO_PLAN, plans.every)
    kinds = [column.type for column in new.columns]
    assert body == b"".join(naive.image(kinds, row) for row in [(1, "one", None, b"\0x"), (2, "", None, b"\0x")])
    masks = np.zeros(2, np.uint8)
    same, _ = entries_of(RowFormat(new), [(1, "one", None, b"\0x"), (2, "", "", b"")])
    both = np.concatenate([words, same])
    after = entries_of(RowFormat(new), [(1, "one", None, b"\0x"), (2, "", "", b"")])[1] + len(words)
    assert binlog_rows.changed_columns(masks, both, starts, after, plans.every.words, 0, 2) == 2
    assert masks.tolist() == [0, 0b1100]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_changed_columns_of_any_pairs_equal_twin(data):
    definition = data.draw(definitions() | disk_definitions())
    row_format = RowFormat(definition)
    plans = TablePlans(row_format)
    pairs = []
    for old, new in data.draw(st.lists(st.tuples(row_strategy(definition), row_strategy(definition)), max_size=5)):
        keep = data.draw(st.lists(st.booleans(), min_size=len(old), max_size=len(old)))
        pairs.append((old, tuple(a if kept else z for a, z, kept in zip(old, new, keep, strict=True))))
    words, starts = entries_of(row_format, [row for pair in pairs for row in pair])
    size = (len(definition.columns) + 7) // 8
    masks = np.full(len(pairs) * size, 0xFF, np.uint8)
    before, after = starts[::2].copy(), starts[1::2].copy()
    assert binlog_rows.changed_columns(masks, words, before, after, plans.every.words, 0, len(pairs)) == len(pairs)
    kinds = list(kinds_of(definition).values())
    flat = normal(definition, [row for pair in pairs for row in pair])
    for number in range(len(pairs)):
        old, new = flat[2 * number], flat[2 * number + 1]
        changed = tuple(
            place
            for place, kind in enumerate(kinds)
            if naive.image([kind], [old[place]]) != naive.image([kind], [new[place]])
        )
        mask = masks[number * size : (number + 1) * size]
        assert positions_of(mask.tobytes(), len(kinds)) == changed


@given(seeds, st.integers(0, 30), st.integers(1, 3), st.integers(0, 3), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_runs_of_rows_alike_equal_twin(seed, count, mask_bytes, mark_words, room):
    random = np.random.default_rng(seed)
    masks = random.integers(0, 2, count * mask_bytes).astype(np.uint8)
    marks = random.integers(0, 2, count * mark_words)
    ends = np.zeros(room, np.int64)
    runs = binlog_rows.find_runs(ends, masks, marks, mask_bytes, mark_words, count)
    twin = naive.find_runs(masks.reshape(count, mask_bytes).tolist(), marks.reshape(count, mark_words).tolist())
    assert ends[:runs].tolist() == twin[:room]


def test_bitmap_of_columns_comes_back_whatever_its_unused_bits_are():
    assert bitmap_of((0, 9), 10) == b"\x01\x02"
    assert positions_of(b"\x01\xfe", 10) == positions_of(b"\x01\x02", 10) == (0, 9)
    assert bitmap_of(tuple(range(8)), 8) == b"\xff"


# --- hostile bytes ---------------------------------------------------------------------------------
@given(st.data(), seeds)
@settings(max_examples=150, deadline=None)
def test_body_cut_or_flipped_is_read_or_refused(data, seed):
    definition = data.draw(definitions())
    row_format = RowFormat(definition)
    plans = TablePlans(row_format)
    words, starts = entries_of(row_format, data.draw(st.lists(row_strategy(definition), min_size=1, max_size=4)))
    body = bytearray(written(plans, RowImages(words, None, starts), NO_PLAN, plans.every))
    random = np.random.default_rng(seed)
    for _ in range(int(random.integers(0, 4))):
        body[int(random.integers(len(body)))] ^= 1 << int(random.integers(8))
    del body[int(random.integers(1, len(body) + 1)) :]
    kinds = kinds_of(definition)
    reader = BodyReader(types_of(plans), (), range(len(kinds)), kinds)
    with contextlib.suppress(BinlogDamaged, ValueOutOfRange):
        for chunk in reader.chunks(bytes(body), ORIGIN):
            for array in chunk.after.values():
                array.validate(full=True)


@given(st.binary(max_size=300), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_as_rows_are_read_or_refused(body, start):
    plans = TablePlans(RowFormat(every_type()))
    reader = BodyReader(types_of(plans), (), range(start, len(plans.rows)), kinds_of(plans.definition))
    with contextlib.suppress(BinlogDamaged, ValueOutOfRange):
        list(reader.chunks(body, ORIGIN))


def test_row_event_without_columns_is_refused():
    with pytest.raises(LimitExceeded):
        BodyReader([MySqlType(b.TYPE_LONG)], (), ())


def test_string_that_claims_more_than_the_body_is_damage():
    mysql = MySqlType(b.TYPE_BLOB, b"\4", collation=63)
    with pytest.raises(BinlogDamaged) as caught:
        list(BodyReader([mysql], (), (0,)).chunks(b"\xfe\xff\xff\xff\x7fxyz", ORIGIN))
    assert (caught.value.file, caught.value.position) == ORIGIN


def test_text_that_is_no_utf8_is_damage():
    mysql = MySqlType(b.TYPE_VARCHAR, b"\x20\0", collation=46)
    with pytest.raises(BinlogDamaged):
        list(BodyReader([mysql], (), (0,)).chunks(b"\xfe\x02\xc3\x28", ORIGIN))


@pytest.mark.parametrize(
    ("mysql", "octets"),
    [
        (MySqlType(b.TYPE_DATE), b"\0\0\0"),
        (MySqlType(b.TYPE_DATE), (31 | 2 << 5 | 2023 << 9).to_bytes(3, "little")),
        (MySqlType(b.TYPE_TIME, b"\0"), (0x800000 + (24 << 12)).to_bytes(3, "big")),
        (MySqlType(b.TYPE_TIME, b"\0"), (0x800000 - 1).to_bytes(3, "big")),
        (MySqlType(b.TYPE_DATETIME, b"\6"), (0x8000000000).to_bytes(5, "big") + bytes(3)),
        (MySqlType(b.TYPE_TIMESTAMP, b"\0"), bytes(4)),
        (MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, 1)), members=("a", "b")), b"\0"),
        (MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, 1)), members=("a", "b")), b"\3"),
    ],
)
def test_value_the_store_has_no_twin_of_is_refused_with_its_row(mysql, octets):
    with pytest.raises(ValueOutOfRange) as caught:
        list(BodyReader([mysql], (), (0,)).chunks(b"\xff" + b"\xfe" + octets, ORIGIN))
    assert caught.value.row == 1


@given(st.data(), seeds)
@settings(max_examples=80, deadline=None)
def test_image_with_any_words_flipped_is_written_or_reported(data, seed):
    definition = data.draw(definitions() | disk_definitions())
    row_format = RowFormat(definition)
    plans = TablePlans(row_format)
    words, starts = entries_of(row_format, data.draw(st.lists(row_strategy(definition), min_size=1, max_size=3)))
    random = np.random.default_rng(seed)
    for _ in range(3):
        words[int(random.integers(len(words)))] ^= 1 << int(random.integers(63))
    masks = np.zeros(len(starts) * ((len(definition.columns) + 7) // 8), np.uint8)
    binlog_rows.changed_columns(masks, words, starts, starts[::-1].copy(), plans.every.words, 0, len(starts))
    with contextlib.suppress(PageDamaged):
        written(plans, RowImages(words, None, starts), NO_PLAN, plans.every)


def test_kernels_given_impossible_bounds_refuse():
    none, octets = np.zeros(0, np.int64), np.zeros(0, np.uint8)
    plan = TablePlans(RowFormat(every_type())).every
    ends = np.zeros(4, np.int64)
    arguments = (none, octets, none, none, none, octets, plan.words, plan.octets)
    assert binlog_rows.encode_images(octets, ends, *arguments, 0, 1) == -1
    assert binlog_rows.encode_images(octets, ends, *arguments, -1, 0) == -1
    assert binlog_rows.changed_columns(octets, none, none, none, plan.words, 0, 1) == -1
    assert binlog_rows.find_runs(ends, octets, none, 1, 0, 1) == -1
    codes = np.zeros(4, np.int64)
    assert binlog_bodies.find_cells(none, ends, octets, 0, codes, 0, 1) == -1
    assert binlog_bodies.find_cells(ends, ends, octets, 0, codes, 0, 0) == -1
    assert binlog_bodies.read_numbers(ends, octets, octets, none, 0, 1, codes, 1) == -1
    assert binlog_bodies.measure_strings(ends, octets, none, 0, 1, 1) == -1
    assert binlog_bodies.copy_strings(octets, octets, ends, none, 0, 1, 1) == -1


def test_types_the_store_has_no_twin_of_are_refused():
    for mysql in (
        MySqlType(b.TYPE_TIMESTAMP_OLD),
        MySqlType(b.TYPE_NEWDECIMAL, bytes((65, 30))),
        MySqlType(b.TYPE_VARCHAR, b"\x20\0", collation=28),  # gbk
        MySqlType(b.TYPE_VARCHAR, b"\x20\0"),
        MySqlType(b.TYPE_LONG),
        MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, 1))),
        MySqlType(b.TYPE_STRING, bytes((b.TYPE_ENUM, 1)), members=("a", "a")),
    ):
        with pytest.raises(Unsupported):
            BodyReader([mysql], (), (0,))


def test_latin1_becomes_the_characters_of_windows_1252_and_controls():
    octets = bytes(range(256))
    body = b"\0" + b"\x00\x01" + octets + b"\0" + b"\x02\0" + b"\xe4\x80"
    reader = BodyReader([MySqlType(b.TYPE_VARCHAR, b"\x2c\x01", collation=8)], (), (0,), {0: VarChar(75)})
    (rows,) = reader.chunks(body, Position("f", 4))
    whole, short = rows.after[0].to_pylist()
    known = octets.decode("cp1252", "replace")
    assert whole == "".join(chr(place) if text == "\ufffd" else text for place, text in enumerate(known))
    assert short == "ä€"
