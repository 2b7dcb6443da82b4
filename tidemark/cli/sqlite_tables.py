"""`load --sqlite`: the tables of an SQLite database, and what was inferred about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tidemark.cli.output import cell, open_store, print_result, reported, table_lines
from tidemark.engine.types.base import counted

SHOWN_ROWS = 20  # of those left out


def load_tables(
    store: Path, file: Path, tables: tuple[str, ...], on_error: str, data_memory: str | None, as_json: bool
) -> None:
    with (
        open_store(store, data_memory, background=True, create=True) as db,
        reported(file.name) as progress,
    ):
        report = db.load_sqlite(file, tables or None, on_error=on_error, progress=progress)
    print_result(report, as_json, lambda: _lines(report))


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for each in report["tables"]:
        left = f", {counted(each['bad_rows'], 'row')} left out" if each["bad_rows"] else ""
        yield f"{each['table']}: {counted(each['rows'], 'row')} loaded{left}"
        columns = [
            (column["name"], column["declared"], column["type"], "NULL" if column["nullable"] else "not NULL")
            for column in each["columns"]
        ]
        for line in table_lines(columns, ("column", "declared", "type", "null")):
            yield f"  {line}"
        yield f"  primary key  {', '.join(each['primary_key'])}"
        for index in each["indexes"]:
            unique = " unique" if index["unique"] else ""
            yield f"  index        {index['name']} ({', '.join(index['columns'])}){unique}"
        yield from (f"  note: {note}" for note in each["notes"])
    yield from (f"left out: {name}: {why}" for name, why in report["skipped"].items())
    for bad in report["bad"][:SHOWN_ROWS]:
        yield (
            f"left out: {bad['table']}, rowid {bad['rowid']}, column {bad['column']}: {cell(bad['value'])} {bad['why']}"
        )
    more = sum(each["bad_rows"] for each in report["tables"]) - SHOWN_ROWS
    if more > 0:
        yield f"left out: {counted(more, 'more row')}; --json lists up to 1,000"
