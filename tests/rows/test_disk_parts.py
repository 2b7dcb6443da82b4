"""Disk parts of row images: single rows, batches and both alike; images without them; changes; damage."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import columns as naive_columns
from tests.naive import disk_columns as naive
from tests.rows.strategies import column_values, disk_definitions, expected, expected_row, rows, rows_of_arrow
from tidemark.engine import types as t
from tidemark.engine.base.errors import NoSuchColumn, PageDamaged
from tidemark.engine.rows import disk_columns_kernels as k
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.rows.column_output import decode_rows
from tidemark.engine.rows.column_patch import encode_columns_patch
from tidemark.engine.rows.column_values import from_python
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.row_shape import FIXED, VAR, compute_layout

seeds = st.integers(0, 2**32 - 1)
DISK = "disk"
MIXED = TableDefinition(
    1,
    1,
    "t",
    (
        Column("id", t.Int64),
        Column("a", t.Int32, True, storage=DISK),
        Column("note", t.VarChar(40), storage=DISK, default="none"),
        Column("b", t.Int64),
        Column("text", t.Text, True, storage=DISK),
        Column("name", t.VarChar(20), True),
        Column("raw", t.Blob, storage=DISK, default=b"\x01\x02"),
    ),
    ("id",),
)


def comparable(row, definition):
    return [expected(value, column.type) for value, column in zip(row, definition.columns, strict=True)]


def encode_all(row_format, data):
    (batch,) = to_columns(data, row_format.definition)
    return encode_rows(row_format, batch)


def image_list(encoded):
    assert encoded.stride_words == 0, "images of tables with disk columns are found by their offsets"
    return [encoded.images[first:end] for first, end in zip(encoded.offsets, encoded.offsets[1:], strict=False)]


def kept(row_format, images):
    """The images without their disk parts, consecutively, and where each begins."""
    parts = [image[: row_format.image_parts(image)[0]] for image in images]
    return np.concatenate(parts), np.cumsum([0, *map(len, parts)])


def memory_names(definition):
    return [column.name for column in definition.columns if not column.is_disk]


def twin_part(row_format, places, row, start):
    """The fixed columns of a part after its first `start` bytes, and the bytes of its var columns, from the description
    alone.
    """
    body = bytearray(start)
    fixed = [place for place in places if place.part == FIXED and not place.is_key]
    fixed.sort(key=lambda place: (-place.column.type.alignment, -place.column.type.width, place.position))
    nulls = []
    for place in fixed:
        value = row[place.position]
        if place.column.nullable:
            nulls.append(value is None)
        packed = bytes(place.column.type.width)
        if value is not None:
            packed = row_format.disk.packers[place.position].pack(place.column.type.stored(value))
        body += packed
    bits = sum(is_null << number for number, is_null in enumerate(nulls))
    body += bits.to_bytes((len(nulls) + 7) // 8, "little")
    body += bytes(-len(body) % 8)
    var = [None if row[p.position] is None else p.column.type.stored(row[p.position]) for p in places if p.part == VAR]
    return bytes(body[start:]), var


@given(disk_definitions())
@settings(max_examples=80, deadline=None)
def test_layout_any_disk_columns_tile_without_overlap(definition):
    layout = compute_layout(definition)
    assert layout.disk is not None
    for part, start in ((layout, 0), (layout.disk, 8)):
        cells: set[int] = set()
        for place in part.fixed_places:
            mine = set(range(place.offset, place.offset + place.width))
            assert not cells & mine and min(mine) >= start and max(mine) < part.fixed_words * 8
            assert place.is_key or place.offset % place.column.type.alignment == 0
            cells |= mine
        bits = [(place.null_offset, place.null_mask) for place in part.fixed_places if place.null_mask]
        assert len(set(bits)) == len(bits) and not {at for at, _ in bits} & cells
    reference = set(range((layout.fixed_words - 1) * 8, layout.fixed_words * 8))
    taken = {at for place in layout.fixed_places for at in range(place.offset, place.offset + place.width)}
    assert not reference & (taken | {place.null_offset for place in layout.fixed_places})
    for place in layout.places:
        assert place.is_disk == place.column.is_disk
        assert (
            place
            in (layout.disk if place.is_disk else layout).fixed_places
            + (layout.disk if place.is_disk else layout).var_places
            or place in layout.key_places
        )


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_single_row_with_disk_columns_any_values_come_back(data):
    definition = data.draw(disk_definitions())
    row_format = RowFormat(definition)
    row = data.draw(rows(definition))
    image = row_format.encode_row(row)
    wanted = expected_row(row, definition)
    memory = np.concatenate([np.full(3, -1), image, np.full(2, -1)])
    for buffer, at in ((image, 0), (memory, 3), (memoryview(memory), 3), (memory.data.cast("B"), 3)):
        assert comparable(row_format.decode_row(buffer, at), definition) == wanted
    fixed, size = row_format.fixed_words, len(image)
    assert (row_format.encode_row(dict(zip(row_format.names, row, strict=True))) == image).all()
    assert image[fixed - 1] == 0, "the reference"
    memory_words, disk_words = row_format.image_parts(image)
    assert memory_words + disk_words == size
    assert row_format.disk_words in (0, disk_words)
    assert row_format.image_parts(image[:memory_words]) == (memory_words, 0)
    places = [place for place in row_format.layout.places if place.is_disk]
    body, var = twin_part(row_format, places, row, 8)
    twin = naive.disk_part(body, naive_columns.var_part(b"", var) if var else b"")
    assert image[memory_words:].tobytes() == twin
    key = tuple(row[place] for place in definition.key_positions)
    assert (row_format.image_key(image) == row_format.encode_key(key if len(key) > 1 else key[0])).all()


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_batch_with_disk_columns_equals_single_rows_byte_for_byte(data):
    definition = data.draw(disk_definitions())
    row_format = RowFormat(definition)
    many = data.draw(st.lists(rows(definition), min_size=1, max_size=6))
    encoded = encode_all(row_format, many)
    singles = [row_format.encode_row(row) for row in many]
    assert [image.tobytes() for image in image_list(encoded)] == [image.tobytes() for image in singles]
    batch = decode_rows(row_format, encoded.images, encoded.offsets, len(many))
    batch.validate(full=True)
    found = [comparable(row, definition) for row in rows_of_arrow(batch, definition.columns)]
    assert found == [expected_row(row, definition) for row in many]
    assert encode_rows(row_format, batch).images.tobytes() == encoded.images.tobytes()
    tail = encode_rows(row_format, batch.slice(1))
    assert [image.tobytes() for image in image_list(tail)] == [image.tobytes() for image in singles[1:]]
    names = data.draw(st.lists(st.sampled_from(row_format.names), unique=True, min_size=1))
    some = decode_rows(row_format, encoded.images, encoded.offsets, len(many), names)
    shown = [repr(row) for row in batch.select(names).to_pylist()]
    assert [repr(row) for row in some.to_pylist()] == shown
    one_by_one = [row_format.decode_columns(image, 0, names) for image in singles]
    chosen = [definition.columns[definition.position(name)] for name in names]
    assert [[expected(v, c.type) for v, c in zip(row, chosen, strict=True)] for row in one_by_one] == [
        [expected(v, c.type) for v, c in zip(row, chosen, strict=True)] for row in rows_of_arrow(some, chosen)
    ]


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_images_without_disk_part_give_their_memory_columns(data):
    definition = data.draw(disk_definitions())
    row_format = RowFormat(definition)
    many = data.draw(st.lists(rows(definition), min_size=1, max_size=4))
    names = memory_names(definition)
    singles = [row_format.encode_row(row) for row in many]
    images, offsets = kept(row_format, singles)
    assert not row_format.needs_disk(names) and row_format.needs_disk(None) and row_format.needs_disk([*names, "d"])
    whole = encode_all(row_format, many)
    batch = decode_rows(row_format, images, offsets, len(many), names)
    wanted = decode_rows(row_format, whole.images, whole.offsets, len(many), names)
    assert [repr(row) for row in batch.to_pylist()] == [repr(row) for row in wanted.to_pylist()]
    if not row_format.has_var:
        strided = decode_rows(row_format, images, row_format.fixed_words, len(many), names)
        assert strided.equals(batch)
    for at, image, row in zip(offsets, singles, many, strict=False):
        whole_row = row_format.decode_row(image, 0)._asdict() if definition.columns else {}
        values = dict(zip(row_format.names, row_format.decode_row(image, 0), strict=True))
        assert len(whole_row) == len(row)
        present = row_format.decode_present(images, int(at), has_var=True, has_disk=False)
        assert repr(present) == repr({name: values[name] for name in names})
        assert repr(row_format.decode_columns(images, int(at), names)) == repr(tuple(values[name] for name in names))
        assert repr(row_format.decode_present(image, 0, has_var=True, has_disk=True)) == repr(values)
        # In an update that keeps its var part, the disk part directly follows the fixed words.
        memory_words = row_format.image_parts(image)[0]
        short = np.concatenate([image[: row_format.fixed_words], image[memory_words:]])
        fixed = {place.column.name for place in row_format.layout.fixed_places}
        present = row_format.decode_present(short, 0, has_var=False, has_disk=True)
        on_disk = [place.column.name for place in row_format.layout.places if place.is_disk]
        assert repr(present) == repr({n: v for n, v in values.items() if n in fixed or n in on_disk})


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_changes_of_disk_and_memory_columns_equal_encoding_the_changed_row(data):
    definition = data.draw(disk_definitions())
    others = [column for column in definition.columns if column.name not in definition.primary_key]
    row_format = RowFormat(definition)
    many = data.draw(st.lists(rows(definition), min_size=1, max_size=4))
    chosen = data.draw(st.lists(st.sampled_from(others), unique=True, min_size=1))
    changes = [{c.name: data.draw(column_values(definition, c)) for c in chosen} for _ in many]
    touches = any(column.is_disk for column in chosen)
    assert row_format.touches_disk([column.name for column in chosen]) == touches
    wanted = []
    for row, change in zip(many, changes, strict=True):
        image = row_format.encode_row(row)
        image[row_format.fixed_words - 1] = 77
        before = image.tobytes()
        new = row_format.encode_row(dict(zip(row_format.names, row, strict=True)) | change)
        laid = row_format.encode_changes(change)
        assert (laid.disk is not None) == touches
        assert row_format.apply_changes(image, laid).tobytes() == new.tobytes()
        memory_words, new_words = row_format.image_parts(image)[0], row_format.image_parts(new)[0]
        if not touches:
            short = row_format.apply_changes(image[:memory_words], laid)
            assert short.tobytes() == new[:new_words].tobytes()
        assert image.tobytes() == before
        wanted.append(new if touches else new[:new_words])
    encoded = encode_all(row_format, many)
    encoded.images[encoded.offsets[:-1] + row_format.fixed_words - 1] = 77
    before = encoded.images.tobytes()
    images, offsets = encoded.images, encoded.offsets
    if not touches and data.draw(st.booleans()):
        images, offsets = kept(row_format, image_list(encoded))
    arrays = [from_python([change[c.name] for change in changes], c, "t", 0) for c in chosen]
    batch = pa.RecordBatch.from_arrays(arrays, [c.name for c in chosen])
    patched = encode_columns_patch(row_format, batch, images, offsets)
    width = patched.stride_words
    found = [patched.images[i * width : (i + 1) * width] for i in range(len(many))] if width else image_list(patched)
    assert [image.tobytes() for image in found] == [image.tobytes() for image in wanted]
    assert encoded.images.tobytes() == before


@pytest.mark.parametrize("size", [0, 1, 8_000, 100_000])
def test_text_and_blob_of_any_length_come_back_and_defaults_are_filled_in(size):
    row_format = RowFormat(MIXED)
    row = (1, None, "ä" * 7, 9, "ü" * size, "name", bytes(range(256)) * (size // 256))
    image = row_format.encode_row(row)
    encoded = encode_all(row_format, [row, {"id": 2, "b": 3}, row])
    assert image_list(encoded)[0].tobytes() == image.tobytes() == image_list(encoded)[2].tobytes()
    assert tuple(row_format.decode_row(image, 0)) == row
    found = decode_rows(row_format, encoded.images, encoded.offsets, 3).to_pylist()
    assert tuple(found[0].values()) == tuple(found[2].values()) == row
    assert tuple(found[1].values()) == (2, None, "none", 3, None, None, b"\x01\x02")
    assert image_list(encoded)[1].tobytes() == row_format.encode_row({"id": 2, "b": 3}).tobytes()


def test_empty_batch_has_no_images_and_decodes_to_no_rows():
    row_format = RowFormat(MIXED)
    schema = decode_rows(row_format, np.zeros(0, np.int64), np.zeros(1, np.int64), 0).schema
    encoded = encode_rows(row_format, pa.RecordBatch.from_pylist([], schema))
    assert (encoded.count, encoded.images.size, encoded.offsets.tolist()) == (0, 0, [0])
    assert decode_rows(row_format, encoded.images, encoded.offsets, 0).num_rows == 0


def test_unknown_column_of_one_image_is_refused():
    row_format = RowFormat(MIXED)
    with pytest.raises(NoSuchColumn, match="nothing"):
        row_format.decode_columns(row_format.encode_row({"id": 1, "b": 2}), 0, ["id", "nothing"])


def test_disk_column_of_an_image_without_disk_part_is_damage():
    row_format = RowFormat(MIXED)
    image = row_format.encode_row({"id": 1, "b": 2})
    short = image[: row_format.image_parts(image)[0]].copy()
    with pytest.raises(PageDamaged):
        row_format.decode_row(short, 0)
    with pytest.raises(PageDamaged):
        decode_rows(row_format, short, np.zeros(1, np.int64), 1, ["a"])
    with pytest.raises(PageDamaged):
        row_format.apply_changes(short, row_format.encode_changes({"a": 5}))


@pytest.mark.parametrize("by", [-1, 1, 1 << 31, 1 << 40, 1 << 57, 1 << 62, -(1 << 60)])
def test_damaged_length_of_a_disk_part_is_reported(by):
    row_format = RowFormat(MIXED)
    image = row_format.encode_row({"id": 1, "b": 2})
    image[row_format.image_parts(image)[0]] += by
    for use in (
        lambda: row_format.decode_row(image, 0),
        lambda: row_format.decode_columns(image, 0, ["a"]),
        lambda: row_format.image_parts(image),
        lambda: decode_rows(row_format, image, np.zeros(1, np.int64), 1),
        lambda: row_format.apply_changes(image, row_format.encode_changes({"note": "x"})),
    ):
        with pytest.raises(PageDamaged):
            use()
    assert row_format.decode_columns(image, 0, ["id", "b"]) == (1, 2)


@given(st.data(), seeds, st.integers(0, 3))
@settings(max_examples=250, deadline=None)
def test_image_with_any_words_flipped_is_read_or_reported_as_damage(data, seed, flips):
    definition = data.draw(disk_definitions())
    row_format = RowFormat(definition)
    random = np.random.default_rng(seed)
    many = data.draw(st.lists(rows(definition), min_size=2, max_size=3))
    encoded = encode_all(row_format, many)
    images = encoded.images.copy()
    for _ in range(flips):
        at = int(random.integers(0, images.size))
        images[at] = random.choice([images[at] ^ 1 << int(random.integers(0, 63)), int(random.integers(-9, 99)), -1])
    cut = images[: images.size - int(random.integers(0, 2))].copy()
    last = int(encoded.offsets[-2])
    for use in (
        lambda: row_format.decode_row(cut, 0),
        lambda: row_format.decode_row(cut, last),
        lambda: row_format.decode_present(cut, 0, has_var=True, has_disk=False),
        lambda: row_format.decode_columns(cut, 0, ["d"]),
        lambda: row_format.image_parts(cut[last:]),
        lambda: decode_rows(row_format, cut, encoded.offsets, len(many)),
        lambda: decode_rows(row_format, cut, encoded.offsets, len(many), memory_names(definition)),
    ):
        with contextlib.suppress(PageDamaged):
            use()


# --- kernels ----------------------------------------------------------------------------------------
def random_parts(random, count, fixed_words, has_var):
    """Words of `count` parts and their offsets; with `has_var`, a header with a count of words, then that many random
    words.
    """
    parts = []
    for _ in range(count):
        part = random.integers(-(2**62), 2**62, fixed_words).tolist()
        if has_var:
            words = int(random.integers(1, 6))
            part += [words | (words > 1) << 32 | 1 << 56, *random.integers(-(2**62), 2**62, words - 1).tolist()]
        parts.append(part)
    flat = np.array([word for part in parts for word in part], np.int64)
    return flat, np.cumsum([0, *map(len, parts)]).astype(np.int64)


@given(seeds, st.integers(0, 12), st.integers(0, 4), st.booleans(), st.integers(2, 4), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_parts_joined_and_found_again_equal_twin(seed, count, fixed, has_var, disk_fixed, disk_has_var, is_damaged):
    random = np.random.default_rng(seed)
    memory, memory_offsets = random_parts(random, count, fixed, has_var)
    disk, disk_offsets = random_parts(random, count, disk_fixed, disk_has_var)
    offsets = memory_offsets + disk_offsets
    images = np.full(int(offsets[-1]) + 2, -7, np.int64)
    assert k.join_parts(images, offsets, memory, memory_offsets, disk, disk_offsets, count) == count
    twins = naive.joined(memory.tolist(), memory_offsets.tolist(), disk.tolist(), disk_offsets.tolist())
    assert images.tolist() == [word for image in twins for word in image] + [-7, -7]
    if is_damaged and images.size > 2:
        at = int(random.integers(0, images.size))
        images[at] ^= 1 << int(random.integers(0, 63))
    images = images[: images.size - 2]
    starts = np.full(count, -1, np.int64)
    is_expected = has_var and bool(random.random() < 0.6)  # not by readers from before the table had var parts
    shape = (fixed, int(is_expected), disk_fixed, int(disk_has_var))
    status = k.find_disk_parts(starts, images, offsets, *shape, count)
    wanted = [naive.disk_start(images.tolist(), int(offset), *shape) for offset in offsets[:count]]
    if None in wanted:
        row = wanted.index(None)
        assert status == -1 - row and starts[:row].tolist() == wanted[:row]
    else:
        assert status == count and starts.tolist() == wanted


@given(seeds)
@settings(max_examples=60, deadline=None)
def test_kernels_given_impossible_offsets_refuse_and_write_nothing_outside(seed):
    random = np.random.default_rng(seed)
    memory, memory_offsets = random_parts(random, 3, 2, True)
    disk, disk_offsets = random_parts(random, 3, 2, True)
    offsets = memory_offsets + disk_offsets
    target = random.choice([0, 1, 2])
    places = [offsets, memory_offsets, disk_offsets]
    places[target] = places[target].copy()
    places[target][int(random.integers(0, 4))] += int(random.choice([-(2**40), -3, 3, 2**40]))
    images = np.full(int(offsets[-1]), -7, np.int64)
    status = k.join_parts(images, places[0], memory, places[1], disk, places[2], 3)
    assert status in (-1, 3)
    assert k.join_parts(images, offsets[:3].copy(), memory, memory_offsets, disk, disk_offsets, 3) == -1
    starts = np.zeros(3, np.int64)
    assert k.find_disk_parts(starts, images, np.array([0, -5, 2**40]), 2, 1, 2, 1, 3) < 0
    assert k.find_disk_parts(starts, images, offsets, 2, 1, 2, 1, 4) == -1
