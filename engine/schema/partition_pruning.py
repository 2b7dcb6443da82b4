"""Partitions that may hold rows, given what is known of their columns (docs/internals/access.md, sections 9 and 10).

Pruning never leaves out a partition that has a matching row; it may keep one that has none. So a value that the column
cannot hold prunes nothing: the caller's comparison may still find a row equal to it.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import Rejected
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.schema.partition import MAXVALUE, HashPartition, ListPartition, RangePartition
from tidemark.engine.schema.partition_words import partition_columns
from tidemark.engine.schema.partitions_kernels import PARTITION_SEED, POSITIVE
from tidemark.engine.sealed.checksums_kernels import xxh64_words

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.types import ColumnType

# Up to this many values are checked one by one; a longer list prunes nothing.
VALUES_MAX = 1_024
# Sort keys of pieces: (0, sort key) of a value; before all values, past all values, MAXVALUE, past MAXVALUE.
BELOW_ALL = (-1,)
ABOVE_ALL = (1,)
AT_MAXVALUE = (2,)
PAST_MAXVALUE = (3,)


@dataclass(frozen=True)
class Between:
    """A range of values: None is no bound; `with_lower` and `with_upper` say whether the bounds are included."""

    lower: Any = None
    upper: Any = None
    with_lower: bool = True
    with_upper: bool = True


Known = Between | Collection[Any]


def partitions_for(definition: TableDefinition, known: Mapping[str, Known]) -> tuple[int, ...]:
    """Return the fragment numbers of the partitions that may hold rows whose columns all match `known`, ascending.

    known: by column name, a `Between` or the possible values; other columns may have any value.
    """
    partition = definition.partition
    if any(not isinstance(each, Between) and len(each) == 0 for each in known.values()):
        return ()
    columns = [_Column(definition, name, known.get(name)) for name in partition_columns(definition)]
    if isinstance(partition, ListPartition):
        return _of_list(partition, columns)
    if isinstance(partition, RangePartition):
        return _of_ranges(partition, columns)
    values = [column.values for column in columns]
    if not _are_few(values):
        return partition.numbers
    pieces = itertools.product(*(each or () for each in values))
    return tuple(sorted({partition_of_values(definition, each) for each in pieces}))


class _Column:
    """A partition column, and the known bounds of its values."""

    def __init__(self, definition: TableDefinition, name: str, known: Known | None) -> None:
        self.kind: ColumnType = definition.columns[definition.position(name)].type
        self.lower: Any = None
        self.upper: Any = None
        self.with_lower = self.with_upper = True
        # The possible stored values, ascending; None if they are unknown or too many.
        self.values: list[Any] | None = None
        if isinstance(known, Between):
            self._set_range(known)
        elif known is not None and len(known) <= VALUES_MAX:
            stored = [self._store(value) for value in known]
            if None not in stored:
                self._set_values(stored)

    def _store(self, value: Any) -> Any:
        """Return the stored form of a value; None if the column cannot hold the value exactly."""
        try:
            stored = self.kind.stored_key(value)
        except Rejected:
            return None
        return None if isinstance(stored, float) and stored != value else stored

    def _set_values(self, stored: Sequence[Any]) -> None:
        order = self.kind.sort_key
        self.values = sorted(stored, key=order)
        self.lower, self.upper = order(self.values[0]), order(self.values[-1])

    def _set_range(self, known: Between) -> None:
        lower = None if known.lower is None else self._store(known.lower)
        upper = None if known.upper is None else self._store(known.upper)
        with_lower, with_upper = known.with_lower, known.with_upper
        if self.kind.python is int:
            if lower is not None:
                lower, with_lower = lower + (not with_lower), True
            if upper is not None:
                upper, with_upper = upper - (not with_upper), True
            if lower is not None and upper is not None and 0 <= upper - lower < VALUES_MAX:
                self._set_values(range(lower, upper + 1))
                return
        self.lower = None if lower is None else self.kind.sort_key(lower)
        self.upper = None if upper is None else self.kind.sort_key(upper)
        self.with_lower, self.with_upper = with_lower, with_upper
        if self.lower is not None and self.lower == self.upper and with_lower and with_upper:
            self._set_values([lower])

    def accepts(self, stored: Any) -> bool:
        """Whether a stored value matches what is known."""
        order = self.kind.sort_key(stored)
        if self.values is not None:
            return order in map(self.kind.sort_key, self.values)
        if self.lower is not None and (order < self.lower or (order == self.lower and not self.with_lower)):
            return False
        return self.upper is None or order < self.upper or (order == self.upper and self.with_upper)


def _are_few(values: Sequence[list[Any] | None]) -> bool:
    return None not in values and math.prod(len(each or ()) for each in values) <= VALUES_MAX


def partition_of_values(definition: TableDefinition, stored: Sequence[Any]) -> int:
    """Return the fragment number by hash or modulo of the stored values of the partition columns, in their order."""
    partition = definition.partition
    assert isinstance(partition, HashPartition)
    if partition.modulo is not None:
        value = int(stored[0])
    else:
        kinds = [definition.columns[definition.position(name)].type for name in partition_columns(definition)]
        words = np.frombuffer(
            b"".join(_canonical(kind, each) for kind, each in zip(kinds, stored, strict=True)), dtype=np.int64
        )
        value = int(xxh64_words(words.copy(), 0, words.size, PARTITION_SEED)) & POSITIVE
    if not partition.is_linear:
        return value % partition.fragments
    mask = (1 << (partition.fragments - 1).bit_length()) - 1
    while value & mask >= partition.fragments:
        mask >>= 1
    return value & mask


def _canonical(kind: ColumnType, stored: Any) -> bytes:
    if kind.is_var:
        return struct.pack("<q", len(stored)) + bytes(stored) + bytes(-len(stored) % WORD_BYTES)
    canonical: bytes = struct.pack("<" + kind.key_code, stored)
    return canonical


def _of_list(partition: ListPartition, columns: Sequence[_Column]) -> tuple[int, ...]:
    return tuple(
        number
        for number, (_, rows) in zip(partition.numbers, partition.partitions, strict=True)
        if any(
            all(column.accepts(column.kind.stored_key(piece)) for column, piece in zip(columns, row, strict=True))
            for row in rows
        )
    )


def _of_ranges(partition: RangePartition, columns: Sequence[_Column]) -> tuple[int, ...]:
    uppers = [
        tuple(
            AT_MAXVALUE if piece is MAXVALUE else (0, column.kind.sort_key(column.kind.stored_key(piece)))
            for column, piece in zip(columns, bound, strict=True)
        )
        for _, bound in partition.partitions
    ]
    lowers = [(BELOW_ALL,) * len(columns), *uppers]
    spans = list(_spans(columns))
    return tuple(
        number
        for number, lower, upper in zip(partition.numbers, lowers, uppers, strict=False)
        if any(first < upper and last >= lower for first, last in spans)
    )


def _spans(columns: Sequence[_Column]) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield the spans that may hold rows, in the order of the columns: each value of leading columns with few values,
    then the range of the next column.
    """
    fixed: list[list[Any]] = []
    for column in columns:
        values = column.values
        if values is None or not _are_few([*fixed, values]):
            break
        fixed.append(values)
    rest = columns[len(fixed) :]
    for pieces in itertools.product(*fixed):
        start = tuple((0, column.kind.sort_key(piece)) for column, piece in zip(columns, pieces, strict=False))
        if not rest:
            yield start, start
            continue
        low, high = rest[0].lower, rest[0].upper
        others = len(rest) - 1
        first = (
            BELOW_ALL if low is None else (0, low),
            *([BELOW_ALL if rest[0].with_lower else PAST_MAXVALUE] * others),
        )
        last = (ABOVE_ALL if high is None else (0, high), *([ABOVE_ALL if rest[0].with_upper else BELOW_ALL] * others))
        yield (*start, *first), (*start, *last)
