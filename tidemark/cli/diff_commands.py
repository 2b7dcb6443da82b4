"""The command `diff`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

import tidemark as tm
from tidemark.cli.output import json_option, memory_option, open_store, reported, say, table_lines, to_json

FAILED = 2


def _copy(text: str, stack: ExitStack, data_memory: str) -> Any:
    """What a name on the command line stands for: a store nobody has open is opened, so that its log counts too."""
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


@click.command(short_help="Whether two copies hold the same rows; what differs; repair.")
@click.argument("a")
@click.argument("b")
@click.option("--table", "tables", multiple=True, help="Only this table; may be given several times.")
@click.option("--limit", type=click.IntRange(min=1), default=1_000, show_default=True, help="So many rows are listed.")
@click.option("--by", type=click.Choice(["key", "rowid"]), help="How ranges are cut; what suits, if not given.")
@click.option("--repair", type=click.Choice(["a", "b"]), help="Make the other copy what this one says.")
@memory_option
@json_option
def diff(
    a: str,
    b: str,
    tables: tuple[str, ...],
    limit: int,
    by: Any,
    repair: Any,
    data_memory: str,
    as_json: bool,
) -> None:
    """Compare two copies: directories of stores, places of backups (PLACE#3 is backup 3 there).

    Exit code 0 if they are equal, 1 if they differ, 2 if that cannot be told. With --repair what the other side says is
    written, through transactions; the exit code is 0 if both are equal then.
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
    say(found, as_json, lambda: _lines(found))
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
        counts = f"{table['rows_a']:,} and {table['rows_b']:,} rows, {table['differing']:,} differ"
        yield f"{table['name']}: {counts} (by {table['by']}, {table['passes']} passes)"
    yield "equal" if report["is_equal"] else "different"


def _both(difference: dict[str, Any]) -> tuple[Any, Any]:
    if difference["only"] is None:
        return difference["a"], difference["b"]
    return tuple("" if each is None else to_json(each) for each in (difference["a"], difference["b"]))  # type: ignore[return-value]
