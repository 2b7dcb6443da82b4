"""The numbers of transactions that a store with `log_gtids` has in its binlog, and the places of sets of them.

Invariants: (G1) What is said to be executed is synced. (G2) All numbers of the history before the oldest file count as
purged, those below its first number too: a replica that lacks them is refused. (G3) A position of MariaDB, which names
no history, is taken only if a transaction of this history has its number.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileMissing
from tidemark.engine.files.opened import Opened
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import read_index
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.scan import header_at, read_format
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.mysql_source.mariadb_events import DOMAIN
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.protocol_layout import ER_SOURCE_FATAL

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files
    from tidemark.replication.binlog.history import History
    from tidemark.replication.binlog.writer import BinlogWriter, SyncedEnd

_HEAD_BYTES_MAX = 64 << 10
_SHOWN_CHARACTERS = 200  # of a set, in messages
_SIZES = (4, 4, 8)  # bytes of domain, server and number in MariaDB's text, which are decimal


class Gtids:
    """The numbers of one binlog. Any thread may call it."""

    def __init__(self, writer: BinlogWriter) -> None:
        """writer: of a binlog with a history."""
        self._writer = writer
        self._files: Files = writer.files
        self._folder, self._base = writer.index.folder, writer.index.base
        self._known: dict[tuple[str, bytes], int | None] = {}  # number before each file of a history

    def _served(self) -> tuple[SyncedEnd, History]:
        served = self._writer.served()
        if served.history is None:
            raise Refused(ER_SOURCE_FATAL, "The server has no GTIDs any more: log_gtids was turned off")
        return served, served.history

    # --- sets of MySQL ----------------------------------------------------------------------------
    @property
    def uuid(self) -> uuid.UUID:
        """The UUID of the history. Raises: Refused if numbering has ended."""
        return self._served()[1].uuid

    def executed(self) -> GtidSet:
        """Return the numbers of all transactions up to the synced end, and of all before the history."""
        served, history = self._served()
        return executed_of(served.number, history)

    def purged(self) -> GtidSet:
        """Return the numbers that no file has."""
        _, history = self._served()
        return executed_of(self._oldest(history)[1], history)

    def place_after(self, asked: GtidSet) -> Position:
        """Return where a replica continues that has this set: the start of the first transaction that it lacks, or the
        end. Later transactions may be in its set, too.

        Raises: Refused if it has transactions that this history does not have, or lacks some that were purged.
        """
        served, history = self._served()
        executed, purged = executed_of(served.number, history), self.purged()
        own = GtidSet({server: each for server, each in asked.by_uuid.items() if server == history.uuid})
        if own - executed:
            raise Refused(ER_SOURCE_FATAL, _MORE)
        if purged - own:
            raise Refused(ER_SOURCE_FATAL, _PURGED.format(_line(asked), _line(purged - own)))
        lacking = (executed - own).by_uuid.get(history.uuid)
        return served.end if lacking is None else self._start_of(lacking[0][0], served, history)

    # --- positions of MariaDB ---------------------------------------------------------------------
    def domain_position(self, place: Position | None = None) -> str:
        """Return the position of MariaDB at the synced end, or at a place between two transactions before it; "" before
        the first transaction of the history, and for a place that is not in its files.
        """
        served, history = self._served()
        number = served.number if place is None else self._number_at(place, served, history)
        return f"{DOMAIN}-{self._writer.options.server_id}-{number}" if number >= history.first else ""

    def domain_place(self, text: str) -> Position:
        """Return where a replica of MariaDB continues at a position such as "0-1-52"; positions of other domains are of
        other servers. Raises: Refused if no transaction of this history has this number and server, or if what follows
        was purged.
        """
        served, history = self._served()
        wanted = [each for each in _domains(text) if each[0] == DOMAIN]
        if len(wanted) > 1:
            raise Refused(ER_SOURCE_FATAL, _MALFORMED.format(text[:200]))
        before = self._oldest(history)[1]
        if not wanted:
            if before:
                raise Refused(ER_SOURCE_FATAL, _TOO_OLD)
            return self._start_of(1, served, history)
        _, server_id, number = wanted[0]
        if number < max(before, history.first):
            raise Refused(ER_SOURCE_FATAL, _TOO_OLD)
        found_id = self._writer.options.server_id
        if before < number <= served.number:
            found_id = self._found(number, served, history)[1].server_id
        if number > served.number or server_id != found_id:
            raise Refused(ER_SOURCE_FATAL, _NOT_HERE.format(f"{DOMAIN}-{server_id}-{number}"))
        return self._start_of(number + 1, served, history)

    # --- files ------------------------------------------------------------------------------------
    def _oldest(self, history: History) -> tuple[str, int]:
        """Return the oldest file of the history, and the last number before it."""
        found = None
        for name in reversed(read_index(self._files, self._folder, self._base).names):
            number = self._before(name, history)
            if number is None:
                break
            found = name, number
            if number < history.first:
                break
        if found is None:
            raise Refused(ER_SOURCE_FATAL, _NO_FILE)
        return found

    def _before(self, name: str, history: History) -> int | None:
        """Return the last number before a file, None for a file that is not of the history."""
        key = name, history.source
        if key not in self._known:
            try:
                with self._opened(name) as file:
                    number = self._head(file, name).number_of(history.source)
            except FileMissing:
                return None  # purged meanwhile
            if number is None and history.first == 1:
                number = 0  # no transaction was before the first file of the first history
            self._known[key] = number
        return self._known[key]

    def _opened(self, name: str) -> Opened:
        file = self._files.open(f"{self._folder}/{name}")
        file.read_errors_latch = False
        return Opened(self._files, file)

    def _head(self, file: File, name: str) -> e.PreviousGtids:
        _, _, after = read_format(self._files, file, name)
        size = self._files.size(file)
        header = header_at(self._files, file, name, after, size)
        if header.type != b.PREVIOUS_GTIDS_EVENT or header.event_bytes > _HEAD_BYTES_MAX:
            return e.PreviousGtids()
        event = e.parse(self._files.pread(file, after, header.event_bytes), Position(name, after))[1]
        assert isinstance(event, e.PreviousGtids)
        return event

    def _start_of(self, number: int, served: SyncedEnd, history: History) -> Position:
        """Return the start of a transaction of the history, or the end after its last one."""
        return served.end if number > served.number else self._found(number, served, history)[0]

    def _found(self, number: int, served: SyncedEnd, history: History) -> tuple[Position, e.EventHeader]:
        """Return the start of a transaction of the history that is in the files, and the header of its GTID."""
        for name in reversed(read_index(self._files, self._folder, self._base).names):
            before = self._before(name, history)
            if before is None:
                break
            if before < number:
                for at, header, gtid in self._gtids_of(name, served):
                    if (gtid.source, gtid.number) == (history.source, number):
                        return Position(name, at), header
                break
        raise Refused(ER_SOURCE_FATAL, _NO_FILE)  # purged meanwhile

    def _number_at(self, place: Position, served: SyncedEnd, history: History) -> int:
        names = read_index(self._files, self._folder, self._base).names
        number = self._before(place.file, history) if place.file in names else None
        if number is None:
            return 0
        for at, _, gtid in self._gtids_of(place.file, served):
            if at >= place.position:
                break
            number = gtid.number
        return number

    def _gtids_of(self, name: str, served: SyncedEnd) -> Iterator[tuple[int, e.EventHeader, e.Gtid]]:
        """Yield (position, header, event) of the GTIDs of a file up to the synced end."""
        files = self._files
        try:
            with self._opened(name) as file:
                end = served.end.position if name == served.end.file else files.size(file)
                at = b.FIRST_POSITION
                while at < end:
                    header = header_at(files, file, name, at, end)
                    if header.type == b.GTID_EVENT:
                        event = e.parse(files.pread(file, at, header.event_bytes), Position(name, at))[1]
                        assert isinstance(event, e.Gtid)
                        yield at, header, event
                    at += header.event_bytes
        except FileMissing:
            return  # purged meanwhile


def executed_of(number: int, history: History) -> GtidSet:
    """Return the set of the numbers of a history up to this one."""
    return GtidSet.of([(history.uuid, 1, number)] if number else [])


def _line(gtids: GtidSet) -> str:
    text = str(gtids).replace("\n", "")
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _domains(text: str) -> list[tuple[int, ...]]:
    """Return (domain, server id, number) of each part of a position of MariaDB. Raises: Refused."""
    found = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        words = part.split("-")
        is_sound = len(words) == len(_SIZES) and all(re.fullmatch(r"[0-9]{1,20}", each) for each in words)
        if not is_sound or any(int(each) >> 8 * size for each, size in zip(words, _SIZES, strict=True)):
            raise Refused(ER_SOURCE_FATAL, _MALFORMED.format(text[:200]))
        found.append(tuple(map(int, words)))
    return found


# The words of the servers, by which tools know what has happened.
_MORE = (
    "Slave has more GTIDs than the master has, using the master's SERVER_UUID. This may indicate that the end of the"
    " binary log was truncated or that the last binary log file was lost, e.g., after a power or disk failure when"
    " sync_binlog != 1. The master may or may not have rolled back transactions that were already replicated to the"
    " slave. Suggest to replicate any transactions that master has rolled back from slave to master, and/or commit"
    " empty transactions on master to account for transactions that have been committed on master but are not included"
    " in GTID_EXECUTED."
)
_PURGED = (
    "Cannot replicate because the source purged required binary logs. Replicate the missing transactions from"
    " elsewhere, or provision a new replica from backup. Consider increasing the source's binary log expiration period."
    " The GTID set sent by the replica is '{}', and the missing transactions are '{}'"
)
_TOO_OLD = (
    "Could not find GTID state requested by slave in any binlog files. Probably the slave state is too old and required"
    " binlog files have been purged."
)
_NOT_HERE = "Error: connecting slave requested to start from GTID {}, which is not in the master's binlog"
_MALFORMED = "Could not parse GTID list of the slave: '{}'"
_NO_FILE = "Could not find first log file name in binary log index file"
