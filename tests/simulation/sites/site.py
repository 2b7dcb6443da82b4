"""One simulated site: a store over a disk in memory, its channels, its crashes; and what must survive them.

All work of the store's process goes through `act`: an error of the disk or the store ends the process, and the next
opening is checked against earlier promises. Promises checked here: durable data stays; positions never go back past
durable ones; every epoch of a source is applied in order and once.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.sites.joints import ObservedApplier
from tests.simulation.sites.tables import JOURNAL, MAIN, Rows, make_tables, own_rows, rows_of
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import Error, OutcomeUnknown, PeerError, Retryable, StoreFailed
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.program import OPEN_FILES, SIMULATED, PowerOff, power_off, resolve
from tidemark.replication.applier.applier import Applied, ApplierOptions
from tidemark.replication.channel.channel import ChannelOptions, ReplicaChannel
from tidemark.replication.channel.endpoint import rows_of_settings
from tidemark.replication.settings.options import split_keywords
from tidemark.replication.wire.handshake import Site

if TYPE_CHECKING:
    from tests.simulation.sites.work import Work
    from tests.simulation.sites.world import World
    from tidemark.replication.channel.relay_reader import RelayTransaction
    from tidemark.replication.wire.messages import Settings

DISK_FAULTS = ("full", "sync", "write", "short", "read")
OPENING_CALLS = 120


@dataclass
class AppliedEpoch:
    """An epoch of a source that was applied: the site's own epoch, the moment of the run, the number of conflicts.
    `conflicts` is None if the process died before it could report them.
    """

    epoch: int
    own_epoch: int
    moment: int
    conflicts: dict[str, int] | None


class Channel:
    """One channel of a site, as long as its process lives."""

    def __init__(self, site: SimulatedSite, source: int) -> None:
        plan = site.world.plan
        endpoint, name = site.db.endpoint, f"from{source}"
        self.site = site
        self.source = source
        own = plan.sites[site.number]
        options = ApplierOptions(own.allow_batching, own.batch_bytes, retries=1)
        self.applier = ObservedApplier(endpoint.new_applier(name, options), site.rows_to_keep, self._on_applied)
        case = plan.case
        channel = ChannelOptions(
            name=name,
            # Without EPOCH functions, a reset that clears the status would apply epochs a second time, as requested.
            clear_apply_status=case.is_epoch,
            relay_file_bytes=plan.relay_file_bytes,
            window_bytes=64 << 10,
            heartbeat_ms=plan.heartbeat_ms,
        )
        self.positions = endpoint.positions(name)
        self.replica = ReplicaChannel(
            site.db.parts.files, site.clock, site.identity, self.applier, self.positions, channel
        )
        self.replica.forwarded_epochs_of = endpoint.reach.forwarded_epochs
        self.replica.on_settings = self._learn
        self._counted: dict[str, int] = {}
        self._is_due = False

    def _on_applied(
        self, applier: ObservedApplier, transaction: RelayTransaction, applied: Applied, rows: Rows
    ) -> None:
        totals = dict(applier.inner.applier.counters.totals)
        delta = {name: count - self._counted.get(name, 0) for name, count in totals.items()}
        self._counted = totals
        if not applied.is_passed_over:
            self.site.has_applied(self.source, applied, {name: count for name, count in delta.items() if count})
            self.site.has_replaced(applied.epoch, rows)

    def _learn(self, reported: Settings) -> None:
        self.site.db.endpoint.check_channels((rows_of_settings(reported), self.source + 1))

    def reset(self) -> None:
        """Reset the channel: discard its relay log, and what is known to be applied, as far as that is allowed."""
        self.replica.reset()
        self.site.world.note(f"{self.site.name}: channel from {self.source} reset")
        self.site.world.tally.add("channels reset")
        self.site.check_positions()
        self.wake()

    def wake(self) -> None:
        """Apply soon: something may have been received."""
        if not self._is_due:
            self._is_due = True
            world = self.site.world
            world.timeline.after(world.rng.uniform(0.001, 0.03), self._apply_soon)

    def _apply_soon(self) -> None:
        self._is_due = False
        if self.site.channels.get(self.source) is self:
            self.site.act(self.apply)

    def apply(self) -> None:
        """Apply a few transactions of the relay log."""
        world = self.site.world
        for _ in range(world.rng.choice((1, 3, 10))):
            try:
                transaction = self.replica.apply_next()
            except (Retryable, PeerError) as error:
                world.note(f"{self.site.name}: applier: {type(error).__name__}")
                world.tally.add(f"applier met {type(error).__name__}")
                if isinstance(error, PeerError):
                    world.break_promise(f"applier of {self.site.name} stopped: {type(error).__name__}: {error}")
                self.site.check_positions()
                break
                # Not after a power loss during the apply: what was committed by then was not reported.
            self.site.check_positions()
            if transaction is None:
                return
        self.wake()


class SimulatedSite:
    """One site for the whole of a run; `db` is None while its process is dead."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.name = "ABCDE"[number]
        self.server_id = number + 1
        self.plan = world.plan.sites[number]
        self.clock = ManualClock(seed=world.plan.seed * 8 + number)
        self.db: Any = None
        self.channels: dict[int, Channel] = {}
        self.applied: dict[int, list[AppliedEpoch]] = {}
        self.durable: dict[int, int] = {}  # by source, the newest epoch that is applied durably
        self.replaced: set[tuple[int, int]] = set()  # epochs of the primary, keys of this secondary's rows they changed
        self.ever: set[int] = set()  # numbers of transactions that have ever been here
        self.work: Work
        self.identity: Site
        self._disk = MemoryFiles()
        self._plan = Plan()

    @property
    def is_up(self) -> bool:
        """Whether its process lives."""
        return self.db is not None

    # --- life -------------------------------------------------------------------------------------
    def open(self, rules: list[Rule] | None = None) -> None:
        """Open the store and its channels. Raises: any error of opening."""
        self._plan = Plan(rules or [])
        files = FaultFiles(MemoryFiles(self._disk.disk), self._plan)
        parsed, replication = split_keywords({**SIMULATED, **self.plan.options, "background": False})
        db = resolve(OPEN_FILES)(files, parsed, self.clock, None, None, None, replication)
        uuid, incarnation = db.parts.opened.identity
        self.identity = Site(self.server_id, uuid.hex(), incarnation)
        self.db = db
        db.endpoint.reach.on_change.append(self._check_reach)
        self.world.tally.add("openings")

    def first_open(self) -> None:
        """Create the store and its tables."""
        self.open()
        make_tables(self.db, self.world.plan, self.number)
        self.db.sync()
        self.db.parts.clockwork.advance_gci()
        self._open_channels()

    def _open_channels(self) -> None:
        sources = [source for source, replica in self.world.plan.channels if replica == self.number]
        self.channels = {source: Channel(self, source) for source in sources}
        for channel in self.channels.values():
            channel.wake()

    def reopen(self) -> None:
        """Start a new process on the existing disk; it may die while it opens."""
        if self.db is not None:
            return
        rules: list[Rule] = []
        world = self.world
        if world.has_faults and world.faults.crash_calls and world.rng.random() < 0.3:
            nth = world.rng.randrange(1, OPENING_CALLS)
            rules = [Rule("*", nth=nth, once=False, stall=power_off)]
        try:
            self.open(rules)
            self._recovered()
            self._open_channels()
        except PowerOff:
            self._die(is_power=True)
        except (StoreFailed, Retryable) as error:
            if not self._plan.fired:
                world.break_promise(f"{self.name} does not open: {type(error).__name__}: {error}")
            self._die(is_power=False)
        except Error as error:
            world.break_promise(f"{self.name} does not open: {type(error).__name__}: {error}")

    def act(self, work: Callable[[], None]) -> None:
        """Run work in the site's process, which may die of it."""
        if self.db is None:
            return
        lag = self.world.timeline.now - self.clock.monotonic() + self.world.epoch_of_clocks
        if lag > 0:
            self.clock.advance(lag)
        try:
            work()
        except PowerOff:
            self._die(is_power=True)
        except (StoreFailed, OutcomeUnknown) as error:
            if not self._plan.fired:
                self.world.break_promise(f"store of {self.name} failed: {type(error).__name__}: {error}")
            self.world.tally.add(f"stores failed by {type(error).__name__}")
            self._die(is_power=self.world.rng.random() < 0.5)
        except Error as error:
            self.world.break_promise(f"{self.name} stopped: {type(error).__name__}: {error}")

    def crash(self) -> None:
        """End the process: by a kill, by power loss now, or by power loss at a later call of the disk."""
        r, faults = self.world.rng, self.world.faults
        if self.db is None:
            return
        if faults.crash_calls and r.random() < 0.7:
            self._plan.add(Rule("*", nth=r.randrange(1, faults.crash_calls), once=False, stall=power_off))
            return
        self._die(is_power=r.random() < 0.7)

    def _die(self, is_power: bool) -> None:
        world = self.world
        r = world.rng
        policy = r.choice(CRASH_POLICIES)
        self._disk = self._disk.crash(r, policy) if is_power else self._disk.kill()
        world.note(f"{self.name}: {'power lost, ' + policy if is_power else 'killed'}")
        world.tally.add("power losses" if is_power else "kills")
        self.db, self.channels = None, {}
        for link in world.links:
            link.gone(self)
        world.timeline.after(r.uniform(0.02, 0.3), self.reopen)

    def disk_fault(self) -> None:
        """Plan a disk fault; a full disk stays full for a while."""
        r = self.world.rng
        kind = r.choice(DISK_FAULTS)
        where = r.choice(("*", "binlog/*", "relay/*", "binlog/*", "relay/*"))
        nth = r.randrange(1, 6)
        rule = {
            "full": Rule("space", where, nth=nth, once=False, error=errno.ENOSPC),
            "sync": Rule("sync", where, nth=nth, error=errno.EIO),
            "write": Rule("pwrite", where, nth=nth, error=errno.EIO),
            "short": Rule("pwrite", where, nth=nth, short=r.randrange(200)),
            "read": Rule("pread", where, nth=nth, error=errno.EIO),
        }[kind]
        ended = self._plan.add(rule)
        self.world.note(f"{self.name}: disk {kind} {where}")
        self.world.tally.add(f"disk {kind}")
        if kind == "full":
            self.world.timeline.after(r.uniform(0.05, 0.4), ended)

    def heal(self) -> None:
        """End all disk faults."""
        self._plan.is_over = True

    # --- applied ----------------------------------------------------------------------------------
    def has_applied(self, source: int, applied: Applied, conflicts: dict[str, int]) -> None:
        """Record an epoch of a source that was applied and is committed."""
        entries = self.applied.setdefault(source, [])
        if entries and applied.epoch <= entries[-1].epoch:
            self.world.break_promise(
                f"{self.name} applied epoch {applied.epoch} of {source} after {entries[-1].epoch}: doubled"
            )
        moment = self.world.next_moment()
        entries.append(AppliedEpoch(applied.epoch, applied.own_epoch, moment, conflicts))
        self.world.tally.add("epochs applied")
        self.world.note(
            f"{self.name}: applied {source}:{applied.epoch} in {applied.own_epoch} {sorted(conflicts.items())}"
        )
        if len(self.world.sites) > 2:
            self.ever |= {row[0] for row in rows_of(self.db, JOURNAL)}
        if self.db.parts.store.resources.waits_for_disk:
            self.durable[source] = applied.epoch

    def rows_to_keep(self) -> Rows:
        """Return the rows that a reflected change must leave alone: at a secondary its own ones."""
        return own_rows(self.db, MAIN) if self.world.plan.case.has_roles and self.number else {}

    def has_replaced(self, epoch: int, rows: Rows) -> None:
        """Record which of these rows an epoch of the primary has changed (`epoch_promises`)."""
        if rows:
            now = {row[0]: row for row in rows_of(self.db, MAIN)}
            self.replaced |= {(epoch, key) for key, row in rows.items() if now.get(key) != row}

    def _check_reach(self) -> None:
        """Check that other sites have had what they are reported to have applied of this site."""
        if self.db is None or len(self.world.sites) == 2:
            return
        for server_id, epoch in self.db.endpoint.reach.heard.items():
            other = self.world.sites[server_id - 1]
            lacking = {done.number for done in self.work.done if done.epoch <= epoch} - other.ever
            if lacking:
                self.world.break_promise(f"{other.name} is said to have epoch {epoch} of {self.name}, lacks {lacking}")

    def seen(self, source: int) -> int:
        """Return the newest applied epoch of a source."""
        entries = self.applied.get(source)
        return entries[-1].epoch if entries else 0

    def is_durable_now(self) -> None:
        """Record that everything committed is durable."""
        for source, entries in self.applied.items():
            if entries:
                self.durable[source] = entries[-1].epoch
        self.work.is_durable_now()

    def check_positions(self) -> None:
        """`ndb_apply_status` must match what was applied, and MRE what the other side has reported of this one."""
        if self.db is None or self.db.parts.store.failure.first is not None:
            return
        for channel in self.channels.values():
            rows = {row.server_id: row.epoch for row in channel.positions.rows()}
            found, known = rows.get(channel.source + 1, 0), self.seen(channel.source)
            if found != known:
                self.world.break_promise(
                    f"ndb_apply_status of {self.name} says epoch {found} of {channel.source}, applied is {known}"
                )
            mre, reported = channel.applier.inner.applier.mre.value, rows.get(self.server_id, 0)
            if mre != reported:
                self.world.break_promise(f"max replicated epoch of {self.name} is {mre}, its row says {reported}")

    def _recovered(self) -> None:
        """Check a reopened store against what was durable, and forget what was not."""
        rows = {row.server_id: row.epoch for row in self.db.endpoint.positions("").rows()}
        for source, replica in self.world.plan.channels:
            if replica != self.number:
                continue
            found = rows.get(source + 1, 0)
            entries = self.applied.setdefault(source, [])
            if found < self.durable.get(source, 0):
                self.world.break_promise(
                    f"{self.name} is back at epoch {found} of {source}; {self.durable[source]} was durable"
                )
            while entries and entries[-1].epoch > found:
                entries.pop()
            if found and (not entries or entries[-1].epoch != found):
                # It was committed, and the process died before it learned that.
                entries.append(AppliedEpoch(found, 0, self.world.next_moment(), None))
        self.work.recovered()
        self.is_durable_now()
