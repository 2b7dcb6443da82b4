"""A source with a binlog in memory, and a replica that records what its applier received."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.replication.stage import rows_of, write_epoch, writer_on
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import Error
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.applier.apply_status import StatusRow
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import StatementMaps
from tidemark.replication.channel.channel import ChannelOptions, ReplicaChannel
from tidemark.replication.channel.receiver import LocalReceiver
from tidemark.replication.channel.relay_reader import RelayTransaction
from tidemark.replication.channel.source import SourceBinlog
from tidemark.replication.wire.handshake import Site
from tidemark.replication.wire.messages import Events

SOURCE = Site(1, "ab" * 16, 3)
REPLICA = Site(2, "cd" * 16, 5)


class Source:
    """A binlog writer, and the end and rows that its readers use; `crash` loses what is not synced."""

    def __init__(self, files=None, file_bytes=4_000, sync_binlog=1, keeps_rows=True) -> None:
        self.files = files or MemoryFiles()
        self.options = {"file_bytes": file_bytes, "sync_binlog": sync_binlog}
        self.writer = writer_on(self.files, **self.options)
        self.epochs: list[tuple[int, Position]] = []
        self.rows: list[dict[str, Any]] = []
        self.keeps_rows = keeps_rows
        self.clock = ManualClock()

    def write(self, *epochs: int, rows: int = 3, size: int = 100) -> None:
        """Write epoch transactions of some rows."""
        for epoch in epochs:
            written = write_epoch(self.writer, epoch, rows_of(epoch, rows, size))
            self.epochs.append((epoch, written.end))
            start = {"File": written.start.file, "Position": written.start.position}
            end = {"next_file": written.end.file, "next_position": written.end.position}
            self.rows.append({"epoch": epoch, **start, **end, "orig_server_id": 0, "orig_epoch": 0})

    def end(self) -> tuple[int, Position]:
        """Return the newest synced epoch, and the synced end."""
        synced = self.writer.synced
        return max((epoch for epoch, end in self.epochs if end <= synced), default=0), synced

    def found_rows(self, column: str, value: int) -> list[dict[str, Any]]:
        """See `index_table.found_rows`."""
        return [row for row in self.rows if row[column] == value]

    def binlog(self) -> SourceBinlog:
        """Return the binlog for one replica."""
        rows = self.found_rows if self.keeps_rows else None
        return SourceBinlog(self.files, SOURCE.server_id, self.end, index_rows=rows, closed_epoch=None)

    def crash(self, rng: random.Random) -> None:
        """Crash the process and the machine."""
        self.files = self.files.crash(rng)
        self.writer = writer_on(self.files, **self.options)
        synced = self.writer.recovered
        self.epochs = [(epoch, end) for epoch, end in self.epochs if end <= synced]
        self.rows = [row for row in self.rows if (row["next_file"], row["next_position"]) <= tuple(synced)]


class Store:
    """What a replica's store keeps: rows and positions, together."""

    def __init__(self) -> None:
        self.status: dict[int, StatusRow] = {}
        self.log: list[tuple[int, list[int]]] = []
        self.statements: list[str] = []
        self.starts = 0
        self.fails_with: Error | None = None

    # The methods of `Positions`.
    def rows(self) -> list[StatusRow]:
        return list(self.status.values())

    def note(self, row: StatusRow) -> None:
        self.status[row.server_id] = row

    def clear(self) -> None:
        self.status.clear()

    def forget(self, server_id: int) -> None:
        self.status.pop(server_id, None)

    def make_durable(self) -> None:
        """Do nothing: everything is durable."""

    # The methods of `Applier`.
    def start(self) -> None:
        self.starts += 1

    def apply(self, transaction: RelayTransaction) -> None:
        if self.fails_with is not None:
            raise self.fails_with
        epoch, ids = content_of(transaction)
        assert epoch == transaction.epoch
        assert epoch > self.status.get(transaction.source_id, StatusRow(0, 0)).epoch, "applied twice, or out of order"
        self.log.append((epoch, ids))
        self.status[transaction.source_id] = StatusRow(
            transaction.source_id,
            epoch,
            transaction.start.file,
            transaction.start.position,
            transaction.finish().position,
        )

    def statement(self, text: str, database: str, server_id: int) -> None:
        assert server_id == SOURCE.server_id
        self.statements.append(text)

    @property
    def epochs(self) -> list[int]:
        return [epoch for epoch, _ in self.log]


def content_of(transaction: RelayTransaction) -> tuple[int, list[int]]:
    """Return (epoch, ids of the rows of d.t) of a transaction."""
    maps = StatementMaps()
    epoch, ids = 0, []
    for read in transaction.events():
        maps.observe(read.event)
        if isinstance(read.event, e.Rows):
            origin = read.at
            for chunk in maps.reader(read.event, origin).chunks(read.event.body, origin):
                if maps.of(read.event, origin).name == "mysql.ndb_apply_status":
                    epoch = chunk.after[1].to_pylist()[0]
                else:
                    ids += chunk.after[0].to_pylist()
    return epoch, ids


class Replica:
    """A channel over files and a store; `crash` loses what is not durable of the files, never the store."""

    def __init__(self, files=None, **options) -> None:
        self.files = files or MemoryFiles()
        self.store = Store()
        self.options = ChannelOptions(**{"relay_file_bytes": 6_000, **options})
        self.channel = self.new_channel()

    def new_channel(self) -> ReplicaChannel:
        return ReplicaChannel(self.files, ManualClock(), REPLICA, self.store, self.store, self.options)

    def receiver(self, source: Source) -> LocalReceiver:
        """Return a new receiver."""
        return LocalReceiver(self.channel, SOURCE, source.binlog(), source.clock)

    def crash(self, rng: random.Random) -> None:
        """Crash the process and the machine."""
        self.restart(self.files.crash(rng))

    def restart(self, files) -> None:
        """Start another process on these files."""
        self.files = files
        self.channel = self.new_channel()


def apply_all(channel: ReplicaChannel) -> int:
    """Apply everything in the relay log; return how many transactions were handled."""
    count = 0
    while channel.apply_next() is not None:
        count += 1
    return count


def run(source: Source, replica: Replica) -> None:
    """Receive and apply everything there is."""
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    apply_all(replica.channel)
    receiver.close()


def pieces(source: Source, size: int, start: Position | None = None) -> Iterator[Events]:
    """Yield the binlog's bytes in pieces of at most `size`."""
    binlog = source.binlog()
    at = start or Position(source.writer.index.names[0], 4)
    while (found := binlog.read(at, size)) is not None:
        yield Events(*found)
        at = Position(found[0].file, found[0].position + len(found[1]))
    binlog.close()
