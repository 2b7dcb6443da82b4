"""What binlogs say of what was applied: every epoch of a source once, in order, with the very changes it had.

A site that logs positions (`log_apply_status`) has a row of `ndb_apply_status` for every epoch it applied; one that
logs again what it applied has the rows under the id of the server that made them, each row's changes in their order.
Nothing of that can be told from tables: a change that is applied twice leaves the same row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.file_protocol import Files
from replication.binlog import events as e
from replication.binlog.errors import Origin
from replication.binlog.index import Position
from replication.binlog.reader import BinlogReader, ReadEvent, StatementMaps
from replication.kill_loop.modes import MARK
from replication.system_tables import NDB_APPLY_STATUS

Key = tuple[int, str, Any]  # server that made the change, table, first column of the row


@dataclass
class Read:
    """What a part of a binlog has: own epochs, epochs applied by server, and the changes of each row in order."""

    epochs: list[int] = field(default_factory=list)
    applied: dict[int, list[int]] = field(default_factory=dict)
    changes: dict[Key, list[tuple[str, Any]]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)


def read_binlog(files: Files, server_id: int, start: Position | None, end: Position) -> Read:
    """A binlog from a place between transactions to another one."""
    found = Read()
    reader = BinlogReader(files, start=start)
    maps = StatementMaps()
    is_begun = False  # the epoch of this transaction is known: its first row says it
    for read in reader.events(end):
        event = read.event
        maps.step(event)
        if isinstance(event, e.Query) and event.statement not in ("BEGIN", "COMMIT"):
            found.statements.append(event.statement)
        elif isinstance(event, e.Incident):
            found.incidents.append(event.message)
        elif isinstance(event, e.Rows):
            is_begun = _take(found, maps, read, server_id, is_begun)
        if read.is_boundary:
            is_begun = False
    reader.close()
    return found


def _take(found: Read, maps: StatementMaps, read: ReadEvent, server_id: int, is_begun: bool) -> bool:
    event, author = read.event, read.header.server_id
    assert isinstance(event, e.Rows)
    name = maps.of(event, Origin(*read.at)).name
    for before, after in _images(maps, read):
        if name == NDB_APPLY_STATUS and after is not None:
            if not is_begun:
                found.epochs.append(after[1])
                is_begun = True
            else:
                found.applied.setdefault(after[0], []).append(after[1])
        elif name != MARK and not name.startswith("mysql."):
            row = after if after is not None else before
            assert row is not None
            key = row[:3] if name.endswith("journal") else row[:1]
            changes = found.changes.setdefault((author, name, key), [])
            changes.append(("deleted" if after is None else "changed" if before is not None else "inserted", after))
    return is_begun


def _images(maps: StatementMaps, read: ReadEvent) -> Iterator[tuple[Any, Any]]:
    """(before, after) of each row, None where there is no such image."""
    event = read.event
    assert isinstance(event, e.Rows)
    origin = Origin(*read.at)
    for chunk in maps.reader(event, origin).chunks(event.body, origin):
        sides = []
        for present, image in ((event.before, chunk.before), (event.after, chunk.after)):
            if present is None:
                sides.append([None] * chunk.count)
            else:
                columns = [image[place].to_pylist() for place in sorted(image)]
                sides.append(list(zip(*columns, strict=True)))
        yield from zip(*sides, strict=True)


def compare(source: Read, source_id: int, replica: Read, is_exact: bool) -> list[str]:
    """What is wrong with what a replica has applied of a source, both read over the same stretch."""
    applied = replica.applied.get(source_id, [])
    problems = [f"binlog {each!r} of an incident" for each in (*source.incidents, *replica.incidents)]
    if applied != sorted(set(applied)):
        twice = sorted({each for each in applied if applied.count(each) > 1})
        problems.append(f"epochs of server {source_id} are applied twice or out of order: {twice or applied[:20]}")
    unknown = sorted(set(applied) - set(source.epochs))
    if unknown:
        problems.append(f"epochs {unknown[:5]} of server {source_id} are applied, and its binlog does not have them")
    if is_exact:
        lost = sorted(set(source.epochs) - set(applied))
        if lost:
            problems.append(f"epochs {lost[:5]} of server {source_id} were never applied")
        problems += _compare_changes(source, replica)
    return problems


def _compare_changes(source: Read, replica: Read) -> list[str]:
    problems = []
    for key in sorted({*source.changes, *replica.changes}, key=repr):
        ours, theirs = source.changes.get(key, []), replica.changes.get(key, [])
        if ours != theirs:
            place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), "at the end")
            problems.append(f"row {key}: {len(ours)} changes at the source, {len(theirs)} applied, other from {place}")
    return problems[:5]
