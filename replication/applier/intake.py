"""The rows of an epoch transaction as batches: row events of one kind are joined, decoded, tagged and divided.

Consecutive events of one table, kind, set of columns, server and conflict flags are read as one body. A batch ends
before a key that is already in it, so that its rows do not affect each other, and when its bytes reach the batch size.
Memory: one such body and its columns. A body has a limit, which only a single large event can exceed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tidemark.engine.base.errors import NoSuchColumn, NoSuchTable, Rejected, Unsupported
from tidemark.engine.rows.columnar import encode_keys
from tidemark.replication.applier.batch import NO_TRANSACTION, ChangeBatch
from tidemark.replication.applier.key_set import KeySet, slice_keys
from tidemark.replication.applier.stops import corrupt_event, located
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import STATUS_TABLE, JoinedRows, joined_rows, present
from tidemark.replication.binlog.row_plan import BodyReader
from tidemark.replication.conflict.functions import Kind
from tidemark.replication.settings.system_tables import NDB_BINLOG_INDEX, NDB_SCHEMA

if TYPE_CHECKING:
    from tidemark.engine.table.table import Table
    from tidemark.engine.types import ColumnType
    from tidemark.replication.applier.batch import Columns
    from tidemark.replication.applier.key_set import Words
    from tidemark.replication.applier.transactions import EpochTransaction
    from tidemark.replication.binlog.reader import ReadEvent
    from tidemark.replication.binlog.table_map import TableMap

KINDS: Final = {e.WRITE: Kind.WRITE, e.UPDATE: Kind.UPDATE, e.DELETE: Kind.DELETE}
# Tables local to the source, whose rows are not applied.
NOT_APPLIED: Final = frozenset({NDB_SCHEMA, NDB_BINLOG_INDEX})
BODY_BYTES = 1 << 20
_PLACE_COLUMNS = (2, 3, 4)  # columns of `ndb_apply_status`: log, start, end
_READERS_MAX = 1_024
_WORD = 1 << 64
_SIGN = 1 << 63


@dataclass(frozen=True)
class StatusRows:
    """Rows of `ndb_apply_status` in an event, each as (server id, epoch). `server_id` is the id of their logger.
    `places` has (log, start, end) of each, if they were requested and the event has them.
    """

    server_id: int
    rows: tuple[tuple[int, int], ...]
    origin: Position
    places: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True)
class IntakeOptions:
    """Options of an intake. Events of the server `own_id` and of `ignored` servers are skipped. A batch has about
    `batch_bytes` of row bodies and at most `batch_rows` rows. `seed` is that of the store's hashes. `with_places`: rows
    of `ndb_apply_status` come with their places in a log.
    """

    own_id: int
    seed: int
    ignored: Collection[int] = ()
    batch_bytes: int = 2 << 20
    batch_rows: int = 1 << 40
    with_places: bool = False


def _signed(word: int | None) -> int:
    if word is None:
        return NO_TRANSACTION
    return word - _WORD if word >= _SIGN else word


@dataclass(frozen=True)
class _Fit:
    """The mapping from rows of a source's table to rows of the store's table."""

    map: TableMap
    table: Table
    version: int
    names: tuple[str, ...]
    shown: frozenset[str] | None
    reader: BodyReader


class Intake:
    """Builds batches from transactions; caches the mapping of tables between them. One thread at a time may call it."""

    def __init__(
        self,
        find_table: Callable[[str], Table],
        before_columns: Callable[[Table], frozenset[str] | None],
        options: IntakeOptions,
    ) -> None:
        """`find_table` returns a table by qualified name, or raises NoSuchTable. `before_columns` returns the columns
        of a table's before-images that are used, those of the key included; None for all.
        """
        self._find_table = find_table
        self._before_columns = before_columns
        self.options = options
        self._fits: dict[tuple[object, ...], _Fit] = {}
        self._seen_keys = KeySet(options.seed)
        self._status: tuple[tuple[object, ...], BodyReader] | None = None

    def batches(self, transaction: EpochTransaction, only_keys: bool = False) -> Iterator[ChangeBatch | StatusRows]:
        """Yield the rows of the transaction in its order, except those of this server or of an ignored one.
        `only_keys`: images have only the columns of the primary key.

        Raises: PeerError, NoSuchTable, NoSuchColumn, Unsupported, the errors of values (with `file` and `position` of
        the event), and the errors of reading the log.
        """
        for run in self._runs(transaction):
            if run.map.name == STATUS_TABLE:
                yield from self._status_rows(run)
            else:
                yield from self._cut(run, only_keys)

    def begun(self, transaction: EpochTransaction) -> tuple[int, StatusRows, Iterator[ChangeBatch | StatusRows]]:
        """Return (epoch of the transaction, the rows that name it, the rows after them). Raises: as `batches`."""
        items = self.batches(transaction)
        first = next(items, None)
        if not isinstance(first, StatusRows) or not first.rows or first.rows[0][0] != transaction.source_id:
            text = f"an epoch transaction does not begin with the epoch of its server {transaction.source_id}"
            raise corrupt_event(transaction.start, text)
        return first.rows[0][1], first, items

    # --- events ------------------------------------------------------------------------------------
    def _runs(self, transaction: EpochTransaction) -> Iterator[JoinedRows]:
        return joined_rows(_of_rows(transaction), self._is_wanted, min(self.options.batch_bytes, BODY_BYTES))

    def _is_wanted(self, table: TableMap, rows: e.Rows, server_id: int) -> bool:
        if server_id == self.options.own_id or table.name in NOT_APPLIED:
            return False
        # An ignored server belongs to this site's own cluster: its rows are skipped, but its positions count.
        return server_id not in self.options.ignored or table.name == STATUS_TABLE

    # --- columns -----------------------------------------------------------------------------------
    def _fit(self, run: JoinedRows, only_keys: bool) -> _Fit:
        key = (run.map.table_id, run.first.kind, run.first.before, run.first.after, only_keys)
        known = self._fits.get(key)
        if known is not None and (known.map is run.map or known.map == run.map):
            table = self._table(run)
            is_same = known.table is table and known.version == table.definition.version
            if is_same and known.shown == self._before_columns(table):
                return known
        if len(self._fits) >= _READERS_MAX:
            self._fits.clear()
        fit = self._fits[key] = self._make_fit(run, only_keys)
        return fit

    def _table(self, run: JoinedRows) -> Table:
        try:
            return self._find_table(run.map.name)
        except NoSuchTable as error:
            raise located(error, run.origin) from error

    def _make_fit(self, run: JoinedRows, only_keys: bool) -> _Fit:
        table = self._table(run)
        definition = table.definition
        kinds = {column.name: column.type for column in definition.columns}
        names: list[str] = []
        targets: dict[int, ColumnType] = {}
        for position, column in enumerate(run.map.columns):
            if column.name is None and position >= len(definition.columns):
                raise located(NoSuchColumn(f"{definition.name} has no column {position}"), run.origin)
            name = definition.columns[position].name if column.name is None else column.name
            if name not in kinds:
                text = f"{definition.name} has no column {name!r}, which the source's table has; add it"
                raise located(NoSuchColumn(text, table=definition.name, column=name), run.origin)
            names.append(name)
            targets[position] = kinds[name]
        shown = self._before_columns(table)
        before, after = present(run.first)
        key = definition.primary_key
        wanted = frozenset(place for place, name in enumerate(names) if name in key) if only_keys else None
        of_before = None if shown is None else frozenset(place for place in before if names[place] in shown)
        try:
            reader = BodyReader(run.map.types, before, after, targets, wanted, of_before)
        except Rejected as error:
            raise located(error, run.origin) from error
        return _Fit(run.map, table, definition.version, tuple(names), shown, reader)

    # --- batches -----------------------------------------------------------------------------------
    def _cut(self, run: JoinedRows, only_keys: bool) -> Iterator[ChangeBatch]:
        fit = self._fit(run, only_keys)
        event_ends = np.array(run.ends, dtype=np.int64)
        transactions = np.array([_signed(each) for each in run.transaction_ids], dtype=np.int64)
        begin_bytes = 0
        try:
            for chunk in fit.reader.chunks(run.body, run.origin):
                of_rows = transactions[np.searchsorted(event_ends, chunk.ends)]
                before = None if run.first.before is None else _named(fit, chunk.before)
                after = None if run.first.after is None else _named(fit, chunk.after)
                whole = self._whole(run, fit, before, after, of_rows)
                start = 0
                for stop in self._stops(whole, chunk.ends - begin_bytes):
                    yield whole.slice(start, stop)
                    start = stop
                begin_bytes = int(chunk.ends[-1])
        except Rejected as error:
            raise located(error, run.origin) from error

    def _whole(
        self, run: JoinedRows, fit: _Fit, before: Columns | None, after: Columns | None, transactions: Words
    ) -> ChangeBatch:
        key = fit.table.definition.primary_key
        has_key = [image for image in (before, after) if image is not None and set(key) <= set(image)]
        if not has_key:
            raise corrupt_event(run.origin, f"a row event of {fit.table.name} has no image with the primary key")
        if len(has_key) == 2 and any(not has_key[0][name].equals(has_key[1][name]) for name in key):
            raise Unsupported(f"{fit.table.name}: an update changes a primary key; log it as a delete and an insert")
        keys = encode_keys(fit.table.format, {name: has_key[0][name] for name in key})
        flags = run.first.conflict_flags
        return ChangeBatch(
            fit.table, KINDS[run.first.kind], flags, run.server_id, before, after, transactions, keys, run.origin
        )

    def _stops(self, whole: ChangeBatch, ends: Words) -> Iterator[int]:
        """Yield the ends of batches: before a key that is already in the batch, and when it is large enough."""
        options = self.options
        start = 0
        while start < whole.rows:
            begin_bytes = int(ends[start - 1]) if start else 0
            most = int(np.searchsorted(ends, begin_bytes + options.batch_bytes)) + 1
            stop = min(max(most, start + 1), start + options.batch_rows, whole.rows)
            self._seen_keys.clear()
            start += self._seen_keys.add(0, slice_keys(whole.keys, start, stop))
            yield start

    def _status_rows(self, run: JoinedRows) -> Iterator[StatusRows]:
        if run.first.kind != e.WRITE:
            raise corrupt_event(run.origin, f"rows of {STATUS_TABLE} come as events that are not writes")
        key = (run.map, run.first.before, run.first.after)
        if self._status is None or self._status[0] != key:
            wanted = None if self.options.with_places else frozenset((0, 1))
            self._status = key, BodyReader(run.map.types, *present(run.first), wanted=wanted)
        for chunk in self._status[1].chunks(run.body, run.origin):
            if not {0, 1} <= set(chunk.after):
                raise corrupt_event(run.origin, f"rows of {STATUS_TABLE} lack their first columns")
            servers, epochs = chunk.after[0].to_pylist(), chunk.after[1].to_pylist()
            rows = tuple(zip(servers, epochs, strict=True))
            if any(not isinstance(value, int) for row in rows for value in row):
                raise corrupt_event(run.origin, f"rows of {STATUS_TABLE} hold a value that is not a number")
            places: tuple[tuple[str, int, int], ...] = ()
            if self.options.with_places and set(_PLACE_COLUMNS) <= set(chunk.after):
                places = tuple(zip(*(chunk.after[column].to_pylist() for column in _PLACE_COLUMNS), strict=True))
            yield StatusRows(run.server_id, rows, run.origin, places)


def _of_rows(transaction: EpochTransaction) -> Iterator[ReadEvent]:
    """Yield the events of a transaction, which has rows only. Raises: PeerError for an incident or a statement."""
    for read in transaction.events():
        event = read.event
        if isinstance(event, e.Incident):
            raise corrupt_event(read.at, f"an epoch transaction holds an incident: {event.message}")
        if isinstance(event, e.Query) and event.statement not in ("BEGIN", "COMMIT"):
            raise corrupt_event(read.at, f"an epoch transaction holds the statement {event.statement[:200]!r}")
        yield read


def _named(fit: _Fit, columns: dict[int, object]) -> Columns:
    return {fit.names[position]: array for position, array in columns.items()}
