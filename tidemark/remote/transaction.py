"""A transaction that another process executes."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Self

from tidemark.calls import has_calls_of
from tidemark.derived import P, R, described, forwarded
from tidemark.engine.base.errors import (
    CommitUnanswered,
    Error,
    OutcomeUnknown,
    PeerError,
    PrimaryLost,
    Retryable,
    StoreClosed,
    StoreFailed,
    TransactionEnded,
    WrongThread,
)
from tidemark.engine.rows.column_input import Batch, to_columns
from tidemark.engine.rows.column_values import conform
from tidemark.remote.executor import FINAL_OUTCOME, OPEN
from tidemark.remote.keys import with_sent_keys
from tidemark.remote.scan import RemoteScan
from tidemark.scans import Progress, ScanAsked
from tidemark.session import READ_COMMITTED, Isolation, Transaction, TransactionReads, is_own_view

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.remote.links import Links


def batched(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a call that sends its data batch by batch, as `_many` says."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        given = signature.bind(self, *arguments, **named).arguments
        _, table, data = [given.pop(name) for name in list(signature.parameters)[:3]]
        result: R = self._many(method.__name__, table, data, given.pop("progress", None), **given)
        return result

    return call


def _check_types(batch: Batch, definition: TableDefinition) -> None:
    """Refuse lists and structs, which cannot be sent, as the store would. Raises: TypeMismatch, NoSuchColumn."""
    import pyarrow as pa

    for name, array in zip(batch.columns.schema.names, batch.columns.columns, strict=True):
        if pa.types.is_nested(array.type):
            conform(array, definition.found(name)[1], definition.name, batch.first_row)


@has_calls_of("remote transaction")
class RemoteTransaction(TransactionReads[RemoteScan]):
    """An open transaction of another process, with the calls of `Transaction`, for the thread that began it.

    A call raises what that of `Transaction` raises. A `Rejected` error leaves the transaction open and as it was before
    the call. A `Retryable` error has rolled it back as a whole. `PrimaryLost` is Retryable: the process that executed
    the transaction is gone, and nothing was committed.

    Examples:
        >>> with remote.transaction() as txn:
        ...     txn.insert("item", (4, "ink", 7))
        ...     changed = txn.update_many("item", {"id": [1, 2], "stock": [9, 4]})
        ...     names = [row.name for row in txn.scan("item", where=tm.col("stock") > 5)]
        >>> changed, names, remote.outcome(txn.txid)
        (2, ['pen', 'ink'], 'committed')
    """

    def __init__(
        self,
        links: Links,
        definition: Callable[[str], TableDefinition],
        log_exclusive_reads: bool | None = None,
        isolation: Isolation = READ_COMMITTED,
    ) -> None:
        """Begin. Raises: PeerTimeout if no node executes transactions; StoreFailed, Retryable as in the other
        process.
        """
        self._links = links
        self._definition = definition
        self._thread = threading.get_ident()
        # An older version knows one isolation.
        options = [log_exclusive_reads, isolation] if is_own_view(isolation) else [log_exclusive_reads]
        self._address, self.link, self.txid = links.begin(["begin", *options])
        self.is_ended = False

    # --- usability -------------------------------------------------------------------------------
    def _check(self) -> None:
        if self.is_ended:
            raise TransactionEnded("the transaction has ended; begin another one")
        if self._thread != threading.get_ident():
            raise WrongThread("a transaction belongs to the thread that began it; begin one in this thread")
        self._links.check_open()

    def _ask(self, *what: Any) -> Any:
        """Make one call of the transaction. Raises: the error of the call; PrimaryLost."""
        self._check()
        try:
            return self.link.ask(list(what))
        except (Retryable, TransactionEnded):
            self._end()
            raise
        except StoreFailed as error:
            self._lose()
            raise PrimaryLost(
                f"the store that executed the transaction has failed ({error.message}); run it again"
            ) from error
        except PeerError as error:
            self._lose()
            raise PrimaryLost(
                f"the link to the process that executes the transaction broke ({error.message}); run it again",
                txid=self.txid,
            ) from error
        except Error:
            raise
        except BaseException:  # Ctrl-C: the link was closed before the answer, and the primary rolls back
            self._lose()
            raise

    def _end(self) -> None:
        self.is_ended = True
        self._links.put_back(self._address, self.link)

    def _lose(self) -> None:
        self.is_ended = True
        self.link.close()
        self._links.gone(self._address)

    # --- end -------------------------------------------------------------------------------------
    def commit(self) -> None:
        """Commit. If the answer is lost, the group is asked for the outcome.

        Durable on return: the changes, at every live node of the group, with `durability="commit"`.

        Raises: PrimaryLost if the transaction was not committed; CommitUnanswered with the `txid` if no node knows the
        outcome; Retryable and TransactionEnded as in the other process.

        Examples:
            >>> txn = remote.transaction()
            >>> txn.delete("item", 3)
            True
            >>> txn.commit()
            >>> len(remote["item"])
            2
        """
        self._check()
        try:
            self.link.ask(["commit"])
        except (Retryable, TransactionEnded):
            self._end()
            raise
        except BaseException as error:
            self._lose()
            if isinstance(error, (PeerError, StoreFailed, OutcomeUnknown)):
                self._ask_outcome(error)
                return
            raise
        self._end()

    def _ask_outcome(self, error: BaseException) -> None:
        """Ask the nodes for the outcome, and return if the transaction was committed."""
        links, txid = self._links, self.txid

        def outcome() -> str:
            links.primary()  # the present primary knows every acknowledged commit
            answer = str(links.ask_primary(["store", FINAL_OUTCOME, [txid], {}]))
            if answer == OPEN:
                raise PrimaryLost(f"transaction {txid} is neither known as committed nor as aborted")
            return answer

        try:
            answer = links.until(outcome)
        except (PeerError, StoreClosed) as unanswered:
            raise CommitUnanswered(
                f"the link broke during the commit of transaction {txid} ({error}), and no node could tell its outcome;"
                f" ask outcome({txid})",
                txid=txid,
            ) from unanswered
        if answer == "unknown":
            raise CommitUnanswered(
                f"the link broke during the commit of transaction {txid} ({error}), and the log of the current primary"
                " begins after it; read its rows to see whether it committed",
                txid=txid,
            )
        if answer != "committed":
            raise PrimaryLost("the transaction's process was lost before it committed; run it again", txid=txid)

    def rollback(self) -> None:
        """Undo everything. A second call does nothing, nor does one after the link to the other process broke: that
        process has rolled the transaction back.

        Examples:
            >>> txn = remote.transaction()
            >>> txn.delete("item", 3)
            True
            >>> txn.rollback()
            >>> len(remote["item"])
            3
        """
        if self.is_ended:
            return
        try:
            self.link.ask(["rollback"])
        except (Error, OSError):
            self._lose()
            return
        self._end()

    @described(Transaction.savepoint)
    @contextmanager
    def savepoint(self) -> Iterator[None]:
        self._ask("savepoint")
        try:
            yield
        except BaseException:
            if not self.is_ended:
                self._ask("release", False)
            raise
        self._ask("release", True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is not None:
            self.rollback()
        elif not self.is_ended:
            self.commit()

    # --- calls, as those of `Transaction` --------------------------------------------------------
    def _forward(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        sent = with_sent_keys(method, arguments, named, 1, lambda: self._definition(arguments[0]))
        return self._ask("txn", method, *sent)

    def _many(self, method: str, table: str, data: Any, progress: Progress | None, **named: Any) -> int:
        """Send the rows batch by batch; return the sum of the results. If a batch fails, all batches are undone."""
        total = done = 0
        fill_in = method in ("insert_many", "write_many")  # what is left out has its default
        definition = self._definition(table)
        with self.savepoint():
            for batch in to_columns(data, definition, fill_in=fill_in):
                _check_types(batch, definition)
                columns = batch.columns.select(
                    [name for name in batch.columns.schema.names if name not in batch.filled]
                )
                try:
                    total += int(self._forward(method, [table, columns], named))
                except Error as error:
                    row = error.evidence.get("row")
                    if isinstance(row, int):
                        error.evidence["row"] = row + batch.first_row
                    raise
                done += columns.num_rows
                if progress is not None:
                    progress(done, -1, "rows")
        return total

    # calls: python -m tools.make_faces
    insert = forwarded(Transaction.insert)
    write = forwarded(Transaction.write)
    update = forwarded(Transaction.update)
    delete = forwarded(Transaction.delete)
    upsert = forwarded(Transaction.upsert)
    insert_many = batched(Transaction.insert_many)
    write_many = batched(Transaction.write_many)
    upsert_many = batched(Transaction.upsert_many)
    update_many = batched(Transaction.update_many)
    delete_many = forwarded(Transaction.delete_many)
    update_where = forwarded(Transaction.update_where)
    delete_where = forwarded(Transaction.delete_where)
    get = forwarded(Transaction.get)
    get_many = forwarded(Transaction.get_many)

    def _defined(self, table: str) -> TableDefinition:
        return self._definition(table)

    def __repr__(self) -> str:
        state = "ended" if self.is_ended else "open"
        return f"<tidemark transaction {self.txid:#x} of another process, {state}>"

    def _scan(self, table: str, asked: ScanAsked) -> RemoteScan:
        self._check()
        return RemoteScan(table, asked, self._ask, True)
