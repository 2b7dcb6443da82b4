"""The user's own files: rows out of CSV, Parquet and Arrow files, and into them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.schema import TableDefinition
from engine.types import Enum
from engine.types_text import Char, LongText, VarChar

if TYPE_CHECKING:
    import pyarrow as pa

CSV = ".csv"
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather")
READ_ROWS = 65_536
# Values of one row of CSV may be as long as a block.
CSV_BLOCK_BYTES = 8 << 20


@dataclass
class Source:
    """A file that is being read: its schema, its rows as far as it says so, and its batches."""

    schema: pa.Schema
    rows: int | None
    batches: Iterable[pa.RecordBatch]


def suffix_of(path: Path) -> str:
    """The suffix that tells the format; of `x.csv.gz` it is `.csv`. Raises: UsageError for an unknown one."""
    suffix = path.suffix.lower()
    if suffix in (".gz", ".bz2", ".zst"):
        suffix = Path(path.stem).suffix.lower()
        if suffix == CSV:
            return suffix
    if suffix != CSV and suffix not in PARQUET + ARROW:
        raise click.UsageError(f"{path}: the suffix tells the format; use .csv, .parquet or .arrow")
    return suffix


def open_source(path: Path, definition: TableDefinition | None) -> Source:
    """Open a file for reading; CSV values are read as the types of the table's columns, if there is a table.

    Raises: ArrowException, OSError.
    """
    import pyarrow as pa

    suffix = suffix_of(path)
    if suffix in PARQUET:
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        return Source(file.schema_arrow, file.metadata.num_rows, file.iter_batches(READ_ROWS))
    if suffix in ARROW:
        reader = pa.ipc.open_file(pa.OSFile(str(path)))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return Source(reader.schema, None, batches)
    return _open_csv(path, definition)


def _open_csv(path: Path, definition: TableDefinition | None) -> Source:
    from pyarrow import csv

    columns = () if definition is None else definition.columns
    reader = csv.open_csv(
        path,
        # One thread: only then does an error tell its row.
        read_options=csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types={each.name: _csv_type(each.type) for each in columns},
            # Nothing between two commas is NULL, "" is the empty text: as `dump` writes them.
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    texts = [each.name for each in columns if not each.nullable and isinstance(each.type, (Char, VarChar, LongText))]
    return Source(reader.schema, None, _without_nulls(reader, texts))


def _csv_type(kind: Any) -> pa.DataType:
    import pyarrow as pa

    return pa.string() if isinstance(kind, Enum) else kind.arrow_type()


def _without_nulls(batches: Iterable[pa.RecordBatch], texts: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Text columns that cannot be NULL take what other programs write for the empty text."""
    for batch in batches:
        for name in texts:
            place = batch.schema.get_field_index(name)
            if place >= 0 and batch.column(place).null_count:
                batch = batch.set_column(place, batch.schema.field(place), batch.column(place).fill_null(""))
        yield batch


def rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of exactly `rows`, the last one of what is left."""
    import pyarrow as pa

    pending: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            piece = batch.slice(start, rows - count)
            pending.append(piece)
            start += piece.num_rows
            count += piece.num_rows
            if count == rows:
                yield pa.Table.from_batches(pending)
                pending, count = [], 0
    if pending:
        yield pa.Table.from_batches(pending)


# --- out ------------------------------------------------------------------------------------------
def write_rows(
    path: Path | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]
) -> int:
    """Write batches to a file, or as CSV to standard output; returns the rows.

    The file appears under its name when it is whole; until then it is called `.part`. Raises: ArrowException, OSError.
    """
    if path is None:
        return _write_all(sys.stdout.buffer, CSV, schema, batches, advance)
    suffix = suffix_of(path)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as target:
            rows = _write_all(target, suffix, schema, batches, advance)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return rows


def _write_all(
    target: Any, suffix: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]
) -> int:
    import pyarrow as pa

    if suffix == CSV:
        # CSV has no dictionaries: Enum columns are text there.
        schema = pa.schema(
            [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in schema]
        )
    rows = 0
    with _writer(target, suffix, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema) if suffix == CSV else batch)
            rows += batch.num_rows
            advance(batch.num_rows)
    return rows


def _writer(target: Any, suffix: str, schema: pa.Schema) -> Any:
    import pyarrow as pa

    if suffix in PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(target, schema)
    if suffix in ARROW:
        return pa.ipc.new_file(target, schema)
    from pyarrow import csv

    return csv.CSVWriter(target, schema)
