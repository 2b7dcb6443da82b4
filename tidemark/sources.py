"""Read rows from CSV, Parquet and Arrow files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Rejected, ValueOutOfRange
from tidemark.engine.rows.column_values import decimals_of_text
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.types import Decimal, Enum
from tidemark.engine.schema.types_text import Char, LongText, VarChar

if TYPE_CHECKING:
    import pyarrow as pa

UserPath = str | os.PathLike[str]
CSV = ".csv"
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather")
READ_ROWS = 65_536
# A block must hold the longest row of a CSV file.
CSV_BLOCK_BYTES = 8 << 20


@dataclass
class Source:
    """An open file: its schema, its number of rows if the file has it, and its batches."""

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
    except UnicodeDecodeError as error:
        raise pa.ArrowInvalid(f"the name of a column or time zone is not UTF-8: {error}") from None
    return source


def _opened(path: UserPath, suffix: str, definition: TableDefinition | None) -> Source:
    import pyarrow as pa

    if suffix in PARQUET:
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        return Source(file.schema_arrow, file.metadata.num_rows, _validated(file.iter_batches(READ_ROWS)))
    if suffix in ARROW:
        reader = pa.ipc.open_file(pa.OSFile(str(path)))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return Source(reader.schema, None, _validated(batches))
    return _open_csv(path, definition)


def _validated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Validate each batch. Arrow does not check the offsets and dictionary indexes of a file, which may point anywhere
    in memory.
    """
    for batch in batches:
        batch.validate(full=True)
        yield batch


def _open_csv(path: UserPath, definition: TableDefinition | None) -> Source:
    from pyarrow import csv

    columns = () if definition is None else definition.columns
    reader = csv.open_csv(
        path,
        # One thread: only then does an error name its row.
        read_options=csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={each.name: _csv_type(each.type) for each in columns},
            # An empty field is NULL and "" is the empty text, as `dump` writes them.
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    texts = [each.name for each in columns if not each.nullable and isinstance(each.type, (Char, VarChar, LongText))]
    decimals = {each.name: each.type for each in columns if isinstance(each.type, Decimal)}
    return Source(reader.schema, None, _with_decimals(_without_nulls(reader, texts), decimals))


def _csv_type(kind: Any) -> pa.DataType:
    import pyarrow as pa

    # Decimals are checked here: Arrow writes out all digits, whatever the exponent.
    return pa.string() if isinstance(kind, (Enum, Decimal)) else kind.arrow_type()


def _with_decimals(batches: Iterable[pa.RecordBatch], kinds: Mapping[str, Decimal]) -> Iterator[pa.RecordBatch]:
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
