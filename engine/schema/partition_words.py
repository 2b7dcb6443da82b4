"""Partition words of a table definition (`partitions_layout.py`), computed once for each version of it."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, SchemaInvalid
from tidemark.engine.base.limits import KEY_BYTES_MAX, KEY_COLUMNS_MAX
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.memory.arena_layout import BLOCK_WORDS, PAGE_WORDS
from tidemark.engine.schema import partitions_kernels as kernels
from tidemark.engine.schema import partitions_layout as pl
from tidemark.engine.schema.partition import MAXVALUE, HashPartition, ListPartition, RangePartition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.types import ColumnType

    Words = NDArray[np.int64]
    Entry = tuple[int, tuple[Any, ...]]

# The order of canonical words, by the class of values.
_ORDERS = {
    "SIGNED": pl.ORDER_SIGNED,
    "UNSIGNED": pl.ORDER_SIGNED,
    "WIDE_UNSIGNED": pl.ORDER_UNSIGNED,
    "FLOAT32": pl.ORDER_FLOAT32,
    "FLOAT64": pl.ORDER_FLOAT64,
    "WIDE": pl.ORDER_WIDE,
    "BYTES": pl.ORDER_BYTES,
}
# Scratch words in which a kernel gathers a key to hash.
KEY_ROOM_WORDS = KEY_BYTES_MAX // WORD_BYTES + KEY_COLUMNS_MAX


def _signed(values: Sequence[int]) -> list[int]:
    return [(value & (1 << 64) - 1) - (1 << 63) for value in values]


def ordered_words(kind: ColumnType, stored: Any) -> list[int]:
    """Return the ordered words of a stored value of a key column; for a variable type, its size in bytes first."""
    order = _ORDERS[kind.value_class]
    if order == pl.ORDER_BYTES:
        size = len(stored) if kind.is_var else kind.width
        count = words_for(size)
        words = _signed(struct.unpack(f">{count}Q", stored.ljust(count * WORD_BYTES, b"\0")))
        return [size, *words] if kind.is_var else words
    if order == pl.ORDER_WIDE:
        low, high = struct.unpack("<Qq", stored)
        return [high, *_signed([low])]
    if order == pl.ORDER_UNSIGNED:
        return _signed([stored])
    if order == pl.ORDER_SIGNED:
        return [int(stored)]
    is_long = order == pl.ORDER_FLOAT64
    (bits,) = struct.unpack("<q" if is_long else "<I", struct.pack("<d" if is_long else "<f", stored))
    if is_long:
        return [bits if bits >= 0 else bits ^ ((1 << 63) - 1)]
    return [bits if bits < 1 << 31 else (~bits & 0xFFFFFFFF) - (1 << 63)]


def _entries(definition: TableDefinition, kinds: Sequence[ColumnType]) -> list[Entry]:
    """Return (fragment number, stored values) of each bound or list value, ascending."""
    partition = definition.partition
    entries: list[Entry] = []
    if isinstance(partition, RangePartition):
        for number, (_, pieces) in zip(partition.numbers, partition.partitions, strict=True):
            entries.append((number, _stored(kinds, pieces)))
    elif isinstance(partition, ListPartition):
        for number, (_, rows) in zip(partition.numbers, partition.partitions, strict=True):
            entries.extend((number, _stored(kinds, pieces)) for pieces in rows)
        entries.sort(key=lambda entry: tuple(kind.sort_key(piece) for kind, piece in zip(kinds, entry[1], strict=True)))
    return entries


def _stored(kinds: Sequence[ColumnType], pieces: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        piece if piece is MAXVALUE else kind.stored_key(piece) for kind, piece in zip(kinds, pieces, strict=True)
    )


def partition_columns(definition: TableDefinition) -> tuple[str, ...]:
    """Return the names of the columns that decide about the partition of a row."""
    partition = definition.partition
    if isinstance(partition, HashPartition):
        return (partition.modulo,) if partition.modulo is not None else partition.columns or definition.primary_key
    assert isinstance(partition, (RangePartition, ListPartition))
    return partition.columns


def is_plain(definition: TableDefinition) -> bool:
    """Whether the partition is the hash of the whole canonical key mod fragments, which needs no words."""
    partition = definition.partition
    if not isinstance(partition, HashPartition) or partition.is_linear or partition.modulo is not None:
        return False
    return partition.columns is None or partition.columns == definition.primary_key


def _header(definition: TableDefinition) -> Words:
    """Return the header, except the words that depend on entries."""
    words = np.zeros(pl.SP_WORDS, dtype=np.int64)
    partition = definition.partition
    key = [definition.columns[position].type for position in definition.key_positions]
    columns = partition_columns(definition)
    ordinals = [definition.primary_key.index(name) for name in columns]
    words[pl.SP_KEY_COLUMNS] = len(key)
    words[pl.SP_COLUMNS] = len(columns)
    for number, kind in enumerate(key):
        words[pl.SP_WIDTHS + number] = 0 if kind.is_var else words_for(struct.calcsize("<" + kind.key_code))
    for number, ordinal in enumerate(ordinals):
        words[pl.SP_ORDINALS + number] = ordinal
        words[pl.SP_CLASSES + number] = _ORDERS[key[ordinal].value_class]
    if isinstance(partition, HashPartition):
        words[pl.SP_KIND] = pl.KIND_HASH if partition.modulo is None else pl.KIND_MODULO
        words[pl.SP_LINEAR] = partition.is_linear
        words[pl.SP_FRAGMENTS] = partition.fragments
        words[pl.SP_MASK] = (1 << (partition.fragments - 1).bit_length()) - 1
        is_run = ordinals == list(range(ordinals[0], ordinals[0] + len(ordinals)))
        words[pl.SP_SPAN] = len(ordinals) if is_run else 0
    else:
        words[pl.SP_KIND] = pl.KIND_RANGE if isinstance(partition, RangePartition) else pl.KIND_LIST
    return words


def partition_words(definition: TableDefinition, start: int = 0) -> Words:
    """Return the partition words of a definition that is not `is_plain`, to be placed at index `start` of an array.

    Raises: SchemaInvalid if bounds or lists need more units than the arena has.
    """
    header = _header(definition)
    kinds = [definition.columns[definition.position(name)].type for name in partition_columns(definition)]
    entries = _entries(definition, kinds)
    if not entries:
        return header
    rows = [
        [None if piece is MAXVALUE else ordered_words(kind, piece) for kind, piece in zip(kinds, pieces, strict=True)]
        for _, pieces in entries
    ]
    sizes = [max(len(row[column] or ()) for row in rows) for column in range(len(kinds))]
    stride = pl.EN_HEADER_WORDS + sum(sizes)
    is_page = len(entries) * stride > BLOCK_WORDS
    per_unit = (PAGE_WORDS if is_page else BLOCK_WORDS) // stride
    units = -(-len(entries) // per_unit) if per_unit else pl.SP_UNITS_MAX + 1
    if units > pl.SP_UNITS_MAX:
        raise SchemaInvalid(
            f"table {definition.name}: the bounds of its {definition.partition.fragments} partitions take"
            f" {len(entries) * stride * WORD_BYTES} bytes, more than can be searched; shorten them",
            table=definition.name,
        )
    header[pl.SP_ENTRIES] = len(entries)
    header[pl.SP_STRIDE] = stride
    header[pl.SP_PER_UNIT] = per_unit
    header[pl.SP_UNIT_COUNT] = units
    header[pl.SP_UNIT_IS_PAGE] = is_page
    header[pl.SP_BOUND_WORDS : pl.SP_BOUND_WORDS + len(sizes)] = sizes
    header[pl.SP_UNITS : pl.SP_UNITS + units] = start + pl.SP_WORDS + np.arange(units) * per_unit * stride
    body = np.zeros((len(entries), stride), dtype=np.int64)
    for at, ((number, _), row) in enumerate(zip(entries, rows, strict=True)):
        body[at, pl.EN_NUMBER] = number
        place = pl.EN_HEADER_WORDS
        for column, (words, size) in enumerate(zip(row, sizes, strict=True)):
            if words is None:
                body[at, pl.EN_ABOVE] |= 1 << column
            else:
                body[at, place : place + len(words)] = words
            place += size
    return np.concatenate([header, body.reshape(-1)])


def hash_header(definition: TableDefinition, fixed_words: int, seed: int) -> Words:
    """Return the words from which kernels without the GIL find fragments: `HH_` words, then any partition words."""
    header = np.zeros(pl.HH_WORDS, dtype=np.int64)
    header[pl.HH_FRAGMENTS] = definition.partition.next_number
    header[pl.HH_FIXED_WORDS] = fixed_words
    header[pl.HH_SEED] = seed
    if is_plain(definition):
        return header
    header[pl.HH_PARTITION] = pl.HH_WORDS
    return np.concatenate([header, partition_words(definition, pl.HH_WORDS)])


def fragments_of_keys(header: Words, keys: Words, offsets: Words, stride: int, count: int) -> Words:
    """Return the fragment number of each canonical key, -1 if no partition takes it.

    header: from `hash_header`. offsets: `count` + 1 word positions in `keys`, or empty if each key has `stride` words.
    Shapes: (count,).
    """
    if (offsets.size <= count) if offsets.size else (keys.size < count * stride):
        raise InvariantBroken(f"{count} keys have {offsets.size} offsets and {keys.size} words; report this")
    numbers: Words = np.empty(count + KEY_ROOM_WORDS, dtype=np.int64)
    kernels.fragments_of_keys(header, keys, offsets, stride, count, numbers)
    return numbers[:count]
