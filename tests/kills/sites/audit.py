"""Checks of binlogs against each other: every epoch of a source is applied once, in order, with exactly its changes.

A site that logs positions (`log_apply_status`) has a row of `ndb_apply_status` for every applied epoch with rows. A
site that logs what it applied has the rows under the id of the server that made them, in their order. All changes of a
row in one epoch of the source are one change there, because they were applied in one transaction. Tables show nothing
of this: a change that is applied twice leaves the same row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.kills.sites.modes import KEY_COLUMNS
from tidemark.engine.files.protocol import Files
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, ReadEvent, StatementMaps
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

Key = tuple[int, str, Any]  # server that made the change, table, key of the row


class Change(NamedTuple):
    """A change of a row: whether the row existed before, and its image after the change, None if it is deleted."""

    epoch: int
    was_there: bool
    after: Any


@dataclass
class Read:
    """Contents of a part of a binlog: own epochs, those with rows, epochs applied by server, the changes of each row in
    order, and the GTIDs of all transactions.
    """

    epochs: list[int] = field(default_factory=list)
    with_rows: set[int] = field(default_factory=set)
    applied: dict[int, list[int]] = field(default_factory=dict)
    changes: dict[Key, list[Change]] = field(default_factory=dict)
    statements: list[str] = field(default_factory=list)
    incidents: list[str] = field(default_factory=list)
    gtids: list[tuple[bytes, int]] = field(default_factory=list)


def read_binlog(files: Files, server_id: int, start: Position | None, end: Position) -> Read:
    """Read a binlog from one place between transactions to another."""
    found = Read()
    reader = BinlogReader(files, start=start)
    maps = StatementMaps()
    is_begun = False  # whether the epoch of this transaction is known, which its first row has
    for read in reader.events(end):
        event = read.event
        maps.observe(event)
        if isinstance(event, e.Gtid):
            found.gtids.append((event.source, event.number))
        elif isinstance(event, e.Query) and event.statement not in ("BEGIN", "COMMIT"):
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
    name = maps.of(event, read.at).name
    for before, after in _images(maps, read):
        if name == NDB_APPLY_STATUS and after is not None:
            if not is_begun:
                found.epochs.append(after[1])
                is_begun = True
            else:
                found.applied.setdefault(after[0], []).append(after[1])
        elif not name.startswith("mysql."):
            row = after if after is not None else before
            assert row is not None
            found.with_rows.add(found.epochs[-1])
            key = (author, name, row[: KEY_COLUMNS.get(name, 1)])
            found.changes.setdefault(key, []).append(Change(found.epochs[-1], before is not None, after))
    return is_begun


def _images(maps: StatementMaps, read: ReadEvent) -> Iterator[tuple[Any, Any]]:
    """Yield (before, after) of each row, None where there is no such image."""
    event = read.event
    assert isinstance(event, e.Rows)
    origin = read.at
    for chunk in maps.reader(event, origin).chunks(event.body, origin):
        sides: list[list[Any]] = []
        for present, image in ((event.before, chunk.before), (event.after, chunk.after)):
            if present is None:
                sides.append([None] * chunk.count)
            else:
                columns = [image[place].to_pylist() for place in sorted(image)]
                sides.append(list(zip(*columns, strict=True)))
        yield from zip(*sides, strict=True)


def compare(source: Read, source_id: int, replica: Read, replica_id: int, is_exact: bool) -> list[str]:
    """Return what is wrong with the changes of a source that a replica has applied, both read over the same stretch."""
    applied = replica.applied.get(source_id, [])
    problems = [f"binlog {each!r} of an incident" for each in (*source.incidents, *replica.incidents)]
    if applied != sorted(set(applied)):
        twice = sorted({each for each in applied if applied.count(each) > 1})
        problems.append(f"epochs of server {source_id} are applied twice or out of order: {twice or applied[:20]}")
    unknown = sorted(set(applied) - set(source.epochs))
    if unknown:
        problems.append(f"epochs {unknown[:5]} of server {source_id} are applied, and its binlog does not have them")
    if is_exact:
        lost = sorted(source.with_rows - set(applied))
        if lost:
            problems.append(f"epochs {lost[:5]} of server {source_id} were never applied")
        problems += _compare_changes(source, replica, replica_id)
    return problems


def _compare_changes(source: Read, replica: Read, replica_id: int) -> list[str]:
    problems = []
    for key in sorted({*source.changes, *replica.changes}, key=repr):
        if key[0] == replica_id:
            continue  # the replica's own change
        ours = [each[1:] for each in _joined(source.changes.get(key, []))]
        theirs = [each[1:] for each in replica.changes.get(key, [])]
        if ours != theirs:
            place = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), "the end")
            text = f"row {key}: {len(ours)} changes at the source, {len(theirs)} applied, another one from {place} on"
            problems.append(text)
    return problems[:5]


def _joined(changes: list[Change]) -> list[Change]:
    """Join the changes of a row in each epoch, and leave out an epoch before and after which the row did not exist."""
    joined: list[Change] = []
    for each in changes:
        if joined and joined[-1].epoch == each.epoch:
            joined[-1] = joined[-1]._replace(after=each.after)
        else:
            joined.append(each)
    return [each for each in joined if each.was_there or each.after is not None]
