"""Convert row images to MySQL's row bodies and back, in batches: the plans, and the kernel calls that use them.

Outgoing images are in one array of words and are found by word position. They are entries as reads, scans and local
checkpoints create them, without the header words of the entry, and with the disk part if a disk column is requested. An
incoming body is read in chunks of bounded memory into Arrow columns, which `engine/rows/columnar.py` accepts like any
other input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.column_buffers import NO_BYTES, NO_WORDS, build_variable
from tidemark.engine.base.errors import (
    InvariantBroken,
    LimitExceeded,
    PageDamaged,
    Rejected,
    Unsupported,
    ValueOutOfRange,
)
from tidemark.engine.base.words_layout import WORD_BYTES, words_for
from tidemark.engine.programs import program_layout as p
from tidemark.engine.rows.column_words import column_words
from tidemark.engine.rows.row_format import RowFormat, Words
from tidemark.engine.types import JSON, ColumnType
from tidemark.engine.types.base import Octets, counted
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import bodies_kernels as bodies
from tidemark.replication.binlog import rows_kernels as kernels
from tidemark.replication.binlog import rows_layout as r
from tidemark.replication.binlog.charsets import as_utf8, is_latin1
from tidemark.replication.binlog.json_values import document_of
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.refused_values import shown_value
from tidemark.replication.binlog.types import (
    MySqlType,
    RowCode,
    incoming,
    outgoing,
    outgoing_columns,
    outgoing_row,
    row_code,
)

if TYPE_CHECKING:
    import pyarrow as pa

# Bodies are written into a buffer of this size, which grows for larger rows.
BUFFER_BYTES = 256 << 10
BUFFER_ROWS = 4_096
# Plans that a table caches, one for each set of columns: updates that log only changed columns may have any set.
PLANS_MAX = 256
# Cells of a body that one kernel call locates.
_CELLS = 1 << 16


@dataclass(frozen=True)
class ImagePlan:
    """How an image with the columns at `positions` is written; `bitmap` is their bitmap in a row event."""

    positions: tuple[int, ...]
    bitmap: bytes
    words: Words
    octets: Octets


NO_PLAN = ImagePlan((), b"", NO_WORDS, NO_BYTES)


def bitmap_of(positions: Sequence[int], columns: int) -> bytes:
    """Return the bitmap of columns present: bit c % 8 of byte c // 8, lowest first. Bits past the last column are 0,
    unlike in the NULL bitmaps of rows.
    """
    bits = np.zeros((columns + 7) // 8 * 8, np.uint8)
    bits[list(positions)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def positions_of(bitmap: bytes, columns: int) -> tuple[int, ...]:
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:columns]
    return tuple(np.flatnonzero(bits).tolist())


class TablePlans:
    """The plans of one version of a table, one for each set of columns, built when first used."""

    def __init__(self, row_format: RowFormat) -> None:
        """Raises: Unsupported if a column has a type without a MySQL type."""
        self.row_format = row_format
        self.definition = row_format.definition
        self.rows: tuple[RowCode, ...] = tuple(
            outgoing_row(column.type, mysql)
            for column, mysql in zip(self.definition.columns, outgoing_columns(self.definition), strict=True)
        )
        self.plans: dict[tuple[int, ...], ImagePlan] = {}
        self.every = self.of(tuple(range(len(self.rows))))
        places = row_format.layout.places
        self.disk_positions = tuple(position for position, place in enumerate(places) if place.is_disk)
        # For images without disk part.
        self.memory = self.of(self.kept(self.every.positions, has_disk=False))
        self.key_positions = tuple(sorted(self.definition.key_positions))
        self.key = self.of(self.key_positions)

    def kept(self, positions: tuple[int, ...], has_disk: bool) -> tuple[int, ...]:
        """Return the positions whose columns an image contains: without a disk part it has no disk columns."""
        return positions if has_disk else tuple(each for each in positions if each not in self.disk_positions)

    def of(self, positions: tuple[int, ...]) -> ImagePlan:
        """Return the plan of the columns at these positions, ascending."""
        plan = self.plans.get(positions)
        if plan is None:
            if len(self.plans) >= PLANS_MAX:
                self.plans = {each.positions: each for each in (self.every, self.memory, self.key)}
            plan = self.plans[positions] = self._make(positions)
        return plan

    def _make(self, positions: tuple[int, ...]) -> ImagePlan:
        layout = self.row_format.layout
        words, constants = column_words(layout, positions)
        # If no disk column is requested, the image needs no disk part.
        disk = layout.disk if any(layout.places[position].is_disk for position in positions) else None
        header = np.zeros(p.PROGRAM_HEADER_WORDS, np.int64)
        header[p.H_COLUMNS] = header[p.H_INSTRUCTIONS] = len(positions)
        header[p.H_FIXED_WORDS] = layout.fixed_words
        header[p.H_HAS_VAR] = layout.has_var
        header[p.H_DISK_FIXED_WORDS] = 0 if disk is None else disk.fixed_words
        header[p.H_DISK_HAS_VAR] = 0 if disk is None else disk.has_var
        header[p.H_CONSTANTS] = words_for(len(constants))
        codes = np.array([self.rows[position] for position in positions], np.int64).reshape(-1)
        plan = np.concatenate([header, words, codes, np.frombuffer(constants, np.int64)])
        return ImagePlan(positions, bitmap_of(positions, len(self.rows)), plan, plan.view(np.uint8))


@dataclass(frozen=True)
class RowImages:
    """Rows of one table: `words` has the images; `before` and `after`, shape (rows,), have the word at which each image
    begins, None if the kind of event has no such image.
    """

    words: Words
    before: Words | None
    after: Words | None

    @property
    def count(self) -> int:
        positions = self.after if self.before is None else self.before
        return 0 if positions is None else len(positions)


class BodyWriter:
    """Writes row bodies, as many rows at a time as fit its buffer, which grows for a larger row and then shrinks
    again.
    """

    def __init__(self) -> None:
        self._buffer: Octets = np.empty(BUFFER_BYTES, np.uint8)
        self._ends = np.empty(BUFFER_ROWS, np.int64)

    def bodies(
        self, table: str, rows: RowImages, before: ImagePlan, after: ImagePlan, first: int, count: int
    ) -> Iterator[tuple[Octets, Words]]:
        """Yield `count` rows from `first` on as (bytes, end of each row in them), both valid until the next step.

        Raises: PageDamaged, LimitExceeded for a row past BODY_BYTES_MAX.
        """
        octets = rows.words.view(np.uint8)
        before_at = NO_WORDS if rows.before is None else rows.before
        after_at = NO_WORDS if rows.after is None else rows.after
        end = first + count
        while first < end:
            status = kernels.encode_images(
                self._buffer,
                self._ends,
                rows.words,
                octets,
                before_at,
                after_at,
                before.words,
                before.octets,
                after.words,
                after.octets,
                first,
                min(end - first, BUFFER_ROWS),
            )
            if status < 0:
                raise damaged_image(table, first - 1 - status)
            if status == 0:
                self._grow(table)
                continue
            yield self._buffer[: self._ends[status - 1]], self._ends[:status]
            first += status
            if len(self._buffer) > BUFFER_BYTES:
                self._buffer = np.empty(BUFFER_BYTES, np.uint8)

    def _grow(self, table: str) -> None:
        if len(self._buffer) >= r.BODY_BYTES_MAX:
            raise LimitExceeded(f"{table}: a row of over 2 GiB cannot be written to the binlog", table=table)
        self._buffer = np.empty(min(4 * len(self._buffer), r.BODY_BYTES_MAX), np.uint8)


def damaged_image(table: str, row: int) -> PageDamaged:
    """Return the error for an image that contradicts itself."""
    return PageDamaged(
        f"{table}: the lengths in a row contradict each other; run `tidemark check`", table=table, row=row
    )


# --- coming in ------------------------------------------------------------------------------------
def kind_of(mysql: MySqlType, target: ColumnType | None) -> ColumnType:
    """Return the type as which a column is read: `target` if the source writes exactly that type, else the store's type
    for the source's type. Raises: Unsupported.
    """
    if target is not None:
        wanted = outgoing(target)
        same = (mysql.code, mysql.metadata) == (wanted.code, wanted.metadata)
        same = same and not is_latin1(mysql.collation)
        if same and mysql.is_unsigned in (None, wanted.is_unsigned) and mysql.members in (None, wanted.members):
            if mysql.collation is None or wanted.collation is None:
                return target
            if (mysql.collation == b.COLLATION_BINARY) == (wanted.collation == b.COLLATION_BINARY):
                return target
    return incoming(mysql)


@dataclass(frozen=True)
class DecodedRows:
    """Some rows of a body, in the order of the body: Arrow columns by position, for the images that are present.

    `ends`, shape (count,), has the end of each row in the body, in bytes.
    """

    count: int
    before: dict[int, pa.Array]
    after: dict[int, pa.Array]
    ends: Words


class BodyReader:
    """Reads row bodies of one table, one kind of event and one set of columns.

    `types` are the types of all columns of the table, from its TABLE_MAP; `before` and `after` the positions present in
    each image; `targets` the types that the caller prefers, by position (see `kind_of`). Only positions in `wanted`
    (all if None) become columns, and of the before-image only those in `wanted_before` if it is given. Other
    columns may have types that the store lacks. `names` are the columns' names as `database.table.column`, for errors;
    with them the body is a server's, whose text may be invalid though the file is sound.
    """

    def __init__(
        self,
        types: Sequence[MySqlType],
        before: Sequence[int],
        after: Sequence[int],
        targets: Mapping[int, ColumnType] | None = None,
        wanted: frozenset[int] | None = None,
        wanted_before: frozenset[int] | None = None,
        names: Sequence[str] = (),
    ) -> None:
        """Raises: Unsupported, LimitExceeded if there is no column at all."""
        self._types, self._names = types, names
        self._before, self._after = tuple(before), tuple(after)
        targets = targets or {}
        self._shown_before = frozenset(before) if wanted_before is None else wanted_before
        some = [position for position in before if position in self._shown_before]
        read = {position for position in (*some, *after) if wanted is None or position in wanted}
        self.kinds = {position: self._kind(position, targets.get(position)) for position in sorted(read)}
        codes = []
        for position in (*before, *after):
            mysql, kind = types[position], self.kinds.get(position)
            if kind is not None and mysql.members is None:
                mysql = mysql._replace(members=kind.members or None)
            says_sign = mysql.is_unsigned is not None or mysql.code not in b.NUMERIC_TYPES
            codes.append(row_code(mysql) if says_sign or kind is None else outgoing_row(kind))
        self._documents = frozenset(position for position in read if types[position].code == b.TYPE_JSON)
        self._latin1 = frozenset(position for position in read if is_latin1(types[position].collation))
        self._codes = np.array(codes, np.int64).reshape(-1, r.ROW_CODE_WORDS)
        self._columns = len(codes)
        if not codes:
            raise LimitExceeded("a row event without columns cannot be read: its rows would have no end")

    def _kind(self, position: int, target: ColumnType | None) -> ColumnType:
        try:
            return kind_of(self._types[position], target)
        except Unsupported as error:
            raise Unsupported(f"{self._shown(position)}: {error.message}", column=self._shown(position)) from error

    def _shown(self, position: int) -> str:
        return self._names[position] if self._names else f"column {position}"

    def _refused(self, position: int, octets: bytes, kind: ColumnType, row: int, origin: Position) -> ValueOutOfRange:
        shown = self._shown(position)
        return ValueOutOfRange(
            f"{origin.text}: {shown} is {shown_value(self._types[position], octets)} at the source in row {row} of the"
            f" event, which {kind!r} does not hold; change it at the source and copy the table anew, or leave the"
            " table out with a filter",
            **origin._asdict(),
            column=shown,
            row=row,
        )

    def chunks(self, body: bytes | bytearray | memoryview, origin: Position) -> Iterator[DecodedRows]:
        """Yield the rows of a body, as many at a time as there is room for cells.

        Raises: BinlogDamaged, ValueOutOfRange for a value that the store cannot hold (`row` counts from 0 in the body).
        """
        octets = np.frombuffer(body, np.uint8)
        if len(octets) > r.BODY_BYTES_MAX:
            raise origin.damaged(f"has a row body of {counted(len(octets), 'byte')}")
        rows_max = max(1, _CELLS // self._columns)
        cells = np.empty(rows_max * self._columns, np.int64)
        ends = np.empty(rows_max, np.int64)
        codes = self._codes.reshape(-1)
        start = first = 0
        while start < len(octets):
            count = bodies.find_cells(cells, ends, octets, start, codes, len(self._before), len(self._after))
            if count < 0:
                raise origin.damaged(f"has a row {first - 1 - count} that is incomplete")
            yield self._decode(octets, cells, ends[:count].copy(), first, origin)
            start = int(ends[count - 1])
            first += count

    def _decode(self, octets: Octets, cells: Words, ends: Words, first: int, origin: Position) -> DecodedRows:
        count = len(ends)
        before: dict[int, pa.Array] = {}
        after: dict[int, pa.Array] = {}
        for cell, position in enumerate((*self._before, *self._after)):
            is_before = cell < len(self._before)
            if position not in self.kinds or (is_before and position not in self._shown_before):
                continue
            into = before if is_before else after
            into[position] = self._column(octets, cells, cell, position, count, first, origin)
        return DecodedRows(count, before, after, ends)

    def _column(
        self, octets: Octets, cells: Words, cell: int, position: int, count: int, first: int, origin: Position
    ) -> pa.Array:
        import pyarrow as pa

        kind, code = self.kinds[position], self._codes[cell]
        bitmap = np.zeros((count + 7) // 8, np.uint8)
        if code[r.RW_CODE] == r.ROW_STRING:
            offsets = np.empty(count + 1, np.int64)
            nulls = _checked(bodies.measure_strings(offsets, bitmap, cells, cell, self._columns, count))
            data = np.empty(int(offsets[count]), np.uint8)
            _checked(bodies.copy_strings(data, octets, offsets, cells, cell, self._columns, count))
            if position in self._latin1:
                offsets, data = as_utf8(offsets, data)
            if position in self._documents:
                return self._json(offsets, data, bitmap, position, first, origin)
            if kind.is_padded:
                padded = kind.column_from_var(data, offsets, bitmap, nulls)
                if padded is not None:
                    return padded
            array = build_variable(
                pa.large_string() if kind.is_text else pa.large_binary(), count, offsets, data, bitmap, nulls
            )
            if kind.is_text:
                row = _first_invalid(array)
                if row is not None and not self._names:
                    raise origin.damaged(f"has text in column {position} that is not UTF-8")
                if row is not None:
                    raise self._refused(
                        position, _octets(octets, cells[row * self._columns + cell]), kind, first + row, origin
                    )
            return array
        target = np.empty(count * (2 if code[r.RW_CODE] == r.ROW_DECIMAL else 1), np.int64)
        nulls = bodies.read_numbers(target, bitmap, octets, cells, cell, self._columns, code, count)
        if nulls < 0:
            value = _octets(octets, cells[(-1 - nulls) * self._columns + cell])
            raise self._refused(position, value, kind, first - 1 - nulls, origin)
        if code[r.RW_CODE] == r.ROW_DECIMAL and kind.width == WORD_BYTES:
            target = target[::2]
        return kind.array_of(target, count, bitmap, nulls)

    def _json(self, ends: Words, data: Octets, bitmap: Octets, position: int, first: int, origin: Position) -> pa.Array:
        """Return the text of documents in the binary form of MySQL. Raises: BinlogDamaged, ValueOutOfRange."""
        import pyarrow as pa

        held, texts = data.tobytes(), []
        for row, is_there in enumerate(np.unpackbits(bitmap, count=len(ends) - 1, bitorder="little").tolist()):
            octets = held[int(ends[row]) : int(ends[row + 1])]
            try:
                texts.append(JSON.input_value(JSON.stored(document_of(octets))) if is_there else None)
            except Rejected:
                raise self._refused(position, octets, JSON, first + row, origin) from None
            except ValueError as error:
                raise origin.damaged(f"has a JSON document in column {position} that cannot be read: {error}") from None
        return pa.array(texts, JSON.arrow_type())


def _checked(status: int) -> int:
    if status < 0:
        raise InvariantBroken("a kernel of row bodies was called with bounds that do not hold; report this")
    return status


def _first_invalid(array: pa.Array) -> int | None:
    """Return the first row whose text is not UTF-8, None if there is none."""
    import pyarrow as pa

    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for row, octets in enumerate(array.cast(pa.large_binary(), safe=False)):
            try:
                str(octets.as_py() or b"", "utf-8")
            except UnicodeDecodeError:
                return row
    return None


def _octets(body: Octets, cell: Any) -> bytes:
    start = int(cell) >> r.CELL_SIZE_BITS
    return body[start : start + (int(cell) & r.CELL_SIZE_MASK)].tobytes()
