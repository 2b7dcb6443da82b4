"""`tm.Channel`: apply the binlog of one store to another one, in this process or over the network.

Received and applied changes are recorded in the replica (`replication/channel/channel.py`), so a channel object has no
lasting state: close it, create it again, and it continues. It belongs to the replica, and closing the replica closes
it.

Threads: a receiver and an applier, each started and stopped separately. Without them a caller steps the channel by
hand.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Unpack

from tidemark.database import Database, check_open
from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import (
    BinlogDamaged,
    EpochGap,
    FileMissing,
    PeerError,
    PeerRefused,
    PositionLost,
    Rejected,
    Retryable,
    SchemaInvalid,
)
from tidemark.engine.schema.names import is_system_table
from tidemark.replication.applier.applier import ApplierOptions
from tidemark.replication.applier.filters import Filter
from tidemark.replication.applier.heartbeat import HEARTBEAT
from tidemark.replication.channel.channel import DEFAULT_NAME, ReplicaChannel
from tidemark.replication.channel.endpoint import rows_of_settings
from tidemark.replication.channel.first_copy import Copied, CopyTarget, copy_within, is_interrupted
from tidemark.replication.channel.receiver import LocalReceiver, NetworkReceiver, Receiver, Worker, applying
from tidemark.replication.settings.conflict_function import Role
from tidemark.replication.settings.options import validate
from tidemark.replication.wire.copying import pack_request
from tidemark.replication.wire.handshake import Site
from tidemark.replication.wire.link import Caller, LinkOptions
from tidemark.replication.wire.messages import Settings, Start
from tidemark.replication.wire.wire import TlsContext
from tidemark.sites.channel_links import ChannelKeywords, Link, Source, channel_options, link_to
from tidemark.sites.failover import Failover, check_failover_options

_log = logging.getLogger("tidemark.replication")


class Applied(NamedTuple):
    """The outcome of a transaction of the source.

    `outcome` is "applied", "passed over" (it was applied before) or "filtered". `epoch` is the source's, 0 for a schema
    change, whose SQL is `statement`. `rows` counts the rows of the transaction that the applier processed.

    Examples:
        >>> with tm.Channel(db, replica) as channel:
        ...     epoch = db.sync()
        ...     while (applied := channel.apply_next()) is not None:
        ...         print(applied.epoch, applied.outcome, applied.rows)
        0 applied 0
        0 applied 0
        4294967297 applied 0
        4294967298 applied 3
    """

    source_id: int
    epoch: int
    outcome: str
    rows: int = 0
    statement: str | None = None


class Channel(Closable):
    """Brings the logged changes of a source into a replica. Use it with `with`, or close it.

    After `close`, calls that start or change the channel raise Rejected.

    Examples:
        `db` is the source, `replica` is an empty store with server id 2. In the examples of its calls `channel` is
        `tm.Channel(db, replica)`, and `secret` has 16 bytes or more.

        >>> with tm.Channel(db, replica) as channel:
        ...     epoch = db.sync()
        ...     count = channel.apply_all()
        ...     replica["item"][1]
        Row(id=1, name='pen', stock=10)

        With threads:

        >>> with tm.Channel(db, replica, skip_start=False):
        ...     changed = db["item"].update(1, {"stock": 9})
        ...     db.wait_applied(db.sync(), timeout_ms=60_000, at=[2])
        ...     replica["item"][1].stock
        9
    """

    def __init__(
        self,
        source: Source,
        replica: Database,
        name: str = DEFAULT_NAME,
        *,
        secret: bytes | None = None,
        tls: TlsContext | None = None,
        skip_start: bool = True,
        copy: bool = False,
        progress: Callable[[int, int, str], None] | None = None,
        conflict_role: Role | str | int | None = None,
        ignore_server_ids: Iterable[int] = (),
        replicate_do: Iterable[str] = (),
        replicate_ignore: Iterable[str] = (),
        failed_source: int = 0,
        heartbeat_ms: int = 1_000,
        other_sources: Iterable[Source] = (),
        failover_after_ms: int = 0,
        heartbeat_from: int = 0,
        **options: Unpack[ChannelKeywords],
    ) -> None:
        """Create the channel. It reads and writes nothing yet, unless `copy` or `skip_start=False` asks for it.

        Args:
            source: An open store with a `log_bin`, or the address ("host:port") of a store that is served (`tm.serve`).
            replica: The store that applies the changes.
            name: A replica may have several channels, each with a name and a source of its own.
            secret: Of a served source, 16 bytes or more.
            tls: A client's context, for a source that is served with TLS.
            skip_start: False starts receiver and applier at once.
            copy: Copy all tables of the source, as at the end of one epoch, if the replica has no position there, or
                one from which the source cannot continue (PositionLost, EpochGap), or none of the tables; then
                continue after that epoch. Returns when the copy is done. An interrupted copy begins again. A replica
                that has followed this source loses its tables of the same names, and gets them anew; tables with rows
                that were written at the replica are refused.
            progress: Called with (rows copied, rows in all, "rows").
            conflict_role: Of the replica, for NDB$EPOCH2: NONE, PRIMARY, SECONDARY or PASS; None leaves it as it is.
            ignore_server_ids: Servers whose changes are skipped.
            replicate_do: Patterns like shop.% of tables that are applied.
            replicate_ignore: Patterns of tables that are not applied.
            failed_source: Server id of the previous source, if the position must be derived from its epochs.
            heartbeat_ms: Interval at which each side sends a heartbeat.
            other_sources: More sources, in order of preference after the first, reached with the same secret and tls.
            failover_after_ms: Move to the next source when the heartbeat row has not changed here for this time.
            heartbeat_from: The server whose heartbeat row (`tm.serve`) is watched; all sources must pass on its
                changes.
            options: Those of a channel in docs/replication.md, *Options*.

        Durable on return: the copy, with `copy=True`.

        Raises:
            Rejected: The server id is 0, the source has no binlog, a copy was interrupted and `copy` is not given, or
                the replica has tables that are to be copied and are not the source's, or have rows of its own.
            PeerRefused: Server ids or stores are equal.
            PeerError: The source of a copy is out of reach.
            SchemaInvalid: An option is invalid, the name is taken, another channel has the source, or a conflict
                function does not allow the channel.
            InvalidName: The name is not allowed.
            StoreFailed: A store is closed or has failed.
        """
        check_open(replica)
        own = replica.endpoint
        self._values, self._options = channel_options(
            name,
            ignore_server_ids,
            replicate_do,
            replicate_ignore,
            failed_source,
            heartbeat_ms,
            heartbeat_from,
            **options,
        )
        self.name = self._options.name
        self._own = own
        self._turn = threading.RLock()  # held by calls that change the channel
        self._is_closed = False
        self._link = link_to(own, source, secret, tls)
        self._failover = self._failover_of(tuple(other_sources), failover_after_ms, secret, tls)
        self.replica: ReplicaChannel
        self._receiver: Receiver
        self._build()
        try:
            own.add_channel(self)
            self._check()
            if conflict_role is not None:
                self.conflict_role = conflict_role
            self._copy(copy, progress)
            if not skip_start:
                self.start()
        except BaseException:
            self.close()
            raise

    def _failover_of(
        self, sources: tuple[Source, ...], after_ms: int, secret: bytes | None, tls: TlsContext | None
    ) -> Failover | None:
        own, origin = self._own, self._options.heartbeat_from
        taken = self._options.filter(own.site.server_id)
        if not check_failover_options(own.site.server_id, len(sources), after_ms, origin, taken):
            return None
        alien: tuple[bytes | None, TlsContext | None] = (secret, tls)
        links = [link_to(own, each, *(alien if not isinstance(each, Database) else (None, None))) for each in sources]
        made = Failover(own, self.name, [self._link, *links], after_ms, origin, self._move)
        watch = made.watch(self.check_failover, lambda: (self.is_applying or self._is_at_gap) and self._is_received)
        self._watching = Worker(f"tidemark-failover-{self.name}", watch)
        return made

    def _build(self) -> None:
        """Create the parts of the channel; no file is touched."""
        own, link, options = self._own, self._link, self._options
        self._applier = own.new_applier(self.name, ApplierOptions.from_options(self._values))
        self.replica = ReplicaChannel(own.files, own.clock, own.site, self._applier, own.positions(self.name), options)
        if link.store is not None:
            store = link.store
            receiver = LocalReceiver(self.replica, store.site, store.source_binlog(), store.clock)
            store.log().on_written.append(receiver.notify)
            self._receiver = receiver
        else:
            assert link.address is not None
            site = LinkOptions(own.site, link.secret, link.tls)
            self._receiver = NetworkReceiver(self.replica, link.address, site, own.clock)
        self.replica.claim = partial(own.claim_source, self.name)
        self.replica.on_settings = self._learn
        self.replica.on_progress = self._report
        self.replica.forwarded_epochs_of = own.reach.forwarded_epochs
        own.reach.on_change.append(self._report)
        self.receiving = Worker(f"tidemark-receiver-{self.name}", self._receiver.run, self._receiver.wake)
        self.applying = Worker(f"tidemark-applier-{self.name}", applying(self.replica), self.replica.wake)

    def _check(self, link: Link | None = None) -> None:
        """Check the rules of conflict functions for channels. Raises: SchemaInvalid."""
        peer = (link or self._link).store
        self._own.check_channels(None if peer is None else (peer.replication_rows(), peer.site.server_id))

    def _copy(self, is_wanted: bool, progress: Callable[[int, int, str], None] | None) -> None:
        """Make the first copy, or a new one if the channel cannot continue. Durable on return: all of it."""
        link, own, options = self._link, self._own, self._options
        if not is_wanted:
            if is_interrupted(own.store):
                raise Rejected("a copy of this replica was interrupted; make the channel with copy=True")
            return
        if self._can_continue():
            return
        has_relay = self._has_relay()

        def begin(source: Site) -> Callable[[Copied], None] | None:
            self.replica.claim(source.server_id)
            target = CopyTarget(own.store, own.site.server_id, source.server_id, progress)
            target.begin(has_relay or self._has_row(source.server_id))
            self.replica.discard_relay()
            return target.take

        if link.store is not None:
            take = begin(link.store.site)
            assert take is not None
            with link.store.kept_binlog():
                wanted = Filter.of((), options.replicate_do, options.replicate_ignore)
                copy_within(link.store.store, wanted, link.store.log().reach, take)
            return
        assert link.address is not None
        with Caller(link.address, LinkOptions(own.site, link.secret, link.tls), own.clock) as caller:
            caller.copy(pack_request(options.replicate_do, options.replicate_ignore), begin)

    def _has_row(self, server_id: int) -> bool:
        return any(row.server_id == server_id for row in self._own.positions(self.name).rows())

    def _can_continue(self) -> bool:
        """Whether the replica has a position at the source from which it can be continued. The source is asked; while
        it is out of reach, what was received counts.
        """
        replica, options = self.replica, self._options
        source_ids: list[int] = []
        has_relay = self._has_relay()
        if has_relay and (self._failover is not None or options.heartbeat_from):
            return True  # another source may have what this one has purged
        if not has_relay and not self._own.positions(self.name).rows():
            return False

        def begin(source: Site) -> Start:
            source_ids.append(source.server_id)
            return replica.begin(source)

        try:
            if has_relay and self._is_at_incident():
                return False
            self._receiver.probe(begin)
        except (PositionLost, EpochGap) as error:
            _log.warning("channel %s cannot continue: %s", self.name, error.message)
            return False
        except (PeerError, Retryable) as error:
            _log.warning("channel %s has no answer of its source: %s", self.name, error.message)
            return has_relay
        except (BinlogDamaged, FileMissing):
            return True  # of the relay log: the threads report it, and a reset discards it
        finally:
            replica.close()
            self._receiver.close()
        return (has_relay or any(map(self._has_row, source_ids))) and self._has_tables()

    def _has_relay(self) -> bool:
        """Whether anything of the source was received, as far as the relay log can be read."""
        with suppress(BinlogDamaged, FileMissing):
            return self.replica.relay.durable is not None
        return False

    def _is_at_incident(self) -> bool:
        """Whether the applier would stop at an incident of the source, which names changes that its binlog lacks."""
        with suppress(EpochGap):  # the relay log does not continue: the receiver begins anew
            return self.replica.next_incident() is not None
        return False

    def _has_tables(self) -> bool:
        taken = Filter.of((), self._options.replicate_do, self._options.replicate_ignore)
        names = (name for name in self._own.store.tables.by_name if name != HEARTBEAT and not is_system_table(name))
        return any(map(taken.takes_table, names))

    def _learn(self, received: Settings) -> None:
        """Check the conflict functions that a remote source has reported. Raises: PeerRefused."""
        try:
            self._own.check_channels((rows_of_settings(received), self.replica.source_id))
        except SchemaInvalid as error:
            raise PeerRefused(error.message, **error.evidence) from error

    def _report(self) -> None:
        store, replica = self._link.store, self.replica
        if store is None:
            self._receiver.notify()
        else:
            forwarded_epochs = self._own.reach.forwarded_epochs(store.site.server_id)
            store.reach.note_report(
                self._own.site.server_id, replica.received_epoch, replica.applied_epoch, forwarded_epochs
            )

    # --- life -------------------------------------------------------------------------------------
    def close(self) -> None:
        """Stop the channel and release both stores. Received changes stay. A second call does nothing.

        Examples:
            >>> channel.close()
            >>> channel.start()
            Traceback (most recent call last):
            ...
            tidemark.errors.Rejected: channel main is closed; make another one
        """
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            if self._failover is not None:
                self._watching.stop()
            self._stop(True, True)
            self._detach()
            self._own.remove(self)

    def _detach(self) -> None:
        self._own.release_source(self)
        store = self._link.store
        if self._report in self._own.reach.on_change:
            self._own.reach.on_change.remove(self._report)
        if store is not None and self._receiver.notify in store.log().on_written:
            store.log().on_written.remove(self._receiver.notify)
        self._receiver.close()
        self.replica.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Rejected(f"channel {self.name} is closed; make another one")

    # --- threads ----------------------------------------------------------------------------------
    def start(self, receiver: bool = True, applier: bool = True) -> None:
        """Start the given threads that do not run yet. `status` has the errors they end with.

        Raises: SchemaInvalid where a conflict function does not allow the channel; Rejected if it is closed.

        Examples:
            >>> channel.start()
            >>> db.wait_applied(db.sync(), timeout_ms=60_000, at=[2])
            >>> len(replica["item"])
            3
        """
        with self._turn:
            self._check_open()
            self._check()
            if receiver:
                self._receiver.restart()
                self.receiving.start()
            if applier:
                self.applying.start()
            if self._failover is not None:
                self._failover.begin()
                self._watching.start()

    def stop(self, receiver: bool = True, applier: bool = True) -> None:
        """Stop the given threads, and wait until they have ended; a transaction under way is applied first.

        Examples:
            >>> channel.start()
            >>> channel.stop(receiver=False)
            >>> channel.is_receiving, channel.is_applying
            (True, False)
        """
        with self._turn:
            self._stop(receiver, applier)

    def _stop(self, receiver: bool, applier: bool) -> None:
        if receiver:
            self.receiving.stop()
        if applier:
            self.applying.stop()

    def check_failover(self) -> bool:
        """Check once whether to move to another source, as a thread does after `start`; return whether the channel
        moved.

        Threads that were running are started again after the move. While another call changes the channel, or without
        other sources, nothing is checked.

        Examples:
            >>> channel.check_failover()  # it has one source
            False
        """
        if self._failover is None or not self._turn.acquire(blocking=False):
            return False
        try:
            has_queue = not self._is_at_gap and self.replica.lag()["epochs"] > 0
            return not self._is_closed and self._failover.check(has_queue)
        finally:
            self._turn.release()

    def _move(self, link: Link) -> None:
        """Continue with another source. The relay log is kept or discarded once the source's identity is known."""
        self._check(link)
        is_received, is_applied = self._is_received, self.is_applying or self._is_at_gap
        self._stop(True, True)
        self._detach()
        self._link = link
        self._build()
        if is_received:
            self.receiving.start()
        if is_applied:
            self.applying.start()

    @property
    def _is_received(self) -> bool:
        return self.is_receiving or self.receiving.error is not None

    @property
    def _is_at_gap(self) -> bool:
        """Whether the applier has ended because this source lacks changes that another source may have. A bulk load
        that was not logged is missing at all sources.
        """
        error = self.applying.error
        return isinstance(error, EpochGap) and "load" not in error.evidence

    @property
    def is_receiving(self) -> bool:
        """Whether the receiver's thread runs."""
        return self.receiving.is_running

    @property
    def is_applying(self) -> bool:
        """Whether the applier's thread runs."""
        return self.applying.is_running

    def check_running(self) -> None:
        """Raise the error that ended the receiver's or the applier's thread, unless another source may help with it.

        Examples:
            >>> channel.start()
            >>> channel.check_running()
        """
        if self.applying.error is not None and (self._failover is None or not self._is_at_gap):
            raise self.applying.error
        if self.receiving.error is not None and self._failover is None:
            raise self.receiving.error

    @property
    def has_caught_up(self) -> bool:
        """Whether the replica has applied everything that the source had at its last message."""
        return self.replica.has_caught_up

    def _check_stopped(self, what: str) -> None:
        self._check_open()
        for is_running, name in ((self.is_receiving, "receiver"), (self.is_applying, "applier")):
            if is_running:
                raise Rejected(f"{what}: the {name} of channel {self.name} runs; stop it first")

    # --- by hand ----------------------------------------------------------------------------------
    def receive_next(self) -> bool:
        """Take the next piece of the binlog of a source in the same process into the relay log; return False if there
        is none.

        Durable on return: the complete transactions received.

        Raises: Rejected while the receiver runs, or if the source is at an address; PeerError and its subclasses;
        StorageFull.

        Examples:
            >>> epoch = db.sync()
            >>> channel.receive_next(), channel.receive_next()
            (True, False)
        """
        with self._turn:
            self._check_open()
            if self.is_receiving or not isinstance(self._receiver, LocalReceiver):
                raise Rejected("the receiver's thread receives; look at status() to see how far it is")
            return self._receiver.receive_next()

    def apply_next(self) -> Applied | None:
        """Apply the next transaction of the source, a whole epoch or a schema change; return None if there is none.

        If the source is in the same process, the transaction is received first. Only closed epochs are received, so
        call `source.sync()` before.

        Durable on return: the transaction, as after a commit of the replica.

        Raises: Rejected while the applier runs, EpochGap, BinlogDamaged, and any error that stops an applier. Nothing
        of the transaction is applied then, and the next call tries it again.

        Examples:
            >>> epoch = db.sync()
            >>> channel.apply_next().statement
            'CREATE DATABASE IF NOT EXISTS `main`'
        """
        with self._turn:
            self._check_open()
            if self.is_applying:
                raise Rejected(f"the applier of channel {self.name} runs; stop it to apply by hand")
            applied = self._apply()
            while applied is None and self._receive():
                applied = self._apply()
            return applied

    def skip_incident(self) -> str:
        """Skip an incident of the source at which the applier has stopped; return the text that the source gives.

        Call it after the missing rows were brought here by other means. If the source did not log a bulk load, for
        example, load the same rows here first.

        Durable on return: the position after the incident.

        Raises: Rejected while the applier runs, or if the next event is not an incident.

        Examples:
            The source was opened with `log_load_rows=False`.

            >>> epoch = db.sync()
            >>> count = channel.apply_all()
            >>> nails = {"id": range(100, 60_100), "name": ["nail"] * 60_000, "stock": [1] * 60_000}
            >>> count = db.load("item", nails)
            >>> epoch = db.sync()
            >>> channel.apply_all()
            Traceback (most recent call last):
            ...
            tidemark.errors.EpochGap: ...
            >>> count = replica.load("item", nails)
            >>> channel.skip_incident()
            'load ... of 60000 rows in epoch ... is not in the binlog: main.item'
        """
        with self._turn:
            self._check_open()
            if self.is_applying:
                raise Rejected(f"the applier of channel {self.name} runs; stop it to skip an incident")
            return self.replica.skip_incident()

    def apply_all(self) -> int:
        """Apply everything there is, as `apply_next` does; return how many transactions.

        Raises: as `apply_next`.

        Examples:
            >>> epoch = db.sync()
            >>> channel.apply_all()  # two schema changes, an empty epoch, and that of the rows
            4
            >>> len(replica["item"])
            3
        """
        count = 0
        with self._turn:
            self._catch_up()
            while self.apply_next() is not None:
                count += 1
        return count

    def _catch_up(self) -> None:
        """Bring the binlog of a source in the same process up to its closed epochs."""
        if self._link.store is not None:
            self._link.store.log().write_closed_epochs()

    def _receive(self) -> bool:
        if self.is_receiving or not isinstance(self._receiver, LocalReceiver):
            return False
        if self._receiver.receive_next():
            return True
        self._catch_up()
        return self._receiver.receive_next()

    def _apply(self) -> Applied | None:
        progress = self.replica.progress
        before = progress.applied, progress.passed_over
        transaction = self.replica.apply_next()
        if transaction is None:
            return None
        is_applied, is_passed_over = progress.applied > before[0], progress.passed_over > before[1]
        outcome = "applied" if is_applied else "passed over" if is_passed_over else "filtered"
        statement = None if transaction.statement is None else transaction.statement.statement
        rows = self._applier.rows if is_applied and statement is None else 0
        return Applied(transaction.source_id, transaction.epoch, outcome, rows, statement)

    # --- both stopped -----------------------------------------------------------------------------
    def reset(self) -> None:
        """Discard the relay log. Changes that were received and not applied are fetched again.

        Unless `clear_apply_status` is off, the rows of `mysql.ndb_apply_status` that no other channel uses are deleted
        too, and the whole binlog of the source is applied again. They stay where changes applied a second time would be
        taken for new ones: where an epoch function (NDB$EPOCH and its variants) is set here or at the source, where the
        source has sent back epochs of this site, or where it has not answered since the channel was created. The max
        replicated epoch is then the one in the rows. Exceptions tables stay.

        Durable on return: the removal of the relay log and of those rows.

        Raises: Rejected while the channel runs.

        Examples:
            >>> epoch = db.sync()
            >>> channel.receive_next()
            True
            >>> channel.reset()
            >>> channel.status()["lag"]["epochs"]
            0
        """
        with self._turn:
            self._check_stopped("nothing is reset")
            self._receiver.close()
            self.replica.reset()

    def change_source(
        self,
        source: Source,
        *,
        secret: bytes | None = None,
        tls: TlsContext | None = None,
        ignore_server_ids: Iterable[int] | None = None,
        failed_source: int = 0,
    ) -> None:
        """Continue with another source, or with another address of the same one.

        Changes that were received and not applied are discarded. The new source's own row of `mysql.ndb_apply_status`,
        passed on by an intermediate site, says where to continue. Without such a row, `failed_source` names a server
        whose epochs both this site and the new source have applied. The max replicated epoch is reset, because it is
        unknown which epochs of this site the new source has applied.

        Args:
            source: An open store, or an address; as for the constructor.
            secret: Of a served source, 16 bytes or more.
            tls: A client's context, for a source that is served with TLS.
            ignore_server_ids: Servers whose changes are skipped; None leaves them as they are.
            failed_source: Server id of the previous source, if the position must be derived from its epochs; 0: none.

        Durable on return: the removal of the relay log.

        Raises: Rejected while the channel runs, or if it has several sources; otherwise as the constructor does.
        Nothing has changed then.

        Examples:
            >>> with tm.serve(db, "127.0.0.1:0", secret) as serving:
            ...     channel.change_source(serving.address, secret=secret)
            ...     channel.start()
            ...     db.wait_applied(db.sync(), timeout_ms=60_000, at=[2])
            ...     channel.stop()
            >>> len(replica["item"])
            3
        """
        with self._turn:
            self._check_stopped("the source is not changed")
            if self._failover is not None:
                raise Rejected(f"channel {self.name} has several sources; close it and make it with others")
            link = link_to(self._own, source, secret, tls)
            options = replace(self._options, failed_source=failed_source)
            if ignore_server_ids is not None:
                ignored = validate("ignore_server_ids", tuple(ignore_server_ids))
                options = replace(options, ignore_server_ids=ignored)
            self._check(link)
            left = self._left_source()
            self._detach()
            self.replica.leave_source(left, 0 if link.store is None else link.store.site.server_id)
            self._link = link
            self._options = options
            self._values["ignore_server_ids"] = options.ignore_server_ids
            self._build()
            self.replica.left_source = left

    def _left_source(self) -> int:
        """Return the server whose changes were applied here until now; 0 if it is unknown."""
        with suppress(BinlogDamaged, FileMissing):  # the relay log is discarded unread
            return self.replica.relay.source_id or self.replica.left_source or self.source_id
        return self.replica.left_source or self.source_id

    # --- role -------------------------------------------------------------------------------------
    @property
    def conflict_role(self) -> Role:
        """The role of the replica, for NDB$EPOCH2; all its channels share it."""
        return self._own.role

    @conflict_role.setter
    def conflict_role(self, wanted: Role | str | int) -> None:
        """Raises: Rejected while an applier of the store runs, and for a change of role that must go through NONE."""
        self._own.change_role(validate("conflict_role", wanted))

    # --- what is shown ----------------------------------------------------------------------------
    @property
    def source_id(self) -> int:
        """The server id of the source; 0 until it is known."""
        if self._link.store is not None:
            return self._link.store.site.server_id
        return self.replica.source_id

    def status(self) -> dict[str, Any]:
        """Return the progress and counters of the channel, and the state of both threads. While the receiver retries,
        `receiver.error` is the error of its last attempt.

        `lag.epochs` counts transactions received and not applied. `lag.seconds` is the age of the last applied one by
        the source's clock: 0.0 if it is the newest, None while it is unknown.

        Examples:
            >>> epoch = db.sync()
            >>> count = channel.apply_all()
            >>> channel.status()["lag"]
            {'epochs': 0, 'seconds': 0.0}
        """
        receiver = self.receiving.status()
        return {
            **self.replica.status(),
            "source": self._link.shown,
            "failover": None if self._failover is None else self._failover.status(),
            "receiver": {**receiver, "error": receiver["error"] or self._receiver.trouble},
            "applier": self.applying.status(),
        }
