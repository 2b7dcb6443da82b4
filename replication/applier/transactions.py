"""The contents of a binlog or relay log between two boundaries: epoch transactions, statements, and gaps.

An epoch transaction is read once for each pass of the applier: first during the walk over the log, then again from its
beginning. Only the current event is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemark.engine.base.errors import PeerError
from tidemark.engine.files.protocol import Files
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, ReadEvent


@dataclass(frozen=True)
class LogFolder:
    """Where the files of a log are."""

    files: Files
    folder: str = "binlog"
    base: str = "binlog"


class EpochTransaction:
    """One transaction with rows. `source_id` is the server id in its first event, `start` the position of its first
    byte, `next` the position after it, None until it has been read to its end once.
    """

    def __init__(self, log: LogFolder, begun: list[ReadEvent], following: Iterator[ReadEvent], limit: Position) -> None:
        self._log = log
        self._begun = begun
        self._following: Iterator[ReadEvent] | None = following
        self._limit = limit
        self._is_walked = False  # whether the walk over the log has reached its end
        self.start = begun[0].at
        self.source_id = begun[0].header.server_id
        self.next: Position | None = None

    def events(self) -> Iterator[ReadEvent]:
        """Yield its events, from the first to the one that ends it.

        Raises: PeerError if the log ends before the transaction, and the errors of reading.
        """
        reader: BinlogReader | None = None
        following, self._following = self._following, None
        if following is None:
            reader = BinlogReader(self._log.files, self._log.folder, self._log.base, self.start)
            following = reader.events(self._limit)
        else:
            yield from self._begun
        try:
            for read in following:
                if read.is_boundary:
                    self.next = read.next
                    self._is_walked |= reader is None
                yield read
                if read.is_boundary:
                    return
        finally:
            if reader is not None:
                reader.close()
        raise PeerError(
            f"{self.start.text}: the transaction breaks off at the end of the log; wait for the rest of it",
            **self.start._asdict(),
        )

    def leave(self, walk: Iterator[ReadEvent]) -> None:
        """Move the walk over the log past the transaction; from here on it is read separately."""
        self._following = None
        if self._is_walked:
            return
        for read in walk:
            if read.is_boundary:
                self.next = read.next
                return

    def finish(self) -> Position:
        """Read the transaction to its end, unless that was done; return the position after it. Raises: as `events`."""
        if self.next is None:
            for _ in self.events():
                pass
        assert self.next is not None
        return self.next


@dataclass(frozen=True)
class Statement:
    """A schema change, which is a transaction by itself."""

    text: str
    database: str
    source_id: int
    start: Position
    next: Position


@dataclass(frozen=True)
class Loss:
    """A gap: the source reports that epochs are missing from here on."""

    message: str
    start: Position
    next: Position


def transactions(
    log: LogFolder, start: Position | None, end: Position
) -> Iterator[EpochTransaction | Statement | Loss]:
    """Yield the contents of a log from `start` (None: its beginning) to `end`, both between transactions.

    Raises: BinlogDamaged, FileTruncated, FileMissing, LimitExceeded, Rejected for a file the index does not name.
    """
    with BinlogReader(log.files, log.folder, log.base, start) as reader:
        walk = reader.events(end)
        begun: list[ReadEvent] = []
        for read in walk:
            event = read.event
            if isinstance(event, e.Incident):
                yield Loss(event.message, read.at, read.next)
            if isinstance(event, e.Query) and read.is_boundary:
                first = begun[0].at if begun else read.at
                yield Statement(event.statement, event.database, read.header.server_id, first, read.next)
            elif not read.is_boundary:
                begun.append(read)
                if isinstance(event, e.Query):  # BEGIN
                    transaction = EpochTransaction(log, begun, walk, end)
                    yield transaction
                    transaction.leave(walk)
            if read.is_boundary or isinstance(event, e.Query):
                begun = []
