"""The forms in which many rows enter a store, and those in which they are read, to and from plain Python rows."""

from __future__ import annotations

import csv
import datetime as dt
import os
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from tests.blackbox.kinds import UTC, Kind

ENTERING = ("rows", "columns", "arrow", "batch", "reader", "pandas", "polars", "numpy", "csv", "parquet", "arrow file")
FILES = ("csv", "parquet", "arrow file")
READING = ("iter", "arrow", "batches", "pandas", "polars", "numpy", "stream", "dataset", "lazy")


class Unfit(Exception):
    """The rows cannot be given in this form."""


def arrow_type(kind: Kind) -> Any:
    """Return the Arrow type that holds values of a column."""
    import pyarrow as pa

    named: dict[str, Callable[[], Any]] = {
        "Bool": pa.bool_,
        "Float32": pa.float32,
        "Float64": pa.float64,
        "Date": pa.date32,
        "Time": lambda: pa.time64("us"),
        "DateTime": lambda: pa.timestamp("us"),
        "Timestamp": lambda: pa.timestamp("us", "UTC"),
        "Decimal": lambda: pa.decimal128(kind.a, kind.b),
        "Binary": lambda: pa.binary(kind.a),
        "VarBinary": pa.binary,
        "Blob": pa.large_binary,
    }
    if kind.name in named:
        return named[kind.name]()
    return getattr(pa, kind.name.lower())() if kind.is_integer else pa.string()


def as_dicts(rows: Sequence[Any], names: Sequence[str]) -> list[dict[str, Any]]:
    if any(not isinstance(row, Mapping) and len(row) != len(names) for row in rows):
        raise Unfit
    return [dict(row) if isinstance(row, Mapping) else dict(zip(names, row, strict=True)) for row in rows]


def _columns(rows: Sequence[Any], kinds: Mapping[str, Kind]) -> dict[str, list[Any]]:
    dicts = as_dicts(rows, list(kinds))
    if not dicts or len({tuple(row) for row in dicts}) > 1 or not set(dicts[0]) <= set(kinds):
        raise Unfit
    return {name: [row[name] for row in dicts] for name in dicts[0]}


def _arrow(rows: Sequence[Any], kinds: Mapping[str, Kind]) -> Any:
    import pyarrow as pa

    made = {}
    for name, values in _columns(rows, kinds).items():
        kind = kinds[name]
        if not all(each is None or type(each) is kind.python for each in values):
            raise Unfit
        given = values
        if kind.name in ("Time", "DateTime", "Timestamp"):
            is_aware = kind.name == "Timestamp"
            if any(each is not None and (each.tzinfo is not None) != is_aware for each in values):
                raise Unfit
        if kind.name == "Binary":
            if any(each is not None and len(each) > kind.a for each in values):
                raise Unfit
            given = [None if each is None else each.ljust(kind.a, b"\0") for each in values]
        is_large = kind.name == "Float32" and any(each is not None and 3e38 < abs(each) < 2e308 for each in given)
        try:
            try:
                # pyarrow makes infinite what a float of 32 bits does not hold.
                made[name] = pa.array(given, pa.float64() if is_large else arrow_type(kind))
            except (pa.ArrowInvalid, OverflowError):
                if not kind.is_integer:
                    raise
                made[name] = pa.array(given, pa.int64())
        except (pa.ArrowException, OverflowError, ValueError, UnicodeEncodeError):
            raise Unfit from None
    return pa.table(made)


def enter(form: str, rows: Sequence[Any], kinds: Mapping[str, Kind], folder: str) -> Any:
    """Return rows in a form; those of files as a path. Raises: Unfit."""
    if form == "rows":
        return list(rows)
    if form == "columns":
        return _columns(rows, kinds)
    if form == "numpy":
        return _numpy(rows, kinds)
    if form == "csv":
        return _csv(rows, kinds, os.path.join(folder, "rows.csv"))
    table = _arrow(rows, kinds)
    if form == "arrow":
        return table
    if form == "batch":
        return table.combine_chunks().to_batches()[0]
    if form == "reader":
        return table.to_reader(max_chunksize=3)
    if form == "pandas":
        return _pandas(rows, kinds)
    if form == "polars":
        import polars as pl

        return pl.from_arrow(table)
    path = os.path.join(folder, "rows.parquet" if form == "parquet" else "rows.arrow")
    import pyarrow as pa
    from pyarrow import parquet

    if form == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


def _numpy(rows: Sequence[Any], kinds: Mapping[str, Kind]) -> Any:
    import numpy as np

    columns = _columns(rows, kinds)
    fields: list[tuple[str, Any]] = []
    for name, values in columns.items():
        kind = kinds[name]
        dtype: Any = object
        plain = all(type(each) is kind.python for each in values)
        if plain and (kind.is_integer or kind.is_float):
            dtype = np.dtype(kind.name.lower())
            least, greatest = kind.bounds() if kind.is_integer else (0, 0)
            if kind.is_integer and not all(least <= each <= greatest for each in values):
                dtype = object
            if kind.name == "Float32" and any(abs(each) > 3e38 for each in values):
                dtype = object
        elif (
            plain
            and kind.name in ("Bool", "Date", "DateTime")
            and not any(getattr(each, "tzinfo", 0) for each in values)
        ):
            dtype = {"Bool": "?", "Date": "datetime64[D]", "DateTime": "datetime64[us]"}[kind.name]
        fields.append((name, dtype))
    made = np.empty(len(rows), np.dtype(fields))
    for name, values in columns.items():
        made[name] = values
    return made


def _pandas(rows: Sequence[Any], kinds: Mapping[str, Kind]) -> Any:
    import pandas as pd

    columns = _columns(rows, kinds)
    made = {}
    for name, values in columns.items():
        kind = kinds[name]
        dtype: Any = object
        if any(each != each for each in values):
            raise Unfit  # NaN means that a value is missing
        if all(type(each) is kind.python for each in values) and (kind.is_integer or kind.name == "Bool"):
            dtype = kind.name.lower()
            if kind.is_integer and not all(kind.bounds()[0] <= each <= kind.bounds()[1] for each in values):
                dtype = object
        made[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(made)


def _csv(rows: Sequence[Any], kinds: Mapping[str, Kind], path: str) -> str:
    columns = _columns(rows, kinds)
    for name, values in columns.items():
        kind = kinds[name]
        if kind.is_bytes or not all(each is None or type(each) is kind.python for each in values):
            raise Unfit
        if any(isinstance(each, str) and ("\0" in each or "\ud800" in each) for each in values):
            raise Unfit
        if kind.is_text and None in values:
            raise Unfit  # an empty field of a text without NULL is the empty text

    def field(value: Any) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return '"' + value.replace('"', '""') + '"'
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, Decimal):
            return f"{value:f}"
        return repr(value) if isinstance(value, float) else str(value)

    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow(list(columns))
        for row in zip(*columns.values(), strict=True):
            file.write(",".join(map(field, row)) + "\n")
    return path


# --- reading -------------------------------------------------------------------------------------
def read(way: str, source: Any, kinds: Mapping[str, Kind], nullable: Mapping[str, bool]) -> list[tuple[Any, ...]]:
    """Return the rows of a scan or table (`source`) as tuples of plain values in the order of `kinds`."""
    names = list(kinds)
    if way == "iter":
        return [tuple(row) for row in source]
    if way == "arrow":
        return _of_arrow(source.to_arrow(), names)
    if way == "batches":
        return [row for batch in source.batches() for row in _of_arrow(batch, names)]
    if way == "stream":
        import pyarrow as pa

        return _of_arrow(pa.RecordBatchReader.from_stream(source).read_all(), names)
    if way == "dataset":
        return _of_arrow(source.dataset().to_table(), names)
    if way == "polars":
        return list(source.to_polars().select(names).rows())
    if way == "lazy":
        return list(source.scan_polars().collect().select(names).rows())
    if way == "numpy":
        found = source.to_numpy()
        columns = [[_of_numpy(value, kinds[name], nullable[name]) for value in found[name].tolist()] for name in names]
    else:
        frame = source.to_pandas()
        columns = [[_of_pandas(value, kinds[name]) for value in frame[name].tolist()] for name in names]
    return list(zip(*columns, strict=True))


def _of_arrow(table: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _of_numpy(value: Any, kind: Kind, nullable: bool) -> Any:
    if kind.name == "Timestamp" and not nullable:
        return value.replace(tzinfo=UTC)
    return value


def _of_pandas(value: Any, kind: Kind) -> Any:
    """NULL of numbers is NaN, NULL of times NaT; integers beside NULL must be exact whatever holds them."""
    import pandas as pd

    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if kind.name in ("DateTime", "Timestamp") and isinstance(value, pd.Timestamp):
        found = value.to_pydatetime()
        return found if found.tzinfo is None else found.astimezone(dt.timezone.utc)  # noqa: UP017
    if not kind.is_float and isinstance(value, float):
        return None if value != value else int(value) if kind.is_integer else value
    return value
