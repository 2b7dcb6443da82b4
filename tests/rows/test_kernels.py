"""Column kernels against their naive twins."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.naive import columns as naive
from tidemark.engine.rows import columns_kernels as k
from tidemark.engine.rows import var_columns_kernels as v

seeds = st.integers(0, 2**32 - 1)
EMPTY = np.zeros(0, np.uint8)
WIDTHS = {8: (k.scatter_8, k.gather_8, np.int64), 4: (k.scatter_4, k.gather_4, np.int32)} | {
    2: (k.scatter_2, k.gather_2, np.int16),
    1: (k.scatter_1, k.gather_1, np.uint8),
}


def ragged(random, count, most=20):
    """Values, their joined bytes and offsets."""
    values = [random.bytes(int(size)) for size in random.integers(0, most + 1, count)]
    offsets = np.cumsum([0, *map(len, values)]).astype(np.int64)
    return values, np.frombuffer(b"".join(values), np.uint8).copy(), offsets


def bitmap(random, count):
    bits = random.integers(0, 2, count).astype(bool)
    offset = int(random.integers(0, 9))
    return bits, np.packbits(np.r_[np.ones(offset, bool), bits], bitorder="little"), offset


@pytest.mark.parametrize("width", WIDTHS)
@given(seeds, st.integers(0, 40), st.integers(1, 20), st.integers(0, 5), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_scatter_and_gather_any_geometry_equal_twin(width, seed, count, units, first, slack):
    scatter, gather, dtype = WIDTHS[width]
    random = np.random.default_rng(seed)
    stride = first + units + slack
    source = np.frombuffer(random.bytes(count * units * width), dtype)
    image = np.frombuffer(random.bytes((count * stride + first) * width), dtype).copy()
    begin = int(random.integers(0, count + 1))
    twin = image.copy()
    naive.scatter(twin, source, first, stride, units, begin, count - begin)
    assert scatter(image, source, first, stride, units, begin, count - begin) == count - begin
    assert image.tobytes() == twin.tobytes()
    out, out_twin = np.zeros_like(source), np.zeros_like(source)
    gather(out, image, first, stride, units, begin, count - begin)
    naive.gather(out_twin, twin, first, stride, units, begin, count - begin)
    assert out.tobytes() == out_twin.tobytes()


def test_scatter_and_gather_beyond_arrays_touch_nothing():
    for scatter, gather, dtype in WIDTHS.values():
        image, source = np.zeros(10, dtype), np.ones(10, dtype)
        for geometry in ((0, 2, 1, 0, 6), (9, 1, 2, 0, 1), (-1, 1, 1, 0, 1), (0, 0, 1, 0, 11), (0, 1, 0, 0, 1)):
            assert scatter(image, source, *geometry) == -1
            assert gather(image, source, *geometry) == -1
            assert not image.any()


@given(seeds, st.integers(0, 70), st.booleans())
@settings(max_examples=60, deadline=None)
def test_nulls_any_bitmap_equal_twin(seed, count, has_nulls):
    random = np.random.default_rng(seed)
    _, validity, offset = bitmap(random, count)
    validity = validity if has_nulls and count else EMPTY
    image = np.frombuffer(random.bytes(count * 24), np.uint8).copy()
    twin = image.copy()
    arguments = (validity, offset, 20, 4, 3 << 16 | 9, 24, count)
    assert k.stamp_nulls(image, *arguments) == naive.stamp_nulls(twin, *arguments)
    assert image.tobytes() == twin.tobytes()
    out, out_twin = np.zeros((count + 7) // 8, np.uint8), np.zeros((count + 7) // 8, np.uint8)
    assert k.gather_nulls(out, image, 20, 4, 24, count) == naive.gather_nulls(out_twin, image, 20, 4, 24, count)
    assert out.tobytes() == out_twin.tobytes()


@given(seeds, st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_padded_values_equal_twin(seed, count):
    random = np.random.default_rng(seed)
    _, data, offsets = ragged(random, count)
    image = np.frombuffer(random.bytes(count * 32), np.uint8).copy()
    twin = image.copy()
    assert k.scatter_padded(image, data, offsets, 5, 32, 20, count) == count
    naive.scatter_padded(twin, data, offsets, 5, 32, 20, count)
    assert image.tobytes() == twin.tobytes()
    ends = np.zeros(count + 1, np.int64)
    out = np.zeros(k.measure_padded(ends, image, 5, 32, 20, count), np.uint8)
    assert k.copy_padded(out, ends, image, 5, 32, count) == count
    values = naive.stripped(image, 5, 32, 20, count)
    assert [out[ends[i] : ends[i + 1]].tobytes() for i in range(count)] == values


def test_scatter_padded_over_long_value_touches_nothing():
    image = np.zeros(16, np.uint8)
    assert k.scatter_padded(image, np.ones(9, np.uint8), np.array([0, 9]), 0, 16, 8, 1) == -1
    assert not image.any()


@given(seeds, st.integers(0, 30), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_variable_keys_equal_twin_and_come_back(seed, count, units):
    random = np.random.default_rng(seed)
    values, data, offsets = ragged(random, count)
    words = np.frombuffer(random.bytes(count * units * 8), np.int64)
    totals = np.full(count, units, np.int64)
    assert v.add_key_words(totals, offsets, count) == count
    key_offsets = np.zeros(count + 1, np.int64)
    keys = np.zeros(v.sum_offsets(key_offsets, totals, count), np.int64)
    cursor = key_offsets[:count].copy()
    assert v.append_key_words(keys, cursor, words, units, count) == count
    assert v.append_key_bytes(keys, keys.view(np.uint8), cursor, data, offsets, count) == count
    twin = b"".join(words[i * units :][:units].tobytes() + naive.key_piece(values[i]) for i in range(count))
    assert keys.tobytes() == twin
    cursor = key_offsets[:count].copy()
    back, ends = np.zeros_like(words), np.zeros(count + 1, np.int64)
    assert v.walk_key_words(back, cursor, keys, units, count) == count
    out = np.zeros(v.measure_key_bytes(ends, cursor, keys, count), np.uint8)
    assert v.walk_key_bytes(out, cursor, ends, keys.view(np.uint8), count) == count
    assert (back == words).all() and (out == data).all() and (ends == offsets).all()
    assert (cursor == key_offsets[1:]).all()


def build(random, count, columns, fixed_words, has_keys):
    """Images with var parts made by the kernels, and the same by the twin."""
    parts = [ragged(random, count) for _ in range(columns)]
    nulls = [bitmap(random, count) for _ in range(columns)]
    keys, key_offsets = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if has_keys:
        key_offsets = np.cumsum(np.r_[0, random.integers(1, 4, count)]).astype(np.int64)
        keys = random.integers(-(2**62), 2**62, int(key_offsets[-1]))
    fixed = random.integers(-(2**62), 2**62, count * fixed_words)
    totals = np.zeros(count, np.int64)
    for (_, _, offsets), (_, bits, offset) in zip(parts, nulls, strict=True):
        assert v.add_lengths(totals, offsets, bits if count else EMPTY, offset, count) >= 0
    row_offsets = np.zeros(count + 1, np.int64)
    images = np.full(v.lay_out_rows(row_offsets, totals, key_offsets, fixed_words, columns, count), -1)
    ends_at, cursor = np.zeros(count, np.int64), np.zeros(count, np.int64)
    assert v.place_rows(images, row_offsets, ends_at, fixed, keys, key_offsets, fixed_words, columns, count) == count
    for ordinal, ((_, data, offsets), (_, bits, offset)) in enumerate(zip(parts, nulls, strict=True)):
        arguments = (data, offsets, bits if count else EMPTY, offset, ordinal, columns, count)
        assert v.append_var_column(images, images.view(np.uint8), cursor, ends_at, *arguments) == count
    twin = b""
    for row in range(count):
        key = keys[key_offsets[row] : key_offsets[row + 1]].tobytes() if has_keys else b""
        values = [part[0][row] if bits[0][row] else None for part, bits in zip(parts, nulls, strict=True)]
        twin += fixed[row * fixed_words : (row + 1) * fixed_words].tobytes() + naive.var_part(key, values)
    return images, row_offsets, twin, fixed, keys, key_offsets


@given(seeds, st.integers(0, 20), st.integers(0, 5), st.integers(0, 3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_var_parts_equal_twin_and_come_back(seed, count, columns, fixed_words, has_keys):
    random = np.random.default_rng(seed)
    images, row_offsets, twin, fixed, keys, key_offsets = build(random, count, columns, fixed_words, has_keys)
    assert images.tobytes() == twin
    compact = np.zeros_like(fixed)
    assert v.collect_fixed(compact, images, row_offsets, fixed_words, count) == count
    assert (compact == fixed).all()
    offsets = np.zeros(count + 1, np.int64)
    back = np.zeros(v.measure_keys(offsets, images, row_offsets, fixed_words, count), np.int64)
    assert v.copy_keys(back, offsets, images, row_offsets, fixed_words, count) == count
    assert (back == keys).all() and (not has_keys or (offsets == key_offsets).all())
    default = np.frombuffer(b"default", np.uint8)
    octets = images.tobytes()
    for ordinal in range(columns + 2):
        ends, validity = np.zeros(count + 1, np.int64), np.zeros((count + 7) // 8, np.uint8)
        nulls = v.measure_var_column(ends, validity, images, row_offsets, fixed_words, ordinal, 7, count)
        data = np.zeros(ends[count], np.uint8)
        arguments = (images, images.view(np.uint8), row_offsets, default, fixed_words, ordinal, count)
        assert v.copy_var_column(data, ends, *arguments) == count
        twins = []
        for row in range(count):
            part = octets[(row_offsets[row] + fixed_words) * 8 : row_offsets[row + 1] * 8]
            values = naive.split_var_part(part)[1]
            twins.append(values[ordinal] if ordinal < columns else b"default")
        assert nulls == twins.count(None)
        found = [data[ends[row] : ends[row + 1]].tobytes() for row in range(count)]
        assert [found[row] if naive.is_valid(validity, row) else None for row in range(count)] == twins


@given(seeds, st.integers(1, 6), st.integers(1, 4), st.lists(st.tuples(seeds, seeds), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_var_part_readers_on_hostile_words_stay_inside(seed, count, columns, edits):
    random = np.random.default_rng(seed)
    images, row_offsets, *_ = build(random, count, columns, 1, True)
    for where, bits in edits:
        images[where % images.size] = random.integers(-(2**63), 2**63 - 1) if bits & 1 else bits
        row_offsets[where % count] += where % 7 - 3
    for ordinal in range(columns):
        ends, validity = np.zeros(count + 1, np.int64), np.zeros(1, np.uint8)
        if v.measure_var_column(ends, validity, images, row_offsets, 1, ordinal, 0, count) >= 0:
            # Guards around the target would be overwritten if a length were trusted.
            data = np.full(ends[count] + 64, 0xA5, np.uint8)
            target = data[: ends[count]]
            v.copy_var_column(target, ends, images, images.view(np.uint8), row_offsets, EMPTY, 1, ordinal, count)
            assert (data[ends[count] :] == 0xA5).all() and ends[count] <= count * images.nbytes
    offsets = np.zeros(count + 1, np.int64)
    total = v.measure_keys(offsets, images, row_offsets, 1, count)
    if total >= 0:
        keys = np.zeros(total, np.int64)
        v.copy_keys(keys, offsets, images, row_offsets, 1, count)
        cursor, ends = offsets[:count].copy(), np.zeros(count + 1, np.int64)
        size = v.measure_key_bytes(ends, cursor, keys, count)
        assert size <= count * keys.nbytes
