"""The binlog of this site as a session of a replica reads it: a `wire.sessions.Binlog` over its files.

Invariants: (S1) Nothing past the writer's synced end is served, so no part of an epoch leaves before it is durable
here. (S2) Positions are those of the files, and bytes that were served never change. (S3) The position from which a
replica continues is never guessed: purged epochs are `PositionLost`, epochs that this binlog does not have are
`EpochGap`.

The session's own thread opens and closes files. A file that is purged while it is read is read to its end; its
successor must still exist. A failed read is reported to the replica and does not fail the store.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    BinlogDamaged,
    EpochGap,
    FileMissing,
    FileTruncated,
    IoFailed,
    LimitExceeded,
    PeerError,
    PeerRefused,
    PositionLost,
    Retryable,
    StoreFailed,
)
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.index import BinlogIndex, read_index
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import find_epoch
from tidemark.replication.binlog.scan import check_end, read_format
from tidemark.replication.binlog.stream import EventStream
from tidemark.replication.wire.messages import COPY_ADVICE, Settings, Start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.engine.files.protocol import File, Files

_PIECE_BYTES = 64 << 10
_LOOKED_AT_BYTES = 1 << 20


class SourceBinlog:
    """A reader of the binlog for one replica. One thread at a time may call it; `close` it after the last call."""

    def __init__(
        self,
        files: Files,
        server_id: int,
        end: Callable[[], tuple[int, Position]],
        folder: str = "binlog",
        base: str = "binlog",
        index_rows: Callable[[str, int], Iterable[Mapping[str, Any]]] | None = None,
        closed_epoch: Callable[[], int] | None = None,
        may_lag: Callable[[], bool] = lambda: False,
        keep: Callable[[Position | None], None] = lambda place: None,
        settings: Callable[[], Settings] = lambda: Settings(()),
        copy: Callable[[bytes], Generator[bytes]] | None = None,
    ) -> None:
        """end: returns the newest epoch that may be read and its synced end; called before every read, in the session's
        thread. index_rows: returns the rows of `mysql.ndb_binlog_index` with this value in this column. closed_epoch:
        returns the newest epoch that the store has closed, possibly newer than any in the binlog. may_lag: whether
        another node decides which epochs exist, so that a missing one may still arrive. keep: called with the position
        whose file must not be purged, None at the end.
        """
        self.files = files
        self._server_id = server_id
        self._end = end
        self._folder = folder
        self._base = base
        self._index_rows = index_rows
        self._closed_epoch = closed_epoch
        self._may_lag = may_lag
        self._keep = keep
        self._settings = settings
        self._copy = copy
        self._copying: Generator[bytes] | None = None
        self._open: tuple[str, File] | None = None
        self._is_lost = False
        self.on_lost: Callable[[], None] = lambda: None  # called by the thread that purges

    def lose(self) -> None:
        """Note that the file being read was purged all the same: no further read succeeds."""
        self._is_lost = True
        self.on_lost()

    def settings(self) -> Settings:
        """Return the conflict functions of this site. Raises: PeerError if the store has failed."""
        with self._peer_errors():
            return self._settings()

    def copy(self, request: bytes) -> Generator[bytes]:
        """Yield the pieces of a first copy. Raises: PeerRefused if none is offered, PeerError if it is interrupted."""
        if self._copy is None:
            raise PeerRefused(
                "this server offers no first copies; make the channel without copy=True, or name another source"
            )
        with self._peer_errors():
            self._copying = self._copy(request)
            try:
                yield from self._copying
            except Retryable as error:
                raise PeerError(f"the copy ended early: {error.message}; begin it anew") from error

    def close(self) -> None:
        """Close the open file, and end a copy. A second call does nothing."""
        if self._copying is not None:
            self._copying.close()
            self._copying = None
        self._keep(None)
        self._close_file()

    def _close_file(self) -> None:
        if self._open is not None:
            self.files.close(self._open[1])
            self._open = None

    def newest(self) -> tuple[int, Position]:
        """Return the newest epoch that may leave the site, and its end."""
        with self._peer_errors():
            return self._end()

    def names(self) -> list[str]:
        """Return the files that may leave the site, oldest first. Raises: PeerError if the binlog is unreadable."""
        with self._peer_errors():
            _, end = self._end()
            index = self._index()
            newest = index.number_of(end.file) or 0
            return [name for name in index.names if (index.number_of(name) or 0) <= newest]

    def size(self, name: str) -> int:
        """Return the number of bytes of a file that may leave the site. Raises: PositionLost if it was purged,
        PeerError.
        """
        with self._peer_errors():
            _, end = self._end()
            return end.position if name == end.file else self.files.size(self._file(name))

    # --- where to begin ---------------------------------------------------------------------------
    def locate(self, start: Start) -> Position:
        """Return the position from which a replica continues. Raises: PositionLost, EpochGap, PeerError if the binlog
        is unreadable or does not have the epoch yet.
        """
        with self._peer_errors():
            if start.file:
                return self._at_position(start)
            if start.origin not in (0, self._server_id):
                return self._after_origin(start)
            return self._after_epoch(start.epoch)

    def _index(self) -> BinlogIndex:
        return read_index(self.files, self._folder, self._base)

    def _at_position(self, start: Start) -> Position:
        index = self._index()
        _, end = self._end()
        number = index.number_of(start.file)
        newest = index.number_of(end.file)
        if number is None or newest is None or number > newest:
            raise self._gap(f"file {start.file} of the replica's position")
        if start.file not in index.names:
            # A file of another timeline has this number, or it was purged.
            raise self._lost(start.file) if index.numbered(number) is None else self._gap(f"file {start.file}")
        limit = end.position if start.file == end.file else self.files.size(index.path(start.file))
        if not b.FIRST_POSITION <= start.position <= limit:
            raise self._gap(f"position {start.file}:{start.position}")
        at = Position(start.file, start.position)
        self._check_next(at, limit, start.epoch)
        return at

    def _check_next(self, at: Position, limit: int, epoch: int) -> None:
        """Check that the next epoch after a position is later than `epoch`. Otherwise the position belongs to a history
        that this binlog does not have. Raises: EpochGap.
        """
        stream = EventStream(at.file, at.position, self._server_id)
        file = self._file(at.file)
        try:
            while stream.position < limit:
                piece = self.files.pread(file, stream.position, min(_PIECE_BYTES, limit - stream.position))
                found = next((each.epoch for each in stream.feed(piece) if each.epoch), stream.epoch)
                if found and found <= epoch:
                    raise self._gap(f"an end of epoch {epoch} at {at.file}:{at.position}")
                if found or stream.position - at.position >= _LOOKED_AT_BYTES:
                    return
        except (BinlogDamaged, LimitExceeded) as error:
            raise self._gap(f"position {at.file}:{at.position} between two transactions") from error

    def _after_epoch(self, epoch: int) -> Position:
        newest, end = self._end()
        if epoch > max(newest, self._closed_epoch() if self._closed_epoch is not None else 0):
            if self._may_lag():
                raise PeerError(
                    f"server {self._server_id} does not have epoch {epoch} yet, which the replica has applied (newest"
                    f" here: {newest}); try again, or continue with the primary of its group"
                )
            raise self._gap(f"epoch {epoch}, which the replica has applied (newest here: {newest})")
        found = self._by_rows(epoch)
        if found is None and epoch:
            found = find_epoch(self.files, epoch, end, self._folder, self._base, self._server_id)
        return self._oldest(f"what follows epoch {epoch}") if found is None else found

    def _by_rows(self, epoch: int) -> Position | None:
        """Find the epoch by its own row. Rows of other epochs do not prove that no epoch is in between."""
        if self._index_rows is None:
            return None
        names = self._index().names
        for row in self._index_rows("epoch", epoch):
            if row["orig_server_id"] in (0, self._server_id) and row["next_file"] in names:
                return Position(row["next_file"], row["next_position"])
        return None

    def _after_origin(self, start: Start) -> Position:
        """Return the position of the first transaction with the origin's epoch or a later one. It is sent even though
        the replica has the epoch, because it may contain changes of this site, too.
        """
        rows = () if self._index_rows is None else self._index_rows("orig_server_id", start.origin)
        later = (row for row in rows if row["orig_epoch"] >= start.epoch)
        first = min(later, key=lambda row: (row["epoch"], row["orig_epoch"]), default=None)
        if first is not None:
            if first["File"] not in self._index().names:
                raise self._lost(first["File"])
            return Position(first["File"], first["Position"])
        _, end = self._end()
        found = find_epoch(self.files, start.epoch - 1, end, self._folder, self._base, start.origin)
        return self._oldest(f"what follows epoch {start.epoch} of server {start.origin}") if found is None else found

    def _oldest(self, what: str) -> Position:
        """Return the beginning of the binlog, if nothing of it was purged. Raises: PositionLost."""
        index = self._index()
        if not index.names or index.number_of(index.names[0]) != 1:
            raise self._lost(what)
        return Position(index.names[0], b.FIRST_POSITION)

    def _lost(self, what: str) -> PositionLost:
        return PositionLost(
            f"{what} is no longer in the binlog of server {self._server_id}; {COPY_ADVICE}",
            server_id=self._server_id,
        )

    def _gap(self, what: str) -> EpochGap:
        return EpochGap(
            f"server {self._server_id} does not have {what}; its binlog is not the one that the replica followed;"
            f" {COPY_ADVICE}",
            server_id=self._server_id,
        )

    # --- bytes ------------------------------------------------------------------------------------
    def read(self, at: Position, bytes_max: int) -> tuple[Position, bytes] | None:
        """Return the next bytes, at most `bytes_max`, as (position, bytes); None at the end of the bytes that may leave
        the site.

        Raises: PositionLost, EpochGap, PeerError if the binlog is unreadable.
        """
        with self._peer_errors():
            while True:
                if self._is_lost:
                    raise self._lost(at.file)
                _, end = self._end()
                file = self._file(at.file)
                limit = end.position if at.file == end.file else self.files.size(file)
                if at.position > limit:
                    raise self._gap(f"position {at.file}:{at.position}")
                if at.position < limit:
                    return at, self.files.pread(file, at.position, min(bytes_max, limit - at.position))
                if at.file == end.file:
                    return None
                following = self._following(at.file)
                check_end(self.files, file, at.file, read_format(self.files, file, at.file)[0])
                at = Position(following, b.FIRST_POSITION)

    def _following(self, name: str) -> str:
        index = self._index()
        following = index.numbered((index.number_of(name) or 0) + 1)  # by number, because `name` may have been purged
        if following is None:
            raise self._lost(f"the file after {name}")
        return following

    def _file(self, name: str) -> File:
        """Return the open file of this name; close the previous one. Raises: PositionLost."""
        if self._open is not None and self._open[0] == name:
            return self._open[1]
        self._close_file()
        self._keep(Position(name, b.FIRST_POSITION))
        index = self._index()
        if name not in index.names:
            raise self._lost(name)
        try:
            file = self.files.open(index.path(name))
        except FileMissing:
            # Purged since the index was read.
            raise self._lost(name) from None
        file.read_errors_latch = False
        self._open = (name, file)
        return file

    @contextmanager
    def _peer_errors(self) -> Iterator[None]:
        """Turn errors of the binlog's files and of the store into a PeerError for the replica, without paths."""
        try:
            yield
        except (BinlogDamaged, FileMissing, FileTruncated, LimitExceeded) as error:
            raise PeerError(f"the binlog of server {self._server_id} cannot be read: {error.message}") from error
        except IoFailed as error:
            raise PeerError(f"the binlog of server {self._server_id} cannot be read: a read failed") from error
        except StoreFailed as error:
            raise PeerError(f"the store of server {self._server_id} has failed; open it again") from error
