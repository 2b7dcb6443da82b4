"""The command `log`: REDO log, UNDO log and local checkpoints as text or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import click

from engine.files import PosixFiles
from engine.ids import MICRO_BITS, SLOT_BITS
from recovery.listing import StoreListing
from tidemark.cli.output import cell, json_option, one_line, store_argument, to_json

INDENT = {
    "group": 0,
    "transaction": 1,
    "schema": 2,
    "control": 0,
    "data file": 1,
    "copies file": 1,
    "block": 2,
    "row": 3,
    "old row": 3,
    "damage": 0,
    "retired": 0,
    "undo group": 0,
}
OPERATION_INDENT = 2


@click.command("log", short_help="Print the REDO log, the UNDO log or the local checkpoints.")
@store_argument
@click.option("--redo", "what", flag_value="redo", help="Groups, transactions and operations of the REDO log.")
@click.option("--undo", "what", flag_value="undo", help="Groups and records of the UNDO log of disk columns.")
@click.option("--lcp", "what", flag_value="lcp", help="Control files, data files, blocks and rows.")
@click.option("--from", "from_lsn", type=click.IntRange(min=0), help="Begin at the first group at or behind LSN.")
@click.option("--limit", type=click.IntRange(min=0), help="Print so many lines at most.")
@json_option
@one_line
def log(store: Path, what: str | None, from_lsn: int | None, limit: int | None, as_json: bool) -> None:
    """Print the REDO log, the UNDO log or the local checkpoints; reads only, also while the store is open."""
    if what is None:
        raise click.UsageError("say what to print: --redo, --undo or --lcp")
    if what == "lcp" and from_lsn is not None:
        raise click.UsageError("--from is a place in a log; use it with --redo or --undo")
    files = PosixFiles(store)
    try:
        listing = StoreListing(files)
        holder = files.holder()
        if holder is not None:
            click.echo(f"note: process {holder} has the store open; what its files hold now is shown", err=True)
        is_damaged = False
        for entry in islice(_entries(listing, what, from_lsn), limit):
            is_damaged = is_damaged or entry["kind"] == "damage"
            click.echo(to_json(entry) if as_json else entry_line(entry))
    finally:
        files.close_all()
    if is_damaged:
        raise click.ClickException("LcpDamaged: see the lines that begin with damage; run tidemark check")


def _entries(listing: StoreListing, what: str, from_lsn: int | None) -> Iterator[dict[str, Any]]:
    if what == "undo":
        return listing.undo(from_lsn)
    return listing.redo(from_lsn) if what == "redo" else listing.local_checkpoints()


def entry_line(entry: dict[str, Any]) -> str:
    """One entry for people: the kind, then names and values; epochs as GCI/micro GCI, ROWIDs as page:slot."""
    kind = entry["kind"]
    words = ["  " * INDENT.get(kind, OPERATION_INDENT) + kind]
    for name, value in entry.items():
        if name == "kind" or (name == "any_value" and not value):
            continue
        if name == "values":
            words.append("(" + ", ".join(f"{column}={cell(each)}" for column, each in value.items()) + ")")
        elif name == "wall_us":
            sealed = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=value)
            words.append(sealed.isoformat())
        else:
            words.append(f"{name} {_shown(name, value)}")
    return "  ".join(words)


def _shown(name: str, value: Any) -> str:
    if name == "epoch":
        return f"{value >> MICRO_BITS}/{value & ((1 << MICRO_BITS) - 1)}"
    if name == "rowid":
        return f"{value >> SLOT_BITS}:{value & ((1 << SLOT_BITS) - 1)}"
    if isinstance(value, list):
        return "(" + ", ".join(cell(each) for each in value) + ")"
    return to_json(value) if isinstance(value, dict) else cell(value)
