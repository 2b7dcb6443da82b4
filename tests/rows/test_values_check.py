"""The values of row images are verified as the naive twin does it: valid rows, and rows with any bytes changed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import values as naive
from tests.rows.strategies import definitions, disk_definitions, rows
from tidemark.engine.rows import values_layout as v
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.rows.values_check_kernels import check_values
from tidemark.engine.rows.values_plan import ValuesPlan
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.schema.partition_words import KEY_ROOM_WORDS, fragments_of_keys, hash_header
from tidemark.engine.types import Bool, Char, Int64

SEED = 7
COLUMNS = [Column("id", Int64), Column("c", Char(4)), Column("b", Bool)]
TEXTS = TableDefinition(1, 1, "t", tuple(COLUMNS[:2]), ("id",))
PARTS = TableDefinition(1, 1, "t", (COLUMNS[0], COLUMNS[2]), ("id",), HashPartition(4))


def home_of(row_format: RowFormat, image: Any) -> int:
    """The number of the fragment to which the row belongs."""
    header = hash_header(row_format.definition, row_format.fixed_words, SEED)
    key = row_format.image_key(image)
    return int(fragments_of_keys(header, key, np.array([0, key.size], dtype=np.int64), 0, 1)[0])


def verdict(row_format: RowFormat, image: Any, fragment: int = -1) -> tuple[bool, str | None, int]:
    """(whether the kernel finds a value to be wrong, its column, the fault)."""
    plan = ValuesPlan(row_format.layout, row_format.has_disk)
    header = hash_header(row_format.definition, row_format.fixed_words, SEED)
    state = np.zeros(v.VS_WORDS, dtype=np.int64)
    scratch = np.zeros(KEY_ROOM_WORDS, dtype=np.int64)
    fault = int(check_values(image, np.zeros(1, dtype=np.int64), plan.words, header, fragment, scratch, state))
    column = int(state[v.VS_COLUMN])
    is_wrong = fault not in (0, v.VALUE_PARTITION)
    return is_wrong, plan.places[column].column.name if column >= 0 and is_wrong else None, fault


def encoded(data: Any, kinds: Any) -> tuple[RowFormat, Any]:
    definition = data.draw(kinds)
    row_format = RowFormat(definition)
    return row_format, row_format.encode_row(data.draw(rows(definition))).copy()


@given(st.data())
def test_every_row_that_is_written_is_found_valid(data: Any) -> None:
    row_format, image = encoded(data, definitions() | disk_definitions())
    assert verdict(row_format, image, home_of(row_format, image)) == (False, None, 0)
    assert naive.wrong_column(image.tobytes(), row_format.layout) == (False, None)


@given(st.data())
def test_any_bytes_of_a_row_are_judged_as_the_twin_does(data: Any) -> None:
    """Bytes are changed one by one, bits among them: some changes make another valid row, most do not."""
    row_format, image = encoded(data, definitions() | disk_definitions())
    octets = image.view(np.uint8)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, octets.size - 1))
        octets[at] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
    assert verdict(row_format, image)[:2] == naive.wrong_column(image.tobytes(), row_format.layout)


@given(st.data())
def test_text_of_any_bytes_is_utf8_where_python_says_so(data: Any) -> None:
    row_format, image = encoded(data, st.just(TEXTS))
    octets = image.view(np.uint8)
    given_bytes = data.draw(st.binary(min_size=1, max_size=16))
    octets[8 : 8 + len(given_bytes)] = np.frombuffer(given_bytes, np.uint8)
    assert verdict(row_format, image)[:2] == naive.wrong_column(image.tobytes(), row_format.layout)


def test_row_of_another_fragment_is_found() -> None:
    row_format = RowFormat(PARTS)
    for key in range(40):
        image = row_format.encode_row((key, True))
        found = [verdict(row_format, image, number)[2] for number in range(4)]
        assert [number for number, fault in enumerate(found) if fault == 0] == [home_of(row_format, image)]
        assert set(found) == {0, v.VALUE_PARTITION}
