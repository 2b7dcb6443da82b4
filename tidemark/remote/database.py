"""A store of another process, or of the nodes of a group, as its clients see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.database import RETRY_PAUSE_SECONDS
from tidemark.engine.base.clock import Clock, SystemClock
from tidemark.engine.base.errors import Retryable, SchemaInvalid, StoreClosed, StoreFailed
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import is_system_table, qualified_name
from tidemark.engine.schema.partition import HashPartition, Partition
from tidemark.engine.store.schema_changes import fresh
from tidemark.remote.links import Address, Links
from tidemark.remote.table import RemoteTable
from tidemark.remote.transaction import RemoteTransaction
from tidemark.replication.wire.wire import TlsContext, check_secret_at, parse_address

if TYPE_CHECKING:
    from tidemark.engine.base.options import Size
    from tidemark.engine.schema.types_base import ColumnType

R = TypeVar("R")
TIMEOUT_MS = 10_000


class RemoteDatabase:
    """The result of `connect`: the calls of a `Database` that other processes may make. Threads may share it."""

    def __init__(
        self, seeds: Sequence[Address], secret: bytes, tls: TlsContext | None, timeout_ms: int, clock: Clock
    ) -> None:
        """Ask for the view. Raises: PeerTimeout if no node answers in time, PeerError."""
        self.links = Links(seeds, secret, tls, clock, timeout_ms)
        self._clock = clock
        self._is_closed = False
        try:
            self.links.until(self.links.learn)
        except BaseException:
            self.links.close()
            raise

    def close(self) -> None:
        """Close the links; transactions under way are rolled back. A second call does nothing."""
        self._is_closed = True
        self.links.close()

    def __enter__(self) -> RemoteDatabase:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _check_usable(self) -> None:
        if self._is_closed:
            raise StoreClosed("the connection is closed; connect again")

    # --- transactions ----------------------------------------------------------------------------
    def transaction(self, log_exclusive_reads: bool | None = None) -> RemoteTransaction:
        """Begin a transaction of this thread at the primary; use it with `with`. Raises: PeerTimeout, and as
        `Database.transaction`.
        """
        self._check_usable()
        return RemoteTransaction(self.links, self._definition, log_exclusive_reads)

    def run(self, work: Callable[[RemoteTransaction], R], retries: int = 5) -> R:
        """Run work(txn) in a transaction and commit it; see `Database.run`. The loss of the primary is a Retryable
        error, too.
        """
        if retries < 0:
            raise SchemaInvalid(f"retries must be 0 or more, got {retries}")
        for attempt in range(retries + 1):
            try:
                with self.transaction() as txn:
                    return work(txn)
            except Retryable:
                if attempt == retries:
                    raise
                self._clock.sleep(RETRY_PAUSE_SECONDS * (1 << attempt))
        raise StoreFailed("unreachable: the last attempt returns or raises")

    def _definition(self, table: str) -> TableDefinition:
        found: TableDefinition = self.links.read(["definition", table])
        return found

    # --- tables ----------------------------------------------------------------------------------
    def __getitem__(self, name: str) -> RemoteTable:
        self._check_usable()
        return RemoteTable(self.links, self.transaction, self._definition(name).name)

    def __contains__(self, name: str) -> bool:
        return qualified_name(name) in self.tables(system=is_system_table(qualified_name(name)))

    def tables(self, system: bool = False) -> list[str]:
        """See `Database.tables`."""
        return list(self._read("tables", system))

    def tablespaces(self) -> list[str]:
        """See `Database.tablespaces`."""
        return list(self._read("tablespaces"))

    def status(self) -> dict[str, Any]:
        """`Database.status` of the node that executes transactions."""
        return dict(self.links.ask_primary(["store", "status", [], {}]))

    def outcome(self, txid: int) -> str:
        """Return the outcome of a transaction: "committed", "aborted", or "unknown" if it is older than the kept
        log.
        """
        return str(self.links.ask_primary(["store", "outcome", [txid], {}]))

    def check(self) -> dict[str, Any]:
        """`Database.check` of the node that executes transactions."""
        return dict(self.links.ask_primary(["store", "check", [], {}]))

    def checkpoint(self) -> dict[str, Any]:
        """`Database.checkpoint` of the node that executes transactions."""
        return dict(self.links.ask_primary(["store", "checkpoint", [], {}]))

    def sync(self) -> int:
        """See `Database.sync`."""
        return int(self.links.ask_primary(["store", "sync", [], {}]))

    def where(self) -> dict[str, Any]:
        """The nodes: `view` (its number), `primary` and `members` as (host, port)."""
        return dict(self.links.read(["where"]))

    def _read(self, method: str, *arguments: Any) -> Any:
        self._check_usable()
        return self.links.read(["store", method, list(arguments), {}])

    # --- schema ----------------------------------------------------------------------------------
    def _change(self, method: str, *arguments: Any, **named: Any) -> None:
        """Make a schema change once. If the link breaks before the answer, the caller has to check whether it was
        made.
        """
        self._check_usable()
        links = self.links
        address = links.primary()
        link = links.link(address)
        try:
            link.ask(["store", method, list(arguments), named])
        finally:
            links.give(address, link)

    def create_table(
        self,
        name: str,
        columns: Iterable[Column],
        primary_key: str | Sequence[str],
        partition: Partition | None = None,
        tablespace: str | None = None,
    ) -> RemoteTable:
        """See `Database.create_table`."""
        self._check_usable()
        key = (primary_key,) if isinstance(primary_key, str) else tuple(primary_key)
        made = tuple(fresh(column) for column in columns)
        definition = TableDefinition(0, 1, name, made, key, partition or HashPartition(), tablespace)
        address = self.links.primary()
        link = self.links.link(address)
        try:
            link.ask(["create_table", definition])
        finally:
            self.links.give(address, link)
        return RemoteTable(self.links, self.transaction, definition.name)

    def create_replication_table(self) -> RemoteTable:
        """See `Database.create_replication_table`."""
        self._change("create_replication_table")
        return self["mysql.ndb_replication"]

    def drop_table(self, name: str) -> None:
        """See `Database.drop_table`."""
        self._change("drop_table", name)

    def add_column(self, table: str, column: Column) -> None:
        """See `Database.add_column`."""
        self._change("add_column", table, column)

    def drop_column(self, table: str, name: str) -> None:
        """See `Database.drop_column`."""
        self._change("drop_column", table, name)

    def rename(self, table: str, to: str) -> None:
        """See `Database.rename`."""
        self._change("rename", table, to)

    def rename_column(self, table: str, old: str, new: str) -> None:
        """See `Database.rename_column`."""
        self._change("rename_column", table, old, new)

    def set_default(self, table: str, column: str, default: Any = ABSENT) -> None:
        """See `Database.set_default`."""
        self._change("set_default", table, column, default)

    def widen_column(self, table: str, column: str, type: ColumnType) -> None:
        """See `Database.widen_column`."""
        self._change("widen_column", table, column, type)

    def add_partition(self, table: str, name: str, bound: Any) -> None:
        """See `Database.add_partition`."""
        self._change("add_partition", table, name, bound)

    def drop_partition(self, table: str, name: str) -> None:
        """See `Database.drop_partition`."""
        self._change("drop_partition", table, name)

    def create_index(self, table: str, name: str, columns: str | Sequence[str], unique: bool = False) -> None:
        """See `Database.create_index`."""
        self._change("create_index", table, name, columns, unique)

    def drop_index(self, table: str, name: str) -> None:
        """See `Database.drop_index`."""
        self._change("drop_index", table, name)

    def create_tablespace(self, name: str, size: Size = "64 MiB", **options: Any) -> None:
        """See `Database.create_tablespace`."""
        self._change("create_tablespace", name, size, **options)

    def add_datafile(self, name: str, size: Size) -> None:
        """See `Database.add_datafile`."""
        self._change("add_datafile", name, size)

    def drop_tablespace(self, name: str) -> None:
        """See `Database.drop_tablespace`."""
        self._change("drop_tablespace", name)


def connect(
    nodes: str | Sequence[str | tuple[str, int]],
    secret: bytes,
    tls: TlsContext | None = None,
    timeout_ms: int = TIMEOUT_MS,
) -> RemoteDatabase:
    """Connect to a node group (`tidemark node`), or to one store (`tm.serve_calls`).

    Args:
        nodes: "host:port,host:port", or a sequence of addresses. One that is up is enough; it names the others.
        secret: That of the group.
        tls: A client's context.
        timeout_ms: How long to look for a node that can execute a call. A takeover within this time is visible only to
            open transactions, which raise PrimaryLost (Retryable: `run` repeats them).

    Raises: PeerTimeout if no node answers, PeerError, SchemaInvalid.
    """
    texts = nodes.split(",") if isinstance(nodes, str) else list(nodes)
    seeds = [parse_address(each.strip() if isinstance(each, str) else each) for each in texts]
    if not seeds:
        raise SchemaInvalid("give the address of a node")
    for each in seeds:
        check_secret_at(each, secret, tls)
    return RemoteDatabase(seeds, secret, tls, timeout_ms, SystemClock())
