"""Keys for lookups in a unique index, as key words: a single key, or batches by column.

A batch becomes row images of a table with only the key columns, and the encoder of index keys reads those. So types,
ranges and NULLs are validated as for rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import TypeMismatch
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.index.ordered import SLACK_WORDS
from tidemark.engine.index.unique_keys_kernels import encode_lookups
from tidemark.engine.rows.column_input import to_columns, to_key_columns
from tidemark.engine.rows.columnar import encode_rows
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import ABSENT, Column, fresh
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Int64
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words


@dataclass(frozen=True)
class Lookups:
    """Keys to look up: `stride` words each, of which `lengths` are in use; 0: the key has a NULL, so no row has it."""

    words: Words
    lengths: Words
    stride: int

    @property
    def count(self) -> int:
        """The number of keys."""
        return len(self.lengths)

    def bytes_of(self, row: int) -> bytes:
        """Return the words of a key as bytes, to be compared with those of others."""
        start = row * self.stride
        return bytes(self.words[start : start + int(self.lengths[row])].tobytes())

    def comparable(self, stride: int) -> Any:
        """Return the keys as an array of values that are equal if the keys are; stride: at least that of the keys."""
        words = np.zeros((self.count, stride + 1), dtype=np.int64)
        words[:, : self.stride] = self.words.reshape(self.count, self.stride)
        words[np.arange(stride + 1) >= self.lengths[:, None]] = 0
        words[:, stride] = self.lengths
        return words.view(np.dtype((np.void, words.itemsize * words.shape[1]))).ravel()

    def places_in(self, others: Lookups) -> Words:
        """Return, for each key, the place of an equal one among others, or -1; a key with a NULL equals no other."""
        stride = max(self.stride, others.stride)
        both = np.concatenate([self.comparable(stride), others.comparable(stride)])
        same = np.unique(both, return_inverse=True)[1].ravel()
        places = np.full(both.size, -1, dtype=np.int64)
        places[same[self.count :]] = np.arange(others.count)
        return np.where(self.lengths > 0, places[same[: self.count]], -1)

    def part(self, start: int, stop: int) -> Lookups:
        """Return keys [start, stop)."""
        return Lookups(self.words[start * self.stride : stop * self.stride], self.lengths[start:stop], self.stride)


def one_key(shape: KeyShape, table: str, key: Any) -> Lookups:
    """Encode one key: a value, or a tuple of values for several columns. Raises: TypeMismatch, ValueOutOfRange."""
    names = ", ".join(column.name for column in shape.columns)
    values = (key,) if len(shape.columns) == 1 else key
    if not isinstance(values, (tuple, list)) or len(values) != len(shape.columns):
        raise TypeMismatch(f"{table}: the key of the index is ({names}), got {shown(key)}", table=table)
    if any(value is None for value in values):
        return Lookups(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), 1)
    words = np.array(shape.encode(values), dtype=np.int64)
    return Lookups(words, np.array([words.size], dtype=np.int64), words.size)


def keys_of_images(shape: KeyShape, images: Words, offsets: Words, fixed_words: int) -> Lookups:
    """Encode the index keys of row images. offsets: the first word of each image in `images`."""
    stride = shape.key_words + SLACK_WORDS
    out = np.zeros(len(offsets) * stride, dtype=np.int64)
    lengths = np.zeros(len(offsets), dtype=np.int64)
    encode_lookups(shape.descriptor, images, offsets, fixed_words, len(offsets), stride, out, lengths)
    return Lookups(out, lengths, stride)


class KeyEncoder:
    """Encodes batches of keys of one index."""

    def __init__(self, definition: TableDefinition, names: Sequence[str]) -> None:
        self.names = list(names)
        number = "number"
        while number in names:
            number += "_"
        # In this table no column was added later.
        given = (fresh(definition.columns[definition.position(name)]) for name in names)
        columns = tuple(replace(column, default=ABSENT) for column in given)
        wanted = (Column(number, Int64), *columns)
        self.definition = TableDefinition(0, 1, definition.name, wanted, (number,), HashPartition())
        self.format = RowFormat(self.definition)
        self._number = number
        self._shape = KeyShape(self.definition, self.format.layout, names)

    def columns(self, keys: Any) -> dict[str, pa.Array]:
        """Return keys as arrays of Arrow by the name of their column. Raises: as `to_key_columns`."""
        return to_key_columns(keys, self.definition, self.names)

    def encode(self, keys: Any) -> Lookups:
        """Encode keys in a form that `to_key_columns` takes. Raises: as that, ValueOutOfRange."""
        import pyarrow as pa

        parts = []
        for batch in to_columns(self.columns(keys), self.definition, fill_in=False):
            columns = batch.columns
            arrays = [pa.array(np.zeros(columns.num_rows, dtype=np.int64)), *map(columns.column, self.names)]
            whole = pa.RecordBatch.from_arrays(arrays, names=[self._number, *self.names])
            encoded = encode_rows(self.format, whole, batch.first_row)
            parts.append(keys_of_images(self._shape, encoded.images, encoded.starts(), self.format.fixed_words))
        stride = self._shape.key_words + SLACK_WORDS
        nothing = np.zeros(0, dtype=np.int64)
        words = np.concatenate([nothing, *(part.words for part in parts)])
        return Lookups(words, np.concatenate([nothing, *(part.lengths for part in parts)]), stride)
