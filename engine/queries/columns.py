"""Arrow columns that kernels copy rows into: one array with a region for each column, its validity and its texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.scan_batch import AUTHOR, EPOCH, HIDDEN, ROWID
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory.arena_layout import AUTHOR_MASK, AUTHOR_SHIFT, ROW_HEADER_WORDS
from tidemark.engine.queries import program_scan_layout as q
from tidemark.engine.rows.column_output import arrow_of, arrow_schema
from tidemark.engine.rows.row_part import var_default
from tidemark.engine.schema.row_shape import FIXED, VAR, Place

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition

TEXT_BYTES = 16  # of a value of any size, to begin with
_ALIGNED_WORDS = 8  # a region begins on a cache line, as Arrow recommends
_TEXTS = (q.COLUMN_PADDED, q.COLUMN_VAR)
_TEXT_BYTES_MAX = 1 << 26  # of one column of a batch; texts in one chunk of a vector of rows take less
# Of hidden columns: kind, bytes of an element, and its number from the fixed image on.
_HIDDEN_PLACES = {
    ROWID: (q.COLUMN_ROWID, WORD_BYTES, 0),
    EPOCH: (q.COLUMN_FIXED, WORD_BYTES, 1 - ROW_HEADER_WORDS),
    AUTHOR: (q.COLUMN_FIXED, 2, AUTHOR_SHIFT // 16 - ROW_HEADER_WORDS * (WORD_BYTES // 2)),
}
_DTYPES = {8: np.int64, 4: np.int32, 2: np.int16, 1: np.uint8}


def is_copied(place: Place | str) -> bool:
    """Whether a kernel copies a column: added columns that are not texts, or have a default, it does not."""
    if isinstance(place, str):
        return place in _HIDDEN_PLACES
    if place.is_disk:
        return False
    return place.part == FIXED or (place.part == VAR and place.column.type.is_varying and var_default(place) is None)


def schema_of(definition: TableDefinition, names: Sequence[str]) -> pa.Schema:
    """Return the schema of columns of a table, which may be hidden ones: those are int64."""
    import pyarrow as pa

    plain = arrow_schema(definition, [name for name in names if name not in HIDDEN])
    return pa.schema([pa.field(name, pa.int64(), False) if name in HIDDEN else plain.field(name) for name in names])


class Columns:
    """The array of one batch: a region for each column, and for its validity and its texts."""

    def __init__(self, places: Sequence[Place | str], capacity: int, text_bytes: Sequence[int]) -> None:
        """places: of the columns; of hidden ones, their names."""
        self._places = places
        self._words = 0
        plan = [len(places), capacity]
        for place, size in zip(places, text_bytes, strict=True):
            plan += self._column(place, capacity, min(size * capacity, _TEXT_BYTES_MAX))
        self.plan: Words = np.array(plan, dtype=np.int64)
        self._take_memory()

    def _take_memory(self) -> None:
        words = np.empty(self._words, dtype=np.int64)
        self.elements = (words, words.view(np.int32), words.view(np.int16), words.view(np.uint8))
        for _, column in self._each():
            if column[q.CO_KIND] in _TEXTS:
                self._view(_DTYPES[column[q.CO_UNIT]])[column[q.CO_TARGET]] = 0

    def another(self) -> Columns:
        """Return columns of the same shape, of a batch that nothing was copied into."""
        made = object.__new__(Columns)
        made._places, made._words, made.plan = self._places, self._words, self.plan.copy()
        made._take_memory()
        return made

    def _region(self, size_bytes: int) -> int:
        """Return the word at which a new region begins."""
        at = self._words
        words = -(-size_bytes // WORD_BYTES)
        self._words += -(-words // _ALIGNED_WORDS) * _ALIGNED_WORDS
        return at

    def _column(self, place: Place | str, capacity: int, room: int) -> list[int]:
        column = [0] * q.CO_WORDS
        column[q.CO_BITMAP] = -1
        if isinstance(place, str):
            column[q.CO_KIND], unit, column[q.CO_AT] = _HIDDEN_PLACES[place]
            column[q.CO_UNIT], column[q.CO_UNITS] = unit, 1
            column[q.CO_TARGET] = self._region(capacity * unit) * (WORD_BYTES // unit)
            return column
        kind = place.column.type
        if place.null_mask:
            column[q.CO_NULL_WORD], byte = divmod(place.null_offset, WORD_BYTES)
            bit = place.null_mask << 8 * byte
            column[q.CO_NULL_BIT] = bit - (bit >> 63 << 64)
        if place.column.nullable:
            column[q.CO_BITMAP] = self._region(-(-capacity // 8))
        if place.part == FIXED and not kind.is_varying:
            unit = (place.offset | place.width | WORD_BYTES) & -(place.offset | place.width | WORD_BYTES)
            units = place.width // unit
            column[q.CO_KIND], column[q.CO_UNIT], column[q.CO_UNITS] = q.COLUMN_FIXED, unit, units
            column[q.CO_AT] = place.offset // unit
            column[q.CO_TARGET] = self._region(capacity * place.width) * (WORD_BYTES // unit)
            return column
        is_padded = place.part == FIXED
        column[q.CO_KIND] = q.COLUMN_PADDED if is_padded else q.COLUMN_VAR
        column[q.CO_AT] = place.offset if is_padded else place.ordinal
        column[q.CO_UNITS] = place.width
        column[q.CO_UNIT] = 8 if kind.is_lob else 4
        column[q.CO_TARGET] = self._region((capacity + 1) * column[q.CO_UNIT]) * (WORD_BYTES // column[q.CO_UNIT])
        column[q.CO_BYTES] = self._region(room) * WORD_BYTES
        column[q.CO_ROOM] = room
        return column

    def _each(self) -> Iterator[tuple[Place | str, list[int]]]:
        plan = self.plan.tolist()
        for number, place in enumerate(self._places):
            at = q.CO_FIRST + number * q.CO_WORDS
            yield place, plan[at : at + q.CO_WORDS]

    def _view(self, dtype: Any) -> Any:
        return self.elements[0].view(dtype)

    def sizes(self, before: Sequence[int], count: int, missing: int) -> list[int]:
        """Return how many bytes to expect of a value of each column in the next batch.

        missing: bytes of texts that did not fit into an empty batch.
        """
        found = []
        for (_, column), size in zip(self._each(), before, strict=True):
            if column[q.CO_KIND] in _TEXTS and count:
                size = max(size, column[q.CO_USED] * 5 // (count * 4) + 1)
            found.append(size if count or not missing else max(size, missing // max(int(self.plan[1]), 1) + 1))
        return found

    def batch(self, schema: pa.Schema, count: int) -> pa.RecordBatch:
        """Return the rows that were copied. Little memory is kept if they are few."""
        import pyarrow as pa

        is_small = 2 * count < int(self.plan[q.CO_CAPACITY])
        arrays = []
        for place, column in self._each():
            nulls, unit = column[q.CO_NULLS], column[q.CO_UNIT]

            def part(dtype: Any, first: int, size: int) -> Any:
                found = self._view(dtype)[first : first + size]
                return found.copy() if is_small else found

            bitmap = part(np.uint8, column[q.CO_BITMAP] * WORD_BYTES, -(-count // 8)) if nulls else None
            if isinstance(place, str):
                words = part(_DTYPES[unit], column[q.CO_TARGET], count)
                arrays.append(pa.array(words if unit == WORD_BYTES else words.astype(np.int64) & AUTHOR_MASK))
                continue
            if column[q.CO_KIND] == q.COLUMN_FIXED:
                units = column[q.CO_UNITS]
                values = part(_DTYPES[unit], column[q.CO_TARGET], count * units)
                arrays.append(arrow_of(values, place.column, count, bitmap, nulls))
                continue
            ends = part(_DTYPES[unit], column[q.CO_TARGET], count + 1)
            data = part(np.uint8, column[q.CO_BYTES], column[q.CO_USED])
            buffers = [None if bitmap is None else pa.py_buffer(bitmap), pa.py_buffer(ends), pa.py_buffer(data)]
            arrays.append(pa.Array.from_buffers(place.column.type.arrow_type(), count, buffers, nulls))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)
