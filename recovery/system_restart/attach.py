"""Reads a store that another process may have open: loads its newest intact local checkpoint into private memory.

It takes no lock and writes nothing. A view is one complete local checkpoint: the rows exactly as
they were at the end of its epoch, from its entries and the old rows that commits copied. Fragments of two checkpoints
are never mixed, because there is no replay here that brings them to one point in time.

A missing or bad file means one of two things. If its control file is gone too, the owner removed the checkpoint during
the read. A newer one is then complete, so the search begins again: a control file is removed before the files that it
names. If its control file still exists, the file is damaged: the previous checkpoint is loaded, and the owner's next
one repairs the damage.

Before a store has its first local checkpoint, its log is whole: it is replayed in memory, and the view shows the rows
as of the end of the log. Of a store that no process has open, `present` shows these too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import (
    FileMissing,
    ForeignFile,
    LcpDamaged,
    RedoDamaged,
    SnapshotTooOld,
    SysfileDamaged,
)
from tidemark.engine.memory.arena import Arena
from tidemark.engine.store.replay import PartsOutOfMemory
from tidemark.engine.store.store import Store
from tidemark.engine.txn.resources import Resources
from tidemark.recovery.local_checkpoint.control import control_ids, control_name
from tidemark.recovery.system_restart.indexes import build_indexes
from tidemark.recovery.system_restart.load import PARTS, DataFileDamaged, Loader, Progress, must_fit
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.verification.log_listing import StoreListing

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.system_restart.sysfile import Sysfile

_log = logging.getLogger("tidemark.attach")

# A load is faster than a checkpoint: only an owner that writes tiny ones in a loop overtakes a reader more than once.
ATTEMPTS = 20
REPLAYS = 3  # of a log that its owner may write meanwhile: a group read too early looks damaged


@dataclass(frozen=True)
class View:
    """A store in memory, as of one point in time. It has tables and rows, but takes no commits."""

    store: Store
    sysfile: Sysfile
    lcp_id: int  # the local checkpoint that it shows; 0: all that the files hold, the log included
    epoch: int
    rows: int
    size_bytes: int
    fallbacks: int  # newer local checkpoints that were skipped because they are damaged
    seconds: float


class Attachment:
    """Loads views of one store, each into memory of its own."""

    def __init__(self, files: Files, options: Options, clock: Clock, progress: Progress | None = None) -> None:
        """progress: see `Loader`."""
        self._progress = progress
        self._files = files
        self._options = options
        self._clock = clock

    def newest(self, held: View | None = None) -> View:
        """Return the newest intact local checkpoint; `held` itself if it is still that one. Before the first one,
        return what the log holds.

        Raises: FileMissing (no store; disk columns, and no local checkpoint yet), RedoDamaged, LcpDamaged,
        SysfileDamaged, ForeignFile, Incompatible, LimitExceeded, IoFailed; SnapshotTooOld if each is retired before it
        is loaded.
        """
        damaged: dict[int, str] = {}
        for _ in range(ATTEMPTS):
            listing = self._listing()
            if held is not None and listing.sysfile.store != held.sysfile.store:
                raise ForeignFile("another store is in the place of the one that was opened; open it again")
            usable = [control for control in listing.controls if control.lcp_id not in damaged]
            if not usable:
                nothing = self._nothing_intact(damaged)
                if isinstance(nothing, LcpDamaged) or listing.sysfile.undo_geometry is not None:
                    raise nothing
                return self._replayed(listing.sysfile, REPLAYS)
            control = usable[0]
            if held is not None and (control.lcp_id, control.epoch) == (held.lcp_id, held.epoch):
                return held
            try:
                return self._load(listing.sysfile, control, len(damaged))
            except DataFileDamaged as found:
                if self._files.exists(control_name(control.lcp_id)):
                    damaged[control.lcp_id] = str(found)
                    _log.warning("local checkpoint %d: %s; using the one before", control.lcp_id, found)
                else:
                    _log.info("local checkpoint %d was retired while it was loaded; looking again", control.lcp_id)
        raise SnapshotTooOld(
            f"{ATTEMPTS} local checkpoints in turn were retired before they were loaded; try again, or let the owner"
            " make them less often"
        )

    def present(self, held: View | None = None) -> View:
        """Return all that the files hold, the log included. The caller knows that no process changes them.

        Raises: as `Restart.run`.
        """
        return self._replayed(self._listing().sysfile, 1)

    def _replayed(self, sysfile: Sysfile, attempts: int) -> View:
        """Replay the log in memory, again if a group looks damaged."""
        began = self._clock.monotonic()
        while True:
            restart = Restart(self._files, self._options, self._clock, progress=self._progress)
            attempts -= 1
            try:
                store = restart.run_without_writes()
            except RedoDamaged:
                if not attempts:
                    raise
                continue
            rows = sum(table.count() for table in store.tables.by_name.values())
            seconds = self._clock.monotonic() - began
            return View(store, sysfile, 0, restart.report.epoch, rows, 0, restart.report.fallbacks, seconds)

    def _listing(self) -> StoreListing:
        """Read the current sysfile and control files. Both copies of the sysfile may look damaged if the owner writes
        one after the other during the read.
        """
        for _ in range(ATTEMPTS):
            try:
                return StoreListing(self._files)
            except SysfileDamaged:
                continue
        return StoreListing(self._files)

    def _nothing_intact(self, damaged: dict[int, str]) -> FileMissing | LcpDamaged:
        if damaged or any(lcp_id > 1 for lcp_id in control_ids(self._files)):
            how = f" ({'; '.join(damaged.values())})" if damaged else ""
            return LcpDamaged(f"no local checkpoint is intact{how}; open the store for writing and make another one")
        # There is only the first control file, and it is not intact: the owner is writing it, or a crash stopped that.
        return FileMissing(
            "the store has no local checkpoint yet, and a read-only view of disk columns needs one; make one with"
            " checkpoint()"
        )

    def _load(self, sysfile: Sysfile, control: Control, fallbacks: int) -> View:
        """Load one local checkpoint. Raises: DataFileDamaged, ForeignFile, LimitExceeded."""
        held_bytes = sum(size_bytes for _, _, size_bytes in control.fragments.values()) + control.copies[2]
        with must_fit("the rows of the local checkpoint", held_bytes, self._options):
            try:
                return self._load_by(sysfile, control, fallbacks, PARTS)
            except PartsOutOfMemory:
                # Half of the arena was too small for its fragments: retry with the whole arena for one thread.
                return self._load_by(sysfile, control, fallbacks, 1)

    def _load_by(self, sysfile: Sysfile, control: Control, fallbacks: int, parts: int) -> View:
        began = self._clock.monotonic()
        options = self._options
        arena = Arena(options.data_memory_bytes, options.checkpoint_memory_bytes)
        identity = (sysfile.store, sysfile.incarnation)
        made_with = (arena, self._files, options, self._clock)
        store = Store(
            Resources(*made_with, identity, sysfile.geometry, sysfile.hash_seed, can_write=False, is_view=True)
        )
        for definition in control.tables:
            store.tables.install(definition)
        loader = Loader(store, self._files, sysfile.store, [control], parts, progress=self._progress)
        loader.load()
        loader.release()
        build_indexes(store, self._progress)
        done = loader.result
        seconds = self._clock.monotonic() - began
        return View(store, sysfile, control.lcp_id, control.epoch, done.rows, done.size_bytes, fallbacks, seconds)
