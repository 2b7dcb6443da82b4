"""A store of another process, or of the nodes of a group, as its clients see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidemark.calls import has_calls_of
from tidemark.database import Database
from tidemark.derived import described, forwarded
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import names_one_of
from tidemark.remote.executor import OF_PRIMARY, OF_SCHEMA, OF_STORE
from tidemark.remote.links import TIMEOUT_MS as TIMEOUT_MS
from tidemark.remote.links import Links
from tidemark.remote.snapshot import RemoteSnapshot
from tidemark.remote.table import RemoteTable
from tidemark.remote.transaction import RemoteTransaction
from tidemark.replication.wire.wire import TlsContext, check_secret_at, parse_address
from tidemark.sequences import Sequence as NumberSequence
from tidemark.session import READ_COMMITTED, Isolation
from tidemark.shared_calls import RunsTransactions, TableCreation


@has_calls_of("remote store")
class RemoteDatabase(TableCreation[RemoteTable], RunsTransactions[RemoteTransaction], Closable):
    """The result of `connect`: the calls of a `Database` that other processes may make. Threads may share it.

    Each call raises what the call of `Database` with this name raises, and PeerTimeout if no node answers in time. It
    raises LimitExceeded for a call or an answer of more than 256 MiB. `status`, `check` and `checkpoint` are those of
    the node that executes transactions. What `Database` says is durable is so at every live node of the group.

    No crash takes back what a call has shown: with `durability="commit"` all that it saw is durable when it returns. No
    call shows less than another call, of any client, that had ended before it began.

    A schema change is sent once. It raises NotPrimary if the node stopped leading, and a PeerError if the link broke
    before the answer: then check whether the change was made.

    After `close` every call raises StoreClosed, including the calls of its tables, transactions and scans.

    Examples:
        In the examples of its calls `remote` is a connection to the store `db`; a call of `db` works with `remote` too.

        >>> secret = b"sixteen bytes or more"
        >>> with tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
        ...     with tm.connect([serving.address], secret) as remote:
        ...         remote["item"].insert({"id": 4, "name": "ink", "stock": 7})
        ...         [row.name for row in remote["item"].scan(where=tm.col("stock") > 5)]
        ['pen', 'ink']
    """

    def __init__(self, links: Links) -> None:
        """Ask the nodes for the view. Raises: as `connect`."""
        self.links = links
        self._clock = links.clock
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
            tidemark.errors.StoreClosed: the connection is closed; connect again
        """
        self.links.close()

    # --- transactions ----------------------------------------------------------------------------
    def transaction(
        self, log_exclusive_reads: bool | None = None, isolation: Isolation = READ_COMMITTED
    ) -> RemoteTransaction:
        """Begin a transaction of this thread at the primary; use it with `with`.

        log_exclusive_reads, isolation: as for `Database.transaction`.

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
        return RemoteTransaction(self.links, self._definition, log_exclusive_reads, isolation)

    @described(Database.snapshot)
    def snapshot(self) -> RemoteSnapshot:
        return RemoteSnapshot(self.links)

    def _definition(self, table: str) -> TableDefinition:
        found: TableDefinition = self.links.read(["definition", table])
        return found

    @described(Database.sequence)
    def sequence(self, name: str) -> NumberSequence:
        return NumberSequence(name, self._take_numbers)

    def _take_numbers(self, name: str, count: int) -> range:
        first, stop, step = self.links.ask_primary(["numbers", name, count])
        return range(first, stop, step)

    # --- tables ----------------------------------------------------------------------------------
    def __getitem__(self, name: str) -> RemoteTable:
        return RemoteTable(self.links, self.transaction, self._definition(name).name)

    def __contains__(self, name: object) -> bool:
        return names_one_of(name, self.tables(system=True))

    def __repr__(self) -> str:
        return f"<tidemark store of another process, {'closed' if self.links.is_closed else 'open'}>"

    # calls: python -m tools.make_faces
    drop_table = forwarded(Database.drop_table)
    truncate = forwarded(Database.truncate)
    add_column = forwarded(Database.add_column)
    drop_column = forwarded(Database.drop_column)
    rename = forwarded(Database.rename)
    rename_column = forwarded(Database.rename_column)
    set_default = forwarded(Database.set_default)
    widen_column = forwarded(Database.widen_column)
    add_partition = forwarded(Database.add_partition)
    drop_partition = forwarded(Database.drop_partition)
    create_index = forwarded(Database.create_index, "progress")
    drop_index = forwarded(Database.drop_index)
    add_check = forwarded(Database.add_check)
    drop_check = forwarded(Database.drop_check)
    set_expiry = forwarded(Database.set_expiry)
    create_tablespace = forwarded(Database.create_tablespace)
    add_datafile = forwarded(Database.add_datafile)
    drop_tablespace = forwarded(Database.drop_tablespace)
    set_conflict_function = forwarded(Database.set_conflict_function)
    tables = forwarded(Database.tables)
    tablespaces = forwarded(Database.tablespaces)
    outcome = forwarded(Database.outcome)
    sync = forwarded(Database.sync)
    expire = forwarded(Database.expire)
    status = forwarded(Database.status)
    check = forwarded(Database.check, "progress")
    checkpoint = forwarded(Database.checkpoint, "progress")
    kill = forwarded(Database.kill)

    def _forward(self, method: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        what = ["store", method, arguments, named]
        if method in OF_PRIMARY | OF_STORE:
            return self.links.ask_primary(what)
        if method in OF_SCHEMA:
            return self._change(what)
        return self.links.read(what)

    def where(self) -> dict[str, Any]:
        """Return the nodes: `view` (its number, 0 outside a group), `primary` and `members` as (host, port). `primary`
        is None while no node executes transactions.

        Examples:
            >>> nodes = remote.where()
            >>> nodes["primary"] in nodes["members"]
            True
        """
        return dict(self.links.read(["where"]))

    # --- schema ----------------------------------------------------------------------------------
    def _change(self, what: list[Any]) -> Any:
        """Send a schema change once. If the link breaks before the answer, the caller must check whether the change was
        made.
        """
        address = self.links.primary()
        link = self.links.link(address)
        try:
            return link.ask(what)
        finally:
            self.links.put_back(address, link)

    def _create(self, definition: TableDefinition) -> RemoteTable:
        self._change(["create_table", definition])
        return RemoteTable(self.links, self.transaction, definition.name)

    @described(Database.create_replication_table)
    def create_replication_table(self) -> RemoteTable:
        self._change(["store", "create_replication_table", [], {}])
        return self["mysql.ndb_replication"]


def connect(
    nodes: str | Sequence[str | tuple[str, int]],
    secret: bytes,
    tls: TlsContext | None = None,
    timeout_ms: int | None = None,
) -> RemoteDatabase:
    """Connect to a node group (`tidemark node`), or to one store (`tm.serve_calls`).

    Args:
        nodes: "host:port,host:port", or a sequence of addresses. One that is up is enough; it names the others.
        secret: That of the group.
        tls: A client's context.
        timeout_ms: How long to look for a node that can execute a call, and how long `connect` waits for the first
            answer. A takeover within this time is visible only to open transactions, which raise PrimaryLost
            (Retryable: `run` repeats them). None: 10 s; but `connect` waits for one second if every address refuses the
            connection, since no process listens there.

    Raises:
        PeerTimeout: No node answers in time; the message says why.
        PeerUnauthenticated: A node has another secret; raised at once.
        PeerRefused: An address leads to a different store.
        SchemaInvalid: An address is invalid, or the secret is too weak for it.

    Examples:
        >>> secret = b"sixteen bytes or more"
        >>> with tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
        ...     with tm.connect("{}:{}".format(*serving.address), secret) as remote:
        ...         len(remote["item"])
        3
    """
    texts = nodes.split(",") if isinstance(nodes, str) else nodes
    if not isinstance(texts, Iterable):
        raise SchemaInvalid(f"nodes are addresses, got {texts!r}")
    seeds = [parse_address(each.strip() if isinstance(each, str) else each) for each in texts]
    if not seeds:
        raise SchemaInvalid("give the address of a node")
    for each in seeds:
        check_secret_at(each, secret, tls)
    return RemoteDatabase(Links(seeds, secret, tls, SystemClock(), timeout_ms))
