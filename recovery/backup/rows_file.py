"""Rows of one fragment at the end of one epoch, in a Parquet file that is written once, from its beginning to its end.

The file is divided into ranges: each row group, and the tail (page index and footer). The level file
(`level_file.py`) has a digest of each. A reader gets a range from the disk once, checks it, and decodes these bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from tidemark.engine.access.scan_batch import AUTHOR, EPOCH, ROWID
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import BackupDamaged, FileTruncated, IoFailed
from tidemark.engine.files.sequential import SequentialFile
from tidemark.engine.rows.column_output import arrow_schema, decode_rows
from tidemark.engine.schema.row_layout import VAR_COUNT_MASK, VAR_COUNT_SHIFT
from tidemark.engine.sealed.range_digests import xxh3_128
from tidemark.recovery.backup.units import refused

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.access.scan_batch import ScanBatch
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.row_format import RowFormat
    from tidemark.engine.schema.definition import TableDefinition

PLACE, VALUES = "$PLACE", "$VALUES"
FRAGMENT_SHIFT = 48  # of $PLACE: the fragment, and below it the ROWID
ROWID_MASK = (1 << FRAGMENT_SHIFT) - 1
IDENTITY = b"tidemark"  # key of the footer
DICTIONARIES = "dictionaries"  # of its value: the columns that have one
GROUP_ROWS = 131_072
GROUP_BYTES = 64 << 20
PAGE_ROWS = 20_000
FEW_VALUES_MAX = 1_024  # in the first page, of a column that gets a dictionary
DECIMAL_DIGITS_MAX = 18  # that are stored as whole numbers
NAME_MAX = 100
SIZES = ("entries", "groups", "size_bytes", "rows")  # of a `Level`

COLUMNS_AFTER = (ROWID, EPOCH, AUTHOR)  # those of a table, of which `RowsWriter.add_columns` makes hidden columns

Ranges = list[tuple[int, bytes]]  # end in the file and digest of each range


def is_table_folder(name: str) -> bool:
    number, dash, _ = name.partition("-")
    return dash == "-" and number.isascii() and number.isdigit()


@dataclass(frozen=True)
class Level:
    """A rows file of a fragment: what it is, which its footer repeats, and its sizes, 0 before it is written."""

    backup: int
    table_id: int
    table: str  # its name when the file was written
    fragment: int
    epoch: int
    since: int
    timeline: int
    slots: int
    table_version: int
    entries: int = 0
    groups: int = 0
    size_bytes: int = 0
    rows: int = 0  # live in the fragment at the file's epoch, in the file or not

    @property
    def folder(self) -> str:
        return f"{self.table_id}-{quote(self.table, safe='')[:NAME_MAX]}/{self.backup}"

    @property
    def name(self) -> str:
        return f"{self.folder}/{self.fragment}-{self.epoch:x}.parquet"

    @property
    def level_name(self) -> str:
        return f"{self.backup}/{self.table_id}-{self.fragment}-{self.epoch:x}.level"

    def identity(self, store: bytes, incarnation: int) -> dict[str, Any]:
        """Return what the footer says."""
        about = {key: value for key, value in vars(self).items() if key not in SIZES}
        return {**about, "store": store.hex(), "incarnation": incarnation}

    def values(self) -> list[Any]:
        """Return a level as plain values: numbers, and the name of the table. `of` is the inverse."""
        return list(astuple(self))

    @staticmethod
    def of(values: list[Any]) -> Level:
        """Return the level with the values that `values` returned. Raises: ValueError, TypeError."""
        level = Level(*values)
        numbers = [value for key, value in vars(level).items() if key != "table"]
        if not isinstance(level.table, str) or not all(type(each) is int and 0 <= each < 1 << 63 for each in numbers):
            raise ValueError("a level must have a name and whole numbers")
        return level


def hidden_columns(definition: TableDefinition) -> tuple[str, ...]:
    """Return the columns of a rows file after those of the table."""
    places = (*definition.columns, *(column for _, column in definition.dropped))
    values = (VALUES,) if any(column.added for column in places) else ()
    return (PLACE, EPOCH, AUTHOR, *values)


def _has_few_values(column: Any) -> bool:
    """Whether a column gets a dictionary. Most that do not are known by their first rows."""
    if str(column.type) == "bool":
        return False
    return all(len(column.slice(0, rows).unique()) <= FEW_VALUES_MAX for rows in (2 * FEW_VALUES_MAX, PAGE_ROWS))


def _is_number(kind: Any) -> bool:
    """Whether Parquet stores values of a type as whole numbers of at most 64 bits."""
    from pyarrow import types

    if types.is_decimal128(kind):
        return bool(kind.precision <= DECIMAL_DIGITS_MAX)
    return any(is_kind(kind) for is_kind in (types.is_integer, types.is_date, types.is_time, types.is_timestamp))


class _Sink(io.RawIOBase):
    """Collects the bytes of one range."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.start = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.start + len(self.buffer)

    def write(self, piece: Any) -> int:
        self.buffer += piece
        return len(piece)

    def take(self) -> bytearray:
        """Return the bytes since the last call."""
        taken, self.buffer = self.buffer, bytearray()
        self.start += len(taken)
        return taken


class RowsWriter:
    """Writes one rows file; `close` syncs it. A fragment without a row to write gets no file before `close`."""

    def __init__(
        self,
        files: Files,
        identity: tuple[bytes, int],
        level: Level,
        row_format: RowFormat,
        begin: Callable[[Level], None] = lambda level: None,
    ) -> None:
        """identity: UUID and incarnation of the store. begin: called before the file is created."""
        self.level = level
        self.entries = self.groups = 0  # written
        self.ranges: Ranges = []
        self._out = SequentialFile(files, level.name)
        self._identity = identity
        self._format = row_format
        self._hidden = hidden_columns(row_format.definition)
        self._begin = begin
        self._sink = _Sink()
        self._writer: Any = None
        self._few: list[str] = []  # columns with a dictionary
        self._batches: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    @property
    def rows(self) -> int:
        return self.entries + self._rows

    @property
    def takes_columns(self) -> bool:
        """Whether `add_columns` has all that the file needs of a row."""
        return VALUES not in self._hidden

    def add(self, batch: ScanBatch) -> None:
        """Append rows, with their disk parts. Raises: PageDamaged, StorageFull, IoFailed, SyncFailed."""
        rowids = batch.rowids()
        if not batch.count:
            return
        extra = {PLACE: rowids | self.level.fragment << FRAGMENT_SHIFT, EPOCH: batch.epochs(), AUTHOR: batch.authors()}
        if VALUES in self._hidden:
            heads = batch.entries[batch.offsets[: batch.count] + self._format.fixed_words]
            extra[VALUES] = (heads >> VAR_COUNT_SHIFT) & VAR_COUNT_MASK
        self._append(decode_rows(self._format, batch.entries, batch.offsets, batch.count, None, extra))

    def add_columns(self, batch: pa.RecordBatch) -> None:
        """Append rows that have the columns of the table and `COLUMNS_AFTER`. Raises: as `add`."""
        import pyarrow as pa

        rowid = batch.schema.get_field_index(ROWID)
        places = batch.column(rowid).to_numpy() | self.level.fragment << FRAGMENT_SHIFT
        self._append(batch.set_column(rowid, pa.field(PLACE, pa.int64(), False), pa.array(places)))

    def _append(self, made: pa.RecordBatch) -> None:
        self._batches.append(made)
        self._rows += made.num_rows
        self._bytes += made.nbytes
        while self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._batches)
        group = table.slice(0, GROUP_ROWS)
        self._batches = table.slice(GROUP_ROWS).to_batches()
        self._rows -= group.num_rows
        self._bytes = sum(batch.nbytes for batch in self._batches)
        if self._writer is None:
            self._writer = self._open(group)
        self._writer.write_table(group, row_group_size=group.num_rows)
        self.entries += group.num_rows
        self.groups += 1
        self._end_range()

    def _open(self, first: pa.Table) -> Any:
        """Return a writer. Columns with few values in the first rows get a dictionary, other numbers are written as
        differences: as small as with zstd, and several times faster to write and to read.
        """
        import pyarrow as pa
        from pyarrow import parquet as pq

        self._begin(self.level)
        columns = dict(zip(first.column_names, first.columns, strict=True))
        few = self._few = [name for name, column in columns.items() if name != PLACE and _has_few_values(column)]
        numbers = [name for name, column in columns.items() if name not in few and _is_number(column.type)]
        packed = [name for name in columns if name not in numbers]
        # Bounds of texts are of no use but in the key: rows are not in their order.
        texts = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
        key = self._format.definition.primary_key
        return pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            first.schema,
            version="2.6",
            compression=dict.fromkeys(packed, "zstd"),
            compression_level=dict.fromkeys(packed, 1),
            use_dictionary=few if first.num_rows else False,
            column_encoding=dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
            write_page_index=True,
            write_statistics=[name for name, column in columns.items() if name in key or column.type not in texts],
            write_page_checksum=True,
            store_decimal_as_integer=True,
            max_rows_per_page=PAGE_ROWS,
            store_schema=False,
        )

    def _end_range(self) -> None:
        octets = self._sink.take()
        size = len(octets)
        octets += bytes(-size % 8)
        self.ranges.append((self._sink.start, xxh3_128(np.frombuffer(octets, dtype=np.int64), size)))
        self._out.write(memoryview(octets)[:size])

    def close(self, rows: int) -> Level:
        """Write the last row group and the tail, and sync. rows: live in the fragment. Durable on return: the content;
        the name needs a sync of the folder.
        """
        import pyarrow as pa

        while self._rows:
            self._write_group()
        if self._writer is None:
            definition = self._format.definition
            schema = arrow_schema(definition)
            for name in self._hidden:
                schema = schema.append(pa.field(name, pa.int64(), False))
            self._writer = self._open(schema.empty_table())
        identity = {**self.level.identity(*self._identity), DICTIONARIES: self._few if self.groups else []}
        about = json.dumps(identity, ensure_ascii=False)
        self._writer.add_key_value_metadata({IDENTITY: about})
        self._writer.close()
        self._end_range()
        self._out.close()
        size = self._out.size_bytes
        return replace(self.level, entries=self.entries, groups=self.groups, size_bytes=size, rows=rows)

    def discard(self) -> None:
        """Close without finishing: the file is then invalid."""
        self._out.leave()


class CheckedFile(io.RawIOBase):
    """A file for pyarrow that has only bytes whose digest was checked; the last range used, and the tail, are kept."""

    def __init__(self, files: Files, level: Level, ranges: Ranges) -> None:
        """Raises: FileMissing, FileTruncated."""
        self._files = files
        self._name = level.name
        self._ends = [end for end, _ in ranges]
        self._digests = [digest for _, digest in ranges]
        self._kept: dict[int, memoryview] = {}
        self._at = 0
        self._file = files.open(self._name)
        size = files.size(self._file)
        if size != self._ends[-1]:
            files.close(self._file)
            raise FileTruncated(
                f"{self._name} has {size} bytes, not {self._ends[-1]}; restore it from a copy",
                file=self._name,
                size=size,
            )

    def leave(self) -> None:
        """Close the file."""
        self._files.close(self._file)

    def load(self, number: int) -> memoryview:
        """Return the bytes of a range. Raises: BackupDamaged, FileTruncated, IoFailed."""
        if number not in self._kept:
            tail = len(self._ends) - 1
            self._kept = {key: value for key, value in self._kept.items() if key == tail}
            self._kept[number] = self._read(number)
        return self._kept[number]

    def _read(self, number: int) -> memoryview:
        start = self._ends[number - 1] if number else 0
        size = self._ends[number] - start
        words: Words = np.empty(-(-size // 8), dtype=np.int64)
        view = words.data.cast("B")[:size]
        try:
            got = self._files.pread_into(self._file, start, view)
        except IoFailed as error:
            if self._files.failure.first is not None:
                raise
            raise self._damaged(start, "cannot be read") from error
        if got != size:
            raise FileTruncated(f"{self._name} ends in the middle of a range; use another copy", file=self._name)
        if xxh3_128(words, size) != self._digests[number]:
            raise self._damaged(start, "fails its checksum")
        return view

    def _damaged(self, offset: int, what: str) -> BackupDamaged:
        return BackupDamaged(f"{self._name} {what} at {offset}; use another copy", file=self._name, offset=offset)

    # --- for pyarrow -----------------------------------------------------------------------------
    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._ends[-1])[whence]
        return self._at

    def read(self, size: int = -1) -> Any:
        """Return the bytes at the position, of one range or several."""
        stop = self._ends[-1] if size < 0 else min(self._at + size, self._ends[-1])
        pieces = []
        while self._at < stop:
            number = int(np.searchsorted(self._ends, self._at, side="right"))
            start = self._ends[number - 1] if number else 0
            piece = self.load(number)[self._at - start : stop - start]
            self._at += len(piece)
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class RowsReader(Closable):
    """Reads one rows file; for use with `with`."""

    def __init__(self, files: Files, store: bytes, level: Level, ranges: Ranges) -> None:
        """Raises: FileMissing, FileTruncated, BackupDamaged."""
        import pyarrow as pa
        from pyarrow import parquet as pq

        self.level = level
        self._file = CheckedFile(files, level, ranges)
        try:
            tail = self._file.load(len(ranges) - 1)
            with refused(level.name):
                # Alone, since pyarrow would read the end of the last row group with it.
                about = pq.ParquetFile(pa.BufferReader(tail)).metadata
                source = pa.PythonFile(self._file, mode="r")
                self._parquet = pq.ParquetFile(source, metadata=about, read_dictionary=self._check(about, store))
        except BaseException:
            self._file.leave()
            raise

    def _check(self, about: Any, store: bytes) -> list[str]:
        """Check the footer; return the columns with dictionaries: what the file has once need not be decoded, and
        checked, for each row. Raises: ValueError and the like.
        """
        identity, level = json.loads(about.metadata[IDENTITY]), self.level
        # pyarrow has this, too, but ends the process where the footer's statistics are invalid.
        names: list[str] = identity.pop(DICTIONARIES)
        if identity != level.identity(store, identity["incarnation"]):
            raise ValueError("it is another file")
        if (about.num_rows, about.num_row_groups) != (level.entries, level.groups):
            raise ValueError(f"it has {about.num_rows} rows in {about.num_row_groups} row groups")
        return names

    def verify(self) -> None:
        """Read every byte of the row groups; the tail was read. Raises: BackupDamaged, FileTruncated, IoFailed."""
        for number in range(self.level.groups):
            self._file.load(number)

    def groups(
        self, columns: Sequence[str] | None = None, wanted: Words | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of each row group, in order, with the position of the first in the file.

        columns: None: all. wanted: positions; row groups without any are skipped. Raises: BackupDamaged, FileTruncated,
        IoFailed.
        """
        first = 0
        for number in range(self.level.groups):
            rows = int(self._parquet.metadata.row_group(number).num_rows)
            if wanted is not None and not np.diff(np.searchsorted(wanted, [first, first + rows]))[0]:
                first += rows
                continue
            self._file.load(number)
            with refused(self.level.name):
                table = self._parquet.read_row_group(number, columns=columns, use_threads=False)
                batches = table.combine_chunks().to_batches()
            for batch in batches:
                yield first, batch
                first += batch.num_rows
        if first != self.level.entries:
            raise BackupDamaged(f"{self.level.name} has {first} rows; use another copy", file=self.level.name)

    def close(self) -> None:
        self._file.leave()
