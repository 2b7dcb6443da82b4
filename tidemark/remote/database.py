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
    """The result of `connect`: the calls of a `Database` that other processes may make. Threads may share it.

    Each call raises what the call of `Database` with this name raises, and PeerTimeout if no node answers in time. It
    raises LimitExceeded for a call or an answer of more than 256 MiB.

    A schema change is sent once. It raises NotPrimary if the node stopped leading, and a PeerError if the link broke
    before the answer: then check whether the change was made.

    After `close`, calls for tables, transactions and schema changes raise StoreClosed.

    Examples:
        In the examples of its calls `remote` is a connection to the store `db`.

        >>> secret = b"sixteen bytes or more"
        >>> with tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
        ...     with tm.connect([serving.address], secret) as remote:
        ...         remote["item"].insert({"id": 4, "name": "ink", "stock": 7})
        ...         [row.name for row in remote["item"].scan(where=tm.col("stock") > 5)]
        ['pen', 'ink']
    """

    def __init__(
        self, seeds: Sequence[Address], secret: bytes, tls: TlsContext | None, timeout_ms: int, clock: Clock
    ) -> None:
        """Ask the nodes for the view. Raises: PeerTimeout if no node answers in time, PeerError."""
        self.links = Links(seeds, secret, tls, clock, timeout_ms)
        self._clock = clock
        self._is_closed = False
        try:
            self.links.until(self.links.learn)
        except BaseException:
            self.links.close()
            raise

    def close(self) -> None:
        """Close the links; transactions under way are rolled back. A second call does nothing.

        Examples:
            >>> remote.close()
            >>> remote.tables()
            Traceback (most recent call last):
            ...
            tidemark.engine.base.errors.StoreClosed: the connection is closed; connect again
        """
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
        """Begin a transaction of this thread at the primary; use it with `with`.

        log_exclusive_reads: as for `Database.transaction`.

        After its commit the changes are durable at every live node of the group, with `durability="commit"`.

        Raises: PeerTimeout if no node executes transactions, and as `Database.transaction`. Its calls raise PrimaryLost
        (Retryable) if its process is lost before the commit. `commit` raises CommitUnanswered with the `txid` if the
        answer was lost and no node knows the outcome.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.insert("item", (4, "ink", 7))
            ...     changed = txn.update("item", 1, {"stock": 9})
            >>> remote["item"].get(1).stock
            9
        """
        self._check_usable()
        return RemoteTransaction(self.links, self._definition, log_exclusive_reads)

    def run(self, work: Callable[[RemoteTransaction], R], retries: int = 5) -> R:
        """Run work(txn) in a transaction and commit it; see `Database.run`. The loss of the primary is a Retryable
        error, too.

        Durable on return: the transaction, at every live node of the group, with `durability="commit"`.

        Raises: SchemaInvalid for negative `retries`, the last Retryable error after them, and what `work` and
        `transaction` raise.

        Examples:
            >>> def sell(txn):
            ...     return txn.update("item", 1, {"stock": tm.col("stock") - 1}, tm.col("stock") > 0)
            >>> remote.run(sell)
            True
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
        """Return the names of the tables, as `Database.tables`.

        Examples:
            >>> remote.tables()
            ['main.item']
        """
        return list(self._read("tables", system))

    def tablespaces(self) -> list[str]:
        """Return the names of the tablespaces, as `Database.tablespaces`.

        Examples:
            >>> remote.tablespaces()
            []
        """
        return list(self._read("tablespaces"))

    def status(self) -> dict[str, Any]:
        """Return `Database.status` of the node that executes transactions.

        Examples:
            >>> remote.status()["tables"]["main.item"]["rows"]
            3
        """
        return dict(self.links.ask_primary(["store", "status", [], {}]))

    def outcome(self, txid: int) -> str:
        """Return the outcome of a transaction: "committed", "aborted", or "unknown" if it is older than the kept
        log.

        Examples:
            >>> with remote.transaction() as txn:
            ...     txn.insert("item", (4, "ink", 7))
            >>> remote.outcome(txn.txid)
            'committed'
        """
        return str(self.links.ask_primary(["store", "outcome", [txid], {}]))

    def check(self) -> dict[str, Any]:
        """Run `Database.check` at the node that executes transactions; return its report.

        Examples:
            >>> remote.check()["is_sound"]
            True
        """
        return dict(self.links.ask_primary(["store", "check", [], {}]))

    def checkpoint(self) -> dict[str, Any]:
        """Run `Database.checkpoint` at the node that executes transactions; return its report.

        Durable on return: the local checkpoint of that node.

        Examples:
            >>> remote.checkpoint()["lcp_id"]
            1
        """
        return dict(self.links.ask_primary(["store", "checkpoint", [], {}]))

    def sync(self) -> int:
        """Make everything committed so far durable and close its epoch, as `Database.sync`; return that epoch.

        Durable on return: as for `Database.sync`.

        Examples:
            >>> epoch = remote.sync()
        """
        return int(self.links.ask_primary(["store", "sync", [], {}]))

    def where(self) -> dict[str, Any]:
        """Return the nodes: `view` (its number, 0 outside a group), `primary` and `members` as (host, port). `primary`
        is None while no node executes transactions.

        Examples:
            >>> nodes = remote.where()
            >>> nodes["primary"] in nodes["members"]
            True
        """
        return dict(self.links.read(["where"]))

    def _read(self, method: str, *arguments: Any) -> Any:
        self._check_usable()
        return self.links.read(["store", method, list(arguments), {}])

    # --- schema ----------------------------------------------------------------------------------
    def _change(self, method: str, *arguments: Any, **named: Any) -> None:
        """Send a schema change once. If the link breaks before the answer, the caller must check whether the change was
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
        """Create a table, as `Database.create_table`.

        Durable on return: the table.

        Examples:
            >>> remote.create_table("sale", [tm.Column("id", tm.Int64), tm.Column("at", tm.DateTime)], "id")
            <tidemark table main.sale of another process>
        """
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
        """Create `mysql.ndb_replication`, as `Database.create_replication_table`.

        Durable on return: the table.

        Examples:
            >>> remote.create_replication_table()
            <tidemark table mysql.ndb_replication of another process>
        """
        self._change("create_replication_table")
        return self["mysql.ndb_replication"]

    def drop_table(self, name: str) -> None:
        """Drop a table, as `Database.drop_table`.

        Durable on return: the drop.

        Examples:
            >>> remote.drop_table("item")
            >>> "item" in remote
            False
        """
        self._change("drop_table", name)

    def add_column(self, table: str, column: Column) -> None:
        """Add a column, as `Database.add_column`.

        Durable on return: the column.

        Examples:
            >>> remote.add_column("item", tm.Column("colour", tm.VarChar(10), default="blue"))
            >>> remote["item"][1].colour
            'blue'
        """
        self._change("add_column", table, column)

    def drop_column(self, table: str, name: str) -> None:
        """Drop a column, as `Database.drop_column`.

        Durable on return: the drop.

        Examples:
            >>> remote.drop_column("item", "stock")
            >>> remote["item"][1]
            Row(id=1, name='pen')
        """
        self._change("drop_column", table, name)

    def rename(self, table: str, to: str) -> None:
        """Rename a table, as `Database.rename`.

        Durable on return: the name.

        Examples:
            >>> remote.rename("item", "article")
            >>> remote.tables()
            ['main.article']
        """
        self._change("rename", table, to)

    def rename_column(self, table: str, old: str, new: str) -> None:
        """Rename a column, as `Database.rename_column`.

        Durable on return: the name.

        Examples:
            >>> remote.rename_column("item", "stock", "pieces")
            >>> remote["item"][1].pieces
            10
        """
        self._change("rename_column", table, old, new)

    def set_default(self, table: str, column: str, default: Any = ABSENT) -> None:
        """Set or remove the default of a column, as `Database.set_default`.

        Durable on return: the default.

        Examples:
            >>> remote.set_default("item", "stock", 0)
            >>> remote["item"].insert({"id": 4, "name": "ink"})
            >>> remote["item"][4].stock
            0
        """
        self._change("set_default", table, column, default)

    def widen_column(self, table: str, column: str, type: ColumnType) -> None:
        """Give a column a wider type, as `Database.widen_column`.

        Durable on return: the type.

        Examples:
            >>> remote.widen_column("item", "name", tm.VarChar(80))
        """
        self._change("widen_column", table, column, type)

    def add_partition(self, table: str, name: str, bound: Any) -> None:
        """Add a partition, as `Database.add_partition`.

        Durable on return: the partition.

        Examples:
            >>> by_year = tm.RangePartition("year", [("old", 2025)])
            >>> sale = remote.create_table("sale", [tm.Column("year", tm.Int16)], "year", by_year)
            >>> remote.add_partition("sale", "now", 2026)
            >>> [each["name"] for each in sale.partitions()]
            ['old', 'now']
        """
        self._change("add_partition", table, name, bound)

    def drop_partition(self, table: str, name: str) -> None:
        """Drop a partition with its rows, as `Database.drop_partition`.

        Durable on return: the drop.

        Examples:
            >>> by_year = tm.RangePartition("year", [("old", 2025), ("now", 2026)])
            >>> sale = remote.create_table("sale", [tm.Column("year", tm.Int16)], "year", by_year)
            >>> remote.drop_partition("sale", "old")
            >>> [each["name"] for each in sale.partitions()]
            ['now']
        """
        self._change("drop_partition", table, name)

    def create_index(self, table: str, name: str, columns: str | Sequence[str], unique: bool = False) -> None:
        """Create an ordered index, as `Database.create_index`.

        Durable on return: the index.

        Examples:
            >>> remote.create_index("item", "by_name", "name", unique=True)
            >>> remote["item"].get("cup", index="by_name").id
            2
        """
        self._change("create_index", table, name, columns, unique)

    def drop_index(self, table: str, name: str) -> None:
        """Drop an index, as `Database.drop_index`.

        Durable on return: the drop.

        Examples:
            >>> remote.create_index("item", "by_stock", "stock")
            >>> remote.drop_index("item", "by_stock")
        """
        self._change("drop_index", table, name)

    def create_tablespace(self, name: str, size: Size = "64 MiB", **options: Any) -> None:
        """Create a tablespace, as `Database.create_tablespace`, with the same options.

        Durable on return: the tablespace.

        Examples:
            >>> remote.create_tablespace("archive", "4 MiB", limit="1 GiB")
            >>> remote.tablespaces()
            ['archive']
        """
        self._change("create_tablespace", name, size, **options)

    def add_datafile(self, name: str, size: Size) -> None:
        """Add a data file to a tablespace, as `Database.add_datafile`.

        Durable on return: the file.

        Examples:
            >>> remote.create_tablespace("archive", "4 MiB")
            >>> remote.add_datafile("archive", "2 MiB")
        """
        self._change("add_datafile", name, size)

    def drop_tablespace(self, name: str) -> None:
        """Drop a tablespace that holds no table, as `Database.drop_tablespace`.

        Durable on return: the drop.

        Examples:
            >>> remote.create_tablespace("archive", "4 MiB")
            >>> remote.drop_tablespace("archive")
        """
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

    Raises:
        PeerTimeout: No node answers within `timeout_ms`; the message says why, a wrong secret included.
        PeerRefused: An address leads to a different store.
        SchemaInvalid: An address is invalid, or the secret is too weak for it.

    Examples:
        >>> secret = b"sixteen bytes or more"
        >>> with tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
        ...     with tm.connect("{}:{}".format(*serving.address), secret) as remote:
        ...         len(remote["item"])
        3
    """
    texts = nodes.split(",") if isinstance(nodes, str) else list(nodes)
    seeds = [parse_address(each.strip() if isinstance(each, str) else each) for each in texts]
    if not seeds:
        raise SchemaInvalid("give the address of a node")
    for each in seeds:
        check_secret_at(each, secret, tls)
    return RemoteDatabase(seeds, secret, tls, timeout_ms, SystemClock())
