"""Digests of rows: equal to the naive twin's, and to nothing but the values."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidemark as tm
from tests.naive import backup as naive_backup
from tests.naive import digests as naive
from tidemark.engine.base.errors import Unsupported
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT, ST_SPACE
from tidemark.engine.rows.column_output import decode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.backup.entries_layout import B_ENTRIES, B_NEXT, B_USED, BACKUP_STATE_WORDS
from tidemark.recovery.verification import digests_kernels as k
from tidemark.recovery.verification.digest_ranges import Ranges, differing, first_by_key, first_by_rowid, narrowed
from tidemark.recovery.verification.digest_rows import digests, key_places

MASK = (1 << 64) - 1
INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(
        st.none() | INT64,
        st.none() | st.text(max_size=30),
        st.none() | st.binary(max_size=40),
        st.none() | st.floats(allow_nan=False),
        st.none() | st.floats(width=32, allow_nan=False),
        st.none() | st.integers(-(10**37), 10**37),
        st.none() | st.booleans(),
        st.none() | st.binary(min_size=5, max_size=5),
    ),
    max_size=30,
)
TYPES = [
    (pa.int64(), "integer"),
    (pa.string(), "bytes"),
    (pa.large_binary(), "bytes"),
    (pa.float64(), "double"),
    (pa.float32(), "single"),
    (pa.decimal128(38, 4), "decimal"),
    (pa.bool_(), "integer"),
    (pa.binary(5), "bytes"),
]


def arrow_of(rows, number):
    values = [row[number] for row in rows]
    kind = TYPES[number][0]
    if pa.types.is_decimal(kind):
        values = [
            None if each is None else decimal.Decimal((each < 0, tuple(map(int, str(abs(each)))), -4))
            for each in values
        ]
    return pa.array(values, kind)


def pairs(lanes):
    return [(int(a) & MASK, int(b) & MASK) for a, b in lanes.reshape(-1, 2)]


@given(ROWS, st.integers(0, 5), st.integers(0, 5))
def test_digests_of_any_columns_equal_twin_wherever_arrays_begin(rows, skipped, cut):
    columns = [arrow_of(rows, number).slice(skipped, max(0, len(rows) - skipped - cut)) for number in range(len(TYPES))]
    kept = rows[skipped : max(skipped, len(rows) - cut)]
    kinds = [kind for _, kind in TYPES]
    assert pairs(digests(columns, len(kept))) == [naive.digest(list(row), kinds) for row in kept]


@given(
    st.lists(st.integers(-128, 127), min_size=1, max_size=20),
)
def test_integers_of_any_width_have_one_digest(values):
    wide = digests([pa.array(values, pa.int64())], len(values)).tolist()
    for kind in (pa.int8(), pa.int16(), pa.int32()):
        assert digests([pa.array(values, kind)], len(values)).tolist() == wide
    positive = [abs(each) for each in values]
    wide = digests([pa.array(positive, pa.int64())], len(values)).tolist()
    for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()):
        assert digests([pa.array(positive, kind)], len(values)).tolist() == wide


def test_text_has_one_digest_in_every_form_and_enum_is_its_member():
    words = ["red", "", "green", None, "red"]
    plain = digests([pa.array(words)], 5).tolist()
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 2, 0, None, 1], pa.int32()), pa.array(["green", "red", ""]))
    for array in (pa.array(words, pa.large_string()), coded, pa.chunked_array([words[:2], words[2:]])):
        assert digests([array], 5).tolist() == plain


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.timestamp("ms"), pa.date64(), pa.time32("s"), pa.float16()])
def test_type_that_no_column_has_is_refused(kind):
    with pytest.raises(Unsupported, match="cast it"):
        digests([pa.nulls(1, kind)], 1)


@given(st.integers(0, 2**32))
def test_rows_that_differ_in_one_bit_have_other_lanes(seed):
    random = np.random.default_rng(seed)
    words = random.integers(-(2**63), 2**63 - 1, 4)
    other = words.copy()
    place = int(random.integers(4))
    other[place] ^= np.int64(1) << np.int64(random.integers(63))
    a, b = (digests([pa.array([int(each)]) for each in row], 1) for row in (words, other))
    assert a[0] != b[0] and a[1] != b[1]


def test_null_is_no_value_and_columns_do_not_run_into_each_other():
    found = {
        tuple(digests([pa.array([a], pa.string()), pa.array([b], pa.string())], 1).tolist())
        for a, b in [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", ""), (None, ""), ("", None), (None, None), ("", "")]
    }
    assert len(found) == 8


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(-5, 5)), max_size=60), st.integers(1, 6))
def test_sums_of_ranges_and_what_differs_equal_twin(rows, seed):
    places = np.array([row[0] for row in rows], dtype=np.int64)
    lanes = digests([pa.array([row[1] for row in rows], pa.int64())], len(rows))
    each = pairs(lanes)
    first = Ranges(np.zeros(1, dtype=np.int64), 63, 60, 3)
    other = first.same_shape()
    first.add(places, lanes)
    changed = lanes.copy()
    for place in range(0, len(rows), seed + 3):
        changed[2 * place] += 1
    other.add(places, changed)
    for number in range(8):
        wanted = naive.summed([each[row] for row in range(len(rows)) if rows[row][0] >> 60 == number])
        got = first.sums[3 * number : 3 * number + 3].tolist()
        assert (got[0], got[1] & MASK, got[2] & MASK) == wanted
    assert first.total()[0] == len(rows)
    numbers, counts = differing(first, other)
    wanted = sorted({rows[place][0] >> 60 for place in range(0, len(rows), seed + 3)})
    assert numbers.tolist() == wanted
    assert counts.tolist() == [sum(1 for row in rows if row[0] >> 60 == number) for number in wanted]
    if numbers.size:
        pieces = narrowed(numbers, 60)
        assert pieces is not None and pieces.count == numbers.size << pieces.fan_bits
        pieces.add(places, lanes)
        inside = [place for place in places.tolist() if place >> 60 in set(wanted)]
        assert int(pieces.rows().sum()) == len(inside)
        held = dict(zip(pieces.numbers().tolist(), pieces.rows().tolist(), strict=True))
        for place in inside:
            held[place >> pieces.shift] -= 1
        assert not any(held.values())


def test_places_past_the_last_expected_page_are_noticed():
    ranges = first_by_rowid([0, 1], 4, 1_000)
    assert (ranges.count, ranges.shift) == (8, 16)
    lanes = digests([pa.array([1, 2])], 2)
    ranges.add(np.array([3 << 16, 1 << 48 | 3 << 16 | 7]), lanes)
    assert not ranges.has_overflown
    ranges.add(np.array([4 << 16, 0]), lanes)
    assert ranges.has_overflown and ranges.total()[0] == 4
    assert first_by_key(0).count == 1 and first_by_key(10**9).count == 1 << 16


def test_kernels_refuse_bounds_that_do_not_hold():
    lanes, words = np.zeros(4, dtype=np.int64), np.zeros(2, dtype=np.int64)
    no_bits = np.zeros(0, dtype=np.uint8)
    assert k.begin_digests(lanes, 3) == k.finish_digests(lanes, 3) == -1
    assert k.fold_words(lanes, words, 2, no_bits, 0, 2) == k.fold_words(lanes, words, 1, no_bits, 0, 3) == -1
    assert k.fold_words(lanes, words, 1, np.zeros(1, dtype=np.uint8), 7, 2) == -1
    for ends in ([0, 9, 10], [0, 5, 4], [-1, 0, 0], [0, 1]):
        assert k.fold_bytes(lanes, words, np.array(ends), no_bits, 0, 2) == -1
    assert k.sum_digests(np.zeros(3, dtype=np.int64), lanes, np.array([0, 1]), 2) == -1
    assert lanes.tolist() == [0] * 4


# --- entries --------------------------------------------------------------------------------------
def random_rows(random, has_var):
    rows, rowid = [], 0
    for _ in range(int(random.integers(0, 12))):
        rowid += int(random.integers(1, 4))
        size = int(random.integers(1, 5))
        var = [size, *(int(each) for each in random.integers(1, 99, size - 1))] if has_var else []
        fixed = [int(each) for each in random.integers(1, 99, 2)]
        rows.append(naive_backup.Row(rowid, int(random.integers(1, 50)), 7, fixed, var, []))
    return rows


@given(st.integers(0, 2**32), st.booleans())
def test_entries_copied_equal_twin(seed, has_var):
    random = np.random.default_rng(seed)
    rows = random_rows(random, has_var)
    words = [word for row in rows for word in naive_backup.entry(row, 5, 3)]
    shape = np.array([2, has_var, 5, 3], dtype=np.int64)
    state = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
    source = np.array([0, *words, 0], dtype=np.int64)
    found = []
    while True:
        out, offsets = np.empty(25, dtype=np.int64), np.empty(3, dtype=np.int64)
        state[B_USED] = state[B_ENTRIES] = 0
        status = k.copy_entries(source, 1, 1 + len(words), shape, out, offsets, state)
        for offset in offsets[: int(state[B_ENTRIES])].tolist():
            found.append((offset, out[: int(state[B_USED])].tolist()))
        if status == OK:
            break
        assert ST_SPACE - 20 < status <= ST_SPACE and state[B_ENTRIES]
    wanted = [[*row.fixed, *row.var] for row in rows]
    assert [held[offset : offset + len(row)] for (offset, held), row in zip(found, wanted, strict=True)] == wanted
    assert [held[offset - 3] for offset, held in found] == [row.rowid for row in rows]
    # Of another fragment, or cut.
    for place, value in ((3, 0), (1, -1)) if rows else ():
        broken = source.copy()
        broken[place] = value
        state[:] = 0
        full = (np.empty(500, dtype=np.int64), np.empty(50, dtype=np.int64), state)
        assert k.copy_entries(broken, 1, 1 + len(words), shape, *full) == ST_INVARIANT


@given(st.integers(0, 2**32))
def test_entries_of_one_fragment_among_others_equal_twin(seed):
    random = np.random.default_rng(seed)
    shapes = np.zeros(4 * 4, dtype=np.int64)
    shapes[8:12] = [2, 0, 2, 0]
    shapes[12:16] = [2, 1, 4, 0]
    words, wanted = [], []
    for _ in range(int(random.integers(0, 20))):
        table, has_var = (2, False) if random.random() < 0.5 else (3, True)
        fragment = int(random.integers(2))
        for row in random_rows(random, has_var)[:1]:
            words += naive_backup.entry(row, table, fragment)
            if (table, fragment) == (3, 1):
                wanted.append([row.rowid, *row.fixed, *row.var])
    state = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
    out, offsets = np.empty(1_000, dtype=np.int64), np.empty(50, dtype=np.int64)
    source = np.array([*words, 0], dtype=np.int64)
    assert k.copy_of_fragment(source, 0, len(words), shapes, 3, 1, out, offsets, state) == OK
    starts = offsets[: int(state[B_ENTRIES])].tolist()
    assert [
        [int(out[at - 3]), *out[at : at + len(row) - 1].tolist()] for at, row in zip(starts, wanted, strict=True)
    ] == wanted
    if words:
        state[B_NEXT] = 0
        assert k.copy_of_fragment(source, 0, len(words) - 1, shapes, 3, 1, out, offsets, state) == ST_INVARIANT


def test_digest_of_stored_rows_is_that_of_their_values():
    columns = (
        tm.Column("id", tm.VarChar(9)),
        tm.Column("when", tm.Timestamp),
        tm.Column("colour", tm.Enum("a", "b"), nullable=True),
        tm.Column("fixed", tm.Char(8)),
        tm.Column("flag", tm.Bool),
    )
    row_format = RowFormat(TableDefinition(2, 1, "d.t", columns, ("id",)))
    row = ("k", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "b", "xy", True)
    image = row_format.encode_row(row)
    found = digests(decode_rows(row_format, image, image.size, 1).columns, 1)
    micros = 1_767_225_600_000_000
    wanted = naive.digest(["k", micros, "b", "xy", 1], ["bytes", "integer", "bytes", "bytes", "integer"])
    assert pairs(found) == [wanted]
    assert int(key_places(found)[0]) == wanted[0] >> 1
