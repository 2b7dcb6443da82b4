"""The user's own files: read rows from CSV, Parquet and Arrow files, and write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.engine.base.errors import Rejected
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.types import ColumnType
    from tidemark.scans import Scan


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
def write_rows(path: Path | None, definition: TableDefinition, rows: Scan, advance: Callable[[int], None]) -> int:
    """Write rows of a table to a file, or as CSV to standard output; return their number.

    The file gets its name when it is complete; until then the name ends with `.part`. Raises: ArrowException, OSError;
    Rejected for bytes that are not UTF-8 and a CSV file.
    """
    from tidemark.sources import CSV

    if path is None:
        return _write_all(sys.stdout.buffer, CSV, definition, rows, advance)
    suffix = suffix_of(path)
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as target:
            written = _write_all(target, suffix, definition, rows, advance)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return written


def _write_all(
    target: Any, suffix: str, definition: TableDefinition, rows: Scan, advance: Callable[[int], None]
) -> int:
    import pyarrow as pa

    from tidemark.sources import CSV

    kinds = {column.name: column.type for column in definition.columns}
    done = 0

    def formed(batch: pa.RecordBatch) -> pa.RecordBatch:
        return _as_text(batch, kinds, done) if suffix == CSV else batch

    with open_writer(target, suffix, formed(pa.RecordBatch.from_pylist([], rows.schema())).schema) as writer:
        for batch in rows.batches():
            writer.write_batch(formed(batch))
            done += batch.num_rows
            advance(batch.num_rows)
    return done


def _as_text(batch: pa.RecordBatch, kinds: Mapping[str, ColumnType], first_row: int) -> pa.RecordBatch:
    """Return a batch without bytes and dictionaries. Raises: Rejected for bytes that are not UTF-8."""
    import pyarrow as pa

    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(kinds[name].text_of(column))
        except pa.ArrowInvalid:
            row, value = next(each for each in enumerate(column.to_pylist()) if not _is_utf8(each[1]))
            text = f"column {name}: row {first_row + row + 1:,} has bytes that are not UTF-8, got {shown(value)}"
            raise Rejected(f"{text}; CSV holds text alone; use Parquet (.parquet)", column=name) from None
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


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
