"""Rows and batches through the row image and back: one row, many rows, Arrow; all of them give the same."""

from __future__ import annotations

import contextlib
import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rows.strategies import column_values, definitions, expected, expected_row, of_arrow, rows, rows_of_arrow
from tidemark.engine import types as t
from tidemark.engine.base.errors import NoSuchColumn, PageDamaged, Rejected
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.rows.column_output import decode_rows, to_numpy
from tidemark.engine.rows.column_patch import encode_columns_patch
from tidemark.engine.rows.column_values import conform
from tidemark.engine.rows.columnar import encode_keys, encode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.row_shape import FIXED, compute_layout


def comparable(row, definition):
    return [expected(value, column.type) for value, column in zip(row, definition.columns, strict=True)]


def encode_all(row_format, data):
    (batch,) = to_columns(data, row_format.definition)
    return encode_rows(row_format, batch)


def image_list(encoded):
    if encoded.stride_words or not encoded.offsets.size:
        width = encoded.stride_words
        return [encoded.images[i * width : (i + 1) * width] for i in range(encoded.count)]
    return [encoded.images[encoded.offsets[i] : encoded.offsets[i + 1]] for i in range(encoded.count)]


def key_list(keys):
    if keys.key_offsets.size:
        return [keys.keys[keys.key_offsets[i] : keys.key_offsets[i + 1]] for i in range(keys.count)]
    return [keys.keys[i * keys.key_stride :][: keys.key_words] for i in range(keys.count)]


def places_of(encoded):
    return encoded.offsets if encoded.offsets.size else encoded.stride_words


def python_rows(batch, definition):
    return [comparable(row, definition) for row in rows_of_arrow(batch, definition.columns)]


def in_dictionary(array, rest):
    """The same values by their places in a dictionary, which has the values of `rest` too."""
    places = iter(range(len(array)))
    indices = [next(places) if is_valid else None for is_valid in array.is_valid().to_pylist()]
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.concat_arrays([array.drop_null(), rest]))


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_values_of_dictionaries_are_encoded_as_the_values_themselves(data):
    definition = data.draw(definitions())
    row_format = RowFormat(definition)
    (batch,) = to_columns(data.draw(st.lists(rows(definition), min_size=1, max_size=6)), definition)
    wanted = encode_rows(row_format, batch)
    columns = batch.columns
    for rest in (0, columns.num_rows):
        arrays = [in_dictionary(array, array.slice(0, rest)) for array in columns.columns]
        made = encode_rows(row_format, pa.RecordBatch.from_arrays(arrays, names=columns.schema.names))
        assert [image.tolist() for image in image_list(made)] == [image.tolist() for image in image_list(wanted)]
        assert [key.tolist() for key in key_list(made.keys)] == [key.tolist() for key in key_list(wanted.keys)]


@given(definitions())
@settings(max_examples=80, deadline=None)
def test_layout_any_definition_tiles_without_overlap(definition):
    layout = compute_layout(definition)
    taken = set()
    for place in layout.places:
        if place.part == FIXED:
            cells = set(range(place.offset, place.offset + place.width))
            assert not cells & taken and max(cells) < layout.fixed_words * 8
            assert place.is_key or place.offset % place.column.type.alignment == 0
            taken |= cells
    bits = [(place.null_offset, place.null_mask) for place in layout.places if place.null_mask]
    assert len(set(bits)) == len(bits) == sum(p.part == FIXED and p.column.nullable for p in layout.places)
    assert not {at for at, _ in bits} & taken


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_single_row_any_values_come_back(data):
    definition = data.draw(definitions())
    row_format = RowFormat(definition)
    row = data.draw(rows(definition))
    image = row_format.encode_row(row)
    assert image.dtype == np.int64 and image.flags.writeable
    memory = np.concatenate([np.full(3, -1), image, np.full(2, -1)])
    for buffer, at in ((image, 0), (memory, 3), (memoryview(memory), 3)):
        assert comparable(row_format.decode_row(buffer, at), definition) == expected_row(row, definition)
    names = [column.name for column in definition.columns]
    assert (row_format.encode_row(dict(zip(names, row, strict=True))) == image).all()
    key = tuple(row[place] for place in definition.key_positions)
    words = row_format.encode_key(key if len(key) > 1 else key[0])
    assert (row_format.image_key(image) == words).all()
    found = row_format.decode_key(words)
    columns = [definition.columns[place] for place in definition.key_positions]
    assert [expected(v, c.type) for v, c in zip(found if len(key) > 1 else (found,), columns, strict=True)] == [
        expected(v, c.type, True) for v, c in zip(key, columns, strict=True)
    ]
    if row_format.single_int_key:
        assert [row_format.encode_int_key(key[0])] == words.tolist()


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_batch_any_rows_equals_single_rows_byte_for_byte(data):
    definition = data.draw(definitions())
    row_format = RowFormat(definition)
    many = data.draw(st.lists(rows(definition), min_size=1, max_size=6))
    encoded = encode_all(row_format, many)
    singles = [row_format.encode_row(row) for row in many]
    assert [image.tobytes() for image in image_list(encoded)] == [image.tobytes() for image in singles]
    keys = [row_format.image_key(image).tobytes() for image in singles]
    assert [key.tobytes() for key in key_list(encoded.keys)] == keys
    values = [tuple(row[place] for place in definition.key_positions) for row in many]
    values = values if len(definition.primary_key) > 1 else [value[0] for value in values]
    assert [key.tobytes() for key in key_list(encode_keys(row_format, values))] == keys
    batch = decode_rows(row_format, encoded.images, places_of(encoded), len(many))
    batch.validate(full=True)
    wanted = [expected_row(row, definition) for row in many]
    assert python_rows(batch, definition) == wanted
    again = encode_rows(row_format, batch)
    assert again.images.tobytes() == encoded.images.tobytes()
    assert [key.tobytes() for key in key_list(encode_keys(row_format, batch))] == keys
    # A slice has offsets into shared buffers and bitmaps.
    tail = encode_rows(row_format, batch.slice(1))
    assert [image.tobytes() for image in image_list(tail)] == [image.tobytes() for image in singles[1:]]
    names = data.draw(st.lists(st.sampled_from(row_format.names), unique=True, min_size=1))
    some = decode_rows(row_format, encoded.images, places_of(encoded), len(many), names)
    assert [repr(row) for row in some.to_pylist()] == [repr(row) for row in batch.select(names).to_pylist()]
    assert some.schema.names == names
    assert len(to_numpy(batch, definition)) == len(many)
    kinds = [column.type for column in definition.columns]
    for array, kind in zip((*batch.columns, *batch.slice(1).columns), kinds * 2, strict=True):
        found, wanted = kind.values_of(array), [of_arrow(value, kind) for value in array.to_pylist()]
        assert [typed_value(value) for value in found] == [typed_value(value) for value in wanted]
        assert all(value.tzinfo is datetime.UTC for value in found if getattr(value, "tzinfo", None) is not None)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_changes_any_columns_equal_encoding_the_changed_row(data):
    definition = data.draw(definitions())
    others = [column for column in definition.columns if column.name not in definition.primary_key]
    row_format = RowFormat(definition)
    many = data.draw(st.lists(rows(definition), min_size=1, max_size=4))
    chosen = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
    changes = [{c.name: data.draw(column_values(definition, c)) for c in chosen} for _ in many]
    wanted = []
    for row, change in zip(many, changes, strict=True):
        image = row_format.encode_row(row)
        before = image.tobytes()
        new = row_format.encode_row(dict(zip(row_format.names, row, strict=True)) | change)
        laid = row_format.encode_changes(change)
        assert row_format.apply_changes(image, laid).tobytes() == new.tobytes()
        assert image.tobytes() == before
        if not laid.var:
            laid.pack_fixed(image, 0)
            assert image.tobytes() == new.tobytes()
        wanted.append(new.tobytes())
    if chosen:
        encoded = encode_all(row_format, many)
        before = encoded.images.tobytes()
        batch = pa.RecordBatch.from_arrays(
            [encoded_column(c, [change[c.name] for change in changes]) for c in chosen], [c.name for c in chosen]
        )
        patched = encode_columns_patch(row_format, batch, encoded.images, places_of(encoded))
        assert [image.tobytes() for image in image_list(patched)] == wanted
        assert encoded.images.tobytes() == before


def typed_value(value):
    """A value with its type; NaN equals itself, and 0.0 is not -0.0."""
    return type(value), repr(value) if isinstance(value, float) else value


def encoded_column(column, values):
    from tidemark.engine.rows.column_values import from_python

    return from_python(values, column, "t", 0)


ACCOUNT = TableDefinition(
    1,
    1,
    "account",
    (
        Column("id", t.Int64),
        Column("owner", t.VarChar(5), default="nobody"[:5]),
        Column("kind", t.Enum("gold", "lead"), default="lead"),
        Column("n", t.Int32, nullable=True),
        Column("tag", t.Binary(4), default=b"x"),
    ),
    ("id",),
)


@pytest.mark.parametrize(
    ("bad", "row"),
    [
        ({"id": "x"}, 1),
        ({"id": True}, 1),
        ({"id": 1.0}, 1),
        ({"id": None}, 1),
        ({"owner": "toolong"}, 1),
        ({"owner": "\ud800"}, 1),
        ({"owner": b"x"}, 1),
        ({"owner": None}, 1),
        ({"kind": "tin"}, 1),
        ({"n": 2**31}, 1),
        ({"tag": b"12345"}, 1),
        ({"tag": "1"}, 1),
        ({"nothing": 1}, 1),
    ],
)
def test_bad_value_in_row_and_batch_gives_the_same_refusal(bad, row):
    row_format = RowFormat(ACCOUNT)
    good = {"id": 1, "n": None}
    with pytest.raises(Rejected) as single:
        row_format.encode_row(good | bad, row)
    with pytest.raises(Rejected) as batch:
        encode_all(row_format, [good, good | bad, good])
    assert type(single.value) is type(batch.value)
    assert single.value.message == batch.value.message
    assert (batch.value.table, batch.value.column, batch.value.row) == ("main.account", next(iter(bad)), row)


def test_row_number_counts_over_all_batches_of_the_input():
    many = [(i, "a", "gold", 1, b"") for i in range(9_000)]
    many[8_500] = (8_500, "a", "gold", 2**40, b"")
    row_format = RowFormat(ACCOUNT)
    with pytest.raises(Rejected) as refused:
        for batch in to_columns(iter(many), ACCOUNT):
            encode_rows(row_format, batch)
    assert refused.value.row == 8_500


@pytest.mark.parametrize(
    ("name", "array", "refusal"),
    [
        ("n", pa.array([1.0]), "TypeMismatch"),
        ("n", pa.array([2**40]), "ValueOutOfRange"),
        ("n", pa.array([True]), "TypeMismatch"),
        ("owner", pa.array([b"a"]), "TypeMismatch"),
        ("owner", pa.array(["toolong"]).dictionary_encode(), "ValueOutOfRange"),
        ("owner", pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers()), "ValueOutOfRange"),
        ("tag", pa.array(["a"]), "TypeMismatch"),
        ("tag", pa.array([b"12345"], pa.binary(5)), "ValueOutOfRange"),
        ("kind", pa.array(["tin"]).dictionary_encode(), "ValueOutOfRange"),
        ("owner", pa.array([None], pa.string()), "NotNullViolation"),
    ],
)
def test_arrow_that_would_lose_something_is_refused(name, array, refusal):
    batch = pa.record_batch({"id": pa.array([1]), name: array})
    with pytest.raises(Rejected) as refused:
        encode_rows(RowFormat(ACCOUNT), batch)
    assert type(refused.value).__name__ == refusal
    assert refused.value.column == name


@pytest.mark.parametrize("harm", ["none", "other letters", "no text", "descending"])
def test_many_texts_are_looked_at_as_one_alone(harm):
    """All bytes of many texts are looked at together, if they are ASCII and one after the other."""
    texts, ends = [b"abcd"] * 1_000, np.arange(1_001, dtype=np.int32) * 4
    texts[700] = {"other letters": "öü".encode(), "no text": b"ab\xffd"}.get(harm, b"abcd")
    ends[700] += 5 if harm == "descending" else 0
    array = pa.Array.from_buffers(pa.string(), 1_000, [None, pa.py_buffer(ends), pa.py_buffer(b"".join(texts))])
    column = Column("owner", t.VarChar(8))
    if harm in ("none", "other letters"):
        assert conform(array, column, "t", 0).to_pylist() == [text.decode() for text in texts]
        return
    with pytest.raises(Rejected):
        conform(array, column, "t", 0)


@pytest.mark.parametrize("kind", [t.Decimal(4, 2), t.Decimal(18, 0), t.Decimal(38, 10)])
@pytest.mark.parametrize("sign", [1, -1])
def test_decimal_of_more_digits_than_its_type_is_refused(kind, sign):
    for number, is_fitting in ((10**kind.precision - 1, True), (10**kind.precision, False)):
        data = pa.py_buffer((sign * number).to_bytes(16, "little", signed=True))
        array = pa.Array.from_buffers(kind.arrow_type(), 1, [None, data])
        if is_fitting:
            assert conform(array, Column("n", kind), "t", 0) is not None
        else:
            with pytest.raises(Rejected):
                conform(array, Column("n", kind), "t", 0)


def test_arrow_types_that_fit_are_cast():
    row_format = RowFormat(ACCOUNT)
    wanted = row_format.encode_row((1, "abc", "gold", 7, b"ab")).tobytes()
    for text in (pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        batch = pa.record_batch(
            {
                "tag": pa.array([b"ab"], pa.large_binary()),
                "kind": pa.array(["gold"]).cast(text),
                "id": pa.array([1], pa.uint8()),
                "owner": pa.array(["abc"]).cast(text),
                "n": pa.array([7], pa.int64()),
            }
        )
        assert encode_rows(row_format, batch).images.tobytes() == wanted


def test_every_input_form_gives_the_same_images():
    import pandas as pd
    import polars as pl

    row_format = RowFormat(ACCOUNT)
    columns = {"id": [1, 2], "owner": ["a", "b"], "kind": ["gold", "lead"], "n": [5, 6], "tag": [b"1234", b"abcd"]}
    many = list(zip(*columns.values(), strict=True))
    structured = np.array(many, [("id", "i8"), ("owner", "U5"), ("kind", "U5"), ("n", "i4"), ("tag", "S4")])
    table = pa.table(columns)
    wanted = encode_all(row_format, many).images.tobytes()
    forms = [
        *(columns, structured, table, table.to_batches()[0], table.to_reader(), pd.DataFrame(columns)),
        *(pl.DataFrame(columns), [dict(zip(columns, row, strict=True)) for row in many], map(list, many)),
        [row_format.Row(*row) for row in many],
    ]
    for form in forms:
        assert encode_all(row_format, form).images.tobytes() == wanted, type(form)


def test_missing_columns_take_defaults_and_unknown_ones_are_refused():
    row_format = RowFormat(ACCOUNT)
    wanted = row_format.encode_row((1, "nobod", "lead", None, b"x")).tobytes()
    assert row_format.encode_row({"id": 1}).tobytes() == wanted
    assert encode_all(row_format, [{"id": 1}]).images.tobytes() == wanted
    assert encode_all(row_format, {"id": np.array([1])}).images.tobytes() == wanted
    with pytest.raises(NoSuchColumn):
        encode_all(row_format, {"id": np.array([1]), "nothing": np.array([1])})
    with pytest.raises(Rejected, match="must be given"):
        encode_all(row_format, {"n": np.array([1])})


def test_var_column_beyond_the_count_reads_as_its_default():
    old = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("a", t.Text)), ("id",))
    added = (Column("b", t.VarChar(9), default="later"), Column("c", t.Blob, nullable=True))
    new_format = RowFormat(TableDefinition(1, 2, "t", (*old.columns, *added), ("id",)))
    image = RowFormat(old).encode_row((1, "x"))
    assert tuple(new_format.decode_row(image, 0)) == (1, "x", "later", None)
    batch = decode_rows(new_format, image, np.array([0]), 1)
    assert batch.to_pylist() == [{"id": 1, "a": "x", "b": "later", "c": None}]
    changed = new_format.apply_changes(image, new_format.encode_changes({"c": b"z"}))
    assert tuple(new_format.decode_row(changed, 0)) == (1, "x", "later", b"z")


def test_key_change_is_refused_for_rows_and_batches():
    row_format = RowFormat(ACCOUNT)
    encoded = encode_all(row_format, [{"id": 1}])
    with pytest.raises(Rejected, match="delete and insert"):
        row_format.encode_changes({"id": 2})
    with pytest.raises(Rejected, match="delete and insert"):
        encode_columns_patch(row_format, pa.record_batch({"id": [2]}), encoded.images, encoded.offsets)


def test_float_key_equal_values_have_equal_words_and_nan_is_refused():
    row_format = RowFormat(TableDefinition(1, 1, "t", (Column("x", t.Float64),), ("x",)))
    assert row_format.encode_key(-0.0).tolist() == row_format.encode_key(0.0).tolist() == [0]
    assert encode_keys(row_format, np.array([-0.0, 0.0])).keys.tolist() == [0, 0]
    with pytest.raises(Rejected, match="NaN"):
        row_format.encode_key(float("nan"))
    with pytest.raises(Rejected, match="NaN") as refused:
        encode_keys(row_format, np.array([0.0, float("nan")]))
    assert refused.value.row == 1


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_damaged_var_part_is_reported_or_read_but_never_followed(seed):
    random = np.random.default_rng(seed)
    row_format = RowFormat(ACCOUNT)
    image = row_format.encode_row((1, "abc", "gold", 7, b"ab"))
    image[row_format.fixed_words + int(random.integers(0, 2))] ^= 1 << int(random.integers(0, 63))
    for decode in (lambda: row_format.decode_row(image, 0), lambda: decode_rows(row_format, image, np.array([0]), 1)):
        with contextlib.suppress(PageDamaged):
            decode()


def test_extra_columns_stand_after_the_named_ones():
    row_format = RowFormat(ACCOUNT)
    encoded = encode_all(row_format, [{"id": 1}, {"id": 2}])
    batch = decode_rows(row_format, encoded.images, encoded.offsets, 2, ["id"], {"ROWID": np.array([7, 8])})
    assert batch.to_pydict() == {"id": [1, 2], "ROWID": [7, 8]}


def test_damaged_time_of_day_is_damage_and_no_value_error():
    # Used to leave the decoder as ValueError: hour must be in 0..23.
    definition = TableDefinition(1, 1, "t", (Column("id", t.Int64), Column("at", t.Time)), ("id",))
    row_format = RowFormat(definition)
    image = row_format.encode_row((1, datetime.time(1)))
    image[1] = -1
    with pytest.raises(PageDamaged, match="bytes that are not a value"):
        row_format.decode_row(image, 0)
