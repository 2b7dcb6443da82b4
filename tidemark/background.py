"""The threads of an open store.

One thread closes epochs and writes the sysfile, one makes local checkpoints, one writes disk pages, and the next files
of a log that lacks some, ahead of need, and one deletes rows that have expired. A store with a binlog or an archive has
one more thread for each of them.

Each thread has one owner and is joined at close. If it fails, the store fails (D13).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import (
    Error,
    InvariantBroken,
    NotPrimary,
    OutcomeUnknown,
    StorageFull,
    StoreClosed,
    StoreFailed,
    TooManyFiles,
)
from tidemark.engine.base.owner import call_owner
from tidemark.engine.base.shortage import BINLOG, LOCAL_CHECKPOINTS
from tidemark.engine.txn.transaction import end_abandoned

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.expiry import Expirer
    from tidemark.recovery.backup.archive import Archiver
    from tidemark.recovery.local_checkpoint.writer import LcpReport, LocalCheckpoint, Progress
    from tidemark.recovery.system_restart.restart import Opened
    from tidemark.replication.injector.attached import AttachedBinlog

_log = logging.getLogger("tidemark")

LCP_POLL_SECONDS = 0.2
PAGES_POLL_SECONDS = 0.02
BINLOG_POLL_SECONDS = 1.0
RETRY_PAUSE_SECONDS = 5.0
EXPIRY_SECONDS = 60.0  # between runs, if no option says otherwise
NEARLY_FULL_SHARE = 0.5  # of the log, added to `checkpoint_log_share`: after two local checkpoints less is in use


class Clockwork:
    """The periodic work of a store: epochs, GCIs, sysfile, local checkpoints. A store without threads calls the methods
    itself.
    """

    def __init__(
        self, opened: Opened, files: Files, lcp: LocalCheckpoint, binlog: AttachedBinlog | None = None
    ) -> None:
        self._store = opened.store
        self.keeper = opened.keeper
        self._files = files
        self._lcp = lcp
        self.binlog = binlog
        self.archiver: Archiver | None = None  # of a store that archives itself; set before `start`
        self.expirer: Expirer | None = None  # set before `start`
        self.is_replica: Callable[[], bool] = lambda: False  # whether deletions of other sites are applied here
        self._binlog_wanted = threading.Event()
        self.lcp_turn = threading.Lock()
        self._sysfile_turn = threading.Lock()
        self.stopping = threading.Event()
        self._lcp_wanted = threading.Event()
        self._is_lcp_abandoned = False
        self._threads: list[threading.Thread] = []
        # Closes a Database that was dropped without close(): the epochs' thread calls it.
        self.dropped: Callable[[], None] | None = None
        self._last_lcp = self._store.clock.monotonic()
        self.writing_since: float | None = None  # the write of the sysfile that is under way; others wait for it

    # --- one step each ---------------------------------------------------------------------------
    def advance_epoch(self) -> int:
        """Close the open epoch if it has commits, and make it durable; return the newest closed epoch.

        Without threads, the epoch is also in the binlog on return. Raises: StorageFull for the binlog, StoreFailed.
        """
        store = self._store
        with store.latch:
            closed, sequence = store.epochs.newest_closed, 0
            if store.epochs.has_commits and not store.epochs.is_following:
                closed, _, sequence = store.epochs.close()
        if sequence:
            store.log.make_durable(sequence - 1)
        self._write_binlog()
        return closed

    def advance_gci(self, is_last: bool = False) -> None:
        """Begin the next GCI and write the sysfile. Durable on return: everything committed before.

        is_last: the store is being closed, so every UNDO record of that GCI stays in the log.
        """
        store = self._store
        with self._sysfile_turn:
            with store.latch:
                if store.epochs.is_following:  # the stream raises the GCI, and the sysfile records it
                    closed, lsn, sequence = store.epochs.newest_boundary()
                else:
                    closed, lsn, sequence = store.epochs.close(next_gci=True)
                gci = store.epochs.current >> 32
            filtered_epoch = closed if store.disk.is_filtering else self.keeper.content.filtered_epoch
            store.log.make_durable(sequence - 1)
            self.writing_since = store.clock.monotonic()
            # Here each GCI detects a renamed, removed or replaced directory of the store (F80).
            self._files.check_place()
            self.keeper.write(
                gci=gci,
                closed_epoch=closed,
                filtered_epoch=filtered_epoch,
                durable_lsn=lsn,
                durable_sequence=sequence - 1,
                next_table_id=store.tables.next_id,
                next_lcp_id=self._lcp.next_id,
            )
            if store.disk.is_filtering and not is_last:
                self.keeper.write()  # the other copy too: the filter uses the lower epoch of the two copies
            self.writing_since = None
        self._write_binlog()

    def raise_floor(self) -> None:
        """Record in the sysfile how far the log is durable. From then on an earlier end of the log is damage, not a
        torn tail.

        Durable on return. Raises: StoreFailed.
        """
        with self._store.latch:
            lsn, sequence = self._store.log.durable_lsn, self._store.log.durable_sequence
        self.keeper.raise_floor(lsn, sequence)

    def _write_binlog(self) -> None:
        if self.binlog is not None and not self._threads:
            self.binlog.write_closed_epochs()
        self._binlog_wanted.set()

    def local_checkpoint(self, progress: Progress | None = None) -> LcpReport:
        """Make a local checkpoint now, after a running one has ended."""
        with self.lcp_turn:
            try:
                report = self._lcp.run(progress)
            except StorageFull as error:
                self._store.resources.shortage.lacks(LOCAL_CHECKPOINTS, error.message)
                raise
            self._store.resources.shortage.has_space(LOCAL_CHECKPOINTS)
            self.raise_floor()
            self._last_lcp = self._store.clock.monotonic()
            return report

    # --- threads ---------------------------------------------------------------------------------
    def start(self, wants_lcp: bool) -> None:
        """Start the threads. wants_lcp: make a local checkpoint at once."""
        if wants_lcp:
            self._lcp_wanted.set()
        self._store.room.on_full = self._lcp_wanted.set
        self._store.log.on_pressure = None
        self._store.disk.has_writer = True
        self._store.epochs.holds_stream = call_owner(self._holds_stream)
        expires = self.expirer is not None and self._store.options.expiry_interval_ms != 0
        works = (
            ("tidemark-epochs", self._run_epochs),
            ("tidemark-lcp", self._run_lcp),
            ("tidemark-pages", self.run_pages),
            *([("tidemark-expiry", self._run_expiry)] if expires else []),
            *([("tidemark-binlog", self._run_binlog)] if self.binlog is not None else []),
            *([("tidemark-archive", self._run_archive)] if self.archiver is not None else []),
        )
        for name, work in works:
            thread = threading.Thread(target=self.guarded, args=(work,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Stop and join the threads; a running local checkpoint is finished first."""
        self.stopping.set()
        self._lcp_wanted.set()
        self._binlog_wanted.set()
        self._store.disk.has_writer = False
        self._store.disk.writer_wanted.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()

    def guarded(self, work: Callable[[], None]) -> None:
        """Run the work of a thread; an unexpected error fails the store."""
        try:
            work()
        except (StoreFailed, OutcomeUnknown) as error:
            # A node that its group has excluded closes its store while threads run; that is no failure.
            is_closed = isinstance(self._store.failure.error, StoreClosed)
            _log.log(logging.INFO if is_closed else logging.ERROR, "background work stopped: %s", error)
        except Exception as error:
            self._store.failure.latch(InvariantBroken(f"background work failed: {error!r}; reopen the store"))
            _log.exception("background work failed")
            raise

    def _run_epochs(self) -> None:
        options = self._store.options
        clock = self._store.clock
        next_gci = clock.monotonic() + options.gcp_interval_ms / 1_000
        while not self.stopping.wait(options.epoch_interval_ms / 1_000):
            if self.dropped is not None:
                self.dropped()
                self.dropped = None
                return
            end_abandoned(self._store.resources)
            if clock.monotonic() >= next_gci:
                self.advance_gci()
                next_gci = clock.monotonic() + options.gcp_interval_ms / 1_000
            else:
                self.advance_epoch()

    def _run_lcp(self) -> None:
        while not self.stopping.is_set():
            self._lcp_wanted.wait(LCP_POLL_SECONDS)
            if self.stopping.is_set():
                return
            if self._lcp_wanted.is_set() or self._is_due():
                self._lcp_wanted.clear()
                try:
                    self.local_checkpoint()
                    self._is_lcp_abandoned = False
                except (StorageFull, TooManyFiles, NotPrimary) as error:
                    self._is_lcp_abandoned = True
                    _log.warning("local checkpoint abandoned: %s", error)
                    self.stopping.wait(RETRY_PAUSE_SECONDS)

    def run_pages(self) -> None:
        """Write dirty pages ahead of need, the UNDO buffer before it is full, and the next files of a log that lacks
        some, so that readers and commits do not have to.
        """
        disk = self._store.disk
        while not self.stopping.is_set():
            disk.writer_wanted.wait(PAGES_POLL_SECONDS)
            disk.writer_wanted.clear()
            if disk.is_started:
                self._ahead("disk pages", disk.clean_ahead)
            if self._store.log.geometry.unmade_count:
                self._ahead("the next files of the log", self._store.room.grow_ahead)

    def _ahead(self, what: str, work: Callable[[], object]) -> None:
        """Do work ahead of need. What cannot be done waits for a thread that needs it, which gets the same error."""
        try:
            work()
        except (StorageFull, TooManyFiles) as error:
            _log.warning("%s not written ahead of need: %s", what, error)
            self.stopping.wait(RETRY_PAUSE_SECONDS)

    def _run_binlog(self) -> None:
        """Write closed epochs into the binlog. While its disk is full the log keeps them; once the log is full, commits
        wait.
        """
        assert self.binlog is not None
        while not self.stopping.is_set():
            self._binlog_wanted.wait(BINLOG_POLL_SECONDS)
            self._binlog_wanted.clear()
            try:
                self.binlog.write_closed_epochs()
                self._store.resources.shortage.has_space(BINLOG)
            except (StorageFull, TooManyFiles) as error:
                if isinstance(error, StorageFull):
                    self._store.resources.shortage.lacks(BINLOG, error.message)
                _log.warning("epochs wait for the binlog: %s", error)
                self.stopping.wait(RETRY_PAUSE_SECONDS)

    def _run_expiry(self) -> None:
        """Delete rows that have expired, at times. The first run is one interval after the opening, so that a command
        that opens a store for a moment deletes nothing.
        """
        assert self.expirer is not None
        interval_ms = self._store.options.expiry_interval_ms
        while not self.stopping.wait(EXPIRY_SECONDS if interval_ms is None else interval_ms / 1_000):
            try:
                if interval_ms is not None or not self.is_replica():
                    self.expirer.run(self.stopping.is_set)
            except NotPrimary:
                pass  # the primary deletes them
            except StoreClosed:
                return
            except (StoreFailed, OutcomeUnknown):
                raise
            except (Error, MemoryError):
                pass  # counted and logged; the next run tries again

    def _run_archive(self) -> None:
        """Archive closed epochs. While the place fails, the log keeps them; once the log is full, commits wait."""
        assert self.archiver is not None
        while not self.stopping.wait(self._store.options.archive_interval_ms / 1_000):
            self.archiver.step()

    def _is_due(self) -> bool:
        store = self._store
        grown = self._grown_bytes()
        if grown >= store.options.checkpoint_log_share * store.log.geometry.capacity_bytes:
            return True
        interval = store.options.checkpoint_interval_ms / 1_000
        return bool(interval and grown and store.clock.monotonic() - self._last_lcp >= interval)

    def _grown_bytes(self) -> int:
        """Return the bytes of log after the start of the newest local checkpoint."""
        return self._store.log.head_lsn - self._lcp.last_start_lsn

    def _holds_stream(self) -> bool:
        """Return whether the stream, at the end of an epoch of the primary, must wait for a local checkpoint to begin,
        or to end if the log is nearly full. No checkpoint begins in the middle of an epoch, so a log that fills before
        the next end of an epoch would stay full.
        """
        store, share = self._store, self._store.options.checkpoint_log_share
        capacity_bytes = store.log.geometry.capacity_bytes
        is_nearly_full = store.log.used_bytes() >= (NEARLY_FULL_SHARE + share) * capacity_bytes
        if self._is_lcp_abandoned or store.room.follower_holds_log():
            return False
        if self.lcp_turn.locked():
            return is_nearly_full
        least_bytes = 1 if is_nearly_full else share * capacity_bytes
        if self._grown_bytes() < least_bytes:
            return False
        self._lcp_wanted.set()
        return True
