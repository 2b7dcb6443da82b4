"""The user's own files: read rows from CSV, Parquet and Arrow files, and write them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.engine.base.errors import Rejected

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
    """Yield the same rows in tables of exactly `rows` rows; the last one has the rest."""
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
    """Write batches to a file, or as CSV to standard output; return the number of rows.

    The file gets its name when it is complete; until then the name ends with `.part`. Raises: ArrowException, OSError.
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
        # CSV has no dictionaries: Enum columns become text.
        schema = pa.schema(
            [field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field for field in schema]
        )
    rows = 0
    with open_writer(target, suffix, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema) if suffix == CSV else batch)
            rows += batch.num_rows
            advance(batch.num_rows)
    return rows


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
