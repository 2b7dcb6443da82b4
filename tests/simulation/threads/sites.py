"""Stores next to the one of a scheduled life: a member of its node group, and a replica that follows its binlog.

Each has threads of its own that take turns: the member's thread applies groups of the log, the replica's threads
receive and apply. At the end both must have the rows of the store they follow, and be sound.
"""

from __future__ import annotations

import abc
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.crash.programs.stress_rows import MAIN
from tidemark.engine.base.errors import NotPrimary
from tidemark.engine.log.group import Group
from tidemark.engine.schema.column import Column
from tidemark.engine.store.group_apply import GroupApplier
from tidemark.engine.types import Int64
from tidemark.recovery.crash_harness.program import Violation, resolve

CHANNEL = "tidemark.sites.channel:Channel"
RECEIVER = "tidemark.replication.channel.receiver:LocalReceiver"
WORKER = "tidemark.replication.channel.receiver:Worker"
MOVE_RATE = 0.2  # share of the pieces received
MOVES_MAX = 20  # in one life
SOURCE_OPTIONS = {"log_bin": "binlog", "server_id": 1}
REPLICA_OPTIONS = {"server_id": 2}
MARK = "stress.mark"
POLL_SECONDS = 0.001
WAITED_SECONDS = 60.0


class Site(abc.ABC):
    """A store that follows another one during a life."""

    identity = ""  # that of the followed store
    db: Any

    @abc.abstractmethod
    def await_end(self) -> None:
        """Return when it has everything and does not follow any more. Raises: Violation if it differs."""

    def close(self) -> None:
        """Close it; the store it follows is closed already."""
        self.db.close()

    def compare(self, followed: Any) -> None:
        """Compare it with the store it follows. Raises: Violation if rows differ, or it is not sound."""
        here, there = (sorted(tuple(row) for row in db[MAIN].scan()) for db in (self.db, followed))
        if here != there:
            differing = sorted({row[0] for row in set(here) ^ set(there)})
            raise Violation(f"{type(self).__name__}: rows {differing[:5]} differ, {len(here)} here, {len(there)} there")
        found = self.db.check()["problems"]
        if found:
            raise Violation(f"{type(self).__name__}: {found[0]}")


class Member(Site):
    """A member of the node group of a store: the partner of its log, and a thread that applies what it gets."""

    def __init__(self, primary: Any, open_store: Callable[[], Any]) -> None:
        self.primary = primary
        self.db = open_store()
        self.applier = GroupApplier(self.db.parts.store)
        self._changed = threading.Condition()
        self._groups: deque[tuple[int, Any]] = deque()
        self._closings: deque[tuple[int, int]] = deque()
        self._sent = 0
        self._is_over = False
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="member")
        self.db.parts.store.epochs.on_wanted = self._close_epoch
        primary.parts.store.log.partner = self
        self._thread.start()

    # --- the partner of the primary's log -----------------------------------------------------------
    def send(self, group: Group) -> None:
        """Queue a group, and take the files of a large transaction."""
        for name in group.files:
            _copy_file(self.primary.parts.files, self.db.parts.files, name)
        with self._changed:
            if group.sequence > self._sent:
                self._sent = group.sequence
                self._groups.append((group.sequence, group.words[: group.written_words].copy()))
                self._changed.notify_all()

    def wait(self, sequence: int) -> None:
        """Return at once: the group is already in memory here."""

    def share(self, sequence: int) -> None:
        """Return at once: the group is already in memory here."""

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """Note the closing; the thread carries it out after the groups before it."""
        self._closings.append((epoch, sequence))

    def _close_epoch(self) -> None:
        """Close an epoch for a local checkpoint of the member. Raises: NotPrimary if none will come."""
        if self._is_over:
            raise NotPrimary("the stream of the primary has ended")
        with self.primary.parts.store.latch:
            self.primary.parts.store.epochs.close()
        self.primary.parts.store.log.flush()

    # --- its thread ---------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._is_over or self._groups or self._closings:
                if not self._step():
                    with self._changed:
                        self._changed.wait(POLL_SECONDS)
        except BaseException as error:
            self._failed = error
            raise

    def _step(self) -> bool:
        if self._closings and self._closings[0][1] <= self.db.parts.store.log.sequence:
            self.applier.close_epoch(*self._closings.popleft())
            return True
        if not self._groups:
            return False
        sequence, words = self._groups.popleft()
        applied = self.applier.apply(words)
        if applied != sequence:
            raise Violation(f"member: group {sequence} was applied as {applied}")
        self.db.parts.store.log.flush()
        return True

    def await_end(self) -> None:
        """Wait until every group is applied."""
        self._close_epoch()
        self._is_over = True
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        self.compare(self.primary)

    def close(self) -> None:
        """End the stream and close."""
        self.applier.end_stream()
        super().close()


def _copy_file(source: Any, target: Any, name: str) -> None:
    folder = name.rpartition("/")[0]
    if not target.exists(folder):
        target.make_directory(folder)
        target.sync_directory("")
    file = source.open(name)
    content = bytearray(source.size(file))
    source.pread_into(file, 0, content)
    source.close(file)
    made = target.create(name)
    target.pwrite(made, 0, content)
    target.fdatasync(made)
    target.close(made)
    target.sync_directory(folder)


class Replica(Site):
    """A replica of a store in the same process, with threads that receive and apply. Now and then another node answers:
    it has the same epochs in files of other names, and what was received is discarded while the applier works on it.
    """

    identity = "replica"

    def __init__(self, source: Any, open_store: Callable[[], Any]) -> None:
        self.source = source
        self.db = open_store()
        self.channel = resolve(CHANNEL)(source, self.db)
        place = source.endpoint
        # Not the name of the source's files: each time the receiver starts again it has met another node.
        met = replace(place.site, binlog="another-node")
        self._receiver = resolve(RECEIVER)(self.channel.replica, met, place.source_binlog(), place.clock)
        self._rng = random.Random(f"moves {place.clock.random_bytes(8).hex()}")
        self._receiving = resolve(WORKER)("replica-receiver", self._receive)
        self._receiving.start()
        self.channel.start(receiver=False)

    def _receive(self, stopped: threading.Event) -> None:
        moves = MOVES_MAX
        while not stopped.is_set():
            if moves and self._rng.random() < MOVE_RATE:
                moves -= 1
                self._receiver.restart()
            if not self._receiver.receive_next():
                self.source.parts.store.clock.sleep(POLL_SECONDS)

    def await_end(self) -> None:
        """Wait until the last change of the source is here too."""
        self.source.create_table(MARK, [Column("id", Int64)], primary_key="id").insert((1,))
        self.source.parts.clockwork.advance_epoch()
        clock = self.source.parts.store.clock
        deadline = clock.monotonic() + WAITED_SECONDS
        while MARK not in self.db or len(self.db[MARK]) == 0:
            self.channel.check_running()
            if self._receiving.error is not None:
                raise self._receiving.error
            if clock.monotonic() >= deadline:
                raise Violation(f"replica: not caught up: {self.channel.status()}")
            clock.sleep(POLL_SECONDS)
        self._receiving.stop()
        self._receiver.close()
        self.channel.close()
        self.compare(self.source)


SITES: dict[str, tuple[type[Member] | type[Replica], dict[str, Any], dict[str, Any]]] = {
    # name: kind of site, options of the store it follows, options of its own
    "member": (Member, {}, {}),
    "replica": (Replica, SOURCE_OPTIONS, REPLICA_OPTIONS),
}
