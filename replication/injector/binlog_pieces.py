"""The store's own binlog as `recovery/verification/binlog_check.py` reads it: all kept files, up to an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.engine.schema.names import is_system_table
from tidemark.recovery.verification.binlog_check import Altered, LoggedRows, Piece
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, Loss, Statement, transactions
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector.binlog_rows import RowReader, definitions_in, events_of
from tidemark.replication.injector.mark import FOLDER, load_mark
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, rows_named
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.parse import parse

if TYPE_CHECKING:
    from tidemark.replication.channel.endpoint import Endpoint
    from tidemark.replication.injector.binlog_rows import ChangedRows

# Changes after which a table still has its rows, under the same name and keys.
_KEEPS_ROWS = (
    *(s.AddColumn, s.DropColumn, s.RenameColumn, s.ChangeColumn, s.SetDefault, s.CreateIndex, s.DropIndex),
    *(s.AddCheck, s.DropCheck),
)


class KeptBinlog:
    """The binlog of a store from its oldest file to the end it had at construction; every pass yields the same."""

    def __init__(self, endpoint: Endpoint, epoch: int) -> None:
        """Prepare to read up to an epoch, which the binlog has. Raises: Rejected without a binlog."""
        self._endpoint = endpoint
        self._epoch = epoch
        binlog = endpoint.log()
        self._start = Position(binlog.writer.index.names[0], b.FIRST_POSITION)
        self._end = binlog.durable_end()
        self._is_first = binlog.writer.index.number_of(self._start.file) == 1

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Pin the files against purging within the `with` block."""
        binlog = self._endpoint.log()
        binlog.pin(self, self._start)
        try:
            yield
        finally:
            binlog.unpin(self)

    def pieces(self) -> Iterator[Piece]:
        """Yield the changes of rows, and of tables. Raises: BinlogDamaged, FileMissing."""
        endpoint = self._endpoint
        log = LogFolder(endpoint.files, FOLDER, endpoint.log().base)
        reader = RowReader(definitions_in(endpoint.store), None, endpoint.site.server_id)
        statements: list[s.Statement] = []
        loaded: set[str] = set()  # tables with a mark before the epoch
        # A binlog without its first files lacks the changes before its first epoch.
        is_lost = not self._is_first
        for each in transactions(log, self._start, self._end):
            if isinstance(each, Loss):
                mark = load_mark(each.message)
                is_lost |= mark is None
                loaded |= set() if mark is None else {mark.table}
            elif isinstance(each, Statement):
                statements += parse(each.text, each.database)
            elif isinstance(each, EpochTransaction):
                events = events_of(each)
                epoch, _ = reader.look(events())
                if epoch > self._epoch:
                    return
                if is_lost:
                    yield Altered(None, True, epoch - 1 if not self._is_first and not statements else epoch)
                    is_lost = False
                yield from _altered(statements, epoch)
                if loaded:
                    yield Altered(frozenset(loaded), True, epoch)
                statements, loaded = [], set()
                for batch in reader.read(events()):
                    yield _piece(epoch, batch)

    @property
    def logs_empty(self) -> bool:
        """Whether updates that change nothing are logged."""
        return bool(self._endpoint.opened.values["log_empty_update"])

    def is_whole(self) -> bool:
        """Whether the binlog has every change of the store, judged by the present settings."""
        endpoint = self._endpoint
        values = endpoint.opened.values
        own_id = endpoint.site.server_id
        has_applied = any(row["server_id"] != own_id for row in rows_named(endpoint.store, NDB_APPLY_STATUS))
        if has_applied and not values["log_replica_updates"]:
            return False
        if not values["log_rows"] or values["row_slice_count"] > 1:
            return False
        rules = endpoint.log().rules
        tables = [table.definition for table in list(endpoint.store.tables.by_name.values())]
        return not endpoint.replication_rows() or all(
            rules.rule_of(each).rule is not None for each in tables if not is_system_table(each.name)
        )


def _piece(epoch: int, batch: ChangedRows) -> LoggedRows:
    names = list(batch.primary_key)
    has_key = batch.before is not None and set(names) <= set(batch.before.schema.names)
    image = batch.before if has_key else batch.after
    assert image is not None
    return LoggedRows(epoch, batch.table, image.select(names), batch.after)


def _altered(statements: Sequence[s.Statement], epoch: int) -> Iterator[Altered]:
    fresh: set[str] = set()
    made: set[str] = set()
    kept: set[str] = set()
    for each in statements:
        if isinstance(each, s.CreateTable):
            made.add(each.definition.name)
        elif isinstance(each, _KEEPS_ROWS):
            kept.add(each.table)
        elif isinstance(each, (s.TableChange, s.DropTable)):
            fresh |= {each.table, each.to} if isinstance(each, s.RenameTable) else {each.table}
    for names, is_empty in ((made, True), (fresh - made, False)):
        if names:
            yield Altered(frozenset(names), True, epoch, is_empty)
    if kept - fresh - made:
        yield Altered(frozenset(kept - fresh - made), False, epoch)
