"""Nodes of a group as machines over carriers, with logs without rows."""

from __future__ import annotations

import queue
import threading
from typing import Any

import numpy as np

from tests.node_group.carriers import CLOCK
from tidemark.replication.node_group.carrier import Carrier, Secrets
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.messages import (
    Acknowledge,
    Event,
    Fail,
    Gone,
    LogCut,
    LogGrew,
    Lost,
    Ready,
    Received,
    Send,
    Tick,
    Write,
    Written,
)
from tidemark.replication.node_group.party import NodeParty
from tidemark.replication.node_group.view import Record
from tidemark.replication.node_group.views import Node

STORE = bytes(range(16))


class ListLog:
    """A log with groups as arrays of (epoch, payload); every group is durable at once."""

    def __init__(self, owner: GroupNode) -> None:
        self._owner = owner
        self.entries: list[Any] = []

    @property
    def last(self) -> int:
        """Sequence of the last group."""
        return len(self.entries)

    applied = synced = due = last
    epoch = 0
    owed_since = None
    is_full = is_refusing = False

    def groups(self, first: int, last: int) -> tuple[Any, ...]:
        """Return groups to send."""
        return tuple(self.entries[first - 1 : last])

    def append(self, epoch: int, payload: int) -> None:
        """Append a commit of the primary."""
        entry = np.array([epoch, payload], dtype=np.int64)
        entry.flags.writeable = False
        self.entries.append(entry)
        self._owner.post(LogGrew())

    def take(self, first: int, groups: tuple[Any, ...]) -> None:
        """Append groups of another node."""
        assert first == self.last + 1
        self.entries += groups
        self._owner.post(LogGrew())

    def roll_back_to(self, epoch: int, sequence: int) -> None:
        """Cut the log back to the end of an epoch."""
        self.entries = [each for each in self.entries if each[0] <= epoch]
        self._owner.post(LogCut())


class GroupNode:
    """A process of a node: one thread for its machine, a carrier, a record in memory."""

    def __init__(
        self, group: GroupConfiguration, number: int, secrets: Secrets, incarnation: int = 1, is_first: bool = False
    ) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.number = number
        self.log = ListLog(self)
        self.acknowledged = 0
        self.failed: list[Any] = []
        self.record = Record(STORE, number, group.first_view())
        peers = frozenset(group.members)
        self.machine = Node(
            group.member(number), self.record, self.log, group.times, incarnation, peers, CLOCK.monotonic()
        )
        self._is_first = is_first
        self.carrier = Carrier(
            NodeParty(STORE.hex(), number, incarnation),
            group.address_of(number),
            group.peers,
            secrets,
            CLOCK,
            lambda node, store, message: self.post(Received(node, store, message)),
            lambda node: self.post(Gone(node)),
            lambda conversation: None,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.carrier.start()
        self._thread.start()

    def post(self, event: Event) -> None:
        """Give the machine an event."""
        self._events.put(event)

    def commit(self, payload: int) -> int:
        """Append a group of the primary; return its sequence."""
        self.log.append(1 + self.log.last, payload)
        return self.log.last

    def crash(self) -> None:
        """End the process."""
        self._events.put(None)
        self._thread.join()
        self.carrier.close()

    def _run(self) -> None:
        if self._is_first:
            self._do(self.machine.make_group(CLOCK.monotonic()))
        while True:
            wait_s = self.machine.due_at - CLOCK.monotonic()
            try:
                event = self._events.get(timeout=max(0.001, min(wait_s, 1.0)))
            except queue.Empty:
                event = Tick()
            if event is None:
                return
            self._step(event)
            if self.machine.has_caught_up() and not self.machine.is_ready:
                self._step(Ready(self.machine.view.number))

    def _step(self, event: Event) -> None:
        now = CLOCK.monotonic()
        self._do(self.machine.step(event, now))
        if now >= self.machine.due_at:
            self._do(self.machine.step(Tick(), now))

    def _do(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.carrier.send(action.to, action.message)
            elif isinstance(action, Write):
                self.record = action.record
                self.post(Written(action.version))
            elif isinstance(action, Acknowledge):
                self.acknowledged = action.sequence
            elif isinstance(action, Fail | Lost):
                self.failed.append(action)
