"""The user's own files: read rows from CSV, Parquet and Arrow files, and write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.engine.base.errors import Rejected
from tidemark.engine.schema.types_base import shown

if TYPE_CHECKING:
    import pyarrow as pa


def suffix_of(path: Path) -> str:
    """Return the suffix that names the format; of `x.csv.gz` it is `.csv`. Raises: UsageError for an unknown one."""
    from tidemark import sources

    try:
        return sources.suffix_of(path)
    except Rejected as error:
        raise click.UsageError(error.message) from error


def rebatched(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Yield the same rows in tables of exactly `rows` rows; the last one has the rest, or none if there are no rows."""
    import pyarrow as pa

    pending: list[pa.RecordBatch] = []
    count = 0
    empty: list[pa.RecordBatch] | None = []
    for batch in batches:
        start = 0
        empty = None if batch.num_rows or empty is None else [batch]
        while start < batch.num_rows:
            piece = batch.slice(start, rows - count)
            pending.append(piece)
            start += piece.num_rows
            count += piece.num_rows
            if count == rows:
                yield pa.Table.from_batches(pending)
                pending, count = [], 0
    if pending or empty:
        yield pa.Table.from_batches(pending or empty)


# --- out ------------------------------------------------------------------------------------------
def write_rows(
    path: Path | None, schema: pa.Schema, batches: Iterable[pa.RecordBatch], advance: Callable[[int], None]
) -> int:
    """Write batches to a file, or as CSV to standard output; return the number of rows.

    The file gets its name when it is complete; until then the name ends with `.part`. Raises: ArrowException, OSError;
    Rejected for bytes that are not UTF-8 and a CSV file.
    """
    from tidemark.sources import CSV

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

    from tidemark.sources import CSV

    if suffix == CSV:
        # CSV has no dictionaries and no bytes: columns of Enum and bytes become text.
        schema = pa.schema([field.with_type(_csv_type(field.type)) for field in schema])
    rows = 0
    with open_writer(target, suffix, schema) as writer:
        for batch in batches:
            writer.write_batch(_as_text(batch, schema, rows) if suffix == CSV else batch)
            rows += batch.num_rows
            advance(batch.num_rows)
    return rows


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return pa.string()
    return pa.large_string() if _is_bytes(kind) else kind


def _as_text(batch: pa.RecordBatch, schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    """Return a batch with these types. Raises: Rejected for bytes that are not UTF-8."""
    import pyarrow as pa

    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        try:
            columns.append(column.cast(pa.large_binary()).cast(field.type) if _is_bytes(column.type) else column)
        except pa.ArrowInvalid:
            row, value = next(each for each in enumerate(column.to_pylist()) if not _is_utf8(each[1]))
            text = f"column {field.name}: row {first_row + row + 1:,} has bytes that are not UTF-8, got {shown(value)}"
            raise Rejected(f"{text}; CSV holds text alone; use Parquet (.parquet)", column=field.name) from None
    return pa.RecordBatch.from_arrays(columns, names=schema.names).cast(schema)


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def open_writer(target: Any, suffix: str, schema: pa.Schema) -> Any:
    import pyarrow as pa

    from tidemark.sources import ARROW, PARQUET

    if suffix in PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(target, schema)
    if suffix in ARROW:
        return pa.ipc.new_file(target, schema)
    from pyarrow import csv

    return csv.CSVWriter(target, schema)
