"""Executes the calls of one client on the store of this process.

A client's transaction belongs to the thread that serves its link, and is rolled back when the link ends. The calls that
a client may make are those of the kinds below; the calls themselves check their arguments.

No answer shows what a crash could still take back: before an answer with rows, a refusal or an error leaves, what the
call has seen is as durable as a commit that has returned. What a change that succeeds tells is so when its transaction
has ended.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidemark.calls import SCAN_CALLS, STORE_CALLS, TABLE_CALLS, Kind, names
from tidemark.engine.access import row_operations
from tidemark.engine.base.errors import (
    Error,
    FrameRejected,
    OutcomeUnknown,
    Rejected,
    SnapshotClosed,
    StoreFailed,
    TransactionEnded,
)
from tidemark.engine.base.ids import LAST_EPOCH, NO_EPOCH
from tidemark.engine.programs.checks import conditions_of
from tidemark.engine.store.outcome import is_open
from tidemark.engine.txn.locks import LockTable, Served
from tidemark.scans import Scan
from tidemark.session import READ_COMMITTED, Isolation

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.database import Database
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.session import Transaction
    from tidemark.snapshot import Snapshot, SnapshotTable

_log = logging.getLogger("tidemark.remote")

R = TypeVar("R")

SCANS_MAX = 16  # open at once on one link
PAGE_BYTES = 4 << 20  # of a scan, approximately

SAVEPOINTS_MAX = 1_000  # open at once on one link
# Errors of arguments of the wrong type, size or shape.
_INVALID = (
    *(TypeError, AttributeError, LookupError, ValueError, ArithmeticError),
    *(NotImplementedError, RecursionError, MemoryError),
)
_ENDS_LINK = (StoreFailed, OutcomeUnknown)  # nothing can be made durable here any more

CHANGING = names(TABLE_CALLS, Kind.CHANGE, Kind.BULK)
REFUSING = frozenset(call.name for call in TABLE_CALLS if call.may_refuse)  # False or 0: no row was accepted
READING = names(TABLE_CALLS, Kind.LOOKUP)
OF_TABLE = names(TABLE_CALLS, Kind.PARTS)
OF_SCHEMA = names(STORE_CALLS, Kind.SCHEMA)
OF_ROWS = names(STORE_CALLS, Kind.NAMES)  # only committed rows show
FINAL_OUTCOME = "final_outcome"
OPEN = "open"
OF_PRIMARY = names(STORE_CALLS, Kind.PRIMARY) | {FINAL_OUTCOME}
OF_STORE = names(STORE_CALLS, Kind.NODE)
OF_SCAN = names(SCAN_CALLS, Kind.ANSWER)
OF_SNAPSHOT = "snapshot"  # a scan of it has a text in place of whether it is of the transaction


def _all(_found: object) -> int:
    return LAST_EPOCH


class Gate(Protocol):
    """Decides whether this process may execute a call now; a node of a group may not always."""

    def database(self) -> Database:
        """Return the store as it is open now. Raises: Retryable if it is not open."""
        ...

    def reading(self) -> int:
        """Called before rows are read; returns a token for `shown`. Raises: Retryable if another node must read."""
        ...

    def shown(self, token: int, epoch: int) -> None:
        """Called after the read, which has seen nothing of later epochs: return when no crash takes back what it saw.
        Raises: Retryable if the rows may be older than an acknowledged commit; StoreFailed.
        """
        ...

    def writing(self) -> None:
        """Called before a change. Raises: Retryable if another node must execute it."""
        ...

    def failed(self, error: Error) -> None:
        """Called if the store failed, or an outcome is unknown here. Raises: Abandoned if other nodes may know it."""
        ...

    def where(self) -> dict[str, Any]:
        """Return the nodes: `primary` and `members` as addresses, `view`."""
        ...


class Executor:
    """Executes the calls of one client; a `conversation.Executor`. See the module."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._served: Served | None = None
        self._locks: LockTable | None = None  # that lists the client
        self._txn: Transaction | None = None
        self._savepoints: list[AbstractContextManager[None]] = []
        self._snapshot: Snapshot | None = None
        self._scans: dict[int, Iterator[pa.RecordBatch]] = {}  # those of the snapshot have negative numbers
        self._numbers = itertools.count(1)
        self._verbs: dict[str, Callable[..., Any]] = {
            "where": self._gate.where,
            "begin": self._begin,
            "commit": self._commit,
            "rollback": self._rollback,
            "savepoint": self._savepoint,
            "release": self._release,
            "txn": self._call_txn,
            "table": self._call_table,
            "store": self._call_store,
            "create_table": self._create_table,
            "numbers": self._take_numbers,
            "definition": self._definition,
            "length": self._length,
            "scan": self._scan,
            "next": self._next,
            "end": self._end,
            "of_scan": self._of_scan,
            "snapshot": self._begin_snapshot,
            "of_snapshot": self._call_snapshot,
            "end_snapshot": self._end_snapshot,
        }

    def answer(self, what: Any) -> Any:
        """Return the result of a call [verb, arguments ...]. Raises: the errors of the call; FrameRejected for an
        invalid call.
        """
        is_call = isinstance(what, list) and what and isinstance(what[0], str)
        verb = self._verbs.get(what[0]) if is_call else None
        if verb is None:
            raise FrameRejected("the message received is not a call of this version")
        self._begin_call()
        try:
            return verb(*what[1:])
        except (StoreFailed, OutcomeUnknown) as error:
            self._gate.failed(error)
            raise
        except _INVALID as error:
            # A client rejects such a value before it sends it, so this peer has another version or is not a client.
            _log.warning("call %s of a client: %r", what[0], error)
            raise Rejected(f"call {what[0]} has invalid arguments: {error}") from error
        finally:
            self._end_call()

    def close(self) -> None:
        """Roll back the transaction and close the snapshot: the link has ended, or must not continue them."""
        self._scans.clear()
        self._end_snapshot()
        if self._txn is not None:
            self._txn.rollback()
            self._end_call()

    # --- the client ------------------------------------------------------------------------------
    def attach(self, client: str, wake: Callable[[], None], cut: Callable[[], None]) -> None:
        self._served = Served(client, wake, cut)

    def detach(self) -> None:
        if self._locks is not None and self._served is not None:
            self._locks.clients.pop(self._served.client, None)

    def _begin_call(self) -> None:
        served = self._served
        if served is None:
            return
        served.idle_at = None
        if self._locks is None:
            with suppress(Error):  # a node of a group may have no open store
                self._locks = self._db.parts.store.locks
                self._locks.clients[served.client] = served

    def _end_call(self) -> None:
        """Note whether the transaction has ended, and when this call did."""
        txn, served = self._txn, self._served
        if txn is None or served is None:
            return
        if txn.is_ended:
            txn.store.locks.served.pop(txn.txid, None)
        else:
            served.idle_at = txn.store.clock.monotonic()

    def idle_s(self) -> float | None:
        """See `conversation.Executor`: until the transaction has been idle for `idle_transaction_ms`."""
        txn, served = self._txn, self._served
        if txn is None or txn.is_ended or served is None or served.idle_at is None:
            return None
        limit_ms = txn.store.options.idle_transaction_ms
        return max(0.0, served.idle_at + limit_ms / 1_000 - txn.store.clock.monotonic()) if limit_ms else None

    def idle(self) -> None:
        """Roll back a transaction that was idle for too long, or was killed."""
        txn, rest_s = self._txn, self.idle_s()
        if txn is None or self._served is None:
            return
        if rest_s is not None and rest_s <= 0 and not txn.is_killed:
            limit_ms = txn.store.options.idle_transaction_ms
            _log.warning(
                "transaction %#x of client %s made no call for %d ms and is rolled back",
                txn.txid,
                self._served.client,
                limit_ms,
            )
            txn.kill(f"its client made no call for {limit_ms:,} ms (idle_transaction_ms)")
        if txn.is_killed:
            txn.end_killed()
        if txn.is_ended:
            self._end_call()

    # --- transactions ----------------------------------------------------------------------------
    def _begin(self, log_exclusive_reads: bool | None = None, isolation: Isolation = READ_COMMITTED) -> int:
        self._gate.writing()
        self.close()
        self._savepoints.clear()
        self._txn = self._db.transaction(log_exclusive_reads, isolation=isolation)
        if self._served is not None:
            self._txn.store.locks.served[self._txn.txid] = self._served
        return self._txn.txid

    @property
    def _db(self) -> Database:
        return self._gate.database()

    def _read(self, work: Callable[[], R], seen: Callable[[R], int] = _all) -> R:
        """Run a read, and return its result when it may be shown. seen: returns the newest epoch in the result."""
        token = self._gate.reading()
        unsecured = NO_EPOCH if self._txn is None else self._txn.seen
        try:
            found = work()
        except Error as error:
            if not isinstance(error, _ENDS_LINK):
                self._gate.shown(token, LAST_EPOCH)  # an error tells of rows too
            raise
        self._gate.shown(token, seen(found))
        if self._txn is not None:
            self._txn.seen = unsecured  # the commit need not wait for what was shown now
        return found

    def _change(self, work: Callable[[], R]) -> R:
        """Run a change in a transaction of its own, or of the schema. It is durable when it returns."""
        self._gate.writing()
        try:
            return work()
        except Error as error:
            if not isinstance(error, _ENDS_LINK):
                self._secure()
            raise

    def _secure(self) -> None:
        """Return when no crash takes back what was visible here before."""
        self._db.parts.store.resources.secure_reads()

    def _open(self) -> Transaction:
        if self._txn is None:
            raise TransactionEnded("no transaction is open on this link; begin one")
        seen = self._txn.seen
        self._txn.check()
        self._txn.seen = seen  # this reads nothing
        return self._txn

    def _commit(self) -> None:
        txn = self._open()
        try:
            self._gate.writing()
        except Error:
            txn.rollback()  # the client regards it as ended
            raise
        txn.commit()

    def _rollback(self) -> None:
        if self._txn is not None:
            seen, self._txn.seen = self._txn.seen, NO_EPOCH
            self._txn.rollback()
            if seen:
                self._secure()

    def _savepoint(self) -> None:
        if len(self._savepoints) >= SAVEPOINTS_MAX:
            raise Rejected(f"{SAVEPOINTS_MAX} savepoints are open on one link; end some of them")
        point = self._open().savepoint()
        point.__enter__()
        self._savepoints.append(point)

    def _release(self, is_kept: bool) -> None:
        point = self._savepoints.pop()
        if is_kept:
            point.__exit__(None, None, None)
            return
        undone = Undone()
        try:
            point.__exit__(Undone, undone, None)
        except Undone as error:
            if error is not undone:
                raise

    def _call_txn(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if method not in CHANGING | READING:
            raise FrameRejected(f"a transaction has no call {method!r}")
        txn = self._open()
        if method in READING:
            return self._read(lambda: self._get_of(txn, method, arguments, named), lambda found: txn.seen)
        found = self._read(
            lambda: getattr(txn, method)(*arguments, **named),
            lambda found: NO_EPOCH if found or method not in REFUSING else LAST_EPOCH,
        )
        txn.seen = LAST_EPOCH  # its commit makes durable what it has seen
        return found

    def _get_of(self, txn: Transaction, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        txn.seen = NO_EPOCH
        return getattr(txn, method)(*arguments, **named)

    # --- tables and the store --------------------------------------------------------------------
    def _call_table(self, table: str, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if method in CHANGING:
            return self._change(lambda: getattr(self._db[table], method)(*arguments, **named))
        if method == "get" and len(arguments) == 1 and not named:
            get = row_operations.get_with_epoch
            return self._read(lambda: get(self._db[table].table.newest, arguments[0]), lambda found: found[1])[0]
        if method in READING | OF_TABLE:
            return self._read(lambda: getattr(self._db[table], method)(*arguments, **named))
        raise FrameRejected(f"a table has no call {method!r}")

    def _call_store(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        if method in OF_SCHEMA:
            self._change(lambda: getattr(self._db, method)(*arguments, **named))
            return None
        if method in OF_PRIMARY:
            self._gate.writing()
        if method == FINAL_OUTCOME:
            return self._read(lambda: self._final_outcome(*arguments, **named))
        if method in OF_ROWS | OF_PRIMARY:
            # An outcome too: a stale primary would report as aborted what the next primary has committed.
            return self._read(lambda: getattr(self._db, method)(*arguments, **named))
        if method not in OF_STORE:
            raise FrameRejected(f"a store has no call {method!r}")
        found = getattr(self._db, method)(*arguments, **named)
        self._db.parts.store.resources.secure_counts()
        return found

    def _final_outcome(self, txid: int) -> str:
        """As `Database.outcome`, but "open" for an open transaction, so that "unknown" is final."""
        was_open = is_open(self._db.parts.store, txid)
        outcome = self._db.outcome(txid)
        return OPEN if was_open and outcome == "unknown" else outcome

    def _create_table(self, definition: TableDefinition) -> None:
        made = definition
        self._change(
            lambda: self._db.create_table(
                made.name,
                made.columns,
                made.primary_key,
                made.partition,
                made.tablespace,
                checks=conditions_of(made.checks),
                expires=made.expires,
            )
        )

    def _take_numbers(self, name: str, count: int) -> list[int]:
        found = self._change(lambda: self._db.sequence(name).take(count))
        return [found.start, found.stop, found.step]

    def _definition(self, table: str) -> TableDefinition:
        return self._read(lambda: self._db[table].definition, self._of_schema)

    def _of_schema(self, _found: object) -> int:
        return self._db.parts.store.schema.epoch

    def _length(self, table: str) -> int:
        return self._read(lambda: len(self._db[table]))

    # --- the snapshot ----------------------------------------------------------------------------
    def _begin_snapshot(self) -> tuple[int, list[str]]:
        """Open a snapshot; return its epoch and its tables. What it shows is durable: reads of it wait for nothing."""
        self._gate.writing()
        self.close()

        def opened() -> Snapshot:
            self._snapshot = self._db.snapshot()
            return self._snapshot

        try:
            shown = self._read(opened, lambda found: found.epoch)
        except BaseException:
            self._end_snapshot()
            raise
        return shown.epoch, shown.tables(system=True)

    def _shown(self, table: str) -> SnapshotTable:
        if self._snapshot is None:
            raise SnapshotClosed("no snapshot is open on this link; open one")
        return self._snapshot[table]

    def _call_snapshot(self, table: str, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        shown = self._shown(table)
        if method == "definition":
            return shown.definition
        if method == "length":
            return len(shown)
        if method not in READING:
            raise FrameRejected(f"a table of a snapshot has no call {method!r}")
        return getattr(shown, method)(*arguments, **named)

    def _end_snapshot(self) -> None:
        for number in [number for number in self._scans if number < 0]:
            del self._scans[number]
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    # --- scans -----------------------------------------------------------------------------------
    def _made_scan(self, table: str, of: bool | str, named: dict[str, Any]) -> Scan:
        if isinstance(of, str):
            return self._shown(table).scan(**named)
        if of:
            return self._open().scan(table, **named)
        return self._db[table].scan(**named)

    def _scan(self, table: str, of: bool | str, named: dict[str, Any]) -> tuple[int, Any]:
        """Return (number of the scan, its first batch, which has the schema and no rows)."""
        if isinstance(of, str):
            return self._begun_scan(table, of, named, -1)
        return self._read(lambda: self._begun_scan(table, of, named, 1), self._of_schema)

    def _begun_scan(self, table: str, of: bool | str, named: dict[str, Any], sign: int) -> tuple[int, Any]:
        import pyarrow as pa

        scan = self._made_scan(table, of, named)
        if len(self._scans) >= SCANS_MAX:
            raise Rejected(f"{SCANS_MAX} scans are open on one link; read one to its end, or close it")
        number = sign * next(self._numbers)
        schema = scan.schema()
        self._scans[number] = scan.batches()
        return number, pa.RecordBatch.from_arrays([pa.array([], kind) for kind in schema.types], schema=schema)

    def _next(self, number: int) -> Any:
        """Return the next rows, None after the last."""
        return self._page(number) if number < 0 else self._read(lambda: self._page(number))

    def _page(self, number: int) -> pa.Table | None:
        import pyarrow as pa

        found = self._scans.get(number)
        if found is None:
            return None
        page: list[pa.RecordBatch] = []
        while sum(batch.nbytes for batch in page) < PAGE_BYTES:
            try:
                page.append(next(found))
            except StopIteration:
                del self._scans[number]
                break
            except Error:
                del self._scans[number]
                raise
        return pa.Table.from_batches(page) if page else None

    def _end(self, number: int) -> None:
        self._scans.pop(number, None)

    def _of_scan(
        self,
        table: str,
        of: bool | str,
        scan: dict[str, Any],
        method: str,
        arguments: list[Any],
        named: dict[str, Any],
    ) -> Any:
        if method not in OF_SCAN:
            raise FrameRejected(f"a scan has no call {method!r}")

        def answer() -> Any:
            return getattr(self._made_scan(table, of, scan), method)(*arguments, **named)

        return answer() if isinstance(of, str) else self._read(answer)


class Undone(Exception):
    """Ends a client's savepoint so that its changes are undone."""
