"""An open store as other sites see it: its identity, its binlog to read, its rows of `ndb_apply_status`, its channels.

Channels and servers of the binlog reach the store only through this module, so they do not depend on how a store is
opened. An open store has one `Endpoint`, created when the first channel or server needs it.

Invariants: (N1) Bytes read from the binlog are durable (the writer gives their end). (N2) Channels of one store have
different names and separate counters; status shows the sum.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tidemark.engine.base.errors import Error, PeerRefused, Rejected, SchemaInvalid
from tidemark.replication.applier.applier import Applied, Applier, ApplierOptions, retried
from tidemark.replication.applier.apply_status import Positions, applied_epoch, committed_in
from tidemark.replication.applier.filters import Filter
from tidemark.replication.applier.heartbeat import ages, beat
from tidemark.replication.applier.schema_statements import apply_statement, schema_entries_of
from tidemark.replication.channel.first_copy import copy_of
from tidemark.replication.channel.reach import Reach
from tidemark.replication.channel.source import SourceBinlog
from tidemark.replication.injector.index_table import found_rows
from tidemark.replication.injector.mark import FOLDER
from tidemark.replication.injector.schema_events import schema_row, write_schema_row
from tidemark.replication.settings.conflict_function import Role, change_role, compares_epochs
from tidemark.replication.settings.match import ReplicationRow, row_of
from tidemark.replication.settings.setup import SiteSettings, check_functions
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, made_table, replication_rows, rows_of
from tidemark.replication.wire.copying import pieces_of, unpack_request
from tidemark.replication.wire.handshake import Site, check_peer
from tidemark.replication.wire.messages import Settings

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.replication.applier.one_pass import OnePass
    from tidemark.replication.binlog.position import Position
    from tidemark.replication.channel.relay_reader import RelayTransaction
    from tidemark.replication.injector.attached import AttachedBinlog
    from tidemark.replication.settings.status import Counters, ReplicationStatus


# MySQL's counters of an applier's operations (`api_..._replica`), as far as they exist here.
API_COUNTS = ("trans_start_count", "trans_commit_count", "trans_abort_count", "trans_close_count", "pk_op_count")
_TWICE = (
    "server {} is the source of channel {!r} of this store already; a replica has one channel for each source: name all"
    " tables in that one"
)


class OpenStore(NamedTuple):
    """The parts of an open store: `values` are those of `options.settings`, `identity` its UUID and incarnation."""

    store: Store
    files: Files
    identity: tuple[bytes, int]
    values: Mapping[str, Any]
    binlog: AttachedBinlog | None
    status: ReplicationStatus


class _ReturningApplier(Applier):
    """An applier that reports in which epoch of this site it applied an epoch of its source, and which epochs of this
    site have come back.
    """

    reach: Reach

    def _committed(self, run: OnePass, own_epoch: int) -> None:
        super()._committed(run, own_epoch)
        self.reach.note_applied_here(run.epoch.source_id, run.epoch.epoch, own_epoch)
        for server_id, epoch, logger_id in run.statuses:
            if server_id == self.mre.own_id:
                self.reach.note_returned(logger_id, epoch)


class StoreApplier:
    """Applies the transactions of one channel to a store, as a `channel.Applier`."""

    def __init__(self, endpoint: Endpoint, options: ApplierOptions, counters: Counters) -> None:
        self._endpoint = endpoint
        self._options = options
        self.applier = _ReturningApplier(endpoint.store, endpoint.settings, options, counters)
        self.applier.reach = endpoint.reach
        self.counts = dict.fromkeys(API_COUNTS, 0)
        self.rows = 0  # in the last applied transaction
        self.epoch = 0  # the source's epoch of that transaction

    def start(self) -> None:
        """Read the settings again."""
        self.applier.tables.site = self._endpoint.settings
        self.applier.start()

    def apply(self, transaction: RelayTransaction) -> Applied:
        """Apply one epoch transaction. Raises: see `Applier.apply`."""
        counts = self.counts
        try:
            applied = self.applier.apply(transaction)  # type: ignore[arg-type]  # of a relay log
        except Error:
            counts["trans_abort_count"] += 1
            raise
        finally:
            counts["trans_start_count"] += 1
            counts["trans_close_count"] += 1
        counts["trans_commit_count"] += not applied.is_passed_over
        counts["pk_op_count"] += applied.rows
        self.rows, self.epoch = applied.rows, applied.epoch
        return applied

    def statement(self, text: str, database: str, server_id: int) -> None:
        """Apply one schema change, made at the server of this id; a Retryable is retried as for transactions.

        Raises: see `apply_statement`.
        """
        store = self._endpoint.store

        def work() -> None:
            if apply_statement(store, database, text, server_id):
                epoch = store.epochs.newest_closed
                for entry in schema_entries_of(store, database, text):
                    write_schema_row(store, schema_row(entry, epoch, server_id))

        retried(store.clock, self._options.retries, work)


def rows_of_settings(settings: Settings) -> list[ReplicationRow]:
    """Return the rows of `ndb_replication` that a source has sent."""
    return [
        ReplicationRow(each["db"], each["table_name"], each["server_id"], None, each["conflict_fn"])
        for each in settings.rows
    ]


class Member(Protocol):
    """A channel of a store, or a server of its binlog, as the store sees it."""

    name: str

    @property
    def source_id(self) -> int:
        """The server id of its source, 0 without one or while it is unknown."""
        ...

    @property
    def is_applying(self) -> bool:
        """Whether its applier runs."""
        ...

    def status(self) -> dict[str, Any]:
        """Return its part of the status."""
        ...

    def close(self) -> None:
        """Stop the member, and release the store."""
        ...


class Endpoint:
    """One open store. Any thread may call it."""

    def __init__(self, opened: OpenStore) -> None:
        self.opened = opened
        self.store = opened.store
        self.files = opened.files
        self.binlog = opened.binlog
        self._mutex = threading.RLock()
        self._appliers: dict[str, StoreApplier] = {}
        self._counters: dict[str, Counters] = {}
        self.reach = Reach(
            opened.store.clock,
            opened.status,
            opened.values,
            opened.binlog,
            lambda: bool(self.channels),
            self._applied_in,
        )
        self.role: Role = opened.values["conflict_role"]
        self.has_epoch_peer = False  # a source has reported a function that compares epochs
        self.channels: dict[str, Member] = {}
        self._claims: dict[str, int] = {}  # the source that a channel has begun with, by its name
        self.servings: list[Member] = []
        self._register(opened.status)

    def _register(self, status: ReplicationStatus) -> None:
        """Register the status variables whose values come from appliers."""

        def newest(value: Callable[[StoreApplier], int]) -> Callable[[], int]:
            return lambda: max(map(value, list(self._appliers.values())), default=0)

        def total(name: str) -> Callable[[], int]:
            return lambda: sum(each.counts[name] for each in list(self._appliers.values()))

        status.gauge("replica_max_replicated_epoch", newest(lambda each: each.applier.mre.value))
        status.gauge("conflict_last_conflict_epoch", newest(lambda each: each.applier.last_conflict.last_conflict))
        status.gauge("conflict_last_stable_epoch", newest(lambda each: each.applier.last_conflict.last_stable))
        status.gauge("latest_applied_binlog_epoch", newest(lambda each: each.epoch))
        for name in API_COUNTS:
            status.gauge(f"api_{name}_replica", total(name))

    # --- identity ---------------------------------------------------------------------------------
    @property
    def clock(self) -> Clock:
        return self.store.clock

    @property
    def site(self) -> Site:
        """The identity of this site. Raises: Rejected for server id 0."""
        server_id = self.opened.values["server_id"]
        if not server_id:
            raise Rejected("server_id 0 does not replicate; open the store with another one", option="server_id")
        uuid, incarnation = self.opened.identity
        return Site(server_id, uuid.hex(), incarnation, "" if self.binlog is None else self.binlog.base)

    @property
    def settings(self) -> SiteSettings:
        """The settings with which tables are set up, with the present role."""
        options = self.store.options
        made = SiteSettings.from_options(self.opened.values, options.gcp_interval_ms, options.epoch_interval_ms)
        return replace(made, role=self.role)

    def _applied_in(self, source_id: int) -> tuple[int, int]:
        """Return (epoch of this site in which it was applied, epoch) of the newest applied epoch of a source, or
        zeros.
        """
        made_table(self.store, NDB_APPLY_STATUS)
        return committed_in(self.store, source_id), applied_epoch(self.store, source_id)

    # --- as a source ------------------------------------------------------------------------------
    def beat(self) -> None:
        """Write the heartbeat row of this site; see `heartbeat.py`. Raises: Retryable errors, StoreFailed."""
        beat(self.store, self.site.server_id)

    def log(self) -> AttachedBinlog:
        """Return the binlog. Raises: Rejected for a store without one."""
        if self.binlog is None:
            raise Rejected("a source needs a binlog; open the store with log_bin", option="log_bin")
        return self.binlog

    def source_binlog(self, is_limited: bool = False) -> SourceBinlog:
        """Return a reader of the binlog for one replica; close it. is_limited: purge keeps the file that it reads up to
        `mysql_purge_bytes` only. Raises: Rejected without a binlog.
        """
        binlog = self.log()
        holder = object()

        def end() -> tuple[int, Position]:
            binlog.check_servable()
            epoch = binlog.handled_epoch  # first, so that the end includes this epoch
            return epoch, binlog.durable_end()

        def keep(place: Position | None) -> None:
            if place is None:
                binlog.unpin(holder)
            else:
                binlog.pin(holder, place, made.lose if is_limited else None)

        made = SourceBinlog(
            self.files,
            self.site.server_id,
            end,
            FOLDER,
            binlog.base,
            partial(found_rows, self.store) if binlog.has_index else None,
            lambda: self.store.epochs.newest_closed,
            lambda: self.store.epochs.is_following,
            keep,
            self._own_functions,
            self._copy,
        )
        return made

    def _copy(self, request: bytes) -> Generator[bytes]:
        """Yield the pieces of a first copy. From its start to its end, the binlog is not purged."""
        do, ignore = unpack_request(request)
        try:
            wanted = Filter.of((), do, ignore)
        except SchemaInvalid as error:
            raise PeerRefused(error.message) from error
        with self.kept_binlog():
            yield from pieces_of(copy_of(self.store, wanted, self.log().reach))

    @contextmanager
    def kept_binlog(self) -> Iterator[None]:
        """Pin the binlog from its present end on within the `with` block. Raises: Rejected without a binlog."""
        binlog, holder = self.log(), object()
        binlog.pin(holder, binlog.writer.end)
        try:
            yield
        finally:
            binlog.unpin(holder)

    def _own_functions(self) -> Settings:
        rows = [
            {"db": row.database, "table_name": row.table, "server_id": row.server_id, "conflict_fn": row.conflict_fn}
            for row in self.replication_rows()
            if row.conflict_fn is not None
        ]
        return Settings(tuple(rows))

    # --- as a replica -----------------------------------------------------------------------------
    def positions(self, name: str) -> Positions:
        """Return the rows of `ndb_apply_status` as the channel of this name sees them. A reset keeps the rows that
        other channels use, and all rows if repeated changes would be taken for new ones.
        """

        def kept() -> frozenset[int] | None:
            if self._is_judged_once():
                return None
            return self._sources_of_others(name)

        def own_id() -> int:
            with self._mutex:
                is_alone = all(each.name == name for each in self.channels.values())
            return self.site.server_id if is_alone else 0

        return Positions(self.store, kept, own_id)

    def _sources_of_others(self, name: str) -> frozenset[int]:
        """Return the sources of all channels but the one of this name; 0 for one whose source is not known yet."""
        with self._mutex:
            others = [each for each in self.channels.values() if each.name != name]
            return frozenset(self._claims.get(each.name) or each.source_id for each in others)

    def _may_be_followed(self, name: str, server_id: int) -> bool:
        """Whether another channel than the one of this name brings the changes of a server, or may: its source is not
        known yet.
        """
        others = self._sources_of_others(name)
        return server_id in others or (0 in others and server_id != self.opened.values["server_id"])

    def claim_source(self, name: str, server_id: int) -> None:
        """Note the source of a channel before its first epoch comes. Raises: PeerRefused if another channel has it:
        both would write its position, and each would skip what the other one has applied.
        """
        with self._mutex:
            other = self._other_of(name, server_id)
            if other is not None:
                raise PeerRefused(_TWICE.format(server_id, other), server_id=server_id)
            self._claims[name] = server_id

    def release_source(self, channel: Member) -> None:
        """Forget the source of a channel, after which another one may come. A second call does nothing."""
        with self._mutex:
            if self.channels.get(channel.name) is channel:
                self._claims.pop(channel.name, None)

    def _other_of(self, name: str, server_id: int) -> str | None:
        """Return the name of another channel with this source, None if there is none."""
        others = (each for each in self.channels.values() if each.name != name)
        return next((each.name for each in others if server_id in (each.source_id, self._claims.get(each.name))), None)

    def _is_judged_once(self) -> bool:
        """Whether changes of sources must not be applied a second time. This is so if a conflict function here or at a
        source compares epochs, because epochs say nothing about rows deleted since, or about changes of this site that
        the source has confirmed. It is also so if this site's own epochs have come back, because then changes of both
        sites have met already.
        """
        if self.has_epoch_peer or any(compares_epochs(row.conflict_fn) for row in self.replication_rows()):
            return True
        own_id = self.opened.values["server_id"]
        return any(row["server_id"] == own_id for row in rows_of(made_table(self.store, NDB_APPLY_STATUS)))

    def new_applier(self, name: str, options: ApplierOptions) -> StoreApplier:
        """Create the applier of the channel of this name. Its counts continue those of the channel's previous
        applier.
        """
        with self._mutex:
            counters = self._counters.get(name)
            if counters is None:
                counters = self._counters[name] = self.opened.status.new_counters()
            made = StoreApplier(self, options, counters)
            made.applier.is_followed = partial(self._may_be_followed, name)
            before = self._appliers.get(name)
            if before is not None:
                made.counts, made.epoch = before.counts, before.epoch
            self._appliers[name] = made
            return made

    def replication_rows(self) -> list[ReplicationRow]:
        """Return the rows of `mysql.ndb_replication`; none if the table is missing or has another definition."""
        return [row_of(row) for row in replication_rows(self.store)]

    def check_channels(self, peer: tuple[list[ReplicationRow], int] | None = None) -> None:
        """Refuse channels that the conflict functions here do not allow. Raises: SchemaInvalid."""
        if peer is not None and any(compares_epochs(row.conflict_fn) for row in peer[0]):
            self.has_epoch_peer = True
        rows = self.replication_rows()
        tables = {name: table.definition for name, table in list(self.store.tables.by_name.items())} if rows else {}
        with self._mutex:
            names = list(self.channels)
        check_functions(tables, rows, self.settings, names, peer)

    # --- role -------------------------------------------------------------------------------------
    def change_role(self, wanted: Role) -> None:
        """Change the role for all channels. Raises: Rejected while a channel applies, or if the change must go through
        NONE.
        """
        with self._mutex:
            is_running = any(each.is_applying for each in self.channels.values())
            self.role = change_role(self.role, wanted, is_running)

    # --- members ----------------------------------------------------------------------------------
    def add_channel(self, channel: Member) -> None:
        """Add a channel. Raises: SchemaInvalid if there is one of this name, or of its source."""
        with self._mutex:
            if channel.name in self.channels:
                raise SchemaInvalid(
                    f"channel {channel.name!r} of this store is open already; give this one another name"
                )
            other = self._other_of(channel.name, channel.source_id) if channel.source_id else None
            if other is not None:
                raise SchemaInvalid(_TWICE.format(channel.source_id, other), server_id=channel.source_id)
            self.channels[channel.name] = channel

    def remove(self, member: Member) -> None:
        """Remove a closed member. A second call does nothing."""
        with self._mutex:
            if self.channels.get(member.name) is member:
                del self.channels[member.name]
            if member in self.servings:
                self.servings.remove(member)

    def add_serving(self, serving: Member) -> None:
        with self._mutex:
            self.servings.append(serving)

    def close(self) -> None:
        """Stop all channels and servers."""
        with self._mutex:
            members = [*self.channels.values(), *self.servings]
        for each in members:
            each.close()

    def status(self) -> dict[str, Any]:
        """Return the role, the status of all channels, by name, and of servers, and the ages of heartbeats."""
        with self._mutex:
            channels, servings = list(self.channels.values()), list(self.servings)
        return {
            "conflict_role": self.role.name,
            "channels": {each.name: each.status() for each in channels},
            "servings": [each.status() for each in servings],
            "heartbeat_seconds": ages(self.store),
        }


def check_source(own: Endpoint, source: Endpoint) -> None:
    """Refuse a source in the same process that the handshake would refuse. Raises: PeerRefused, Rejected."""
    if source is own or source.store is own.store:
        raise PeerRefused("both sides are the same store; a store does not replicate with itself")
    check_peer(own.site, source.site)
    source.log()
