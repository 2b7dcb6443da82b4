"""Commands for rows: scan, dump, load."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tidemark as tm
from tidemark.cli.conditions import condition_of
from tidemark.cli.output import (
    bar,
    example,
    open_for_reading,
    open_store,
    opens_store,
    print_result,
    reads_store,
    reported,
    store_argument,
    table_argument,
    table_lines,
    to_json,
)
from tidemark.cli.sqlite_tables import load_tables
from tidemark.cli.user_files import rebatched, suffix_of, write_rows
from tidemark.engine.types.base import counted

if TYPE_CHECKING:
    from tidemark.recovery.load.commit import FoundLoad
    from tidemark.sources import Source

RETRIES = 5
BATCH_ROWS = 20_000
SHOWN_ROWS = 3
STANDARD_OUTPUT = Path("-")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


where_option = click.option(
    "--where", metavar="CONDITION", help="Only rows that it accepts, such as \"stock > 5 and name like 'p%'\"."
)
key_option = click.option(
    "--key", multiple=True, metavar="VALUE", help="Only the row with this primary key; once for each of its columns."
)
limit_option = click.option("--limit", type=click.IntRange(min=0), help="At most this many rows.")


@click.command(
    epilog=example(
        "tidemark scan shop test.item --columns id,name --limit 10",
        "tidemark scan shop test.item --where \"stock = 5 and name like 'p%'\"",
        "tidemark scan shop test.item --key 7 --json",
    )
)
@store_argument
@table_argument()
@click.option("--columns", help="Comma-separated names.")
@where_option
@key_option
@limit_option
@click.option("--partition", "partitions", multiple=True, help="Only rows of this partition; may be repeated.")
@click.option("--rowid", is_flag=True, help="Show ROWIDs.")
@click.option("--gci64", is_flag=True, help="Show row epochs.")
@click.option("--author", is_flag=True, help="Show row authors.")
@reads_store
def scan(
    store: Path,
    table: str,
    columns: str | None,
    where: str | None,
    key: tuple[str, ...],
    limit: int | None,
    partitions: tuple[str, ...],
    rowid: bool,
    gci64: bool,
    author: bool,
    checkpoint: bool,
    data_memory: str | None,
    as_json: bool,
) -> None:
    """Print the rows of a table, as a table or as JSON lines.

    A CONDITION compares columns with values or columns (=, <>, <, <=, >, >=, in, between, like, is null), joined by
    and, or and not. Texts, dates and times are in single quotes, bytes in hexadecimal.

    If another process has the store open, it is asked, and the rows are those of one instant. If it does not answer,
    they are those of its last local checkpoint. The store is not changed.
    """
    with open_for_reading(store, data_memory, checkpoint) as (_, tables):
        handle = tables[table]
        names = _names(columns) if columns else [column.name for column in handle.definition.columns]
        shown = zip((tm.ROWID, tm.EPOCH, tm.AUTHOR), (rowid, gci64, author), strict=True)
        names += [name for name, wanted in shown if wanted]
        condition = condition_of(handle.definition, where, key)
        wanted = handle.scan(names, limit, partitions or None, condition)
        if as_json:
            for row in wanted:
                click.echo(to_json(dict(zip(names, row, strict=True))))
            return
        for line in table_lines(map(list, wanted), names):
            click.echo(line)


@click.command(epilog=example("tidemark dump shop test.item items.parquet", "tidemark dump shop test.item > items.csv"))
@store_argument
@table_argument()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), default=STANDARD_OUTPUT)
@click.option("--columns", help="Comma-separated names.")
@where_option
@key_option
@limit_option
@reads_store
def dump(
    store: Path,
    table: str,
    file: Path,
    columns: str | None,
    where: str | None,
    key: tuple[str, ...],
    limit: int | None,
    checkpoint: bool,
    data_memory: str | None,
    as_json: bool,
) -> None:
    """Write a table to FILE (.csv, .parquet or .arrow), or to standard output as CSV. CONDITION is as for "tidemark
    scan".

    If another process has the store open, it is asked, and the rows are those of one instant. If it does not answer,
    they are those of its last local checkpoint. The store is not changed.
    """
    import pyarrow as pa

    target = None if file == STANDARD_OUTPUT else file
    if target is None and as_json:
        raise click.UsageError("--json reports what was written to a file; give a FILE")
    if target is not None:
        suffix_of(target)
    with open_for_reading(store, data_memory, checkpoint) as (_, tables):
        handle = tables[table]
        condition = condition_of(handle.definition, where, key)
        wanted = handle.scan(_names(columns) if columns else None, limit, where=condition)
        try:
            with bar(handle.name, len(handle) if condition is None and limit is None else None) as advance:
                rows = write_rows(target, handle.definition, wanted, advance)
        except OSError as error:
            error.filename = error.filename or (None if target is None else str(target))
            raise
        except pa.ArrowException as error:
            raise click.ClickException(_reason(file, error, 0)) from error
    if target is not None:
        print_result(
            {"table": table, "file": str(file), "rows": rows},
            as_json,
            lambda: [f"{counted(rows, 'row')} written to {file}"],
        )


# --- load -----------------------------------------------------------------------------------------
@click.command(
    epilog=example(
        "tidemark load shop test.item items.csv --create --key id",
        "tidemark load shop test.item more.parquet --bulk",
        "tidemark load shop --sqlite old.db --on-error report",
        "tidemark load shop --sweep jobs",
    )
)
@click.argument("store", type=click.Path(path_type=Path, file_okay=False))
@click.argument("table", required=False)
@click.argument("files", metavar="FILE...", nargs=-1, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--batch-rows", type=click.IntRange(min=1), help="Rows per transaction.  [default: 20000]")
@click.option("--bulk", is_flag=True, help="Load all files in one transaction, through load files: all rows or none.")
@click.option("--mode", type=click.Choice(["insert", "write"]), default="insert", show_default=True)
@click.option(
    "--create", is_flag=True, help="Create the table from the first file's columns, and the store if there is none."
)
@click.option("--key", help="With --create: comma-separated columns of the primary key.")
@click.option("--disk", multiple=True, metavar="COLUMN", help="Put a column on disk, with --create; repeatable.")
@click.option(
    "--sqlite",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Make the tables of this SQLite database, with their rows and indexes.",
)
@click.option("--table", "tables", multiple=True, metavar="NAME", help="With --sqlite: only this table; repeatable.")
@click.option(
    "--on-error",
    type=click.Choice(["raise", "report"]),
    help="With --sqlite: what to do about rows that do not fit.  [default: raise]",
)
@click.option(
    "--sweep", metavar="DIR", help="Load nothing; abort this store's loads in a directory, remove their files."
)
@opens_store
def load(
    store: Path,
    table: str | None,
    files: tuple[Path, ...],
    batch_rows: int | None,
    bulk: bool,
    mode: str,
    create: bool,
    key: str | None,
    disk: tuple[str, ...],
    sqlite: Path | None,
    tables: tuple[str, ...],
    on_error: str | None,
    sweep: str | None,
    data_memory: str | None,
    as_json: bool,
) -> None:
    """Load rows of FILEs, in CSV, Parquet or Arrow, into TABLE, one transaction per batch of rows.

    Batches that were committed before an error stay; with --bulk nothing stays. --mode write replaces rows with the
    same key. With --create and --key the table is created first, with the columns of the first file, and the store too
    if STORE is missing or empty.

    With --sqlite, make the tables of an SQLite database and load their rows, one transaction per table; the store too
    is made if STORE is missing or empty. What was inferred is printed. With --on-error report, rows with values that do
    not fit their columns are left out and listed; else nothing is loaded if there is one.

    With --sweep, list and remove what broken-off loads of Spark or other programs left in a directory of theirs.
    """
    is_of_files = table is not None or bulk or create or disk or key or batch_rows is not None or mode != "insert"
    is_of_sqlite = sqlite is not None or tables or on_error is not None
    if sweep is not None:
        if is_of_files or is_of_sqlite:
            raise click.UsageError("--sweep loads nothing; give STORE and the directory alone")
        _sweep(store, sweep, data_memory, as_json)
        return
    if is_of_sqlite:
        if sqlite is None:
            raise click.UsageError("--table and --on-error are about an SQLite database; use them with --sqlite")
        if is_of_files:
            raise click.UsageError("--sqlite names tables by --table; give STORE and no TABLE, files or their options")
        load_tables(store, sqlite, tables, on_error or "raise", data_memory, as_json)
        return
    if table is None or not files:
        raise click.UsageError(f"Missing argument '{'FILE...' if table else 'TABLE'}'.")
    if bulk and (batch_rows is not None or mode != "insert"):
        raise click.UsageError("--bulk inserts all rows at once; leave --batch-rows and --mode out")
    if create != bool(key):
        raise click.UsageError("--create and --key go together")
    if disk and not create:
        raise click.UsageError("--disk needs --create; the columns of an existing table stay where they are")
    for path in files:
        suffix_of(path)
    names = _names(key or "")
    columns = _columns(files[0], names, disk) if create else []
    if not create and not store.exists():
        raise click.UsageError(f"there is no directory {store}; check the path, or create the store with --create")
    with open_store(store, data_memory, background=True, create=create) as db:
        if create:
            db.create_table(table, columns, names)
        loading = _Loading(db, table, batch_rows or BATCH_ROWS, mode)
        if bulk:
            loading.load_bulk(files)
        else:
            for path in files:
                loading.load(path)
    total = loading.rows
    print_result(
        {"table": table, "files": len(files), "rows": total, "transactions": loading.transactions},
        as_json,
        lambda: [f"{counted(total, 'row')} loaded into {table} in {counted(loading.transactions, 'transaction')}"],
    )


def _sweep(store: Path, directory: str, data_memory: str | None, as_json: bool) -> None:
    from tidemark.recovery.places.names import shown_place

    with open_store(store, data_memory, background=False) as db:
        removed, left = db.sweep_loads(directory), db.loads(directory)
    print_result(
        {"removed": [vars(each) for each in removed], "left": [vars(each) for each in left]},
        as_json,
        lambda: [
            *(_about_load("removed", each) for each in removed),
            *(_about_load("left", each) for each in left),
            f"{counted(len(removed), 'load')} removed, {len(left)} left in {shown_place(directory)}",
        ],
    )


def _about_load(what: str, found: FoundLoad) -> str:
    return f"{what}: {found.name} ({found.state}, {found.table or 'unknown table'}, {found.size_bytes:,} bytes)"


def _columns(path: Path, key: list[str], disk: tuple[str, ...]) -> list[tm.Column]:
    import pyarrow as pa

    from tidemark.engine.schema.column_inference import columns_from_arrow
    from tidemark.sources import open_source

    try:
        return columns_from_arrow(open_source(path, None).schema, key, disk)
    except (tm.Error, pa.ArrowException, OSError) as error:
        raise click.ClickException(f"{_reason(path, error, 0)}; no table was created") from error


def _reason(path: Path, error: Exception, done: int) -> str:
    """Return class, file and error on one line. Rows count from 1 after the header; `done` rows were read before."""
    return f"{type(error).__name__}: {path}: {_error_text(error, getattr(error, 'row', None), done)}"


def _error_text(error: Exception, row: Any, done: int = 0) -> str:
    """Return the text of an error on one line. The engine counts its row from 0, the text from 1."""
    text = " ".join(str(error).split())
    text = re.sub("; nothing was (inserted|loaded)", "", text)
    if isinstance(row, int):
        text = re.sub(rf"\brow {row}\b", f"row {done + row + 1:,}", text, count=1)
    # pyarrow counts the header of a CSV file as a row.
    return re.sub(r"\bRow #(\d+)", lambda found: f"row {int(found[1]) - 1:,}", text)


def _refusal(error: tm.LoadRefused) -> str:
    """Return why a load was refused, with some of its rows, on one line."""
    shown = []
    examples: Any = error.evidence.get("examples", ())
    for each in examples[:SHOWN_ROWS]:
        values = ", ".join(f"{name}={value}" for name, value in each["values"].items())
        shown.append(f"({values})")
    text = _error_text(error, examples[0].get("row") if examples else None)
    return " ".join(f"{type(error).__name__}: {text}; rows: {' '.join(shown)}; no rows were loaded".split())


class _Loading:
    """Loads files one after the other; `rows` counts committed rows."""

    def __init__(self, db: tm.Database, table: str, batch_rows: int, mode: str) -> None:
        self._db = db
        self._table = table
        self._definition = db[table].definition
        self._batch_rows = batch_rows
        self._mode = mode
        self.rows = 0
        self.transactions = 0

    def load(self, path: Path) -> None:
        """Load one file. Raises: ClickException with file, row, and the number of rows loaded."""
        import pyarrow as pa

        from tidemark.sources import open_source

        done = 0
        try:
            source = open_source(path, self._definition)
            self._check_columns(source)
            with bar(path.name, source.rows) as advance:
                for piece in rebatched(source.batches, self._batch_rows):
                    self._commit(piece)
                    done += piece.num_rows
                    self.rows += piece.num_rows
                    self.transactions += bool(piece.num_rows)
                    advance(piece.num_rows)
        except (tm.Error, pa.ArrowException, OSError) as error:
            raise click.ClickException(f"{_reason(path, error, done)}; {self._rows_loaded()}") from error
        except KeyboardInterrupt:
            click.echo(f"interrupted; {self._rows_loaded()}", err=True)
            raise

    def load_bulk(self, paths: tuple[Path, ...]) -> None:
        """Load all files at once. Raises: ClickException with what is wrong; nothing is loaded then."""
        import pyarrow as pa

        from tidemark.load_calls import WRITTEN
        from tidemark.sources import open_source

        where = paths[0]
        try:
            for where in paths:
                self._check_columns(open_source(where, self._definition))
            where = paths[0] if len(paths) == 1 else Path(f"{len(paths)} files, whose rows are counted together")
            with reported(self._definition.name) as progress:

                def written(rows: int, total: int, what: str) -> None:
                    if what == WRITTEN:
                        progress(rows, total, "rows")

                self.rows = self._db.load(self._table, list(paths), progress=written)
            self.transactions = 1
        except tm.LoadRefused as error:
            raise click.ClickException(_refusal(error)) from error
        except (tm.Error, pa.ArrowException, OSError) as error:
            raise click.ClickException(f"{_reason(where, error, 0)}; no rows were loaded") from error

    def _check_columns(self, source: Source) -> None:
        known = [column.name for column in self._definition.columns]
        for name in source.schema.names:
            if name not in known:
                raise tm.NoSuchColumn(
                    f"{self._definition.name} has no column {name!r}; its columns are {', '.join(known)}", column=name
                )

    def _commit(self, piece: Any) -> None:
        if self._mode == "write":
            self._db.run(lambda txn: txn.write_many(self._table, piece), RETRIES)
        else:
            self._db.run(lambda txn: txn.insert_many(self._table, piece), RETRIES)

    def _rows_loaded(self) -> str:
        return f"{counted(self.rows, 'row was', 'rows were')} loaded" if self.rows else "no rows were loaded"
