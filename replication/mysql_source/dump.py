"""One dump: the binlog as a replica or a tool of MySQL follows it, from the position or the GTIDs that it asks for.

A dump begins with an artificial ROTATE, which names file and position, and the file's FORMAT_DESCRIPTION. Each further
file begins with both too. At the end it waits, and sends a heartbeat after each silence of the asked length.

Invariants: (D1) Only what `SourceBinlog` serves leaves: synced ends of epochs. (D2) Every event is checked before it
leaves, so damage here ends the dump and never reaches a peer as another value. (D3) A position that is not the start of
an event, past the end, purged or beyond 4 GiB is an error with MySQL's number and words, by which replicas stop. (D4)
One large event is in memory at a time, once: what waits for the one after it is read again, and a message has views of
the event. (D5) A peer that follows from a position gets files of one timeline only, the present one: a position of an
earlier one may have come to exist in two futures. A peer that names no file has no position yet, and a tool with the
server id 0 that does not wait only reads: they may have all files.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import BinlogDamaged, Error, LimitExceeded, PositionLost
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position, timeline_of
from tidemark.replication.binlog.reader import EVENT_BYTES_MAX
from tidemark.replication.mysql_source import served_events as s
from tidemark.replication.mysql_source.acks import Acks, header
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.mysql_source.mariadb_events import MariadbEvents
from tidemark.replication.mysql_source.packets import Message, Refused
from tidemark.replication.mysql_source.screen import LARGE_BYTES, Screen, Shown, fatal

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.channel.source import SourceBinlog
    from tidemark.replication.mysql_source.flavors import Flavor

PIECE_BYTES: Final = 256 << 10
POSITION_MAX: Final = (1 << 32) - 1  # what an event's header can say
_OK: Final = b"\0"
# Events between transactions, at which nothing must be known of what came before.
_BETWEEN: Final = frozenset(
    (
        *(b.FORMAT_DESCRIPTION_EVENT, b.PREVIOUS_GTIDS_EVENT, b.GTID_EVENT, b.ANONYMOUS_GTID_EVENT),
        *(b.ROTATE_EVENT, b.STOP_EVENT, b.INCIDENT_EVENT),
    )
)
_NO_FILE = "Could not find first log file name in binary log index file"
_OTHER_TIMELINE = (
    "{} is of an earlier timeline of this binlog: the store was copied, restored or put back, or its binlog was begun"
    " anew, and nothing tells whether this replica has what it has. Make the replica anew from a copy of the rows. To"
    " read the file, use mysqlbinlog without --stop-never"
)
_REPLACED = "A slave with the same server_uuid/server_id as this slave has connected to the master"


class DumpAsked(NamedTuple):
    """What a peer asks for. file: "" for the oldest one. gtids: what it has; MariaDB's text says where to begin, and so
    does MySQL's set without a file; None: it follows by position. heartbeat_ns: the silence after which a heartbeat
    comes, 0 for none.
    """

    server_id: int
    uuid: uuid.UUID | None = None
    file: str = ""
    position: int = b.FIRST_POSITION
    gtids: GtidSet | str | None = None
    is_non_blocking: bool = False
    has_checksum: bool = True
    heartbeat_ns: int = 0
    is_semi_sync: bool = False

    @property
    def continues(self) -> bool:
        """Whether the peer continues from a position that it has kept. mysqlbinlog without --stop-never has none."""
        return bool(self.file) and not (self.is_non_blocking and not self.server_id)


class ServedGtids(Protocol):
    """Where GTIDs are in the binlog."""

    def place_after(self, asked: GtidSet) -> Position:
        """Return where to begin for a peer that has a set. Raises: Refused."""
        ...

    def domain_place(self, text: str) -> Position:
        """Return where to begin for a MariaDB that has come so far. Raises: Refused."""
        ...


class ServedStore(Protocol):
    """What a dump asks of the store."""

    @property
    def server_id(self) -> int: ...

    @property
    def gtids(self) -> ServedGtids | None: ...


class Dumps:
    """The dumps of a store that run. Any thread may call it.

    `notify` is called when the binlog has more. may_be_updates: see `Screen`. note_received: called with server id and
    epoch at each ack.
    """

    def __init__(
        self,
        clock: Clock,
        may_be_updates: Callable[[str, str], bool] = lambda file, table: False,
        note_received: Callable[[int, int], None] = lambda server_id, epoch: None,
    ) -> None:
        self.clock = clock
        self.may_be_updates = may_be_updates
        self.note_received = note_received
        self._mutex = threading.Lock()
        self._running: list[Dump] = []

    @classmethod
    def of(cls, endpoint: Endpoint) -> Dumps:
        """Return the dumps of an open store. Raises: Rejected without a binlog."""
        return cls(endpoint.clock, endpoint.log().may_be_updates, endpoint.reach.note_received)

    def running(self) -> list[Dump]:
        with self._mutex:
            return list(self._running)

    def add(self, dump: Dump) -> None:
        """Add a dump, and end those of the same server: its connection may have broken unnoticed."""
        asked = dump.asked
        with self._mutex:
            others = [each for each in self._running if _is_same(each.asked, asked)]
            self._running = [*(each for each in self._running if each not in others), dump]
        for each in others:
            each.stop(fatal(_REPLACED))

    def remove(self, dump: Dump) -> None:
        with self._mutex, suppress(ValueError):
            self._running.remove(dump)

    def notify(self) -> None:
        for each in self.running():
            each.wake()

    def stop(self) -> None:
        """End all dumps."""
        for each in self.running():
            each.stop()


def _is_same(one: DumpAsked, other: DumpAsked) -> bool:
    if one.uuid is not None and other.uuid is not None:
        return one.uuid == other.uuid
    return one.server_id == other.server_id != 0  # tools that only read have the server id 0


class _RawEvents:
    """The events of the binlog from a position on, as far as they may be served. Memory: a piece; a large event belongs
    to the caller alone, and `before_large` is called so that the one before is dropped.
    """

    def __init__(self, binlog: SourceBinlog, at: Position, before_large: Callable[[], None]) -> None:
        self._binlog = binlog
        self._before_large = before_large
        self.at = at  # of the next event
        self._piece = b""
        self._begin = 0

    def next(self) -> tuple[Position, bytes] | None:
        """Return the next event with its position, None at the end. Raises: BinlogDamaged, LimitExceeded, PeerError."""
        if len(self._piece) - self._begin < b.HEADER_BYTES and not self._fill(PIECE_BYTES):
            return None
        at = self.at
        size = e.parse_header(self._piece[self._begin : self._begin + b.HEADER_BYTES], at).event_bytes
        if size > EVENT_BYTES_MAX:
            raise at.too_large(size, EVENT_BYTES_MAX)
        if len(self._piece) - self._begin < size:
            if size > LARGE_BYTES:
                self._before_large()
            self._fill(max(PIECE_BYTES, size))
        raw = self._piece[self._begin : self._begin + size]
        end = at.position + size
        if len(raw) < size or int.from_bytes(raw[13:17], "little") != end & POSITION_MAX:
            raise at.damaged("does not end where its header says")
        if end > POSITION_MAX:
            raise fatal(f"{at.file} is longer than 4 GiB at {at.file}:{at.position}, which no position can name")
        self._begin += size
        if self._begin == len(self._piece):
            self._piece, self._begin = b"", 0
        self.at = Position(at.file, end)
        return at, raw

    def run(self, is_wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Return the next events that are wanted, of those that were read already, up to the first other one."""
        found = []
        piece, begin, position = self._piece, self._begin, self.at.position
        while len(piece) - begin >= b.HEADER_BYTES:
            raw = piece[begin : begin + int.from_bytes(piece[begin + 9 : begin + 13], "little")]
            end = position + len(raw)
            if not is_wanted(raw) or int.from_bytes(raw[13:17], "little") != end:
                break
            found.append(raw)
            begin, position = begin + len(raw), end
        if found:
            self._begin, self.at = begin, Position(self.at.file, position)
        return found

    def _fill(self, bytes_max: int) -> bool:
        found = self._binlog.read(self.at, bytes_max)
        if found is None:
            return False
        self.at, self._piece, self._begin = found[0], found[1], 0
        return True


class Dump(Closable):
    """One dump. One thread takes its messages and closes it; `stop`, `wake` and `acknowledge` may be called by any."""

    def __init__(
        self,
        served: ServedStore,
        binlog: SourceBinlog,
        asked: DumpAsked,
        flavor: Flavor,
        dumps: Dumps,
        status_rows: bool = False,
        wait: Callable[[float | None], None] | None = None,
        woken: Callable[[], None] = lambda: None,
    ) -> None:
        """binlog: a reader for this dump alone, which it closes. status_rows: send rows of the database `mysql` too.
        wait: waits so many seconds, None: any time, and returns earlier when `woken` is called, which `wake` does;
        None: wait here.
        """
        self.asked = asked
        self._served = served
        self._binlog = binlog
        self._flavor = flavor
        # A MariaDB that follows by position gets what is in the files: it adds up lengths.
        is_by_domains = flavor is MARIADB and isinstance(asked.gtids, str)
        self._mariadb = MariadbEvents(flavor.version) if is_by_domains else None
        self._dumps = dumps
        self._wait = wait
        self._woken = woken
        self._news = threading.Event()
        self._is_stopped = False
        self._reason: Refused | None = None
        semi_sync_id = served.server_id if asked.is_semi_sync else None
        self._screen = Screen(status_rows, dumps.may_be_updates, semi_sync_id)
        self._acks = Acks(self._note_received)
        self._sent_at = dumps.clock.monotonic()
        self._skipped_to: Position | None = None  # the end of transactions that the peer has, not told it yet
        self._is_skipping = False
        self._begun = Position(asked.file, asked.position)
        self._events = self._from(self._begun)
        binlog.on_lost = self.wake

    # --- from other threads -----------------------------------------------------------------------
    def stop(self, reason: Refused | None = None) -> None:
        """End the dump: its next message is its last, or `reason` is raised."""
        self._reason = self._reason or reason
        self._is_stopped = True
        self.wake()

    def wake(self) -> None:
        self._news.set()
        self._woken()

    def acknowledge(self, message: bytes) -> None:
        """Take what the peer has sent since the dump began: an ack. Raises: Refused."""
        if not self.asked.is_semi_sync:
            raise fatal("a peer that follows a dump sends nothing but semi-sync replies")
        self._acks.receive(message)

    def _from(self, at: Position) -> _RawEvents:
        """Return the events from a position on."""
        return _RawEvents(self._binlog, at, self._screen.forget_large)

    def _note_received(self, epoch: int) -> None:
        if self.asked.server_id:
            self._dumps.note_received(self.asked.server_id, epoch)

    @property
    def at(self) -> Position:
        """The position of the next event."""
        return self._events.at

    def close(self) -> None:
        """Give back the file that purge keeps. A second call does nothing."""
        self._dumps.remove(self)
        self._binlog.close()

    # --- messages ---------------------------------------------------------------------------------
    def messages(self) -> Iterator[Message]:
        """Yield the messages, each when it may be sent; wait in between. It ends after `stop`, and without blocking at
        the end of the binlog. A caller that keeps no message when it asks for the next has one event in memory.

        Raises: Refused.
        """
        try:
            yield from self._messages()
        except Refused:
            raise
        except PositionLost:
            raise fatal(_NO_FILE) from None
        except Error as error:  # of a file, a limit, or the store
            raise fatal(error.message) from error

    def _messages(self) -> Iterator[Message]:
        asked = self.asked
        if asked.server_id and asked.server_id == self._served.server_id:
            raise fatal(
                "The slave I/O thread stops because master and slave have equal MySQL server ids; give the slave"
                " another server_id"
            )
        self._dumps.add(self)
        at = self._begun = self._start()
        # By GTID, a description with its position tells MySQL to roll back the transaction of which the link before had
        # brought a part; without it, the transaction would come a second time into the middle of itself. MySQL adds up
        # lengths from there, so that the place of what follows comes as after skipped transactions.
        is_by_set = isinstance(asked.gtids, GtidSet)
        begin = b.FIRST_POSITION if is_by_set else at.position
        yield self._message((s.rotation(at.file, begin, self._served.server_id),))
        self._events = self._from(Position(at.file, b.FIRST_POSITION))
        found = self._events.next()
        if found is None or found[1][b.TYPE_OFFSET] != b.FORMAT_DESCRIPTION_EVENT:
            raise Position(at.file, b.FIRST_POSITION).damaged("is not a format description")
        self._screen.take(*found)
        is_from_start = at.position == b.FIRST_POSITION
        yield self._message(self._described(found[1], is_from_start, is_from_start or is_by_set))
        if is_by_set and not is_from_start:
            self._skipped_to = at
        if self._mariadb is not None and not is_from_start:
            found = self._events.next()
            if found is not None and found[1][b.TYPE_OFFSET] == b.PREVIOUS_GTIDS_EVENT:
                yield self._message((self._mariadb.state_before(found[1]),))
        if not is_from_start:
            self._events = self._from(at)
        self._continue_within(at)
        while True:
            self._news.clear()
            if self._is_stopped:
                if self._reason is not None:
                    raise self._reason
                return
            if run := self._events.run(self._screen.repeats):
                yield from self._repeated(run)
                continue
            if (sent := self._next()) is not None:
                yield from sent
                continue
            if self._skipped_to is not None:
                yield self._heartbeat()
            if asked.is_non_blocking:
                return
            yield from self._at_end()

    def _repeated(self, run: list[bytes]) -> Iterator[Message]:
        for each in self._screen.take_repeated(run[-1], self._events.at):
            yield from self._shown(each)
        for raw in run[:-1]:
            yield self._message((raw,))  # events of rows are the same in all forms

    def _next(self) -> Iterator[Message] | None:
        found = self._events.next()
        return None if found is None else self._sent(*found)

    def _sent(self, at: Position, raw: bytes) -> Iterator[Message]:
        """Yield the messages for the next event."""
        if raw[b.TYPE_OFFSET] == b.FORMAT_DESCRIPTION_EVENT:
            self._check_timeline(self._begun.file, at.file)
            self._skipped_to = None  # ROTATE says where the peer is
            self._screen.take(at, raw)
            yield self._message((s.rotation(at.file, at.position, self._served.server_id),))
            yield self._message(self._described(raw, is_from_start=True, has_position=True))
            return
        if raw[b.TYPE_OFFSET] == b.GTID_EVENT and isinstance(self.asked.gtids, GtidSet):
            _, event = e.parse(raw, at)
            assert isinstance(event, e.Gtid)
            self._is_skipping = (uuid.UUID(bytes=event.source), event.number) in self.asked.gtids
        if self._is_skipping:
            self._screen.skip(at, raw)
            self._skipped_to = self._events.at
            self._is_skipping = not self._screen.is_between_transactions
            return
        ready = self._screen.take(at, raw)
        del raw  # the screen drops a large event while it is read again
        for each in ready:
            if self._skipped_to is not None:
                yield self._heartbeat()
            yield from self._shown(each)

    def _shown(self, shown: Shown) -> Iterator[Message]:
        if shown.raw is not None:
            yield from self._framed(shown, shown.raw)
            return
        again = self._from(shown.at)
        while again.at != shown.end and (found := again.next()) is not None:
            e.verify(found[1], found[0])
            yield from self._framed(shown, found[1])
            del found

    def _framed(self, shown: Shown, raw: bytes) -> Iterator[Message]:
        sent = self._translated(shown.event(raw))
        if shown.ends_transaction and self.asked.is_semi_sync:
            self._acks.sent(shown.end, shown.epoch)
        for left, event in zip(reversed(range(len(sent))), sent, strict=True):
            yield self._message(event, wants_ack=shown.ends_transaction and not left)

    def _translated(self, event: Message) -> list[Message]:
        """Return what stands for an event in the form of the peer's kind of server."""
        return [event] if self._mariadb is None else self._mariadb.translate(event)

    def _described(self, raw: bytes, is_from_start: bool, has_position: bool) -> Message:
        (described,) = self._translated((s.description(raw, is_from_start, self._flavor.version, has_position),))
        return described

    def _message(self, event: Message, wants_ack: bool = False) -> Message:
        self._sent_at = self._dumps.clock.monotonic()
        head = _OK + header(wants_ack) if self.asked.is_semi_sync else _OK
        return (head, *(event if self.asked.has_checksum else s.without_checksum(event)))

    def _heartbeat(self) -> Message:
        at = self._skipped_to or self._events.at
        self._skipped_to = None
        return self._message((s.heartbeat(at.file, at.position, self._served.server_id),))

    def _at_end(self) -> Iterator[Message]:
        """Wait for more, or yield a heartbeat if one is due."""
        if self.asked.is_semi_sync and self._acks.are_complete:
            epoch, end = self._binlog.newest()
            if end == self._events.at:
                # It needs no ack: the replica has asked for what follows, so it has all before.
                self._note_received(epoch)
        rest_s = None
        if self.asked.heartbeat_ns:
            rest_s = self._sent_at + self.asked.heartbeat_ns / 1e9 - self._dumps.clock.monotonic()
            if rest_s <= 0:
                yield self._heartbeat()
                return
        if self._wait is None:
            self._news.wait(rest_s)
        elif not self._news.is_set():
            self._wait(rest_s)

    # --- where to begin ---------------------------------------------------------------------------
    def _start(self) -> Position:
        """Return where the dump begins. Raises: Refused."""
        asked, gtids = self.asked, self._served.gtids
        if isinstance(asked.gtids, str) or (asked.gtids is not None and not asked.file):
            if gtids is None:
                raise fatal("The source has no GTIDs; open its store with log_gtids, or follow it by position")
            if isinstance(asked.gtids, str):
                return gtids.domain_place(asked.gtids)
            return gtids.place_after(asked.gtids)
        names = self._binlog.names()
        at = Position(asked.file or names[0], asked.position)
        if at.file not in names:
            raise fatal(_NO_FILE)
        self._check_timeline(at.file, names[-1])
        if at.position < b.FIRST_POSITION:
            raise fatal("Client requested master to start replication from position < 4")
        if at.position > min(self._binlog.size(at.file), POSITION_MAX):
            raise fatal("Client requested master to start replication from position > file size")
        return at

    def _check_timeline(self, file: str, other: str) -> None:
        """Check that a peer that follows does not pass from one timeline into another. Raises: Refused."""
        if timeline_of(file) != timeline_of(other) and self.asked.continues:
            raise fatal(_OTHER_TIMELINE.format(file))

    def _continue_within(self, at: Position) -> None:
        """Check that an event begins at a position, and learn what its transaction has announced so far. A replica that
        lost its connection within a transaction continues there. Raises: Refused.
        """
        try:
            kind = self._type_at(at)
        except (BinlogDamaged, LimitExceeded):
            raise self._no_event(at) from None
        if kind is None or kind in _BETWEEN:
            return
        begin = Position(at.file, b.FIRST_POSITION)
        before = self._from(begin)
        while before.at.position < at.position and not self._is_stopped:
            found = before.next()
            if found is None or found[0].file != at.file:
                break
            begin = found[0] if found[1][b.TYPE_OFFSET] in _BETWEEN else begin
            del found
        if before.at != at:
            raise self._no_event(at)
        before = self._from(begin)
        while before.at != at and (found := before.next()) is not None:
            self._screen.take(*found)
            del found
        self._screen.forget_held()

    def _type_at(self, at: Position) -> int | None:
        """Return the type of the event that begins at a position, None at an end, which is known to be one. Raises:
        BinlogDamaged, LimitExceeded.
        """
        found = self._from(at).next()
        if found is None or found[0] != at:
            return None
        return e.verify(found[1], at)[0].type

    def _no_event(self, at: Position) -> Refused:
        return fatal(
            f"bogus data in log event; the first event '{at.file}' at {at.position} does not begin there; begin at the"
            " end of a transaction, which SHOW MASTER STATUS or mysqlbinlog names"
        )
