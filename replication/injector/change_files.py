"""Row changes of one table from the files of a binlog, read by Spark's tasks while any process has the store open.

This is the reader that `recovery/spark/changes.py` requires. Epochs and rows are those of `db.changes()`. Reading ends
before an epoch that row events cannot describe: its changes were not logged, or a statement dropped or renamed the
table, dropped a partition of it, or renamed a column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Error, FileMissing, Rejected, Unsupported
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.opened import Opened
from tidemark.recovery.spark.changes import ChangedImages, ChangePiece, Reach
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.concurrent_reader import ConcurrentReader, lost
from tidemark.replication.binlog.listing import bases
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, ReadEvent, StatementMaps, epoch_in
from tidemark.replication.binlog.scan import walk
from tidemark.replication.injector.binlog_rows import RowReader
from tidemark.replication.injector.mark import FOLDER
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.parse import parse

if TYPE_CHECKING:
    from tidemark.engine.files.directory import Pin
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.replication.binlog.stream import Boundary

_KNOWN_MAX = 8
_ATTEMPTS = 5


class ChangeFiles:
    """A `tidemark.recovery.spark.changes.ChangeLog`. One thread at a time may call it."""

    def __init__(self, place: str, definition: TableDefinition) -> None:
        """Open the changes of a table of the store in a directory. Raises: FileMissing, Rejected if the store has no
        binlog.
        """
        self._definition = definition
        self._clock = SystemClock()
        self._files = PosixFiles(place)
        self._files.read_errors_latch = False
        found = bases(self._files, FOLDER)
        if len(found) != 1:
            self._files.close_all()
            raise Rejected(f"the store in {place} has no binlog; open it with log_bin, and changes are kept from then")
        self._base = found[0]
        self.concurrent = ConcurrentReader(self._files, FOLDER, self._base)
        self.known_places: dict[int, Position] = {}  # some epochs, and the position after each
        self._pins: dict[str, Pin] = {}

    def close(self) -> None:
        """Close all files; a second call is harmless."""
        self.keep(None)
        self._files.close_all()

    # --- how far ----------------------------------------------------------------------------------
    def newest_epoch(self) -> int:
        """Return the newest epoch in the binlog now, 0 if it has none. Raises: BinlogDamaged, FileMissing."""
        return self.concurrent.newest_epoch()

    def reach(self, since: int, until: int | None, epochs_max: int | None, piece_bytes: int) -> Reach:
        """See `ChangeLog.reach`; pieces end between statements, so a large epoch is several pieces."""
        start = self._position_after(since)
        pieces = _Pieces(self, piece_bytes)
        statements: list[s.Statement] = []
        epoch, epochs, end = since, 0, start
        obstacle: Error | None = None
        for file, boundary in self.concurrent.boundaries(start):
            if boundary.incident is not None:
                obstacle = lost(f"changes after epoch {epoch} are not in the binlog ({boundary.incident})", epoch=epoch)
                break
            if boundary.statement is not None:
                try:
                    statements += parse(boundary.statement.statement, boundary.statement.database)
                except Unsupported as error:
                    obstacle = error
                    break
            if not boundary.epoch:
                continue
            if until is not None and boundary.epoch > until:
                break
            if boundary.epoch <= since:
                statements = []  # returned before, and written again after a crash; or `since` named a future epoch
                continue
            obstacle = self._obstacle(statements, boundary.epoch)
            if obstacle is not None:
                break
            statements = []
            pieces.add(file, boundary)
            epoch, end, epochs = boundary.epoch, Position(file, boundary.end), epochs + 1
            if epochs == epochs_max or epoch == until:
                break  # do not look for an incident past this range
        self._note(epoch, end)
        return Reach(epoch, pieces.finished(), obstacle)

    def _position_after(self, epoch: int) -> Position:
        place = self.known_places.get(epoch)
        if place is not None and place.file in self.concurrent.index().names:
            return place
        place = self.concurrent.position_after(epoch)
        self._note(epoch, place)
        return place

    def _note(self, epoch: int, place: Position) -> None:
        self.known_places[epoch] = place
        if len(self.known_places) > _KNOWN_MAX:
            self.known_places.pop(next(iter(self.known_places)))

    def _obstacle(self, statements: Sequence[s.Statement], epoch: int) -> Error | None:
        """Return the error for a schema change that row changes cannot describe, None if there is none."""
        name = self._definition.name
        for each in statements:
            what = ""
            if isinstance(each, s.RenameTable) and name in (each.table, each.to):
                what = f"{each.table} was renamed to {each.to}"
            elif isinstance(each, s.DropTable) and each.table == name:
                what = f"{name} was dropped"
            elif isinstance(each, s.DropPartition) and each.table == name:
                what = f"partition {each.partition} of {name} was dropped, and its rows with it"
            elif isinstance(each, s.RenameColumn) and each.table == name:
                what = f"column {each.column} of {name} was renamed to {each.to}"
            if what:
                return Unsupported(
                    f"{what} in epoch {epoch}, which row changes do not show; take the rows from a backup of a later"
                    " epoch, and begin again after that epoch",
                    table=name,
                    epoch=epoch,
                )
        return None

    def statement_ends(self, file: str, start: int, end: int) -> Iterator[int]:
        """Yield the positions at which the statements of a transaction end."""
        with Opened(self._files, self._files.open(f"{FOLDER}/{file}")) as opened:
            for walked in walk(self._files, opened, file, start, end):
                if isinstance(walked.event, e.Rows) and walked.event.is_statement_end:
                    yield walked.end

    # --- kept -------------------------------------------------------------------------------------
    def keep(self, since: int | None) -> None:
        """See `ChangeLog.keep`: holds a shared lock on the file in which reading begins, and on no other."""
        wanted = None if since is None else self._position_after(since).file
        if wanted is not None and wanted not in self._pins:
            self._pins[wanted] = self._pin(wanted)
        for name in [each for each in self._pins if each != wanted]:
            self._pins.pop(name).release()

    def _pin(self, name: str) -> Pin:
        pin = self._files.pin(f"{FOLDER}/{name}")
        if pin is not None:
            # The store may have decided to purge the file before the pin: then the index no longer names it.
            if name in self.concurrent.index().names:
                return pin
            pin.release()
        raise lost(f"{name} is no longer in the binlog", file=name)

    # --- rows -------------------------------------------------------------------------------------
    def images(self, piece: ChangePiece) -> Iterator[ChangedImages]:
        """See `ChangeLog.images`. Raises: PositionLost, BinlogDamaged, FileTruncated, ValueOutOfRange."""
        name = self._definition.name
        reader = RowReader({name: self._definition}.get, frozenset((name,)), None)
        log = self._reader(piece)
        events = log.events(Position(piece.file, piece.end))
        try:
            for epoch, of_epoch in _by_epoch(events, piece.epoch):
                for batch in reader.read(of_epoch):
                    yield ChangedImages(epoch, batch.operation, batch.before, batch.after)
        except FileMissing as error:
            raise lost(f"{piece.file} is no longer in the binlog", file=piece.file) from error
        finally:
            log.close()

    def _reader(self, piece: ChangePiece) -> BinlogReader:
        """Open a reader at the start of a piece. Raises: PositionLost."""
        for attempt in range(_ATTEMPTS):
            try:
                return BinlogReader(self._files, FOLDER, self._base, Position(piece.file, piece.start))
            except (FileMissing, Rejected) as error:
                # Another file may have been purged while the index was read.
                if isinstance(error, Rejected) or attempt + 1 == _ATTEMPTS:
                    raise lost(f"{piece.file} is no longer in the binlog", file=piece.file) from error
        raise AssertionError


class _Pieces:
    def __init__(self, files: ChangeFiles, piece_bytes: int) -> None:
        self._files = files
        self._piece_bytes = piece_bytes
        self._done: list[ChangePiece] = []
        self._open: ChangePiece | None = None

    def add(self, file: str, boundary: Boundary) -> None:
        """Add the next transaction with an epoch. If the open piece has room for it, that piece is extended to the end
        of the transaction, over everything in between.
        """
        start, end = boundary.start, boundary.end
        if self._open is not None and (self._open.file != file or end - self._open.start > self._piece_bytes):
            self._end()
        if self._open is None:
            self._open = ChangePiece(file, start, end, 0)
        self._open = self._open._replace(end=end)
        if end - start > 2 * self._piece_bytes:
            self._divide(boundary)

    def _divide(self, boundary: Boundary) -> None:
        assert self._open is not None
        for place in self._files.statement_ends(self._open.file, boundary.start, boundary.end):
            if place - self._open.start >= self._piece_bytes:
                self._done.append(self._open._replace(end=place))
                self._open = ChangePiece(self._open.file, place, boundary.end, boundary.epoch)
        self._end()

    def _end(self) -> None:
        if self._open is not None:
            self._done.append(self._open)
            self._open = None

    def finished(self) -> tuple[ChangePiece, ...]:
        """End the open piece; return all pieces."""
        self._end()
        return tuple(self._done)


def _by_epoch(events: Iterator[ReadEvent], epoch: int) -> Iterator[tuple[int, Iterator[ReadEvent]]]:
    """Yield (epoch, its events) for consecutive transactions; the caller reads all events before the next step. `epoch`
    is that of the transaction in progress, 0 for none. Raises: BinlogDamaged for rows without an epoch.
    """
    has_ended = False

    def rest(head: Sequence[ReadEvent]) -> Iterator[ReadEvent]:
        nonlocal has_ended
        yield from head
        for read in events:
            if isinstance(read.event, e.Gtid):
                return
            yield read
        has_ended = True

    if epoch:
        yield epoch, rest(())
    while not has_ended:
        maps = StatementMaps()
        # The events up to the row that names the epoch: later rows may need the table maps among them.
        head: list[ReadEvent] = []
        found = None
        for read in events:
            maps.observe(read.event)
            head.append(read)
            if isinstance(read.event, e.Rows):
                found = epoch_in(maps, read.event, read.at, None)
                if found is None:
                    raise read.at.damaged("has rows of an epoch without a number")
                break
        if found is None:
            return
        yield found, rest(head)
