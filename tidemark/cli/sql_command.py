"""The command `sql`: a query of DuckDB over the tables of a store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tidemark as tm
from tidemark.cli.output import example, open_for_reading, reads_store, store_argument, table_lines, to_json
from tidemark.engine.schema.names import DEFAULT_DATABASE

if TYPE_CHECKING:
    import duckdb

BATCH_ROWS = 1_000


@click.command(
    epilog=example(
        'tidemark sql shop "select owner, sum(balance) from test.account group by owner"',
        'tidemark sql shop --csv "select * from test.account" > accounts.csv',
    )
)
@store_argument
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@reads_store
def sql(store: Path, query: str, as_csv: bool, checkpoint: bool, data_memory: str | None, as_json: bool) -> None:
    """Run one query of DuckDB over the tables of STORE, as a table, JSON lines or CSV. All tables are as at one
    instant.

    DuckDB reads the tables as views, named as in "tidemark tables"; those of the database `main` also without it. The
    store is not changed. DuckDB must be installed.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other; give one")
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise tm.Unsupported(
            "sql needs DuckDB, which is not installed; pip install '.[duckdb]' in a checkout of Tidemark, or of its"
            ' wheel pip install "$(ls dist/*.whl)[duckdb]"'
        ) from error
    with open_for_reading(store, data_memory, checkpoint) as (_, tables), duckdb.connect() as connection:
        try:
            _register(connection, tables)
            if as_csv:
                _print_csv(connection.sql(query))
                return
            connection.execute(query)
            names = [each[0] for each in connection.description or ()]
            if as_json:
                for row in _rows(connection):
                    click.echo(to_json(dict(zip(names, row, strict=True))))
                return
            for line in table_lines(_rows(connection), names):
                click.echo(line)
        except duckdb.Error as error:
            text = " ".join(str(error).split())
            raise click.ClickException(f"{type(error).__name__}: {text}") from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _register(connection: duckdb.DuckDBPyConnection, tables: Any) -> None:
    """Make a view of each table, in a schema with the name of its database."""
    made = {DEFAULT_DATABASE}
    for number, name in enumerate(tables.tables(True)):
        database, _, table = name.partition(".")
        if database not in made:
            made.add(database)
            connection.execute(f"create schema {_quoted(database)}")
        source = f"tidemark_{number}"
        connection.register(source, tables[name].dataset())
        connection.execute(f"create view {_quoted(database)}.{_quoted(table)} as select * from {source}")


def _rows(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    while rows := connection.fetchmany(BATCH_ROWS):
        yield from rows


def _print_csv(found: duckdb.DuckDBPyRelation | None) -> None:
    """Print the rows of a query; None: of a statement that has none."""
    from tidemark.cli.user_files import open_writer
    from tidemark.sources import CSV

    if found is None:
        return
    read: Any = getattr(found, "to_arrow_reader", None) or found.fetch_arrow_reader  # the name before DuckDB 1.4
    batches = read(BATCH_ROWS)
    with open_writer(sys.stdout.buffer, CSV, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
