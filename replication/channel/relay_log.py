"""The relay log: the part of its source's binlog that a channel has received and its applier may still need.

Its files `relay/<channel>.NNNNNN` have the binlog's format. The format description is marked as that of a relay log,
and as in use while the file is the newest. After it an artificial ROTATE names the source's server id, file and
position. The source's own bytes follow unchanged, so the positions in their headers are those of the source.

Invariants: (R1) A file holds consecutive bytes of one file of the source, and begins between two transactions; the next
file begins where it ends, or with the source's next file. (R2) Every event was verified before a byte of it was
written. (R3) A file belongs to the relay log once the index names it. All older files are durable then, so only the
newest can be torn: an opening truncates it after its last complete transaction, and the rest is fetched again (F68,
F87). (R4) `durable` only names ends of transactions that are synced; nothing past it is acknowledged or applied.

Order of writes of a new file: old file synced; new file with its two events, sync, directory; index; in-use flag of the
old file cleared, sync. Purged files leave the index before they are removed. One thread receives, another one reads;
`changed` is notified when there is more to read.
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import BinlogDamaged, EpochGap, LimitExceeded, Rejected, StorageFull
from tidemark.engine.files.durable_files import make_folder, write_again
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.protocol import File, Files
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position, base_of
from tidemark.replication.binlog.scan import end_use, read_format, read_relay_head
from tidemark.replication.binlog.stream import Boundary, EventStream
from tidemark.replication.wire.messages import Events

_log = logging.getLogger("tidemark.replication")

FOLDER = "relay"
FILE_BYTES = 64 << 20
PIECE_BYTES = 256 << 10


class Run(NamedTuple):
    """One relay file: its name, the file and position of the source from which its bytes come, and the offset at which
    they begin in the relay file.
    """

    name: str
    source: Position
    begin: int

    def offset_of(self, position: int) -> int:
        """Return the offset in the relay file of a position in the source's file."""
        return self.begin + position - self.source.position


def number_of(file: str) -> int:
    """Return the number of a binlog file, 0 for another name."""
    number = file.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else 0


def is_at_or_after(later: Position, earlier: Position) -> bool:
    """Whether position `later` is at or after `earlier`; False if they are in different binlogs."""
    if base_of(later.file) != base_of(earlier.file):
        return False
    return (number_of(later.file), later.position) >= (number_of(earlier.file), earlier.position)


class RelayLog:
    """The relay log of one channel."""

    def __init__(
        self, files: Files, clock: Clock, channel: str, server_id: int = 1, file_bytes: int = FILE_BYTES
    ) -> None:
        """Recover the relay log. channel: base name of the files; server_id: this site's. Durable on return: the
        truncation of a torn tail.

        Raises: BinlogDamaged, FileMissing (`remove_relay_log` removes it), StorageFull.
        """
        self.files = files
        self._clock = clock
        self._server_id = server_id
        self._file_bytes = file_bytes
        self.changed = threading.Condition()
        self.generation = 0  # incremented by each reset, so that readers notice it
        self.source_id = 0  # the server whose binlog it is, 0 while it is empty
        self.epoch = 0  # newest complete epoch that is durable, 0 if there is none
        self._file: File | None = None
        self._stream: EventStream | None = None
        make_folder(files, FOLDER)
        self.index = BinlogIndex(files, FOLDER, channel)
        self.index.settle()
        unlisted = self.index.unlisted_files()
        if unlisted:
            self.index.remove(unlisted)
        self._runs = [self._read_run(name) for name in self.index.names]
        self._durable: Position | None = None
        self._whole = 0  # position in the source's file after the last complete transaction written
        self._written_epoch = 0
        self.received = self._written_count = 0  # complete transactions since it was opened
        if self._runs:
            self._recover()

    # --- opening ----------------------------------------------------------------------------------
    def _read_run(self, name: str) -> Run:
        with Opened(self.files, self.files.open(self.index.path(name))) as file:
            header, _, after = read_format(self.files, file, name)
            if not header.flags & b.FLAG_RELAY_LOG:
                raise Position(name, b.FIRST_POSITION).damaged("does not describe a relay log")
            source_id, source, begin = read_relay_head(self.files, file, name, after)
        if self.source_id not in (0, source_id):
            raise Position(name, after).damaged(
                f"names server {source_id}, the file before it names server {self.source_id}"
            )
        self.source_id = source_id
        return Run(name, source, begin)

    def _recover(self) -> None:
        """Find the end of the newest file, and truncate a torn tail."""
        run = self._runs[-1]
        self._whole, self._written_epoch = self._look_through(run)
        self.cut()
        assert self._file is not None
        try:
            # A crashed process may have left unsynced bytes: sync them before they are acknowledged and applied.
            write_again(self.files, self._file, run.offset_of(self._whole))
        except StorageFull as error:
            # On a full disk the content can still be applied; only receiving waits for space.
            _log.warning("%s could not be written again (%s)", run.name, error.message)
            self.files.fdatasync(self._file)
        for older in self._runs[-2:-1]:
            self._end(older)
        for older in reversed(self._runs[:-1]):
            if self._written_epoch:
                break
            # The applier reports damage in an older file.
            self._written_epoch = self._look_through(older)[1]
        self.epoch = self._written_epoch
        self._durable = Position(run.source.file, self._whole)

    def _end(self, run: Run) -> None:
        """Mark a file that has a successor as complete. Durable on return."""
        with Opened(self.files, self.files.open(self.index.path(run.name), writable=True)) as file:
            end_use(self.files, file)

    def _look_through(self, run: Run) -> tuple[int, int]:
        """Return (position in the source's file after the last complete transaction, newest epoch or 0) of a file."""
        stream = EventStream(run.source.file, run.source.position, self.source_id, Position(run.name, run.begin))
        offset = run.begin
        with Opened(self.files, self.files.open(self.index.path(run.name))) as file:
            try:
                while piece := self.files.pread(file, offset, PIECE_BYTES):
                    stream.feed(piece)
                    offset += len(piece)
            except (BinlogDamaged, LimitExceeded) as error:
                # Torn by a crash, or damaged since. The source still has the bytes after the intact part (F68).
                _log.warning("the relay log ends early: %s", error.message)
        return stream.whole, stream.newest_epoch

    # --- where it stands --------------------------------------------------------------------------
    @property
    def begin(self) -> Position | None:
        """Where the oldest file begins in the source's binlog; None while the relay log is empty."""
        with self.changed:
            return self._runs[0].source if self._runs else None

    @property
    def durable(self) -> Position | None:
        """The end of the last complete durable transaction, as a position in the source's binlog; None while the relay
        log is empty.
        """
        with self.changed:
            return self._durable

    @property
    def second_begin(self) -> Position | None:
        """Where the second-oldest file begins in the source's binlog; None if there is none."""
        with self.changed:
            return self._runs[1].source if len(self._runs) > 1 else None

    @property
    def size_bytes(self) -> int:
        with self.changed:
            return sum(self.files.size(self.index.path(run.name)) for run in self._runs)

    def covers(self, position: Position) -> bool:
        """Whether a reader can continue at this position."""
        with self.changed:
            if self._durable is None:
                return False
            return is_at_or_after(position, self._runs[0].source) and is_at_or_after(self._durable, position)

    def runs(self) -> list[Run]:
        """Return the files, oldest first."""
        with self.changed:
            return list(self._runs)

    def readable_to(self, run: Run) -> int | None:
        """Return the offset up to which a file may be read; None if it may be read to its end, as it has a
        successor.
        """
        with self.changed:
            if not self._runs or self._runs[-1].name != run.name:
                return None
            durable = self._durable
            is_here = durable is not None and durable.file == run.source.file
            return max(run.begin, run.offset_of(durable.position)) if is_here and durable is not None else run.begin

    # --- receiving --------------------------------------------------------------------------------
    def expect(self, source_id: int) -> None:
        """Set the server whose binlog will be appended, before the first bytes. Raises: Rejected if the relay log is
        another server's.
        """
        with self.changed:
            if self._runs and self.source_id != source_id:
                raise Rejected(
                    f"the relay log is of server {self.source_id}, the source is server {source_id}; apply what is in"
                    " it, then change the source",
                    source_id=source_id,
                )
            self.source_id = source_id

    def append(self, events: Events) -> None:
        """Verify bytes of the source and append them. Durable on return: only the files before the newest.

        Raises: BinlogDamaged for invalid bytes, EpochGap, LimitExceeded, StorageFull, IoFailed; call `cut` then.
        """
        at = events.at
        with self.changed:
            stream = self._continue_at(at)
            data, begin = memoryview(events.data), at.position
            boundaries = stream.feed(data)
            self._check_order(boundaries)
            written: list[Boundary] = []
            for boundary in boundaries:
                written.append(boundary)
                is_full = boundary.end - self._runs[-1].source.position >= self._file_bytes
                if is_full and boundary.end < events.end:
                    self._write(begin, data[begin - at.position : boundary.end - at.position])
                    self._note(written)
                    begin, written = boundary.end, []
                    self._begin_file(Position(at.file, begin))
            self._write(begin, data[begin - at.position :])
            self._note(written)

    def _note(self, written: list[Boundary]) -> None:
        """Count transactions that are written completely."""
        for boundary in written:
            self._whole = boundary.end
            self._written_epoch = max(self._written_epoch, boundary.epoch)
            self._written_count += boundary.is_transaction

    def _check_order(self, boundaries: list[Boundary]) -> None:
        """Check that epochs increase. Raises: EpochGap if one comes after a later one, or twice."""
        newest = self._written_epoch
        for boundary in boundaries:
            if boundary.epoch and boundary.epoch <= newest:
                raise EpochGap(
                    f"epoch {boundary.epoch} came after epoch {newest}; the source's binlog is out of order",
                    epoch=boundary.epoch,
                )
            newest = boundary.epoch or newest

    def _continue_at(self, at: Position) -> EventStream:
        """Return the stream for bytes from this position on, in a new relay file if the last one is full or belongs to
        another file of the source.
        """
        stream = self._stream
        if stream is None:
            return self._begin_stream(at)
        here = Position(stream.file, stream.position)
        if at == here:
            is_full = stream.position - self._runs[-1].source.position >= self._file_bytes
            return self._begin_stream(at) if is_full and not stream.is_incomplete else stream
        if stream.is_incomplete or not at.is_start_after(stream.file):
            raise EpochGap(
                f"events came at {at.file}:{at.position}, the relay log ends at {here.file}:{here.position}; connect"
                " again",
                **at._asdict(),
            )
        return self._begin_stream(at)

    def _begin_stream(self, at: Position) -> EventStream:
        self._begin_file(at)
        self._stream = EventStream(at.file, at.position, self.source_id)
        return self._stream

    def _write(self, position: int, data: memoryview) -> None:
        assert self._file is not None
        if len(data):
            self.files.pwrite(self._file, self._runs[-1].offset_of(position), data)

    def _begin_file(self, at: Position) -> None:
        """Begin a new file. Durable on return: everything before it, the new file, and its name in the index."""
        if self._file is not None:
            self.files.fdatasync(self._file)
            self.files.close(self._file)
            self._file = None
            self._durable = Position(self._runs[-1].source.file, self._whole)
            self.epoch, self.received = self._written_epoch, self._written_count
        name = self.index.next_name
        stamp = {"timestamp_s": self._clock.wall_us() // 1_000_000}
        head = bytearray(b.MAGIC)
        flags = b.FLAG_RELAY_LOG | b.FLAG_IN_USE
        head += e.frame(e.FormatDescription(), len(head), server_id=self._server_id, flags=flags, **stamp)
        rotate = e.Rotate(at.file, at.position)
        head += e.frame(
            rotate, len(head), server_id=self.source_id, flags=b.FLAG_ARTIFICIAL | b.FLAG_RELAY_LOG, **stamp
        )
        self._file = self.index.begin(head)
        self._runs.append(Run(name, at, len(head)))
        self._whole = at.position
        if len(self._runs) > 1:
            self._end(self._runs[-2])
        self._durable = self._durable or at

    def sync(self) -> int:
        """Make everything received durable; return its newest complete epoch. Durable on return. Raises: SyncFailed."""
        with self.changed:
            stream = self._stream
            if stream is not None and self._file is not None:
                durable = Position(stream.file, self._whole)
                if durable != self._durable:
                    self.files.fdatasync(self._file)
                    self._durable = durable
                    self.epoch, self.received = self._written_epoch, self._written_count
                    self.changed.notify_all()
            return self.epoch

    def cut(self) -> None:
        """Truncate the newest file after its last complete transaction: the link broke within the next one, or it was
        refused.

        Durable on return: the complete transactions.
        """
        with self.changed:
            if not self._runs:
                return
            run = self._runs[-1]
            end = run.offset_of(self._whole)
            if self._file is None:
                self._file = self.files.open(self.index.path(run.name), writable=True)
            if self.files.size(self._file) > end:
                self.files.truncate(self._file, end)
            self._stream = EventStream(run.source.file, self._whole, self.source_id)
            self.sync()

    # --- leaving ----------------------------------------------------------------------------------
    def purge(self, applied: Position) -> list[str]:
        """Remove the files that end at or before `applied`, which must be durable; return their names. Durable on
        return.
        """
        with self.changed:
            count = 0
            while count + 1 < len(self._runs) and is_at_or_after(applied, self._runs[count + 1].source):
                count += 1
            if not count:
                return []
            gone = self.index.purge_to(self._runs[count].name)
            del self._runs[:count]
            return gone

    def reset(self) -> None:
        """Discard everything. Durable on return."""
        with self.changed:
            self.close()
            names = list(self.index.names)
            if names:
                self.index.replace([])
                self.index.remove(names)
            self._runs = []
            self._stream = self._durable = None
            self.source_id = self.epoch = self._written_epoch = 0
            self.generation += 1
            self.changed.notify_all()

    def close(self) -> None:
        """Close the open file. Unsynced bytes may be lost. A second call does nothing."""
        with self.changed:
            if self._file is not None:
                self.files.close(self._file)
                self._file = None


def remove_relay_log(files: Files, channel: str) -> None:
    """Remove a relay log in any state, even if it cannot be opened. Durable on return."""
    if not files.exists(FOLDER):
        return
    own = [name for name in files.list(FOLDER) if name.rpartition(".")[0] == channel]
    # The index first, durably: without it the files are unnamed, and the next opening removes them.
    for names in ([name for name in own if "index" in name], [name for name in own if "index" not in name]):
        for name in names:
            files.unlink(f"{FOLDER}/{name}")
        files.sync_directory(FOLDER)
