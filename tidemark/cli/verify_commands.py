"""The command `diff`, and the work of `check --binlog`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import tidemark as tm
from tidemark.cli.output import (
    example,
    json_option,
    memory_option,
    open_store,
    options_of,
    print_result,
    reported,
    table_lines,
    to_json,
    verdict_of,
)
from tidemark.engine.types.base import counted

FAILED = 2


def _copy(text: str, stack: ExitStack, data_memory: str | None) -> Any:
    """Return the copy that a name on the command line stands for. A store that no process has open is opened, so that
    its log counts too.
    """
    from tidemark.comparison import is_store

    place, hash_sign, number = text.rpartition("#")
    if hash_sign and number.isascii() and number.isdigit():
        return place, int(number)
    if not is_store(text):
        return text
    try:
        return stack.enter_context(open_store(Path(text), data_memory))
    except tm.Locked:
        click.echo(f"note: {text} is open elsewhere; its last local checkpoint is compared", err=True)
        return text


@click.command(epilog=example("tidemark diff shop branch", "tidemark diff shop backups#3 --table test.item --repair b"))
@click.argument("a")
@click.argument("b")
@click.option("--table", "tables", multiple=True, help="Only this table; may be repeated.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=1_000, show_default=True, help="List at most this many rows."
)
@click.option("--by", type=click.Choice(["key", "rowid"]), help="Compare by key or ROWID; the suitable one by default.")
@click.option("--repair", type=click.Choice(["a", "b"]), help="Change the other copy to equal this one.")
@memory_option
@json_option
def diff(
    a: str,
    b: str,
    tables: tuple[str, ...],
    limit: int,
    by: Any,
    repair: Any,
    data_memory: str | None,
    as_json: bool,
) -> None:
    """Compare two copies: directories of stores, places of backups (PLACE#3 is backup 3 there).

    Exit code 0 if they are equal, 1 if they differ, 2 if the comparison failed. With --repair the rows of the other
    side are written, in transactions; the exit code is 0 if both are equal then.
    """
    from tidemark import comparison

    try:
        with ExitStack() as stack:
            left, right = (_copy(each, stack, data_memory) for each in (a, b))
            how: dict[str, Any] = {"tables": tables or None, "by": by, "data_memory": data_memory}
            done = None
            if repair is not None:
                with reported("repair") as progress:
                    done = comparison.repair(left, right, repair, progress=progress, **how)
            with reported("diff") as progress:
                found = comparison.diff(left, right, limit=limit, progress=progress, **how)
    except tm.Error as error:
        text = f"{type(error).__name__}: {' '.join(str(error).split())}"
        click.echo(to_json({"error": text}) if as_json else f"Error: {text}", err=not as_json)
        raise SystemExit(FAILED) from error
    if done is not None:
        found["repaired"] = {name: done[name] for name in ("inserted", "updated", "deleted", "skipped")}
    print_result(found, as_json, lambda: _lines(found))
    if not found["is_equal"]:
        raise SystemExit(1)


def _lines(report: dict[str, Any]) -> Iterator[str]:
    for name in ("a", "b"):
        side = report[name]
        yield f"{name}: {side['what']} at epoch {side['epoch']}"
    if "repaired" in report:
        yield "repaired: " + ", ".join(f"{count:,} {what}" for what, count in report["repaired"].items())
    if report["schema"]:
        shown = [list(each.values()) for each in report["schema"]]
        yield from table_lines(shown, ("table", "column", "definition", "a", "b"))
    if report["differences"]:
        rows = (
            (each["table"], to_json(each["key"]), each["column"] or f"only in {each['only']}", *_both(each))
            for each in report["differences"]
        )
        yield from table_lines(rows, ("table", "key", "column", "a", "b"))
    if not report["is_complete"]:
        yield "and more; see --limit"
    for table in report["tables"]:
        counts = f"{table['rows_a']:,} and {counted(table['rows_b'], 'row')}, {table['differing']:,} differ"
        yield f"{table['name']}: {counts} (by {table['by']}, {counted(table['passes'], 'pass', 'passes')})"
    yield "equal" if report["is_equal"] else "different"


def _both(difference: dict[str, Any]) -> tuple[Any, Any]:
    if difference["only"] is None:
        return difference["a"], difference["b"]
    shown = ["" if each is None else to_json(each) for each in (difference["a"], difference["b"])]
    return shown[0], shown[1]


# --- check --binlog -------------------------------------------------------------------------------
def check_binlog(store: Path, given: tuple[str, ...], data_memory: str | None) -> dict[str, Any]:
    """Open a store and return the report of its `Database.check_binlog`.

    given: NAME=VALUE, options of the site; name and server id of the binlog are those of its files if not given.
    Raises: FileMissing for a store without a binlog or with several, Locked if another process has it open, and as
    `tidemark.open`.
    """
    found = {**_identity(store), **options_of(given)[0]}
    with open_store(store, data_memory, options=found) as db, reported("check") as progress:
        return db.check_binlog(progress)


def _identity(store: Path) -> dict[str, Any]:
    """Name and server id in the files of the binlog."""
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.replication.binlog.index import BinlogIndex
    from tidemark.replication.binlog.listing import bases
    from tidemark.replication.binlog.scan import read_format
    from tidemark.replication.injector.mark import FOLDER

    with PosixFiles(store) as files:
        names = bases(files, FOLDER)
        if len(names) != 1:
            what = f"several binlogs: {', '.join(names)}" if names else "no binlog"
            raise tm.FileMissing(f"the store has {what}; there is nothing to compare")
        index = BinlogIndex(files, FOLDER, names[0])
        if not index.names:
            raise tm.FileMissing("the binlog has no files; there is nothing to compare")
        newest = index.names[-1]
        file = files.open(index.path(newest))
        header, _, _ = read_format(files, file, newest)
    return {"log_bin": names[0], "server_id": header.server_id}


def binlog_lines(report: dict[str, Any]) -> Iterator[str]:
    yield from (f"damaged: {problem}" for problem in report["problems"])
    if not report["is_whole"]:
        yield (
            "note: the binlog does not have every change of this store; only the last change it has of each key was"
            " checked"
        )
    looked = (
        f"{counted(report['changes'], 'change')} of {counted(report['keys'], 'key')},"
        f" {report['unjudged']:,} not checked"
    )
    yield f"{verdict_of(report)}: {looked}, at epoch {report['epoch']} in {report['seconds']:.1f} s"
