"""A transaction that another process executes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

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
from tidemark.engine.rows.column_input import to_columns
from tidemark.remote.executor import FINAL_OUTCOME, OPEN
from tidemark.remote.forwarded import forwarded
from tidemark.remote.scan import RemoteScan, scan_arguments
from tidemark.scans import By, ByIndex, grouping
from tidemark.session import READ_COMMITTED, Isolation, Lock, Transaction, check_lock, is_own_view

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.remote.links import Address, Links
    from tidemark.replication.calls.conversation import CallLink

Progress = Callable[[int, int, str], None]


class RemoteTransaction:
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
        is_plain = not is_own_view(isolation)  # which an older version knows too
        self._address, self.link, self.txid = self._begun(
            [log_exclusive_reads] if is_plain else [log_exclusive_reads, isolation]
        )
        self.is_ended = False

    def _begun(self, options: list[Any]) -> tuple[Address, CallLink, int]:
        """Return a link to the primary with an open transaction."""
        links = self._links

        def begin() -> tuple[Address, CallLink, int]:
            address = links.known_primary()
            link = links.link(address)
            try:
                return address, link, link.ask(["begin", *options])
            except BaseException:
                links.put_back(address, link)
                links.forget(address)
                raise

        return links.until(begin)

    # --- usability -------------------------------------------------------------------------------
    def _check(self) -> None:
        """Raise unless this thread may use the transaction now."""
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

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the changes of the block, and release the locks that it has taken, if it raises; the transaction
        continues.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.insert("item", (4, "ink", 7))
            ...     try:
            ...         with txn.savepoint():
            ...             txn.insert_many("item", [(5, "box", 2), (4, "ink", 7)])
            ...     except tm.DuplicateKey:
            ...         pass
            >>> sorted(row.id for row in remote["item"])
            [1, 2, 3, 4]
        """
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
        return self._ask("txn", method, arguments, named)

    insert = forwarded(Transaction.insert)
    write = forwarded(Transaction.write)
    get = forwarded(Transaction.get)
    update = forwarded(Transaction.update)
    delete = forwarded(Transaction.delete)
    upsert = forwarded(Transaction.upsert)
    update_where = forwarded(Transaction.update_where)
    delete_where = forwarded(Transaction.delete_where)
    delete_many = forwarded(Transaction.delete_many)
    get_many = forwarded(Transaction.get_many)

    def _many(self, method: str, table: str, data: Any, progress: Progress | None, fill_in: bool, **named: Any) -> int:
        """Send the rows batch by batch; return the sum of the results. If a batch fails, all batches are undone."""
        total = done = 0
        with self.savepoint():
            for batch in to_columns(data, self._definition(table), fill_in=fill_in):
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

    def insert_many(self, table: str, data: Any, progress: Progress | None = None) -> int:
        """Insert all rows of Arrow, pandas, polars, NumPy or Python data, or none; return how many.

        As `Transaction.insert_many`.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.insert_many("item", [(4, "ink", 7), (5, "box", 2)])
            2
        """
        return self._many("insert_many", table, data, progress, True)

    def write_many(self, table: str, data: Any, progress: Progress | None = None) -> int:
        """Insert or replace all rows of `data`, or none on an error; return how many.

        As `Transaction.write_many`.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.write_many("item", [(1, "pencil", 12), (4, "ink", 7)])
            2
        """
        return self._many("write_many", table, data, progress, True)

    def upsert_many(
        self,
        table: str,
        data: Any,
        set: Mapping[str, Any] | None = None,
        index: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Upsert all rows of `data` in their order, or none on an error; return how many were inserted.

        As `Transaction.upsert_many`.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.upsert_many("item", [(1, "pencil", 12), (4, "ink", 7)])
            1
        """
        return self._many("upsert_many", table, data, progress, False, set=set, index=index)

    def update_many(self, table: str, data: Any, progress: Progress | None = None, *, index: str | None = None) -> int:
        """Change the given columns of the rows with the keys in `data`, or of none on an error; return how many.

        As `Transaction.update_many`.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.update_many("item", {"id": [1, 2], "stock": [8, 4]})
            2
        """
        return self._many("update_many", table, data, progress, False, index=index)

    def scan(
        self,
        table: str,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        lock: Lock = None,
        partitions: Sequence[str] | None = None,
        where: Any = None,
        *,
        index: str | None = None,
        lower: Any = None,
        upper: Any = None,
        prefix: Any = None,
        reverse: bool = False,
        progress: Progress | None = None,
        skip_locked: bool = False,
    ) -> RemoteScan:
        """Return a scan of the table, whose rows may be locked.

        As `Transaction.scan`.

        Examples:
            >>> with remote.transaction() as txn:
            ...     len(txn.scan("item", lock="shared").to_arrow())
            3
        """
        check_lock(lock, skip_locked)
        self._check()
        by = ByIndex(index, lower, upper, prefix, reverse)
        named = scan_arguments(by, columns=columns, limit=limit, lock=lock, partitions=partitions, where=where)
        if skip_locked:  # an older version of the other process does not know it
            named["skip_locked"] = True
        return RemoteScan(table, named, self._ask, True, progress)

    def aggregate(
        self,
        table: str,
        /,
        where: Any = None,
        *,
        by: By = None,
        order: str | Sequence[str] | None = None,
        reverse: bool | Sequence[bool] = False,
        limit: int | None = None,
        **functions: Any,
    ) -> Any:
        """Compute several aggregates in one pass in the other process; with `by`, those of each group.

        As `Transaction.aggregate`.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.aggregate("item", by="name", total=("sum", "stock"), limit=1)
            [Row(name='bag', total=0)]
        """
        scan = self.scan(table, where=where)
        return scan.aggregate(**grouping(by, order, reverse, limit), **functions)
