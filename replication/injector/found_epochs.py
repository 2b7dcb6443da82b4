"""Epoch transactions found in the files of a binlog: their positions and contents.

An opening needs them to find the last epoch, and the missing rows of `ndb_binlog_index`. Updates logged as writes are
counted as inserts here, because the file does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tidemark.engine.files.protocol import Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import STATUS_TABLE, BinlogReader, ReadEvent, StatementMaps
from tidemark.replication.injector.epoch_counts import EpochCounts

_TRANSACTION_WORDS = ("BEGIN", "COMMIT")
_SERVER, _EPOCH = 0, 1


class FoundEpoch(NamedTuple):
    """An epoch in the files, from its first statement on. `epoch` is 0 for statements at the end of the range that have
    no epoch transaction after them.
    """

    epoch: int
    start: Position
    end: Position
    counts: EpochCounts
    statements: tuple[str, ...]

    @property
    def has_changes(self) -> bool:
        """Whether the store changed in the epoch. An epoch without changes may have been written for its number
        alone.
        """
        return bool(self.counts.rows or self.counts.origins or self.statements)


@dataclass
class _Transaction:
    """The part of an epoch read so far."""

    own_id: int
    start: Position | None = None
    epoch: int = 0
    has_own: bool = False
    counts: EpochCounts = field(default_factory=EpochCounts)
    statements: list[str] = field(default_factory=list)


def epochs_between(
    files: Files, folder: str, base: str, start: Position, end: Position, own_id: int
) -> Iterator[FoundEpoch]:
    """Yield the epochs between two positions, neither within a transaction. Raises: BinlogDamaged, FileMissing."""
    maps = StatementMaps()
    found = _Transaction(own_id)
    last = start
    with BinlogReader(files, folder, base, start) as reader:
        for read in reader.events(end):
            maps.observe(read.event)
            if found.start is None and isinstance(read.event, e.Gtid):
                found.start = read.at
            if isinstance(read.event, e.Rows):
                _count(found, maps, read)
            elif isinstance(read.event, e.Query) and read.event.statement not in _TRANSACTION_WORDS:
                found.statements.append(read.event.statement)
                found.counts.statements += 1
            last = read.next
            if read.is_boundary and found.has_own:
                assert found.start is not None
                yield FoundEpoch(found.epoch, found.start, read.next, found.counts, tuple(found.statements))
                found = _Transaction(own_id)
    if found.statements and found.start is not None:
        yield FoundEpoch(0, found.start, last, found.counts, tuple(found.statements))


def _count(found: _Transaction, maps: StatementMaps, read: ReadEvent) -> None:
    rows = read.event
    assert isinstance(rows, e.Rows)
    origin = read.at
    if maps.of(rows, origin).name == STATUS_TABLE:
        for chunk in maps.reader(rows, origin).chunks(rows.body, origin):
            servers, epochs = (chunk.after[column].to_pylist() for column in (_SERVER, _EPOCH))
            for server, epoch in zip(servers, epochs, strict=True):
                if found.has_own:
                    found.counts.note_origin(server, epoch, found.own_id)
                else:
                    # The first row is the site's own, even if the site had another id then.
                    found.epoch, found.has_own = epoch, True
        return
    count = sum(chunk.count for chunk in maps.reader(rows, origin, frozenset()).chunks(rows.body, origin))
    found.counts.add(rows.kind, np.full(1, read.header.server_id), count, found.own_id)


class Tail(NamedTuple):
    """The end of a binlog: its last epoch, 0 if it has none, the end of this epoch, the statements after it, and the
    last epoch found with changes.
    """

    epoch: int
    end: Position | None
    statements: tuple[str, ...]
    changed_epoch: int = 0

    def after(self, found: FoundEpoch) -> Tail:
        """Return the tail after `found`, the next epoch in the files."""
        if not found.epoch:
            return self._replace(statements=found.statements)
        return Tail(found.epoch, found.end, (), found.epoch if found.has_changes else self.changed_epoch)


def last_epoch(files: Files, folder: str, base: str, end: Position, own_id: int) -> Tail:
    """Return the tail of the binlog before a position; search backwards, file by file. Raises: BinlogDamaged,
    FileMissing.
    """
    index = BinlogIndex(files, folder, base)
    later: tuple[str, ...] = ()
    for name in reversed(index.names[: index.place_of(end.file) + 1]):
        stop = end if name == end.file else Position(name, files.size(index.path(name)))
        tail = Tail(0, None, ())
        for each in epochs_between(files, folder, base, Position(name, b.FIRST_POSITION), stop, own_id):
            tail = tail.after(each)
        if tail.epoch:
            return tail._replace(statements=tail.statements + later)
        later = tail.statements + later
    return Tail(0, None, later)
