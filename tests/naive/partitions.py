"""The naive twin of `engine/schema/partitions_kernels.py`: partitions by Python values, hashes by xxhash."""

from __future__ import annotations

from typing import Any

import xxhash

import tidemark as tm
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.definition import TableDefinition


def _rule(value: int, count: int, is_linear: bool) -> int:
    if not is_linear:
        return value % count
    power = 1
    while power < count:
        power *= 2
    while value % power >= count:
        power //= 2
    return value % power


def canonical(definition: TableDefinition, names: tuple[str, ...], pieces: dict[str, Any]) -> bytes:
    """Canonical words of some key columns, by way of a table that has no others."""
    columns = tuple(definition.columns[definition.position(name)] for name in names)
    alone = RowFormat(TableDefinition(1, 1, "t", columns, names))
    values = tuple(pieces[name] for name in names)
    return alone.encode_key(values if len(values) > 1 else values[0]).tobytes()


def comparable(value: Any) -> Any:
    """Text compares as its bytes; everything else as Python does."""
    return value.encode() if isinstance(value, str) else value


def _below(row: tuple[Any, ...], bound: tuple[Any, ...]) -> bool:
    for value, limit in zip(row, bound, strict=True):
        if limit is tm.MAXVALUE or comparable(value) < comparable(limit):
            return True
        if comparable(value) != comparable(limit):
            return False
    return False


def number_of(definition: TableDefinition, key: tuple[Any, ...]) -> int:
    """Fragment number of a key, -1 if no partition takes it."""
    partition: Any = definition.partition
    pieces = dict(zip(definition.primary_key, key, strict=True))
    if isinstance(partition, tm.HashPartition):
        if partition.modulo is not None:
            return _rule(pieces[partition.modulo], partition.fragments, partition.is_linear)
        data = canonical(definition, partition.columns or definition.primary_key, pieces)
        return _rule(
            xxhash.xxh64(data, seed=42).intdigest() & ((1 << 63) - 1), partition.fragments, partition.is_linear
        )
    row = tuple(pieces[name] for name in partition.columns)
    for number, (_, bound) in zip(partition.numbers, partition.partitions, strict=True):
        if _below(row, bound) if isinstance(partition, tm.RangePartition) else row in bound:
            return int(number)
    return -1
