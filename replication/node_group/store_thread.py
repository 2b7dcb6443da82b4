"""The thread that owns a node's store: it opens the store, applies groups, makes the store lead, and brings it back
after a lost view.

It executes its tasks one by one. So a store leads only after it has applied every group it was given, and nothing is
copied into the store while groups are applied. Any failure of the store ends this life of the node.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from tidemark.engine.base.errors import (
    BinlogOverloaded,
    Error,
    InvariantBroken,
    NotPrimary,
    PeerError,
    PositionLost,
    RedoOverloaded,
    StorageFull,
    StoreFailed,
)
from tidemark.replication.node_group.fetch import fetch_files
from tidemark.replication.node_group.messages import CopyWanted, Event, LogCut
from tidemark.replication.node_group.stream import GroupStream
from tidemark.replication.node_group.syncer import Syncer

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.group_apply import GroupApplier
    from tidemark.engine.store.store import Store
    from tidemark.recovery.node_restart.joiner import Link
    from tidemark.recovery.node_restart.messages import Welcome
    from tidemark.replication.node_group.conversation import Conversation

_log = logging.getLogger("tidemark.node")

PAUSE_SECONDS = 0.1
SPACE_SECONDS = 5.0  # between two attempts on a full disk
FILES_SECONDS = 5.0  # how long files of a group may fail to arrive from a living primary


# --- the store, as the public floor provides it ------------------------------------------------------
class NodeStore(Protocol):
    """An open store that follows its primary, or is the primary's."""

    store: Store
    files: Files
    identity: tuple[bytes, int]  # UUID and incarnation
    applier: GroupApplier

    @property
    def writing_since(self) -> float | None:
        """Since when a periodic write to the disk is under way, on the store's clock; None if none is."""
        ...

    def lead(self, epoch: int) -> None:
        """Take transactions from now on, in a GCI after that of `epoch`, which other nodes have open. Durable on
        return: the incarnation that transaction ids contain. Raises: StoreFailed, StorageFull.
        """
        ...

    def close(self) -> None:
        """Close the store; one that has failed writes nothing more. A second call does nothing."""
        ...


class Home(Protocol):
    """The directory of a node."""

    def open(self, can_create: bool) -> NodeStore:
        """Open the store from its own files, as a follower. Raises: FileMissing if there is no store and none may be
        created; the errors of opening a store.
        """
        ...

    def rejoin(self, welcome: Welcome, link: Link, epoch: int, sequence: int) -> NodeStore:
        """Bring the store up to the live node (`recovery/node_restart`), as a follower. epoch, sequence: see
        `Log.roll_back_to`. Durable on return: a local checkpoint of that state. Raises: the errors of the link
        and of the join.
        """
        ...


# --- the thread --------------------------------------------------------------------------------------
class Stopped(Exception):
    """Ends the thread."""


class StoreThread:
    """The store thread of one life of a node."""

    def __init__(
        self,
        home: Home,
        post: Callable[[Event], None],
        failed: Callable[[Error], None],
        converse: Callable[[], Conversation],
        view: Callable[[], int],
        take_again: Callable[[], None],
        patience_s: float,
    ) -> None:
        """post: puts an event into the queue of the machine. failed: called when the store is unusable. converse:
        begins a conversation with the primary of the newest view; PeerError if there is none. view: returns the number
        of the newest view. take_again: called after an attempt to fetch files; groups skipped meanwhile may be given to
        the stream again. patience_s: how long a group waits for room in the log before this life ends.
        """
        self._home = home
        self._post = post
        self._failed = failed
        self._converse = converse
        self._view = view
        self._take_again = take_again
        self.patience_s = patience_s
        self._lacked: tuple[int, int, float] = (0, 0, 0.0)  # view, group whose files do not arrive, first failure
        self.stream = GroupStream(post, self._take)
        self._fetching: tuple[int, Conversation] | None = None  # view, conversation that fetches files
        self.stream.cut = lambda epoch, sequence: self._do(lambda: self._cut(epoch, sequence))
        self.stream.fetch = self._fetch
        self.stream.writing_since = lambda: None if self.node is None else self.node.writing_since
        self.stream.shortage = lambda: None if self.node is None else self.node.store.resources.shortage
        self._lacks_space = ""  # why the store could not be copied
        self._turn = threading.Condition()
        self._tasks: deque[Callable[[], None]] = deque()
        self._is_stopped = False
        self.is_idle = True  # there is no work
        self.epochs: deque[tuple[int, int]] = deque()  # opened at the primary, not here yet: epoch, its first group
        self._copied_from = 0  # incarnation of the live node that the store is a copy of
        self._conversation: Conversation | None = None
        self.node: NodeStore | None = None
        self._thread = threading.Thread(target=self._run, name="tidemark-node-store", daemon=True)
        self._syncer = Syncer(self.stream, failed)

    # --- any thread --------------------------------------------------------------------------------
    def open(self, can_create: bool) -> None:
        """Open the store from its files, before the thread starts. Raises: the errors of opening."""
        self._use(self._home.open(can_create), False)

    def start(self) -> None:
        self._thread.start()
        self._syncer.start()

    def lead(self, epoch: int, done: Callable[[], None]) -> None:
        """Make the store take transactions after it has applied every group it was given, in an epoch after `epoch`,
        the newest that was open at a member; then call `done`.
        """
        self._do(lambda: self._lead(epoch, done))

    def epoch_opened(self, epoch: int, sequence: int) -> None:
        """Note that the primary has opened an epoch; the report may arrive before groups that precede the epoch."""
        self._do(lambda: self._note_epoch(epoch, sequence))

    def close_epoch(self) -> None:
        """At the primary: close the epoch, because a thread of another node waits for its end."""
        self._do(self._close_epoch)

    def stop(self) -> None:
        """End the thread and interrupt its copy; the store stays open until `close`."""
        with self._turn:
            self._is_stopped = True
            self._turn.notify_all()
            conversation = self._conversation
        if conversation is not None:
            conversation.close()
        self.abort_fetch(0)

    def abort_fetch(self, view: int) -> None:
        """Stop waiting for files, except those of a group of this view."""
        fetching = self._fetching
        if fetching is not None and fetching[0] != view:
            fetching[1].close()

    def hurry(self, is_hurried: bool) -> None:
        """Set whether groups are applied without waits, because the next view needs them."""
        node = self.node
        if node is not None:
            node.store.epochs.is_hurried = is_hurried

    def close(self) -> None:
        """Wait for the thread, after `stop`, and close the store."""
        if self._thread.ident is not None:
            self._thread.join()
        self._syncer.stop()
        node, self.node = self.node, None
        if node is not None:
            node.close()

    # --- the thread --------------------------------------------------------------------------------
    def _do(self, task: Callable[[], None]) -> None:
        with self._turn:
            self._tasks.append(task)
            self._turn.notify_all()

    def _take(self, first: int, groups: tuple[Words, ...]) -> None:
        self._do(lambda: self.apply(first, groups))

    def _run(self) -> None:
        try:
            while True:
                with self._turn:
                    self._turn.wait_for(lambda: self._is_stopped or self._tasks)
                    if self._is_stopped:
                        return
                    task = self._tasks.popleft()
                    self.is_idle = False
                task()
                self.is_idle = not self._tasks
        except Stopped:
            pass
        except Error as error:
            self._failed(error)
        except Exception as error:
            self._failed(InvariantBroken(f"the thread of the store failed: {error!r}; report this"))
            raise

    def _use(self, node: NodeStore, is_joined: bool) -> None:
        self.node = node
        self.stream.begin(node.store, node.files, node.identity[0], is_joined)

    def _pause(self, seconds: float = PAUSE_SECONDS) -> None:
        with self._turn:
            if self._turn.wait_for(lambda: self._is_stopped, seconds):
                raise Stopped

    # --- groups ------------------------------------------------------------------------------------
    def apply(self, first: int, groups: tuple[Words, ...]) -> None:
        """Apply groups and sync them. Where commits do not wait for disks, another thread syncs, and the next groups do
        not wait for that.

        Raises: StoreFailed, RedoOverloaded, BinlogOverloaded, and any error that keeps a member from taking a group.
        """
        node, stream = self.node, self.stream
        assert node is not None and stream.sent is not None
        store = node.store
        reported = first
        for sequence, words in enumerate(groups, first):
            may_wait = self._is_epoch_over(sequence) or node.applier.may_wait(words)
            if may_wait and sequence > reported:
                # Report first: the wait may be for the binlog, which takes an epoch only after all members are known
                # to have it.
                self._keep(store, sequence - 1)
                reported = sequence
            self._close_epochs(sequence)
            stream.visible = sequence
            lsn = self.apply_one(node, words)
            stream.sent.add(sequence, lsn, store.epochs.current, words)
        last = first + len(groups) - 1
        self._keep(store, last)
        self._close_epochs(last + 1)

    def _keep(self, store: Store, last: int) -> None:
        """Sync applied groups up to this one, and report it. Raises: StoreFailed."""
        if store.resources.waits_for_disk:
            store.log.make_durable(last)
            self.stream.synced_through(last)
        else:
            self.stream.applied_through(last)
            self._syncer.sync(store, last)

    def apply_one(self, node: NodeStore, words: Words) -> int:
        """Apply one group; return its LSN in the log here. Wait up to `patience_s` for room in the log, which a local
        checkpoint or the binlog makes.

        Raises: RedoOverloaded if the log stays full: the local checkpoint that is due waits for the end of an epoch,
        which comes only after this group; opening the store again makes room. BinlogOverloaded if the folder of the
        binlog stays full.
        """
        store = node.store
        began = store.clock.monotonic()
        while True:
            lsn = store.log.head_lsn
            try:
                node.applier.apply(words.copy())  # because the kernel writes into the words
                return lsn
            except (RedoOverloaded, BinlogOverloaded, StorageFull) as error:
                if store.clock.monotonic() - began > self.patience_s:
                    raise
                _log.warning("group %d of the primary waits: %s", store.log.sequence, error.message)
                self._pause()

    def _fetch(self, sequence: int, words: Words) -> None:
        """Fetch the files of a group of the newest view; called by any thread."""
        view = self._view()
        self._do(lambda: self._fetch_missing_files(view, sequence, words))

    def _fetch_missing_files(self, view: int, sequence: int, words: Words) -> None:
        """Try once to fetch the files of a group that was not taken; the primary sends the group again.

        Raises: StoreFailed.
        """
        node = self.node

        def converse() -> Conversation:
            conversation = self._converse()
            self._fetching = view, conversation
            return conversation

        try:
            if node is not None and view == self._view():
                fetch_files(node.files, words, converse)
        except (PositionLost, PeerError) as error:
            assert node is not None
            now = node.store.clock.monotonic()
            if self._lacked[:2] != (view, sequence):
                self._lacked = (view, sequence, now)
            _log.warning("group %d of the primary waits: %s", sequence, error.message)
            is_over = isinstance(error, PositionLost) or now - self._lacked[2] > FILES_SECONDS
            if is_over and view == self._view():
                # The files will never arrive; while this node waits, no commit in the group is acknowledged.
                raise node.store.failure.latch(InvariantBroken(f"{error.message}; the store is copied anew")) from error
            self._pause()
        finally:
            self._fetching = None
            self.stream.fetched_sequence = 0
        self._take_again()

    def _note_epoch(self, epoch: int, sequence: int) -> None:
        self.epochs.append((epoch, sequence))
        if self.node is not None:
            self._close_epochs(self.stream.applied + 1)

    def _is_epoch_over(self, sequence: int) -> bool:
        """Whether the present epoch ends before group `sequence`, the next to apply."""
        return bool(self.epochs) and self.epochs[0][1] <= sequence

    def _close_epochs(self, sequence: int) -> None:
        """Close the epochs that end before group `sequence`, the next to apply."""
        assert self.node is not None
        while self._is_epoch_over(sequence):
            self.node.applier.close_epoch(*self.epochs.popleft())

    def _lead(self, epoch: int, done: Callable[[], None]) -> None:
        node = self.node
        assert node is not None
        self.epochs.clear()
        node.store.log.flush()
        self.stream.synced_through(self.stream.last)
        with node.store.latch:
            node.store.log.partner = self.stream
        node.lead(epoch)
        done()

    def _close_epoch(self) -> None:
        assert self.node is not None
        with self.node.store.latch:
            self.node.store.epochs.close()

    # --- coming back -------------------------------------------------------------------------------
    def _cut(self, epoch: int, sequence: int) -> None:
        """Roll back to X, then catch up with the primary of the newest view. A store that was already copied from that
        primary stays as it is.
        """
        while True:
            try:
                self.copy_from_primary(epoch, sequence)
                self._lacks_space = ""
                break
            except (PeerError, NotPrimary) as error:
                _log.warning("not copied yet: %s", error.message)
                self._pause()
            except StorageFull as error:
                self._lacks_space = f"the disk has no room for a copy of the primary's rows ({error.message})"
                _log.warning("not copied yet: %s", error.message)
                self._pause(SPACE_SECONDS)
        self._post(LogCut())

    def copy_from_primary(self, epoch: int, sequence: int) -> None:
        conversation = self._converse()
        with self._turn:
            if self._is_stopped:
                conversation.close()
                raise Stopped
            self._conversation = conversation
        try:
            conversation.send(CopyWanted())
            welcome = conversation.receive()
            if self.node is not None and welcome.incarnation == self._copied_from:
                return
            node, self.node = self.node, None
            if node is not None:
                with self._syncer.paused():
                    node.close()
            self.epochs.clear()
            self._copied_from = 0
            self._use(self._home.rejoin(welcome, conversation, epoch, sequence), True)
            self._copied_from = welcome.incarnation
        finally:
            self._conversation = None
            conversation.close()

    @property
    def disk_full(self) -> str:
        """What the disk of this node has no room for; "" if it has room."""
        node = self.node
        return self._lacks_space if node is None else node.store.resources.shortage.reason

    @property
    def failure(self) -> StoreFailed | None:
        """The error of the open store, if it has failed."""
        node = self.node
        return None if node is None else node.store.failure.error
