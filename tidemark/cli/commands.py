"""Every command of the `tidemark` script."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

import tidemark as tm


def one_line(function: Callable[..., None]) -> Callable[..., None]:
    """Turn an error of ours into one line and exit code 1."""

    @wraps(function)
    def guarded(*args: Any, **keywords: Any) -> None:
        try:
            function(*args, **keywords)
        except tm.Error as error:
            raise click.ClickException(f"{type(error).__name__}: {error}") from error

    return guarded


def say(value: Any, as_json: bool, lines: Callable[[], list[str]]) -> None:
    """Print a result for people or as JSON."""
    click.echo(json.dumps(value, default=str) if as_json else "\n".join(lines()))


store_argument = click.argument("store", type=click.Path(path_type=Path, exists=True, file_okay=False))
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidemark")
def commands() -> None:
    """Tidemark: an embedded, transactional row store."""


@commands.command()
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option("--scale", default=0.1, show_default=True, help="TPC-H scale factor.")
@click.option("--rounds", default=3, show_default=True, help="How often the process is killed.")
@click.option("--seconds", default=20.0, show_default=True, help="Refresh work per round.")
@click.option("--seed", default=20_261_121, show_default=True)
@json_option
@one_line
def demo(folder: Path, scale: float, rounds: int, seconds: float, seed: int, as_json: bool) -> None:
    """TPC-H refresh work from four threads, killed in the middle, restarted and checked."""
    from tidemark.demo.run import Demo

    result = Demo(folder, scale, rounds, seconds, seed, lambda line: None if as_json else click.echo(line)).run()
    say(result, as_json, lambda: ["every acknowledged transaction survived every kill"])


@commands.command()
@store_argument
@json_option
@one_line
def tables(store: Path, as_json: bool) -> None:
    """List the tables: id, columns, rows, name."""
    with tm.open(store, create=False, background=False) as db:
        found = [
            {
                "id": db[name].definition.table_id,
                "columns": len(db[name].definition.columns),
                "rows": len(db[name]),
                "name": name,
            }
            for name in db.tables()
        ]
    say(
        found,
        as_json,
        lambda: [f"{row['id']:>4} {row['columns']:>4} {row['rows']:>12,}  {row['name']}" for row in found],
    )


@commands.command()
@store_argument
@json_option
@one_line
def status(store: Path, as_json: bool) -> None:
    """Print every counter of a store, after restarting it."""
    with tm.open(store, create=False, background=False) as db:
        found = {**db.status(), "restart": db.restart_report}
    say(found, as_json, lambda: [json.dumps(found, indent=1, default=str)])


@commands.command()
@store_argument
@click.argument("table")
@click.option("--columns", help="Comma-separated names.")
@click.option("--limit", type=int)
@click.option("--rowid", is_flag=True, help="Show ROWIDs.")
@click.option("--gci64", is_flag=True, help="Show row epochs.")
@click.option("--author", is_flag=True, help="Show row authors.")
@json_option
@one_line
def scan(
    store: Path,
    table: str,
    columns: str | None,
    limit: int | None,
    rowid: bool,
    gci64: bool,
    author: bool,
    as_json: bool,
) -> None:
    """Print the rows of a table."""
    with tm.open(store, create=False, background=False) as db:
        handle = db[table]
        names = columns.split(",") if columns else [column.name for column in handle.definition.columns]
        shown = zip((tm.ROWID, tm.EPOCH, tm.AUTHOR), (rowid, gci64, author), strict=True)
        names += [name for name, wanted in shown if wanted]
        for batch in handle.scan(names, limit).batches():
            for row in batch.to_pylist():
                click.echo(json.dumps(row, default=str) if as_json else "\t".join(str(row[name]) for name in names))


@commands.command()
@store_argument
@json_option
@one_line
def checkpoint(store: Path, as_json: bool) -> None:
    """Make a local checkpoint of a store nobody has open."""
    with tm.open(store, create=False, background=False) as db:
        report = db.checkpoint()
    say(report, as_json, lambda: [f"{name}: {value}" for name, value in report.items()])
