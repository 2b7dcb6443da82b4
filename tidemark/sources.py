"""Read rows from CSV, Parquet and Arrow files."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal as PythonDecimal
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import Rejected, ValueOutOfRange
from tidemark.engine.rows.csv_rows import CsvRows
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.types.base import shown
from tidemark.engine.types.decimals import decimals_of_text

if TYPE_CHECKING:
    import pyarrow as pa

UserPath = str | os.PathLike[str]
CSV = ".csv"
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather")
CSV_BLOCK_BYTES = 8 << 20  # but at least a row
CSV_ROW_BYTES_MAX = (1 << 31) - 2


@dataclass
class Source:
    """An open file: its schema, its number of rows if the file has it, and its batches: at least one, which has no rows
    if the file has none, so that its columns are checked.
    """

    schema: pa.Schema
    rows: int | None
    batches: Iterable[pa.RecordBatch]


def suffix_of(path: UserPath) -> str:
    """Return the suffix that names the format; of `x.csv.gz` it is `.csv`. Raises: Rejected for an unknown one."""
    stem, suffix = os.path.splitext(os.fspath(path).lower())
    if suffix in (".gz", ".bz2", ".zst"):
        suffix = os.path.splitext(stem)[1]
        if suffix == CSV:
            return suffix
    if suffix != CSV and suffix not in PARQUET + ARROW:
        raise Rejected(f"{os.fspath(path)}: the suffix tells the format; use .csv, .parquet or .arrow")
    return suffix


def open_source(path: UserPath, definition: TableDefinition | None) -> Source:
    """Open a file for reading. CSV values are read as the types of the table's columns, if there is a table.

    Raises: ArrowException, OSError; so do the batches while they are read.
    """
    import pyarrow as pa

    try:
        source = _opened(path, suffix_of(path), definition)
        # pyarrow decodes the texts of a schema on access, and raises then.
        for each in source.schema:
            each.name, getattr(each.type, "tz", None)
        source.batches = _at_least_one(source.batches, source.schema)
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the name of a column or time zone is not UTF-8: {error}") from None
    return source


def _at_least_one(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    rows, empty = 0, _empty(schema)
    for batch in batches:
        rows += batch.num_rows
        if batch.num_rows:
            yield batch
        else:
            empty = batch
    if not rows:
        yield empty


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)


def _opened(path: UserPath, suffix: str, definition: TableDefinition | None) -> Source:
    import pyarrow as pa

    if suffix in PARQUET:
        from tidemark.recovery.load.parquet import open_parquet

        return Source(*open_parquet(path, definition))
    if suffix in ARROW:
        reader = pa.ipc.open_file(pa.OSFile(str(path)))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        from tidemark.recovery.load.parquet import validated

        return Source(reader.schema, None, validated(batches))
    return _open_csv(path, definition)


def _open_csv(path: UserPath, definition: TableDefinition | None) -> Source:
    columns = () if definition is None else definition.columns
    reader = _CsvReader(path, columns)
    first = reader.first()
    texts = [each.name for each in columns if not each.nullable and each.type.is_text]
    decimals: dict[str, Any] = {each.name: each.type for each in columns if each.type.python is PythonDecimal}
    batches = itertools.chain(first.to_batches() or [_empty(first.schema)], reader.rest())
    return Source(first.schema, None, _with_decimals(_without_nulls(batches, texts), decimals))


class _CsvReader:
    """Reads a CSV file block by block. A block has whole rows, however long; quotes are checked on the way."""

    def __init__(self, path: UserPath, columns: Sequence[Column]) -> None:
        import pyarrow as pa

        self._path = os.fspath(path)
        self._stream = pa.input_stream(self._path)
        self._types = {each.name: each.type.parsed_type() for each in columns}
        self._floats = {each.name: each.type for each in columns if each.type.python is float}
        self._names: list[str] | None = None
        self._rows = 0  # rows read, with the header
        self._blocks = self._read()

    def first(self) -> pa.Table:
        """Return the rows of the first block. Raises: ArrowInvalid without one."""
        import pyarrow as pa

        block = next(self._blocks, None)
        if block is None:
            raise pa.ArrowInvalid("Empty CSV file")
        table = self._parsed(block)
        self._names = table.schema.names
        self._rows += 1
        return table

    def rest(self) -> Iterator[pa.RecordBatch]:
        for block in self._blocks:
            yield from self._parsed(block).to_batches()

    def _read(self) -> Iterator[bytes]:
        """Yield the file in blocks of whole rows, the first with the header and a row. Raises: ArrowInvalid."""
        import pyarrow as pa

        held = bytearray()
        rows, rows_min = CsvRows(), 2
        with self._stream as stream:
            while data := stream.read(max(CSV_BLOCK_BYTES, len(held))):
                begin = len(held)
                held += data
                if self._rows == 0 and begin == 0 and held.startswith(b"\xef\xbb\xbf"):
                    begin = 3
                if not rows.read(held, begin):
                    raise pa.ArrowInvalid(
                        f"line {rows.line}: text follows the closing quote of the field that begins in line"
                        f" {rows.quote_line}; a quote within quotes is written twice"
                    )
                if rows.rows >= rows_min:
                    end = rows.take()
                    yield bytes(held[:end])
                    del held[:end]
                    rows_min = 1
                if len(held) > CSV_ROW_BYTES_MAX:
                    raise pa.ArrowInvalid(f"the row before line {rows.line} has more than 2 GiB; write it as Parquet")
        if rows.is_in_quotes:
            raise pa.ArrowInvalid(f"line {rows.quote_line}: the quote that is opened there is never closed")
        if held:
            yield bytes(held)

    def _parsed(self, block: bytes, **kinds: Any) -> pa.Table:
        """Return the rows of a block; kinds: a column and its type, to read this column alone."""
        import pyarrow as pa
        from pyarrow import csv

        names = self._names
        try:
            table = csv.read_csv(
                pa.BufferReader(block),
                # One thread: only then does an error name its row.
                read_options=csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
                parse_options=csv.ParseOptions(newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    column_types=kinds or self._types,
                    include_columns=list(kinds),
                    # An empty field is NULL and "" is the empty text, as `dump` writes them.
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            # Arrow counts the rows of the block.
            text = re.sub(r"\bRow #(\d+)", lambda found: f"Row #{int(found[1]) + self._rows}", str(error))
            raise pa.ArrowInvalid(text) from None
        if not kinds:
            self._check_floats(table, block)
            self._rows += table.num_rows
        return table

    def _check_floats(self, table: pa.Table, block: bytes) -> None:
        """Raises: ArrowInvalid for a finite number that is too large, of which Arrow makes an infinite one."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for name, kind in self._floats.items():
            place = table.schema.get_field_index(name)
            if place < 0 or not pc.any(pc.is_inf(table.column(place))).as_py():
                continue
            is_infinite = pc.fill_null(pc.is_inf(table.column(place)), False)
            texts = self._parsed(block, **{name: pa.string()}).column(0)
            for row in np.flatnonzero(is_infinite.to_numpy()).tolist():
                text = texts[row].as_py()
                if not re.fullmatch(r"\s*[-+]?inf(inity)?\s*", text, re.IGNORECASE):
                    number = self._rows + row + (1 if self._names else 2)
                    raise pa.ArrowInvalid(
                        f"In CSV column #{place}: Row #{number}: {kind!r} holds no number as large as {shown(text)}"
                    )


def _with_decimals(batches: Iterable[pa.RecordBatch], kinds: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """Convert decimals, which were read as text. Raises: ArrowInvalid like Arrow's own; line 1 is the header."""
    import pyarrow as pa

    line = 2
    for batch in batches:
        for name, kind in kinds.items():
            place = batch.schema.get_field_index(name)
            if place < 0:
                continue
            try:
                values = decimals_of_text(batch.column(place), kind)
            except ValueOutOfRange as error:
                row = line + int(error.evidence["row"])  # type: ignore[call-overload]
                raise pa.ArrowInvalid(f"In CSV column #{place}: row {row}: {kind!r} {error.message}") from error
            batch = batch.set_column(place, pa.field(name, values.type), values)
        line += batch.num_rows
        yield batch


def _without_nulls(batches: Iterable[pa.RecordBatch], texts: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Replace NULL by the empty text in text columns without NULL: other programs write the empty text as an empty
    field.
    """
    for batch in batches:
        for name in texts:
            place = batch.schema.get_field_index(name)
            if place >= 0 and batch.column(place).null_count:
                batch = batch.set_column(place, batch.schema.field(place), batch.column(place).fill_null(""))
        yield batch
