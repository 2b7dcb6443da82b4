"""The arbitrator as a process: its state machine over a carrier, and a directory with both copies of its record.

One thread takes events in their order. A change is written and synced before its answer is sent, as the machine
requires. A vote that cannot be written ends the process: a silent arbitrator does no harm unless its vote is needed.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from typing import Any

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import Error, ForeignFile, Rejected
from tidemark.engine.files.protocol import Files
from tidemark.recovery.system_restart.sysfile import NAMES as SYSFILE_NAMES
from tidemark.replication.node_group import messages as m
from tidemark.replication.node_group.arbitrator import Arbitrator
from tidemark.replication.node_group.carrier import Address, Carrier, Secrets
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.conversation import Conversation
from tidemark.replication.node_group.party import NodeParty
from tidemark.replication.node_group.view import ARBITRATOR, View
from tidemark.replication.node_group.view_file import ViewFile, read_record

_log = logging.getLogger("tidemark.node")

NO_STORE = bytes(16)
EVENTS_MAX = 1_024  # more are dropped: every message is repeated
ASK_SECONDS = 0.1


def check_begin(group: GroupConfiguration, living: int | None) -> None:
    """Check, before a directory is created, that the group has an arbitrator and this living node.

    Raises: SchemaInvalid.
    """
    group.address_of(ARBITRATOR)
    if living is not None:
        group.address_of(living)


class ArbitratorProcess:
    """A running arbitrator, until `close` or until its disk fails."""

    def __init__(
        self,
        files: Files,
        group: GroupConfiguration,
        secrets: Secrets,
        clock: Clock,
        listen: Address | None = None,
        is_new: bool = False,
        living: int | None = None,
    ) -> None:
        """Begin with the record of the directory, whose lock the caller holds, and listen at the address that the group
        has for the arbitrator. listen: another address that leads to this process.

        Without a record every vote is refused until an operator says why there is none. is_new: the group is new; the
        first node that asks creates it, and a group that already has a view is refused. living: the disk was lost; this
        node is asked for the view, and the operator vouches that its side is the only one alive.

        Raises: SchemaInvalid, ViewDamaged, ForeignFile, Incompatible, Rejected, PeerError if the address is taken.
        """
        check_begin(group, living)
        self._files = files
        self._group = group
        self._clock = clock
        self._is_new = is_new
        self._living = living
        self._machine, self._file = self._opened()
        record = None if self._machine is None else self._machine.record
        self._store = NO_STORE if record is None else record.store
        self._events: queue.Queue[m.Received | None] = queue.Queue(EVENTS_MAX)
        self._ask_at = 0.0
        self._is_closed = False
        self._ended = threading.Event()
        self._error: Error | None = None
        own = NodeParty(
            self._store.hex(), ARBITRATOR, clock.wall_us(), view=0 if record is None else record.view.number
        )
        place = listen or group.address_of(ARBITRATOR)
        try:
            self._carrier = Carrier(
                own, place, group.peers, secrets, clock, self._received, lambda node: None, self._end
            )
        except BaseException:
            self._close_file()
            raise
        self.address = self._carrier.address
        self._thread = threading.Thread(target=self._run, name="tidemark-arbitrator", daemon=True)

    def _opened(self) -> tuple[Arbitrator | None, ViewFile | None]:
        if any(self._files.exists(name) for name in SYSFILE_NAMES):
            raise Rejected("this directory holds a store; give the arbitrator one of its own")
        record = read_record(self._files)
        if record is None:
            return None, None
        if record.node != ARBITRATOR:
            raise ForeignFile(f"this directory holds the record of node {record.node}; give the arbitrator its own")
        if self._living is not None:
            raise Rejected(
                f"this arbitrator has a record, of view {record.view.number}: its disk is not lost; start it without"
                " a living node"
            )
        return Arbitrator(record.store, record), ViewFile(self._files, record.store)

    def start(self) -> None:
        """Start to connect to the nodes and to answer messages."""
        self._carrier.start()
        self._thread.start()

    def close(self) -> None:
        """Stop: finish a vote that is being written, and close the links. A second call does nothing."""
        self._is_closed = True
        try:
            self._events.put_nowait(None)
        except queue.Full:
            pass  # the thread checks after each event
        if self._thread.ident is not None:
            self._thread.join()
        self._carrier.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the end of the arbitrator; return whether it has ended. Raises: the error that
        ended it.
        """
        self._ended.wait(seconds)
        if self._error is not None:
            raise self._error
        return self._ended.is_set()

    def status(self) -> dict[str, Any]:
        """Return the address, the store and view of the record (None and 0 without one), and the links to the nodes."""
        record = None if self._machine is None else self._machine.record
        return {
            "address": f"{self.address[0]}:{self.address[1]}",
            "store": None if record is None else record.store.hex(),
            "view": 0 if record is None else record.view.number,
            "members": [] if record is None else sorted(record.view.numbers),
            "has_record": record is not None,
            "nodes": self._carrier.status(),
        }

    # --- messages -------------------------------------------------------------------------------------
    def _received(self, node: int, store: bytes, message: Any) -> None:
        try:
            self._events.put_nowait(m.Received(node, store, message))
        except queue.Full:
            _log.warning("the arbitrator lags; a message of node %d is dropped", node)

    @staticmethod
    def _end(conversation: Conversation) -> None:
        """End a conversation: a node that asks for the group has its answer with the handshake; rows there are none."""

    # --- in its thread ----------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._is_closed:
                event = self._next()
                if event is not None:
                    self._do(self._step(event))
        except Error as error:
            self._error = error
            _log.error("the arbitrator ends: %s", error.message)
            self._carrier.close()
        finally:
            self._ended.set()

    def _next(self) -> m.Received | None:
        if self._machine is not None or self._living is None:
            return self._events.get()
        now = self._clock.monotonic()
        if now >= self._ask_at:
            self._ask_at = now + ASK_SECONDS
            # A node sends its view to a peer whose view is older.
            self._carrier.send(self._living, m.Ping(0, 0, False, False, False))
        try:
            return self._events.get(timeout=ASK_SECONDS)
        except queue.Empty:
            return None

    def _step(self, event: m.Received) -> list[m.Action]:
        if self._machine is not None:
            return self._machine.step(event, self._clock.monotonic())
        view = self._begins_with(event)
        if view is None:
            if self._store == NO_STORE:
                self._announce(event.store)  # nodes reject messages of another store, and so would miss the refusal
            if self._is_new and isinstance(event.message, m.Prepare) and event.message.base.number == 0:
                return [m.Send(event.sender, m.Refused(f"this arbitrator was given another group: {self._group}"))]
            return [] if isinstance(event.message, m.Refused) else Arbitrator(event.store, None).step(event, 0.0)
        machine = Arbitrator(event.store, None)
        self._file = ViewFile(self._files, event.store)
        self._machine = machine
        self._do(machine.begin(view, self._clock.monotonic()))
        self._announce(event.store)
        _log.info("the arbitrator begins with view %d, members %s", view.number, sorted(view.numbers))
        return machine.step(event, self._clock.monotonic())

    def _begins_with(self, event: m.Received) -> View | None:
        """Return the view with which an arbitrator without a record may begin; None if it must not."""
        message = event.message
        if event.store == NO_STORE:
            return None
        if self._is_new and isinstance(message, m.Prepare) and message.base == self._group.first_view():
            return message.base
        if self._living == event.sender and isinstance(message, m.ViewIs) and event.sender in message.view.numbers:
            return message.view
        return None

    def _announce(self, store: bytes) -> None:
        if store != self._store:
            self._store = store
            self._carrier.become(store.hex(), self._clock.wall_us())

    def _do(self, actions: list[m.Action]) -> None:
        """Execute actions; those that depend on a write follow it. Raises: the error of a write."""
        pending = deque(actions)
        while pending:
            action = pending.popleft()
            if isinstance(action, m.Send):
                self._carrier.send(action.to, action.message)
            elif isinstance(action, m.Write):
                assert self._file is not None and self._machine is not None
                self._file.write(action.record)
                pending.extend(self._machine.step(m.Written(action.version), self._clock.monotonic()))
