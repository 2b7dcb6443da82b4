"""Parsing of query results: any split of the bytes, any lengths, and false lengths."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tidemark as tm
from tests.naive.result_rows import lenenc, packet, rows_of
from tidemark.replication.binlog.rows_layout import CELL_NULL, CELL_SIZE_BITS, CELL_SIZE_MASK
from tidemark.replication.ingest import text_rows
from tidemark.replication.ingest.address import Address
from tidemark.replication.ingest.client import Result
from tidemark.replication.ingest.result_rows_kernels import find_result_cells

END = packet(b"\xfe\0\0\0\0")
VALUES = st.none() | st.binary(max_size=6) | st.integers(240, 70_000).map(bytes)


def kernel_rows(octets: bytes, columns: int, rows_max: int = 1_000) -> tuple[list[list[bytes | None]], int] | None:
    cells, ends = np.empty(rows_max * columns, np.int64), np.empty(rows_max, np.int64)
    data = np.frombuffer(octets, np.uint8)
    count = find_result_cells(cells, ends, data, 0, len(data), columns)
    if count < 0:
        return None

    def value(cell: int) -> bytes | None:
        begin = cell >> CELL_SIZE_BITS
        return None if cell == CELL_NULL else octets[begin : begin + (cell & CELL_SIZE_MASK)]

    found = [[value(int(cell)) for cell in cells[row * columns : (row + 1) * columns]] for row in range(count)]
    return found, int(ends[count - 1]) if count else 0


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_rows_of_any_result_equal_twin(data: st.DataObject) -> None:
    columns = data.draw(st.integers(1, 4))
    rows = data.draw(st.lists(st.lists(VALUES, min_size=columns, max_size=columns), max_size=8))
    octets = b"".join(packet(b"".join(map(lenenc, row)), number) for number, row in enumerate(rows)) + END
    cut = data.draw(st.integers(0, len(octets)))
    assert kernel_rows(octets, columns) == (rows, len(octets) - len(END))
    assert kernel_rows(octets[:cut], columns) == rows_of(octets[:cut], columns)


@given(st.binary(max_size=60), st.integers(1, 4))
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_refused_or_read_as_twin_does(payload: bytes, columns: int) -> None:
    octets = packet(payload) + packet(b"\x01a" * columns) + END
    assert kernel_rows(octets, columns) == rows_of(octets, columns)


class Pieces:
    """A result with bytes that come in pieces."""

    def __init__(self, octets: bytes, columns: int, seed: int) -> None:
        self.octets, self.columns, self.random = octets, columns, random.Random(seed)
        self.read = 0
        self._address = Address("h")

    is_over = Result.is_over

    def select(self, sql: str) -> Any:
        return self

    def read_into(self, room: memoryview) -> int:
        assert self.read < len(self.octets), "more is asked for than the server has sent"
        count = min(len(room), len(self.octets) - self.read, self.random.choice((1, 7, 300, 9_000)))
        room[:count] = self.octets[self.read : self.read + count]
        self.read += count
        return count


class Whole(Pieces):
    """A result in pieces of a megabyte."""

    def read_into(self, room: memoryview) -> int:
        count = min(len(room), len(self.octets) - self.read, 1 << 20)
        room[:count] = self.octets[self.read : self.read + count]
        self.read += count
        return count


def selected(octets: bytes, columns: int, seed: int, kind: type[Pieces] = Pieces) -> list[list[Any]]:
    pieces: Any = kind(octets, columns, seed)
    rows = []
    for count, arrays in text_rows.select(pieces, "SELECT"):
        assert all(len(array) == count for array in arrays)
        rows += [list(row) for row in zip(*(array.to_pylist() for array in arrays), strict=True)]
    return rows


@pytest.mark.parametrize("seed", range(6))
def test_pieces_of_any_size_give_all_rows_in_batches(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(text_rows, "BUFFER_BYTES", 1_000)
    monkeypatch.setattr(text_rows, "BATCH_ROWS", 13)
    draw = random.Random(seed)
    rows = [
        [None if draw.random() < 0.2 else draw.randbytes(draw.choice((0, 3, 260, 4_000))) for _ in range(3)]
        for _ in range(100)
    ]
    octets = b"".join(packet(b"".join(map(lenenc, row))) for row in rows) + END
    assert selected(octets, 3, seed) == rows, seed


def test_row_longer_than_a_packet_comes_whole() -> None:
    """Packets end at 16 MiB − 1."""
    big = bytes(range(256)) * (1 << 16) + b"end"
    payload = lenenc(b"k") + b"\xfe" + len(big).to_bytes(8, "little") + big
    limit = (1 << 24) - 1
    pieces = [payload[at : at + limit] for at in range(0, len(payload), limit)]
    octets = b"".join(
        [packet(lenenc(b"a") + lenenc(b"b")), *map(packet, pieces), packet(lenenc(b"c") + lenenc(None)), END]
    )

    assert selected(octets, 2, 0, Whole) == [[b"a", b"b"], [b"k", big], [b"c", None]]


@pytest.mark.parametrize("cells", [1, 3])
def test_row_of_several_packets_that_has_other_cells_than_columns_is_refused(cells: int) -> None:
    """Story: with a cell too few the parser read past the end of the row: IndexError, in a follower of a server."""
    limit = (1 << 24) - 1
    big = b"\xfe" + (limit + 1).to_bytes(8, "little") + bytes(limit + 1)
    payload = big + lenenc(b"x") * (cells - 1)
    octets = packet(payload[:limit]) + packet(payload[limit:]) + END
    with pytest.raises(tm.PeerRefused, match="contradict"):
        selected(octets, 2, 0, Whole)


def test_row_of_several_packets_with_a_length_byte_that_none_is_is_refused() -> None:
    """Story: the byte 255 begins no length. In a row of several packets it was read as a value of 255 bytes."""
    limit = (1 << 24) - 1
    payload = b"\xff" + b"k" * 255 + b"\xfe" + limit.to_bytes(8, "little") + bytes(limit)
    octets = packet(payload[:limit]) + packet(payload[limit:]) + END
    with pytest.raises(tm.PeerRefused, match="contradict"):
        selected(octets, 2, 0, Whole)


def test_error_among_the_rows_is_raised_and_false_lengths_are_refused() -> None:
    row = packet(lenenc(b"a"))
    with pytest.raises(tm.PeerRefused, match="so it is"):
        selected(row + packet(b"\xff" + (1227).to_bytes(2, "little") + b"#42000so it is"), 1, 0)
    with pytest.raises(tm.PeerRefused, match="contradict"):
        selected(row + packet(b"\x05ab") + END, 1, 0)
