"""One life of a node, from the opening of its store to an `Ending`: a state machine driven by one queue of events,
a store, and links.

One thread owns the machine and never waits for a disk; all others put events into its queue. A second thread writes the
record, and a third owns the store. Readers and writers call `reading`, `shown` and `writing`, which read the machine's
state between its steps. X is the last epoch that the group has completed with this node.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    Error,
    InvariantBroken,
    NotPrimary,
    PeerError,
    PeerRefused,
    RedoOverloaded,
    StorageFull,
    StoreClosed,
)
from tidemark.replication.node_group import messages as m
from tidemark.replication.node_group.copy_server import CopyServer
from tidemark.replication.node_group.store_thread import StoreThread
from tidemark.replication.node_group.views import Node

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.replication.node_group.carrier import Carrier
    from tidemark.replication.node_group.conversation import Conversation
    from tidemark.replication.node_group.store_thread import Home, NodeStore
    from tidemark.replication.node_group.view import Member, Record, Times, View
    from tidemark.replication.node_group.view_file import ViewFile

_log = logging.getLogger("tidemark.node")

VIEW_SECONDS = 2.0
POLL_SECONDS = 0.005
STUCK_SECONDS = 2.0
JOIN_SECONDS = 5.0
LOG_HELD_SECONDS = 10.0  # after the last message of a joining node


class Ending(Enum):
    """How a life ended."""

    STOPPED = "stopped"
    LEFT = "left"  # in order: the other nodes continue in a view without it
    LOST = "lost"  # the group continues without it, or it had no room for a group: open its own files again
    BEHIND = "behind"  # it joins, and the primary no longer has the groups it lacks: return to epoch X, and be copied
    UNFIT = "unfit"  # its rows differ from the primary's: be copied whole


class Life:
    """One life of a node."""

    def __init__(
        self,
        home: Home,
        view_file: ViewFile,
        own: Member,
        times: Times,
        clock: Clock,
        incarnation: int,
        peers: frozenset[int],
        carrier: Callable[[Life], Carrier],
        stuck: Callable[[], None],
    ) -> None:
        """view_file: has a record. carrier: creates a carrier with callbacks of this life; the life starts and closes
        it. stuck: called when this node leads and has had no view for STUCK_SECONDS, or when its disk has not answered
        for as long after it fell silent: calls under way may wait without end, and clients should ask other nodes.
        """
        assert view_file.record is not None
        self._clock = clock
        self._view_file = view_file
        self._events: queue.SimpleQueue[m.Event | None] = queue.SimpleQueue()
        self._mutex = threading.Lock()
        self._error: Error | None = None
        self._ending: Ending | None = None
        self.ended = threading.Event()
        self.is_leading = False
        self._has_log_grown = False
        self._stuck = stuck
        self._is_stuck_at = clock.monotonic() + STUCK_SECONDS
        self._joined_to, self._joined_at = 0, clock.monotonic()
        self._kept_groups: deque[m.Received] = deque()  # groups after one whose files are being fetched
        self._kept_through = 0  # the last of them
        self.thread = StoreThread(
            home,
            self._post,
            self._failed,
            self._converse,
            lambda: self.machine.view.number,
            self._take_again,
            2 * times.stall_ms / 1_000,  # by then the other nodes, if alive, have excluded this one
        )
        self.stream = self.thread.stream
        self.copies = CopyServer(self.stream, self._leading, lambda: self.thread.node)
        self.machine = Node(own, view_file.record, self.stream, times, incarnation, peers, clock.monotonic())
        self.carrier = carrier(self)
        self._announced_view = self.machine.view.number
        self._writer = threading.Thread(target=self._write_records, name="tidemark-node-votes", daemon=True)
        self._records: queue.SimpleQueue[m.Write | None] = queue.SimpleQueue()

    # --- events from other threads -------------------------------------------------------------------
    def _post(self, event: m.Event) -> None:
        if type(event) is m.LogGrew:
            if self._has_log_grown:
                return
            self._has_log_grown = True
        self._events.put(event)

    def received(self, node: int, store: bytes, message: Any) -> None:
        """Handle a message from another node. Called by threads of the carrier."""
        if isinstance(message, m.EpochIs):
            view = self.machine.view
            if store == self._store_id() and (message.view, node) == (view.number, view.primary):
                self.thread.epoch_opened(message.epoch, message.sequence)
        elif isinstance(message, m.EpochWanted):
            if self.is_leading:
                self.thread.close_epoch()
        else:
            self._events.put(m.Received(node, store, message))

    def gone(self, node: int) -> None:
        """Tell the machine that the process of a node is dead. Called by threads of the carrier."""
        self._events.put(m.Gone(node))

    def want_epoch(self) -> None:
        """Ask the primary to end its epoch, because a thread of this node waits for that."""
        view = self.machine.view
        self.carrier.send(view.primary, m.EpochWanted(view.number))

    def _failed(self, error: Error) -> None:
        self._error = self._error or error
        self._events.put(None)

    def _store_id(self) -> bytes:
        return self.machine.journal.record.store

    def _leading(self) -> NodeStore | None:
        return self.thread.node if self.is_leading else None

    def _converse(self) -> Conversation:
        view = self.machine.view
        if view.primary in (0, self.machine.number):
            raise PeerError("no primary is known to copy from")
        return self.carrier.converse(view.primary)

    # --- the store's users -----------------------------------------------------------------------------
    @property
    def node(self) -> NodeStore | None:
        """The open store, None while it is closed or being restored."""
        return self.thread.node

    def reading(self) -> int:
        """Return the view in which a read begins; pass it to `shown` after the read. Raises: NotPrimary if no read may
        begin here.
        """
        self._await_view()
        with self._mutex:
            view = self.machine.reads_in()
            may_show = self.machine.may_show(view, self._clock.monotonic())
        if not may_show or self.thread.node is None:
            raise NotPrimary(
                "this node serves no reads now: it is joining its group, or the group has no view; ask another node"
            )
        return view

    def shown(self, view: int, epoch: int) -> None:
        """Return when rows read in a view may be shown: every member has them, as durable as commits are. epoch: no
        row is of a later one. Raises: NotPrimary if they may be stale; StoreFailed.
        """
        self._secure(view, epoch)
        self._await_view()
        with self._mutex:
            # A node that led in all views since then has the newest rows in each of them.
            asked = self.machine.reads_in() if self.is_leading else view
            may_show = self.machine.may_show(asked, self._clock.monotonic())
        if not may_show:
            raise NotPrimary("the group may have continued without this node while it read; ask another node")

    def _secure(self, view: int, epoch: int) -> None:
        node = self.thread.node
        if node is None or epoch <= self.machine.journal.record.epoch:  # X, which every member has on disk
            return
        if self.is_leading:
            node.store.resources.secure_reads(epoch)
            return
        sequence, on_disk = self.stream.visible, node.store.resources.waits_for_disk
        wanted = m.ReadWaits(sequence, sequence if on_disk else 0)
        with self._mutex:
            is_held = self.machine.is_held(*wanted)
        if not is_held:
            self._events.put(wanted)
            if not self.stream.wait_held(sequence, on_disk, lambda: self._is_over(view)):
                raise NotPrimary("the view ended before every member had what was read; ask another node")

    def _is_over(self, view: int) -> bool:
        with self._mutex:
            return not self.machine.may_show(view, self._clock.monotonic())

    def writing(self) -> None:
        """Check that transactions may run here. Raises: NotPrimary if they may not."""
        self._await_view()
        with self._mutex:
            has_view = self.machine.has_view(self._clock.monotonic())
            may_commit = self.machine.may_commit() and self.is_leading and has_view
        if not may_commit:
            raise NotPrimary("this node does not lead its group now; ask the primary")

    def _await_view(self) -> None:
        """At a leading node, wait up to VIEW_SECONDS for its next view: its transactions continue after another member
        has died. If its own disk does not answer, another node will lead: do not wait.
        """
        deadline = self._clock.monotonic() + VIEW_SECONDS
        while self.is_leading and not self.ended.is_set():
            with self._mutex:
                now = self._clock.monotonic()
                if self.machine.has_view(now) or self.machine.is_stalled(now) or now >= deadline:
                    return
            self._clock.sleep(POLL_SECONDS)

    def serves(self) -> bool:
        """Return whether this node serves reads, and transactions if it is the primary."""
        with self._mutex:
            machine = self.machine
            may_show = machine.may_show(machine.reads_in(), self._clock.monotonic())
            return may_show and (self.is_leading or not machine.is_primary)

    def view(self) -> tuple[View, bool]:
        """Return the newest view known here, and whether its primary takes transactions as far as is known here."""
        with self._mutex:
            machine = self.machine
            is_silent = machine.is_stalled(self._clock.monotonic()) and len(machine.view.members) > 1
            is_open = machine.is_open and not machine.is_frozen and not is_silent
            return machine.view, is_open and (self.is_leading or not machine.is_primary)

    def lags(self) -> dict[int, int]:
        with self._mutex:
            return self.machine.lags()

    # --- life ------------------------------------------------------------------------------------------
    def open_store(self, can_create: bool) -> None:
        """Open the store from its files, for a node that is a member. can_create: create it if there is none.

        Raises: the errors of opening, FileMissing if there is none and it may not be created.
        """
        self.thread.open(can_create)

    def run(self, is_founder: bool) -> Ending:
        """Run this life; return how it ended. is_founder: create the group's first view if the record has none. Raises:
        Error if the node cannot continue.
        """
        self._writer.start()
        self.thread.start()
        self.carrier.start()
        try:
            self._loop(is_founder)
        finally:
            self.ended.set()
            self.is_leading = False
            self.stream.end(StoreClosed("the node has left its group, or was closed; ask another node"))
            self.thread.stop()
            self.carrier.close()
            node = self.thread.node
            if node is not None and self._ending is not Ending.STOPPED:
                node.store.failure.latch(StoreClosed("the group continues without this node; ask another node"))
            self.thread.close()
            self._records.put(None)
            self._writer.join()
        assert self._ending is not None
        return self._ending

    def discard(self) -> None:
        """Release everything, if `run` was not called."""
        self.carrier.close()
        self.close_store()

    def leave(self) -> None:
        """Ask the group to continue without this node; `ended` is set after it has agreed."""
        self._events.put(m.Leave())

    def close_store(self) -> None:
        """Close the store while this life still acknowledges the groups that closing writes. A member writes what it
        has applied. A primary with other members writes nothing more, because no member would acknowledge it.
        """
        if not self._is_alone():
            error = StoreClosed("the node was closed")
            self.stream.end(error)
            node = self._leading()
            if node is not None:
                node.store.failure.latch(error)
        self.thread.stop()
        self.thread.close()

    def _is_alone(self) -> bool:
        """Whether this node leads and is the only member. If the others have just left, wait for the view to open."""
        deadline = self._clock.monotonic() + VIEW_SECONDS
        while True:
            with self._mutex:
                is_alone = self.machine.view.numbers <= {self.machine.number}
                may_commit = self.machine.may_commit() and self.is_leading
            if not is_alone or may_commit or self._clock.monotonic() >= deadline:
                return is_alone and may_commit
            self._clock.sleep(POLL_SECONDS)

    def end(self) -> None:
        """Make `run` return."""
        self._ending = self._ending or Ending.STOPPED
        self._events.put(None)

    # --- the loop --------------------------------------------------------------------------------------
    def _loop(self, is_founder: bool) -> None:
        now = self._clock.monotonic()
        if is_founder:
            with self._mutex:
                actions = self.machine.make_group(now)
            self._do(actions)
        while self._ending is None:
            self._step(self._next_event())
            self._check_store()

    def _next_event(self) -> m.Event | None:
        due_s = self.machine.due_at - self._clock.monotonic()
        try:
            return self._events.get(timeout=max(0.0, min(due_s, 1.0))) if due_s > 0 else self._events.get_nowait()
        except queue.Empty:
            return m.Tick()

    def _step(self, event: m.Event | None) -> None:
        if type(event) is m.LogGrew:
            self._has_log_grown = False
        elif isinstance(event, m.Received) and isinstance(event.message, m.AskJoin):
            self.keep_log(event.sender, event.message)
        machine = self.machine
        actions: list[m.Action] = []
        with self._mutex:
            now = self._clock.monotonic()
            if event is not None:
                actions = machine.step(event, now)
                if isinstance(event, m.Received) and isinstance(event.message, m.Groups):
                    self._keep_groups(event, event.message)
            if now >= machine.due_at and type(event) is not m.Tick:
                actions += machine.step(m.Tick(), now)
            if machine.is_joining and not machine.is_ready and machine.has_caught_up():
                actions += machine.step(m.Ready(machine.view.number), now)
        self._do(actions)
        if machine.view.number != self._announced_view:
            self._announced_view = machine.view.number
            self.carrier.announce(view=self._announced_view, founds=False)
        # A primary may have died in the middle of sending a file; the next view must not wait for the rest.
        is_view_over = machine.is_member and machine.is_frozen
        self.thread.abort_fetch(0 if is_view_over else machine.view.number)
        self.thread.hurry(is_view_over)
        if self.is_leading:
            self._report_epochs()
        self._check_view(now)

    def _keep_groups(self, event: m.Received, message: m.Groups) -> None:
        """Keep groups that were not taken because files are being fetched."""
        last = message.first + len(message.groups) - 1
        if self.stream.fetched_sequence and last > max(self.stream.last, self._kept_through):
            self._kept_through = last
            self._kept_groups.append(event)

    def _take_again(self) -> None:
        """Take the kept groups again; called by the thread of the store. The primary resends lost groups."""
        self._kept_through = 0
        while self._kept_groups:
            self._events.put(self._kept_groups.popleft())

    def _check_view(self, now: float) -> None:
        """Report a leading node without a view, which may be on the wrong side of a partition, and a node whose disk
        does not answer: its clients hear of no other node, and their calls wait for as long as that lasts.
        """
        machine = self.machine
        is_well = machine.has_view(now) if self.is_leading else not machine.is_stalled(now)
        if is_well:
            self._is_stuck_at = now + STUCK_SECONDS
        elif now > self._is_stuck_at:
            self._is_stuck_at = now + STUCK_SECONDS
            self._stuck()

    def _do(self, actions: list[m.Action]) -> None:
        for action in actions:
            if isinstance(action, m.Send):
                self.carrier.send(action.to, action.message)
            elif isinstance(action, m.Acknowledge):
                self.stream.acknowledge(action.sequence)
            elif isinstance(action, m.Shared):
                self.stream.shared(action.sequence)
            elif isinstance(action, m.Write):
                self._records.put(action)
            elif isinstance(action, m.Open):
                self.open_view(action.view)
            elif isinstance(action, (m.Lost, m.Left)):
                _log.info("view %d is without this node", action.view.number)
                if self.thread.disk_full:
                    _log.warning(
                        "%s: this node has left its group, which continues; it joins again when there is room",
                        self.thread.disk_full,
                    )
                self._ending = Ending.LOST if isinstance(action, m.Lost) else Ending.LEFT
            elif isinstance(action, m.Fail):
                raise InvariantBroken(action.reason)
            elif isinstance(action, m.Conflict):
                raise PeerRefused(action.reason)

    def open_view(self, view: View) -> None:
        """Begin to lead if this node is the primary of an opened view, and release the log kept for its members."""
        _log.info("view %d is open: nodes %s, primary %d", view.number, sorted(view.numbers), view.primary)
        if view.primary == self.machine.number and not self.is_leading:
            primacy = self.machine.primacy
            self.thread.lead(0 if primacy is None else primacy.epoch, self._on_led)
        node = self._leading()
        if node is not None:
            self.copies.release(node, view.numbers, 0.0)

    def _on_led(self) -> None:
        self.is_leading = True
        self._events.put(None)

    def _report_epochs(self) -> None:
        """Report epochs that this primary has closed: those with groups to the machine, the newest to other nodes."""
        opened, closed = self.stream.closings()
        with self._mutex:
            now = self._clock.monotonic()
            actions = [action for event in closed for action in self.machine.step(event, now)]
            view = self.machine.view
            others = (view.numbers | self.machine.joiners.keys()) - {self.machine.number}
        for epoch, sequence in opened[-1:]:
            for node in others:
                self.carrier.send(node, m.EpochIs(view.number, epoch, sequence))
        self._do(actions)

    def keep_log(self, sender: int, asked: m.AskJoin) -> None:
        """Keep the log for a joining node, while it is heard from and there is room."""
        node = self._leading()
        if node is not None and asked.view == self.machine.view.number:
            self.copies.hold(node, sender, asked.synced, self._clock.monotonic())

    def _check_store(self) -> None:
        error = self._error or self.thread.failure
        if error is not None:
            self._end_on_failure(error)
        node = self._leading()
        now = self._clock.monotonic()
        if node is not None:
            self.copies.release(node, frozenset(), now - LOG_HELD_SECONDS)
        self._check_joining(now)

    def _check_joining(self, now: float) -> None:
        """End this life if this node joins and receives none of the groups it lacks: the primary's log now begins after
        them.
        """
        machine, synced = self.machine, self.stream.synced
        is_waiting = machine.is_joining and self.thread.is_idle and not machine.has_caught_up()
        if not is_waiting or synced != self._joined_to:
            self._joined_to, self._joined_at = synced, now
        elif now - self._joined_at > JOIN_SECONDS and self._ending is None:
            _log.warning("no group after %d arrives; the node is copied again", synced)
            self._ending = Ending.BEHIND

    def _end_on_failure(self, error: Error) -> None:
        """End this life, because its store is unusable. A store without room is opened again; one whose
        rows differ from the primary's is copied whole; any other needs an operator.
        """
        if self._ending is not None:
            return
        if isinstance(error, (RedoOverloaded, StorageFull)) or error.evidence.get("is_short"):
            _log.error("%s", error.message)
            self._ending = Ending.LOST
            return
        record = self.machine.journal.record
        if isinstance(error, InvariantBroken) and not self.is_leading and record.view.number:
            _log.error("%s", error.message)
            self._ending = Ending.UNFIT
            return
        raise error

    # --- the record --------------------------------------------------------------------------------------
    def _write_records(self) -> None:
        """Write records until the life ends. A vote that cannot be written is not sent: the node falls silent."""
        while (write := self._records.get()) is not None:
            try:
                self._view_file.write(write.record)
            except Error as error:
                self._failed(error)
                return
            self._events.put(m.Written(write.version))

    def forget_ready(self) -> None:
        """Record, after the end, that these rows do not qualify for the next view. X stays."""
        self._forget(joins=0)

    def forget_rows(self) -> None:
        """Record, after the end, that these rows are unusable. The votes stay."""
        self._forget(is_member=False, epoch=0, sequence=0, joins=0)

    def _forget(self, **changes: Any) -> None:
        record: Record | None = self._view_file.record
        assert record is not None
        self._view_file.write(replace(record, **changes))
