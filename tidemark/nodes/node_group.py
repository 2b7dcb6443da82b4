"""`tm.NodeGroup`: one node of a group of synchronous replicas, in this process (docs/node-group.md)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Unpack

from tidemark.control_socket import serve as serve_commands
from tidemark.database import Database
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import (
    Error,
    FileMissing,
    NotPrimary,
    PeerTimeout,
    Rejected,
    Retryable,
    SchemaInvalid,
    StoreFailed,
)
from tidemark.engine.base.ids import LAST_EPOCH
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.files.durable_files import make_folder
from tidemark.engine.jit.registry import compile_declared
from tidemark.engine.store.group_apply import GroupApplier
from tidemark.monitoring.port import MetricsServing
from tidemark.nodes import FOLDER
from tidemark.nodes.node_channel import NodeChannel, NodeChannelKeywords
from tidemark.recovery.node_restart.messages import ROWID_SYNC, VARIANTS, Progress
from tidemark.recovery.node_restart.restart import make_recoverable, rejoin
from tidemark.recovery.system_restart.kept_options import keep_options, kept_options
from tidemark.recovery.system_restart.sysfile import read_sysfile
from tidemark.recovery.system_restart.through import Through
from tidemark.remote.database import TIMEOUT_MS, RemoteDatabase, connect
from tidemark.remote.executor import Executor
from tidemark.replication.calls.conversation import Abandoned, CallServer
from tidemark.replication.injector.mark import FOLDER as BINLOG_FOLDER
from tidemark.replication.injector.table_rules import TableRules, capture
from tidemark.replication.node_group.carrier import Secrets
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.node import GroupNode
from tidemark.replication.node_group.party import OptionValue
from tidemark.replication.settings.options import OF_SITE, OpenKeywords, check_of_node, split_keywords
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, NDB_SCHEMA, made_table, replication_rows
from tidemark.replication.wire.messages import HEARTBEAT_MS_MAX
from tidemark.replication.wire.wire import check_secret_at, parse_address
from tidemark.sites.serving import serve

if TYPE_CHECKING:
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.recovery.node_restart.joiner import Link
    from tidemark.recovery.node_restart.messages import Welcome
    from tidemark.recovery.system_restart.restart import Opened
    from tidemark.replication.wire.wire import TlsContext
    from tidemark.sites.channel import Channel

_log = logging.getLogger("tidemark.node")

POLL_SECONDS = 0.01
ALONE = "alone"  # found a group although other nodes do not answer


class DrivenStore:
    """A `NodeStore`: a `Database` as the node drives it."""

    def __init__(self, db: Database, files: PosixFiles, applier: GroupApplier, lowest_epoch: int) -> None:
        """lowest_epoch: the first epoch that may be opened here if this node leads."""
        self.db = db
        self.files: Files = files
        self.applier = applier
        self.store: Store = db.parts.store
        self.identity = db.parts.opened.identity
        self._lowest_epoch = lowest_epoch
        self._rules: TableRules | None = None
        values = db.parts.values
        if db.binlog is None and values["server_id"]:
            # Any member may have a binlog, and the log is the same at all, so it needs the records that a binlog reads.
            self._rules = TableRules(values, lambda: replication_rows(db.parts.store))
            capture(db.parts.store, self._rules)

    def lead(self, epoch: int) -> None:
        store, keeper = self.store, self.db.parts.opened.keeper
        lowest = max(epoch, self._lowest_epoch)
        with store.latch:
            if store.epochs.current < lowest:
                store.epochs.follow(lowest)
        self.applier.lead(lambda incarnation: keeper.write(incarnation=incarnation))
        if self.db.parts.values["server_id"]:
            try:
                made_table(store, NDB_APPLY_STATUS)
                made_table(store, NDB_SCHEMA)
            except Retryable as error:  # the first use of such a table creates it anyway
                _log.warning("tables of replication could not be made yet: %s", error.message)

    @property
    def writing_since(self) -> float | None:
        return self.db.parts.clockwork.writing_since

    def close(self) -> None:
        self.applier.end_stream()
        if self.db.binlog is not None:
            self.db.binlog.leave_group()
        self.db.close()


class StoreHome:
    """A `Home`: the store's directory, and the options it is opened with."""

    def __init__(
        self,
        directory: str,
        options: Options,
        replication: Mapping[str, Any],
        variant: str,
        want_epoch: Callable[[], None],
        completed: Callable[[], int],
        opened: Callable[[Database], None],
        named: Mapping[str, object],
    ) -> None:
        """completed: returns the newest epoch that all members have. opened: called with each store after opening.
        named: the options that the caller has named, which the store keeps.
        """
        self._named = named
        self._completed = completed
        self._opened = opened
        self._directory = directory
        self._options = options
        self._replication = replication
        self._variant = variant
        self._want_epoch = want_epoch
        self.restarted: Progress | None = None  # of the last rejoin in this process, done or under way

    def open(self, can_create: bool) -> DrivenStore:
        files = PosixFiles(self._directory)
        try:
            if not can_create and read_sysfile(files) is None:
                raise FileMissing("the store of this node no longer exists; it is copied from another node")
        except Error:
            files.close_all()
            raise

        def follow(db: Database) -> DrivenStore:
            store, opened = db.parts.store, db.parts.opened
            lowest_epoch = store.epochs.current
            node = self._followed(db, files, lowest_epoch)
            if opened.keeper.content.closed_epoch:
                # The epoch of the last group here may still be open at the primary.
                node.applier.start_at(opened.keeper.content.closed_epoch)
            return node

        return self._driven(files, None, follow)

    def rejoin(self, welcome: Welcome, link: Link, epoch: int, sequence: int) -> DrivenStore:
        files = PosixFiles(self._directory)
        through = Through(epoch, sequence)
        next_epoch: list[int] = []

        def restart() -> Opened:
            clock, variant = SystemClock(), self._variant
            opened, caught_up = rejoin(files, self._options, clock, welcome, link, through, variant, self._begun)
            next_epoch.append(caught_up.next_epoch)
            return opened

        def follow(db: Database) -> DrivenStore:
            make_recoverable(db.parts.lcp)
            node = self._followed(db, files, next_epoch[0])
            node.applier.start_at(next_epoch[0])
            return node

        return self._driven(files, restart, follow)

    def _begun(self, progress: Progress) -> None:
        self.restarted = progress

    def _followed(self, db: Database, files: PosixFiles, lowest_epoch: int) -> DrivenStore:
        node = DrivenStore(db, files, GroupApplier(db.parts.store), lowest_epoch)
        db.parts.store.epochs.on_wanted = self._want_epoch
        return node

    def _driven(
        self, files: PosixFiles, restart: Callable[[], Opened] | None, follow: Callable[[Database], DrivenStore]
    ) -> DrivenStore:
        made: list[DrivenStore] = []
        db = Database(
            files,
            self._options,
            SystemClock(),
            files.directory,
            replication=self._replication,
            restart=restart,
            prepare=lambda db: made.append(follow(db)),
            completed=self._completed,
        )
        try:
            keep_options(files, self._options, self._named)
            self._opened(db)
        except BaseException:
            db.close()
            raise
        return made[0]


def _binlog_name(files: Files, name: str | None, node: int) -> str | None:
    """Return the base name of a node's binlog, which has the node's number. A store that had a binlog before it founded
    the group keeps that name.
    """
    if name is None or files.exists(f"{BINLOG_FOLDER}/{name}.index"):
        return name
    return f"{name}-{node}"


def _replicas_at(
    address: str | tuple[str, int] | None, heartbeat_row_ms: int, replication: Mapping[str, Any]
) -> tuple[str, int] | None:
    """Return the address at which replicas are served. Raises: SchemaInvalid."""
    if address is not None and replication["log_bin"] is None:
        raise SchemaInvalid("replicas are served from a binlog; give log_bin and server_id")
    if heartbeat_row_ms and address is None:
        raise SchemaInvalid("heartbeat_row_ms is for nodes that serve replicas; give replicas=")
    if not 0 <= heartbeat_row_ms <= HEARTBEAT_MS_MAX:
        raise SchemaInvalid(f"heartbeat_row_ms is {heartbeat_row_ms}; give 0 to {HEARTBEAT_MS_MAX:,}")
    return None if address is None else parse_address(address)


def _check_secret(
    secret: bytes,
    tls: tuple[TlsContext | None, TlsContext | None],
    listening: Iterable[tuple[str, int] | None],
    called: Iterable[tuple[str, int]],
) -> None:
    """Raises: SchemaInvalid if the secret is too weak for an address that this node listens at or connects to."""
    for address in listening:
        if address is not None:
            check_secret_at(address, secret, tls[0])
    for address in called:
        check_secret_at(address, secret, tls[1])


def _of_site(options: Options, replication: Mapping[str, Any]) -> dict[str, OptionValue]:
    """Return the options that must be equal at all nodes, by name: the durability of a commit must not depend on the
    leader.
    """
    values = {name: replication[name] for name in OF_SITE}
    return {**values, "conflict_role": values["conflict_role"].name, "durability": options.durability}


class _Gate:
    """What a node may do for clients now (`tidemark/remote/executor.py`)."""

    def __init__(self, node: GroupNode) -> None:
        self._node = node

    def database(self) -> Database:
        store = self._node.store
        if store is None:
            raise NotPrimary("this node is catching up with its group; ask another")
        assert isinstance(store, DrivenStore)
        return store.db

    def reading(self) -> int:
        return self._node.living().reading()

    def shown(self, token: int, epoch: int) -> None:
        self._node.living().shown(token, epoch)

    def writing(self) -> None:
        self._node.living().writing()

    def where(self) -> dict[str, Any]:
        """See `Gate`. If this node is a member, it is the first in the list."""
        view, is_open = self._node.living().view()
        at = {member.number: parse_address(member.address) for member in view.members}
        numbers = sorted(at, key=lambda number: (number != self._node.number, number))
        primary = at[view.primary] if is_open else None
        return {"view": view.number, "primary": primary, "members": [at[number] for number in numbers]}

    def failed(self, error: Error) -> None:
        """See `Gate`. The group continues even if the store here has failed."""
        raise Abandoned(error.message)


class NodeGroup(Closable):
    """One node of a group of synchronous replicas, in this process. Use it with `with`, or close it.

    `connect()` returns the group as clients see it: transactions run at the primary, wherever that is, reads at this
    node. `reading()` gives the store of this node itself, for reads without a remote call.

    `status`, `wait_member`, `connect` and `reading` raise the error that ended the node, if one has.

    Examples:
        `group` is the address of a group of one node, such as "1=127.0.0.1:7301". In the examples of its calls `node`
        is this node, running.

        >>> secret = b"sixteen bytes or more"
        >>> with tm.NodeGroup("node 1", 1, group, secret, found=True, data_memory="64 MiB") as node:
        ...     node.wait_member(60_000)
        ...     with node.connect() as db:
        ...         item = db.create_table("item", [tm.Column("id", tm.Int64)], "id")
        ...         item.insert_many({"id": [1, 2]})
        2
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        node: int,
        group: str | GroupConfiguration,
        secret: bytes,
        calls: str | tuple[str, int] = "127.0.0.1:0",
        *,
        listen: str | tuple[str, int] | None = None,
        found: bool | Literal["alone"] = False,
        tls: tuple[TlsContext, TlsContext] | None = None,
        variant: str = ROWID_SYNC,
        replicas: str | tuple[str, int] | None = None,
        heartbeat_row_ms: int = 0,
        channel: NodeChannelKeywords | None = None,
        metrics: str | tuple[str, int] | None = None,
        **options: Unpack[OpenKeywords],
    ) -> None:
        """Start the node in threads of this process. `wait_member` waits until it is a member.

        Kernels that are missing from this machine's cache are compiled before the node takes part.

        Args:
            path: The directory of the node's store; created if it is missing.
            node: The number of the node, 1 to 255.
            group: The addresses at which the nodes meet, "1=host:port,2=host:port,arbitrator=host:port"; the same at
                all nodes.
            secret: 16 bytes or more, known to all nodes and clients.
            calls: The address at which clients are served, as they reach it.
            listen: The address to listen at, if it is not this node's address in `group`.
            found: Create the group if no other process of `group` knows one; give this to one node, for the first start
                of the group. If the node has a store, that becomes the group's store. A process that knows a group is
                joined instead. While one does not answer although its host does not refuse the connection, nothing is
                created. "alone": create the group nevertheless. You vouch that no other node has it, now or later.
            tls: Contexts of a server and of a client.
            variant: How this node rejoins: "rowid_sync", "replay_log" or "delete_log" (docs/node-group.md,
                *Node restart*).
            replicas: Where replica sites are served from this node's binlog (see `tm.serve`), with the same secret.
            heartbeat_row_ms: See `tm.serve`; the primary writes the row.
            channel: Makes the group a replica site: `source` and other arguments of `tm.Channel`, the same at all
                nodes. The node that leads runs it, from the position in `mysql.ndb_apply_status`. The group's secret is
                used if it has none.
            metrics: Where metrics of this node's store are served over HTTP (see `tm.serve_metrics`); `tidemark_open`
                is 0 while the store is closed or copied.
            options: As for `tidemark.open`. Memory, logs and tablespaces must be large enough for what the other nodes
                hold. `server_id` identifies the site; it and the options of the binlog are the same at all nodes. The
                name of `log_bin` gets the node's number.

        Raises:
            Locked: Another process has the directory.
            SchemaInvalid: An argument is invalid, or the secret is too weak for an address.
            InvalidName: The name of the channel is not allowed.
            Rejected: A channel is given, and the server id is 0.
            Unsupported: `metrics` is given, and prometheus-client is not installed; or `log_gtids` is on.
            PeerError: The address for metrics is taken.

        Later errors end the node, and `wait_member` raises them: PeerError if an address is taken, Rejected if the
        directory belongs to another node, and what `open` raises.
        """
        configuration = GroupConfiguration.parse(group) if isinstance(group, str) else group
        place = configuration.address_of(node) if listen is None else parse_address(listen)
        replication = split_keywords(options)[1]
        check_of_node(replication)
        if found not in (True, False, ALONE):
            raise SchemaInvalid(f"found must be True, False or {ALONE!r}, got {found!r}")
        if variant not in VARIANTS:
            raise SchemaInvalid(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")
        self._calls = parse_address(calls)
        self._secret = secret
        self._tls = tls or (None, None)
        self._replicas = _replicas_at(replicas, heartbeat_row_ms, replication)
        _check_secret(secret, self._tls, (place, self._calls, self._replicas), configuration.peers.values())
        self._heartbeat_row_ms = heartbeat_row_ms
        self._server: CallServer | None = None
        self._channel: NodeChannel | None = None  # the runner of the group's channel, if it has one
        if channel is not None:
            server_id = replication["server_id"]
            self._channel = NodeChannel(channel, secret, server_id, self._leading_database, SystemClock())
        metrics_at = None if metrics is None else parse_address(metrics)
        # A node is silent while it compiles kernels, and the others would exclude it.
        _log.info("node %d gets its compiled code before it listens; what this machine lacks is compiled first", node)
        compile_declared(node % 2 / 2)  # nodes of one machine share the work
        directory = os.fspath(path)
        files = PosixFiles(directory, create=True)
        parsed = split_keywords({**kept_options(files), **options})[0]
        replication = {**replication, "log_bin": _binlog_name(files, replication["log_bin"], node)}
        make_folder(files, FOLDER)  # with the permissions of the store's directory
        files.close_all()
        self._files = PosixFiles(os.path.join(directory, FOLDER))
        try:
            self._files.lock()
            calls_back = self._want_epoch, lambda: self.parts.completed_epoch, self._serve_replicas
            self._home = StoreHome(directory, parsed, replication, variant, *calls_back, options)
            self._node = GroupNode(
                self._home,
                self._files,
                node,
                configuration,
                place,
                Secrets(secret, *self._tls),
                SystemClock(),
                bool(found),
                found == ALONE,
                self._serve_calls,
                self._cut_links,
                _of_site(parsed, replication),
            )
            # Metrics without a value are left out, which are most of them while the store is closed.
            of_store = SimpleNamespace(status=self._whole_status)
            self.metrics = None if metrics_at is None else MetricsServing(of_store, metrics_at, SystemClock())
        except BaseException:
            self._files.close_all()
            self._files.unlock()
            raise
        # A socket in the node's own directory, which also answers while the store is closed.
        self._control = serve_commands(self._files, {"status": self._whole_status, "kill": self._kill}, SystemClock())
        self._node.start()
        if self._channel is not None:
            self._channel.start()

    @property
    def parts(self) -> GroupNode:
        """The node itself, for the rooms below the API and tests. Not public."""
        return self._node

    def _leading_database(self) -> Database | None:
        life = self._node.life
        store = None if life is None or not life.is_leading else life.node
        return store.db if isinstance(store, DrivenStore) else None

    def _kill(self, target: int | str) -> bool:
        """Do `Database.kill` here, if this node executes transactions."""
        db = self._leading_database()
        if db is None:
            raise Rejected("this node executes no transactions; kill them at the primary, which status() names")
        return db.kill(target)

    def _serve_calls(self, store: bytes) -> str:
        """Take calls of clients from now on; return the address."""
        if self._server is None:
            gate = _Gate(self._node)
            self._server = CallServer(
                self._calls,
                store.hex(),
                self._secret,
                self._tls[0],
                SystemClock(),
                lambda: Executor(gate),
                lambda name: gate.database()[name].definition,
            )
        return "{}:{}".format(*self._server.address)

    def _cut_links(self) -> None:
        if self._server is not None:
            self._server.cut()

    def _serve_replicas(self, db: Database) -> None:
        if self._replicas is not None:
            serve(db, self._replicas, self._secret, self._tls[0], self._heartbeat_row_ms)

    def _want_epoch(self) -> None:
        life = self._node.life
        if life is not None:
            life.want_epoch()

    def close(self, leave: bool = True) -> None:
        """End the node. A second call does nothing.

        leave: leave the group first, so that the others continue at once, under another primary if this node led;
        otherwise they must detect that this node is silent.

        Durable on return: every commit acknowledged here.

        Examples:
            >>> node.close()
        """
        self._node.stop(leave)
        if self._channel is not None:
            self._channel.close()
        if self._server is not None:
            self._server.close()
        if self.metrics is not None:
            self.metrics.close()
        control, self._control = self._control, None
        if control is not None:
            control.close()
        self._files.close_all()
        self._files.unlock()

    @property
    def address(self) -> str:
        """The address at which clients reach this node; "" until the node knows its group."""
        return "" if self._server is None else "{}:{}".format(*self._server.address)

    def status(self) -> dict[str, Any]:
        """Return the state of the group as this node knows it: node, state, view, members, primary, is_leading; `lag`,
        the groups of the log that nodes have yet to apply; links; copies under way; `restart`, the progress of
        this node's last rejoin, done or under way; and the group's `channel`, None if it has none: `is_here`, `error`,
        and `Channel.status` where it runs.

        Raises: the error that ended the node. An error of the channel is reported and ends nothing else.

        Examples:
            >>> status = node.status()
            >>> status["state"], status["members"], status["primary"]
            ('open', [1], 1)
        """
        self._check()
        restarted, channel = self._home.restarted, self._channel
        return {
            **self._node.status(),
            "restart": None if restarted is None else restarted.to_dict(),
            "channel": None if channel is None else channel.status(),
        }

    def _whole_status(self) -> dict[str, Any]:
        """Return the status of the node, and that of its store while that is open."""
        found: dict[str, Any] = {"group": self.status()}
        store = self._node.store
        if isinstance(store, DrivenStore):
            try:
                found |= {**store.db.status(), "restart": store.db.restart_report}
            except StoreFailed:  # it was closed in the meantime
                pass
        return found

    @property
    def channel(self) -> Channel | None:
        """The group's channel while it is at this node: to be inspected, stopped, or taken past an incident. It is
        closed when this node stops leading.
        """
        return None if self._channel is None else self._channel.channel

    def start_channel(self) -> None:
        """Restart the group's channel after an error whose cause was removed, if this node leads; elsewhere do nothing.

        Raises: Rejected for a group without one, and any error of starting a channel.

        Examples:
            >>> node.start_channel()
            Traceback (most recent call last):
            ...
            tidemark.errors.Rejected: the group has no channel; give channel= to its nodes
        """
        if self._channel is None:
            raise Rejected("the group has no channel; give channel= to its nodes")
        self._channel.again()

    def _check(self) -> None:
        if self._node.error is not None:
            raise self._node.error

    def wait_member(self, timeout_ms: int = TIMEOUT_MS) -> None:
        """Wait until this node is a member of an open view.

        Raises: PeerTimeout after `timeout_ms`, or PeerRefused if the others still refuse this node then, for example
        because an option that must be equal differs; the error that ended the node.

        Examples:
            >>> node.wait_member(timeout_ms=60_000)
        """
        clock = SystemClock()
        deadline = clock.monotonic() + timeout_ms / 1_000
        while not self._node.serves():
            self._check()
            if clock.monotonic() >= deadline:
                if self._node.refusal is not None:
                    raise self._node.refusal
                raise PeerTimeout(
                    f"node {self._node.number} is in no open view after {timeout_ms} ms; see whether the others run"
                )
            clock.sleep(POLL_SECONDS)

    def connect(self, timeout_ms: int = TIMEOUT_MS) -> RemoteDatabase:
        """Return the group as a client sees it; reads go to this node first. Close it.

        timeout_ms: how long to wait for this node to be a member; also the timeout of each call, as for `tm.connect`.

        Raises: PeerTimeout if no node answers in time; PeerRefused as `wait_member`; the error that ended the node.

        Examples:
            >>> with node.connect() as db:
            ...     db.tables()
            []
        """
        self._check()
        if self._server is None:
            self.wait_member(timeout_ms)
        assert self._server is not None
        return connect([self._server.address], self._secret, self._tls[1], timeout_ms)

    @contextmanager
    def reading(self) -> Iterator[Database]:
        """Yield the store of this node for the reads of a block. The reads see everything that was acknowledged before
        the block. The block ends when everything that they saw is acknowledged.

        Use what was read only after the block has ended without an error.

        Raises: NotPrimary (Retryable) at the beginning if this node serves no reads, at the end if the rows read may be
        stale; the error that ended the node.

        Examples:
            >>> with node.reading() as store:
            ...     names = store.tables()
            >>> names
            []
        """
        self._check()
        gate = _Gate(self._node)
        token = gate.reading()
        yield gate.database()
        gate.shown(token, LAST_EPOCH)
