"""Read a relay log transaction by transaction, for the applier.

Every byte of a transaction is verified before the transaction is returned. Its events are then read again, once for
each pass of the applier, usually from the page cache. One piece and one event are held in memory. Damage in a relay
file raises BinlogDamaged, which names file and position; nothing after it is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.engine.files.opened import Opened
from tidemark.replication.applier.filters import Filter
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import ParsedMaps, ReadEvent
from tidemark.replication.binlog.scan import Boundaries
from tidemark.replication.binlog.stream import Boundary, EventStream
from tidemark.replication.binlog.table_map import TableMap
from tidemark.replication.channel.relay_log import PIECE_BYTES, RelayLog, Run, is_at_or_after, number_of

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files


@dataclass(frozen=True)
class RelayTransaction:
    """One epoch transaction, or one schema change, as the source wrote it.

    `start` and `end` are its positions in the source's binlog, `source_id` the server that wrote it. `epoch` is 0 if it
    names none; `statement` is the schema change, None for rows; `incident` is the source's message about missing
    changes; `commit_us` is the commit time at the source, µs since 1970, None if it is unknown.
    """

    start: Position
    end: Position
    epoch: int
    source_id: int
    commit_us: int | None
    statement: e.Query | None
    incident: str | None
    _files: Files
    _path: str
    _relay_file: str
    _shift: int
    _filter: Filter

    @property
    def is_taken(self) -> bool:
        """Whether the channel's filter leaves something to apply. Rows always count, because they move the position."""
        return self.statement is None or self._filter.takes_statement(self.statement, self.source_id)

    def finish(self) -> Position:
        """Return the position after the transaction."""
        return self.end

    def events(self) -> Iterator[ReadEvent]:
        """Yield the events that pass the channel's filter; positions are the source's. May be called again.

        Raises: BinlogDamaged, IoFailed.
        """
        return self._filtered() if not self._filter.is_open else self._all()

    def _all(self) -> Iterator[ReadEvent]:
        boundaries = Boundaries()
        maps = ParsedMaps()
        position = self.start.position
        with Opened(self._files, self._files.open(self._path)) as file:
            while position < self.end.position:
                offset = position - self._shift
                origin = Position(self._relay_file, offset)
                header = e.parse_header(self._files.pread(file, offset, b.HEADER_BYTES), origin)
                raw = self._files.pread(file, offset, min(header.event_bytes, self.end.position - position))
                event = maps.parse(header, raw, origin)
                at, position = Position(self.start.file, position), position + header.event_bytes
                is_boundary = boundaries.step(header.type, event)
                yield ReadEvent(at, Position(self.start.file, position), header, event, raw, is_boundary)

    def _filtered(self) -> Iterator[ReadEvent]:
        """Yield the events that pass the filter. If the last event of a statement does not pass, it is yielded without
        rows, because readers drop the table maps at the end of a statement.
        """
        names: dict[int, str] = {}
        for read in self._all():
            event = read.event
            if isinstance(event, TableMap):
                names[event.table_id] = event.name
            elif isinstance(event, e.Rows):
                name = names.get(event.table_id, "")
                if not self._filter.takes_table(name):
                    if event.is_statement_end:
                        yield read._replace(event=replace(event, body=b""))
                    continue
            yield read


class RelayReader:
    """A position in a relay log that moves forward. One thread at a time may call it; another one may append."""

    def __init__(self, files: Files, relay: RelayLog, start: Position | None, taken: Filter | None = None) -> None:
        """start: a position in the source's binlog, between transactions; None for the beginning of the relay log.

        Raises: Rejected if the relay log does not cover it.
        """
        self._files = files
        self._relay = relay
        self._filter = taken or Filter()
        self.generation = relay.generation
        self._open: File | None = None
        self._ready: deque[Boundary] = deque()
        self._run, self._stream = self._begin(start)

    def _begin(self, start: Position | None) -> tuple[Run | None, EventStream | None]:
        runs = self._relay.runs()
        if start is None:
            return self._at(runs[0], runs[0].source.position) if runs else (None, None)
        if not self._relay.covers(start):
            raise Rejected(f"the relay log does not reach back to {start.file}:{start.position}", file=start.file)
        run = [each for each in runs if is_at_or_after(start, each.source)][-1]
        return self._at(run, start.position)

    def _at(self, run: Run, position: int) -> tuple[Run, EventStream]:
        origin = Position(run.name, run.offset_of(position))
        return run, EventStream(run.source.file, position, self._relay.source_id, origin)

    def close(self) -> None:
        """Close the open file. A second call does nothing."""
        if self._open is not None:
            self._files.close(self._open)
            self._open = None

    def next(self) -> RelayTransaction | None:
        """Return the next transaction, None if no complete one is there yet. Raises: BinlogDamaged, LimitExceeded,
        IoFailed.
        """
        while True:
            while self._ready:
                boundary = self._ready.popleft()
                if boundary.is_transaction:
                    return self._transaction(boundary)
            if not self._read_on():
                return None

    def _transaction(self, boundary: Boundary) -> RelayTransaction:
        run = self._run
        assert run is not None
        file = run.source.file
        return RelayTransaction(
            Position(file, boundary.start),
            Position(file, boundary.end),
            boundary.epoch,
            boundary.server_id,
            boundary.commit_us,
            boundary.statement,
            boundary.incident,
            self._files,
            self._relay.index.path(run.name),
            run.name,
            run.source.position - run.begin,
            self._filter,
        )

    def _read_on(self) -> bool:
        """Read the next piece, or move to the next file at the end of one; return False if there is none yet."""
        if self._run is None or self._stream is None:
            self._run, self._stream = self._begin(None)
            if self._run is None:
                return False
        run, stream = self._run, self._stream
        assert stream is not None
        limit = self._relay.readable_to(run)
        file = self._open_file(run)
        offset = run.offset_of(stream.position)
        end = self._files.size(file) if limit is None else limit
        if offset < end:
            self._ready.extend(stream.feed(self._files.pread(file, offset, min(PIECE_BYTES, end - offset))))
            return True
        return limit is None and self._next_run(run, stream)

    def _next_run(self, run: Run, stream: EventStream) -> bool:
        origin = Position(run.name, run.offset_of(stream.position))
        # By number, because the file just read may have been purged: everything in it may be applied.
        number = number_of(run.name)
        following = next((each for each in self._relay.runs() if number_of(each.name) > number), None)
        if following is None:
            return False
        source = following.source
        is_next = source == Position(stream.file, stream.position) or source.is_start_after(stream.file)
        if stream.is_incomplete or not is_next:
            raise origin.damaged(f"is not followed by the first event of {following.name}")
        self.close()
        self._run, self._stream = self._at(following, source.position)
        return True

    def _open_file(self, run: Run) -> File:
        if self._open is None:
            try:
                self._open = self._files.open(self._relay.index.path(run.name))
            except FileMissing:
                raise FileMissing(
                    f"{run.name} of the relay log is missing; reset the channel, and it is fetched again", file=run.name
                ) from None
            self._open.read_errors_latch = False
        return self._open
