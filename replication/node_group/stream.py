"""The log of a node as its view machine sees it, and the commit partner of its store (docs/internals/node-group.md).

At the primary, a group comes from `send`, before it is written here. At a member, it comes from the machine, and the
thread of the store applies it. Commits wait until the machine reports that every member has their group, on disk
(`wait`) or in memory (`share`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import StoreClosed, StoreFailed
from tidemark.replication.node_group.fetch import missing_files
from tidemark.replication.node_group.messages import EpochClosed, Event, LogGrew
from tidemark.replication.node_group.sent_groups import SentGroups

if TYPE_CHECKING:
    from tidemark.engine.base.shortage import DiskShortage
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.group import Group
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store

FEED_BYTES_MAX = 256 << 20
HAND_OVER_SECONDS = 5.0  # how long a primary refuses transactions for lack of space on its disk
OVER_POLL_SECONDS = 0.02  # how soon a read notices that its view is over


class Feed:
    """The queue of groups for one node that is being copied, in order."""

    def __init__(self) -> None:
        self.groups: deque[Words] = deque()
        self._put_bytes = self._taken_bytes = 0  # two counters, each changed by one thread: no lock
        self.is_over = False  # the node read too slowly, or the stream has ended

    def put(self, words: Words) -> None:
        """Add the next group; more than FEED_BYTES_MAX unread bytes end the feed."""
        self.groups.append(words)
        self._put_bytes += words.nbytes
        if self._put_bytes - self._taken_bytes > FEED_BYTES_MAX:
            self.is_over = True

    def take(self) -> list[Words]:
        """Return and remove the groups that have arrived."""
        found: list[Words] = []
        while self.groups:
            words = self.groups.popleft()
            self._taken_bytes += words.nbytes
            found.append(words)
        return found


class GroupStream:
    """The stream of one life of a node, from the opening of its store to its end."""

    def __init__(self, post: Callable[[Event], None], work: Callable[[int, tuple[Words, ...]], None]) -> None:
        """post: puts an event into the queue of the machine. work: passes groups of the primary to the thread of the
        store, which calls `applied_through` after them.
        """
        self.post = post
        self._work = work
        self._changed = threading.Condition()
        self.last = 0
        self.visible = 0  # the last group of which a read may see anything
        self.applied = 0  # in memory
        self.synced = 0  # in memory and on disk
        self.sent: SentGroups | None = None
        self._store: Store | None = None
        self._acknowledged = 0
        self._shared = 0
        self._ended: StoreFailed | None = None
        self._feeds: list[Feed] = []
        self._closings: deque[tuple[int, int]] = deque()
        self._complete: deque[tuple[int, int]] = deque()
        self._epoch_reported = 0
        self.cut: Callable[[int, int], None] = lambda epoch, sequence: None
        self.fetch: Callable[[int, Words], None] = lambda sequence, words: None
        self.writing_since: Callable[[], float | None] = lambda: None
        self.shortage: Callable[[], DiskShortage | None] = lambda: None  # of the open store
        self._files: Files | None = None
        self.fetched_sequence = 0  # the group whose files are being fetched, 0 if there is none

    # --- the store -------------------------------------------------------------------------------
    def begin(self, store: Store, files: Files, uuid: bytes, is_joined: bool) -> None:
        """Begin with an open store without writers. is_joined: it was just copied, and its log has no older groups."""
        sent = SentGroups(store.log, files, uuid)
        if not is_joined:
            sent.look_through()
        with self._changed:
            if self.sent is not None:
                self.sent.close()
            self.sent, self._store, self._files = sent, store, files
            self.last = self.visible = self.applied = self.synced = store.log.sequence - 1
            self._acknowledged = self._shared = 0

    def end(self, error: StoreFailed) -> None:
        """Acknowledge no more groups: waiting commits raise `error`."""
        with self._changed:
            self._ended = self._ended or error
            for feed in self._feeds:
                feed.is_over = True
            self._changed.notify_all()
        if self.sent is not None:
            self.sent.close()

    # --- the log, as the machine asks it -----------------------------------------------------------
    @property
    def epoch(self) -> int:
        """The epoch that is open here."""
        return self._store.epochs.current if self._store is not None else 0

    @property
    def due(self) -> int:
        """The last group that the disk was asked to sync: at a member the last group received."""
        log = None if self._store is None else self._store.log
        return self.last if log is None or log.partner is not self else log.writing_sequence

    @property
    def owed_since(self) -> float | None:
        """Since when the disk owes an answer to the store itself, whatever its groups; None if it does not."""
        return self.writing_since()

    @property
    def is_full(self) -> bool:
        """Whether the disk has no space for what this node must write."""
        shortage = self.shortage()
        return shortage is not None and shortage.reason != ""

    @property
    def is_refusing(self) -> bool:
        """Whether transactions have been refused for lack of space for HAND_OVER_SECONDS."""
        shortage = self.shortage()
        return shortage is not None and shortage.refused_s >= HAND_OVER_SECONDS

    def groups(self, first: int, last: int) -> tuple[Words, ...]:
        """Return groups from `first` on, as many as may be sent at once; none if the log begins after `first`."""
        return () if self.sent is None else self.sent.groups_from(first, last)

    def take(self, first: int, groups: tuple[Words, ...]) -> None:
        """Accept groups of the primary; the thread of the store applies and syncs them. If files of a group are missing
        here, they are fetched, and the group and those after it are skipped.
        """
        assert self._files is not None
        for at, words in enumerate(groups):
            is_fetched = self.fetched_sequence == first + at  # then a partial file may exist
            if is_fetched or missing_files(self._files, words):
                if not is_fetched:
                    self.fetched_sequence = first + at
                    self.fetch(first + at, words)
                groups = groups[:at]
                break
        if groups:
            self.last = first + len(groups) - 1
            self._work(first, groups)

    def roll_back_to(self, epoch: int, sequence: int) -> None:
        """Make the thread of the store roll back to the end of an epoch, and then catch up with the primary."""
        self.cut(epoch, sequence)

    def applied_through(self, sequence: int) -> None:
        """Report that groups up to this one are applied here."""
        self.applied = sequence
        self.post(LogGrew())

    def synced_through(self, sequence: int) -> None:
        """Report that groups up to this one are applied and synced here."""
        self.applied = max(self.applied, sequence)
        self.synced = max(self.synced, sequence)
        self.post(LogGrew())

    # --- commit partner ----------------------------------------------------------------------------
    def send(self, group: Group) -> None:
        """Send a sealed group to the members and to nodes that are being copied, and keep it for requests. A node that
        lacks files of the group requests them before it applies it.
        """
        if group.sequence <= self.last:
            return  # the write was interrupted by a signal, and is repeated
        words = group.words[: group.written_words].copy()
        with self._changed:
            assert self.sent is not None
            if self.sent.last_epoch < group.epoch:
                self._note_complete(self.sent.last_epoch, self.last)
            self.sent.add(group.sequence, group.lsn, group.epoch, words)
            self.last = self.applied = group.sequence
            for feed in self._feeds:
                feed.put(words)
            self._feeds = [feed for feed in self._feeds if not feed.is_over]
        self.post(LogGrew())

    def wait(self, sequence: int) -> None:
        """Wait until every member of the view has the group on disk. Raises: StoreFailed if the other nodes continue
        without this one.
        """
        if sequence > self.synced:
            self.synced_through(sequence)
        self._wait_for(lambda: self._acknowledged >= sequence)

    def share(self, sequence: int) -> None:
        """Wait until every member of the view has the group in memory. Raises: StoreFailed, as `wait`."""
        self._wait_for(lambda: self._shared >= sequence)

    def _wait_for(self, is_enough: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: is_enough() or self._ended is not None)
            if not is_enough():
                raise self._ended or StoreClosed("the node was closed")

    def wait_held(self, sequence: int, on_disk: bool, is_over: Callable[[], bool]) -> bool:
        """Wait until every member has this group, on disk or in memory; return False if `is_over` returns True first,
        or this life has ended.
        """
        while True:
            with self._changed:
                if sequence <= (self._acknowledged if on_disk else self._shared):
                    return True
                if self._ended is not None:
                    return False
                self._changed.wait(OVER_POLL_SECONDS)
            if is_over():
                return False

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        """Note an epoch that begins at group `sequence`; `closings` reports it after the groups before it were sent."""
        self._closings.append((epoch, sequence))
        self.post(LogGrew())

    # --- for the node ------------------------------------------------------------------------------
    def acknowledge(self, sequence: int) -> None:
        """End the waits of `wait` for groups up to this one: every member has them on disk."""
        with self._changed:
            self._acknowledged = max(self._acknowledged, sequence)
            self._changed.notify_all()

    def shared(self, sequence: int) -> None:
        """End the waits of `share` for groups up to this one: every member has them in memory."""
        with self._changed:
            self._shared = max(self._shared, sequence)
            self._changed.notify_all()

    def closings(self) -> tuple[list[tuple[int, int]], list[EpochClosed]]:
        """Return what has happened to epochs since the last call: epochs that were opened and whose preceding groups
        have all been sent, each with its first sequence; and closed epochs that have groups, each with its last.
        """
        opened: list[tuple[int, int]] = []
        with self._changed:
            while self._closings and self._closings[0][1] <= self.last + 1:
                epoch, sequence = self._closings.popleft()
                opened.append((epoch, sequence))
                if sequence == self.last + 1 and self.sent is not None and self.sent.last_epoch < epoch:
                    self._note_complete(self.sent.last_epoch, self.last)
            closed = [EpochClosed(*each) for each in self._complete]
            self._complete.clear()
        return opened, closed

    def _note_complete(self, epoch: int, sequence: int) -> None:
        if epoch > self._epoch_reported:
            self._epoch_reported = epoch
            self._complete.append((epoch, sequence))

    def feed(self) -> Feed:
        """Return a feed of all groups sent from now on, for a node that is being copied."""
        made = Feed()
        with self._changed:
            made.is_over = self._ended is not None
            self._feeds.append(made)
        return made

    def drop(self, feed: Feed) -> None:
        """Remove a feed that is no longer read."""
        with self._changed:
            self._feeds = [each for each in self._feeds if each is not feed]
