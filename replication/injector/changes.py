"""Row changes of closed epochs, read from the store's own binlog: `db.changes()` (docs/verify.md, section 8).

Invariants: (C1) Nothing is returned before it is durable. (C2) Epochs are returned in order and whole. The epochs after
the last one returned stay available, because their file is pinned. (C3) Nothing is returned after a gap. All file reads
hold `_turn`, so that `close` by another thread, or by a store that closes, never runs during a read.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import EpochGap, PositionLost, StoreClosed, ValueOutOfRange
from tidemark.engine.rows.row import row_class
from tidemark.engine.schema.names import qualified_name
from tidemark.engine.types.base import counted
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, Loss, Statement, transactions
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector.binlog_rows import ChangedRows, RowReader, close_iterator, definitions_in, events_of
from tidemark.replication.injector.mark import FOLDER, load_mark
from tidemark.replication.wire.messages import Start

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.replication.binlog.reader import ReadEvent
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.injector.attached import AttachedBinlog

POLL_SECONDS = 0.2  # how soon a waiting reader sees that the store has failed


class Change(NamedTuple):
    """One row change. `before` and `after` are rows with the table's columns at that time, None if the binlog has
    no such image; a column that the image lacks is None.
    """

    epoch: int
    table: str
    operation: str
    before: Any
    after: Any


class EpochChanges:
    """The changes of one epoch, read on request: a small one from memory, a large one from its file."""

    def __init__(
        self, changes: Changes, epoch: int, events: Callable[[], Iterator[ReadEvent]], statements: Sequence[str]
    ) -> None:
        self._changes = changes
        self._events = events
        self.epoch = epoch
        self.statements = tuple(statements)  # schema changes before the rows, as SQL

    def batches(self) -> Iterator[ChangedRows]:
        """Yield the changes in the order of the binlog, some rows of one table at a time; may be called again.

        Raises: StoreClosed after `Changes` is closed, BinlogDamaged, FileMissing if its file was purged, which is
        possible after the next epoch has been taken.
        """
        return self._changes.guarded(self._events())

    def rows(self) -> Iterator[Change]:
        """Yield the changes one by one."""
        for batch in self.batches():
            kind = row_class(tuple(batch.columns))
            images = [_tuples(image, batch, kind) for image in (batch.before, batch.after)]
            for row in range(batch.rows):
                before, after = (None if each is None else each[row] for each in images)
                yield Change(self.epoch, batch.table, batch.operation, before, after)

    __iter__ = rows

    def to_arrow(self, table: str) -> pa.Table:
        """Return the changes of one table: `epoch`, `operation`, and `before` and `after`, structs of its columns (NULL
        if the binlog has no such image; a column that the image lacks is NULL within). If the columns of the table
        change within the epoch, the result has all of them. Without a change of the table, it is empty and has no
        columns.
        """
        import pyarrow as pa

        name = qualified_name(table)
        found = [batch for batch in self.batches() if batch.table == name]
        pieces = [batch.to_arrow(self.epoch) for batch in found]
        return pa.concat_tables(pieces, promote_options="permissive") if pieces else pa.table({})

    def __repr__(self) -> str:
        return f"<tidemark changes of epoch {self.epoch}>"


def _tuples(image: pa.RecordBatch | None, batch: ChangedRows, kind: Any) -> list[Any] | None:
    if image is None:
        return None
    held = {name: batch.types[name].values_of(image.column(name)) for name in image.schema.names}
    nothing = [None] * batch.rows
    columns = [held.get(name, nothing) for name in batch.columns]
    return list(map(kind._make, zip(*columns, strict=True)))


class Changes(Closable):
    """An iterator of epochs; see `Database.changes`. One thread reads, any thread may close."""

    def __init__(self, endpoint: Endpoint, since: int, tables: Sequence[str] | None, follow: bool) -> None:
        """Raises: PositionLost, EpochGap, Rejected without a binlog."""
        if isinstance(since, bool) or not isinstance(since, int) or since < 0:
            raise ValueOutOfRange(f"since must be an epoch, a whole number from 0, got {since!r}")
        self._endpoint = endpoint
        self._binlog = endpoint.log()
        self._server_id = endpoint.site.server_id
        names = None if tables is None else frozenset(map(qualified_name, tables))
        self._reader = RowReader(definitions_in(endpoint.store), names, self._server_id)
        self._follow = follow
        self._turn = threading.RLock()
        self._news = threading.Event()
        self._is_closed = False
        self._open: set[Iterator[ChangedRows]] = set()
        self._walk: Iterator[EpochTransaction | Statement | Loss] = iter(())
        self.epoch = since  # the last epoch passed: reading continues after it
        self._holder = object()
        self._binlog.on_written.append(self._news.set)
        # Unpins the file even if the iterator is never closed.
        self._release = weakref.finalize(self, _release, self._binlog, self._holder, self._news.set)
        try:
            self.position = self._begin(since)
            self._binlog.pin(self._holder, self.position)
        except BaseException:
            self.close()
            raise

    def _begin(self, since: int) -> Position:
        self._binlog.write_closed_epochs()
        source = self._endpoint.source_binlog()
        try:
            return Position(*source.locate(Start(epoch=since)))
        except PositionLost as error:
            raise self._lost(f"what follows epoch {since} is no longer in the binlog") from error
        except EpochGap as error:
            raise EpochGap(f"epoch {since} is not one of this store yet; begin at one it has closed") from error
        finally:
            source.close()

    def _missing(self, message: str) -> PositionLost:
        mark = load_mark(message)
        if mark is None:
            return self._lost(f"changes after epoch {self.epoch} are not in the binlog ({message})")
        return PositionLost(
            f"a load of {counted(mark.rows, 'row')} into {mark.table} in epoch {mark.epoch} is not in the binlog; take"
            " its rows from a snapshot of that epoch or a later one and continue after its epoch",
            epoch=self.epoch,
            load=f"{mark.job:016x}",
            load_epoch=mark.epoch,
            table=mark.table,
            rows=mark.rows,
        )

    def _lost(self, what: str) -> PositionLost:
        return PositionLost(f"{what}; take the rows from a snapshot and continue after its epoch", epoch=self.epoch)

    # --- reading ---------------------------------------------------------------------------------
    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> EpochChanges:
        """Return the next epoch with wanted changes, or with schema changes; with `follow`, wait for one.

        Raises: StopIteration at the end, and after `close`; PositionLost where changes were not logged, BinlogDamaged,
        StoreFailed.
        """
        while True:
            self._news.clear()
            with self._turn:
                found = None if self._is_closed else self._next()
            if found is not None:
                return found
            if self._is_closed or not self._follow:
                raise StopIteration
            while not self._is_closed and not self._news.wait(POLL_SECONDS):
                self._endpoint.store.failure.check()

    def _next(self) -> EpochChanges | None:
        statements: list[str] = []
        is_new = False
        while True:
            for each in self._walk:
                if isinstance(each, Loss):
                    raise self._missing(each.message)
                if isinstance(each, Statement):
                    statements.append(each.text)
                    continue
                events = events_of(each)
                epoch, has_rows = self._reader.look(events())
                is_wanted = epoch > self.epoch and (has_rows or bool(statements))
                self.epoch = max(self.epoch, epoch)
                if is_wanted:
                    self._binlog.pin(self._holder, each.start)
                    return EpochChanges(self, epoch, events, statements)
                statements = []
            if is_new:
                return None
            # Every epoch closed by now is included, even if another thread writes it.
            self._binlog.write_closed_epochs()
            is_new = True
            self._walk = self._walked(self._binlog.durable_end())

    def _walked(self, end: Position) -> Iterator[EpochTransaction | Statement | Loss]:
        """Yield everything from `position` to `end`. `position` passes an item when the next one is requested."""
        log = LogFolder(self._endpoint.files, FOLDER, self._binlog.base)
        statements: Position | None = None
        before: EpochTransaction | Statement | Loss | None = None
        for each in transactions(log, self.position, end):
            self._pass(before, statements)
            if isinstance(each, EpochTransaction):
                statements = None
            elif isinstance(each, Statement):
                statements = statements or each.start
            yield each
            before = each
        self._pass(before, statements)

    def _pass(self, before: EpochTransaction | Statement | Loss | None, statements: Position | None) -> None:
        """Move `position` past an item; past statements only together with the epoch after them."""
        if before is not None and before.next is not None:
            self.position = statements or before.next

    def guarded(self, events: Iterator[ReadEvent]) -> Iterator[ChangedRows]:
        """Yield the rows of some events; each step holds `_turn`. Raises: StoreClosed."""
        begun = self._reader.read(events)
        with self._turn:
            self._open.add(begun)
        try:
            while True:
                with self._turn:
                    if self._is_closed:
                        raise StoreClosed("the changes were closed; ask for them again after the last epoch")
                    batch = next(begun, None)
                if batch is None:
                    return
                yield batch
        finally:
            with self._turn:
                self._open.discard(begun)
                close_iterator(begun)

    def close(self) -> None:
        """Release the binlog; a waiting reader ends. A second call does nothing."""
        self._is_closed = True
        self._news.set()
        with self._turn:
            for each in [*self._open, self._walk]:
                close_iterator(each)
            self._open.clear()
            self._release()


def _release(binlog: AttachedBinlog, holder: object, call: Callable[[], None]) -> None:
    binlog.unpin(holder)
    if call in binlog.on_written:
        binlog.on_written.remove(call)
