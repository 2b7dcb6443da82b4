"""The command `log`: REDO log, UNDO log, local checkpoints, binlog and relay log as text or JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidemark.cli.output import cell, epoch_text, example, prints, store_argument, time_text, to_json
from tidemark.engine.base.errors import Rejected
from tidemark.engine.base.ids import SLOT_BITS

if TYPE_CHECKING:
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.replication.binlog.position import Position

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
    "event": 0,
    "torn end": 0,
}
OPERATION_INDENT = 2
EMPTY = {
    "redo": "the REDO log has no groups after the last local checkpoint",
    "undo": "the UNDO log has no groups, or the store has none: it has no disk columns",
    "lcp": "the store has no local checkpoint",
    "binlog": "the binlog has no events",
    "relay": "the relay log has no events",
}
BINLOGS = ("binlog", "relay")
BINLOG_FOLDER = "binlog"
RELAY_FOLDER = "relay"  # the base name of a relay log is that of its channel


@click.command(
    "log", epilog=example("tidemark log shop --redo --limit 20", "tidemark log shop --binlog --from binlog.000001:4")
)
@store_argument
@click.option("--redo", "what", flag_value="redo", help="Groups, transactions and operations of the REDO log.")
@click.option("--undo", "what", flag_value="undo", help="Groups and records of the UNDO log of disk columns.")
@click.option("--lcp", "what", flag_value="lcp", help="Control files, data files, blocks and rows.")
@click.option("--binlog", "what", flag_value="binlog", help="Events of the binlog, as SHOW BINLOG EVENTS has them.")
@click.option("--relay", "what", flag_value="relay", help="Events of the relay log, likewise.")
@click.option("--from", "start", help="Begin at the first group at or after this LSN; of a binlog, at FILE:POSITION.")
@click.option("--file", help="Of a binlog or relay log: this file only.")
@click.option("--channel", help="Of relay logs: that of this channel only.")
@click.option("--limit", type=click.IntRange(min=0), help="Print at most this many lines.")
@prints
def log(
    store: Path,
    what: str | None,
    start: str | None,
    file: str | None,
    channel: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print the REDO log, the UNDO log, the local checkpoints, the binlog or the relay log. Reads only, also while the
    store is open.
    """
    if what is None:
        raise click.UsageError("say what to print: --redo, --undo, --lcp, --binlog or --relay")
    if file is not None and what not in BINLOGS:
        raise click.UsageError("--file names a file of a binlog; use it with --binlog or --relay")
    if channel is not None and what != "relay":
        raise click.UsageError("--channel names a relay log; use it with --relay")
    if what == "lcp" and start is not None:
        raise click.UsageError("--from is a place in a log; use it with --redo, --undo, --binlog or --relay")
    from tidemark.engine.files.directory import PosixFiles

    with PosixFiles(store) as files:
        entries = _events(files, what, start, file, channel) if what in BINLOGS else _entries(files, what, _lsn(start))
        holder = files.holder()
        if holder is not None:
            click.echo(
                f"note: process {holder} has the store open; the present content of its files is shown", err=True
            )
        is_damaged, is_empty = False, True
        for entry in islice(entries, limit):
            is_empty = False
            is_damaged = is_damaged or entry["kind"] == "damage"
            click.echo(to_json(entry) if as_json else entry_line(entry))
        if is_empty and limit != 0:
            where = "" if start is None else f" from {start} on"
            click.echo(f"note: {EMPTY[what]}{where}", err=True)
    if is_damaged and what in BINLOGS:
        raise click.ClickException("BinlogDamaged: see the line that begins with damage")
    if is_damaged:
        raise click.ClickException("LcpDamaged: see the lines that begin with damage; run tidemark check")


def _lsn(start: str | None) -> int | None:
    if start is not None and not (start.isascii() and start.isdigit()):
        raise click.UsageError(f"--from must be an LSN, a number from 0, with --redo and --undo, got {start!r}")
    return None if start is None else int(start)


def _entries(files: PosixFiles, what: str, from_lsn: int | None) -> Iterator[dict[str, Any]]:
    from tidemark.recovery.verification.log_listing import StoreListing

    listing = StoreListing(files)
    if what == "undo":
        return listing.undo(from_lsn)
    return listing.redo(from_lsn) if what == "redo" else listing.local_checkpoints()


def _events(
    files: PosixFiles, what: str, start: str | None, file: str | None, channel: str | None
) -> Iterator[dict[str, Any]]:
    """Yield the events of the binlog, or of every relay log. If a file is named, only of the relay log that has it."""
    from tidemark.replication.binlog.index import number_in
    from tidemark.replication.binlog.listing import BinlogListing, bases

    files.read_errors_latch = False
    begin = _position(start, file)
    folder = RELAY_FOLDER if what == "relay" else BINLOG_FOLDER
    known = [
        base
        for base in bases(files, folder)
        if channel in (None, base) and (begin is None or number_in(base, begin.file) is not None)
    ]
    if not known:
        named = "" if channel is None else f" of channel {channel}"
        raise Rejected(f"there is no {what} log{named} here" + ("" if begin is None else f" with a file {begin.file}"))
    return (
        ({**entry, "channel": base} if what == "relay" else entry)
        for base in known
        for entry in BinlogListing(files, folder, base).entries(begin, file)
    )


def _position(start: str | None, file: str | None) -> Position | None:
    """Where to begin: FILE:POSITION, the beginning of a file, or a position in the file that is named separately."""
    from tidemark.replication.binlog.binlog_layout import FIRST_POSITION
    from tidemark.replication.binlog.position import Position

    if start is None:
        return None if file is None else Position(file, FIRST_POSITION)
    name, colon, place = start.rpartition(":")
    if not colon:
        name, place = ("", start) if start.isdigit() else (start, str(FIRST_POSITION))
    name = name or file or ""
    if not name or not (place.isascii() and place.isdigit()):
        raise click.UsageError(f"--from must be FILE:POSITION, or POSITION with --file, got {start!r}")
    return Position(name, int(place))


def entry_line(entry: dict[str, Any]) -> str:
    """Return one entry as text: the kind, then names and values; epochs as GCI/micro GCI, ROWIDs as page:slot."""
    kind = entry["kind"]
    words = ["  " * INDENT.get(kind, OPERATION_INDENT) + kind]
    for name, value in entry.items():
        if name == "kind" or (name == "any_value" and not value):
            continue
        if name == "values":
            words.append("(" + ", ".join(f"{column}={cell(each)}" for column, each in value.items()) + ")")
        elif name == "wall_us":
            words.append(time_text(value))
        else:
            words.append(f"{name} {_shown(name, value)}")
    return "  ".join(words)


def _shown(name: str, value: Any) -> str:
    if name == "epoch":
        return epoch_text(value)
    if name == "rowid":
        return f"{value >> SLOT_BITS}:{value & ((1 << SLOT_BITS) - 1)}"
    if isinstance(value, list):
        return "(" + ", ".join(cell(each) for each in value) + ")"
    return to_json(value) if isinstance(value, dict) else cell(value)
