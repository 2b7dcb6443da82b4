"""Opens a store: every opening is a restart (D8, D12).

Phases: lock → sysfile → control files → choose and load checkpoints → read the log → schema records → strict replay →
make the end of the log durable → sysfile with a new incarnation → catalog. Before the end of the log is durable, only
disk columns are written: pages, their copies, the UNDO log, and in the sysfile which UNDO groups are void. These writes
can be repeated, and no other byte changes, so a restart that raises an error can be repeated.

| sysfile copies | control files | log | outcome |
|---|---|---|---|
| one intact | any | intact from the needed start | opens |
| none | none | no group | no store: created if allowed, and if the directory has nothing else (`place`) |
| none | some, or some group | - | SysfileDamaged |
| intact | none intact, some exist, log cut | - | LcpDamaged |
| intact | any | bad group before a valid one of a later batch, or an end before the sysfile's floor | RedoDamaged |
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from tidemark.engine.access.snapshot import version_words
from tidemark.engine.base.errors import (
    ForeignFile,
    LcpDamaged,
    MemoryExhausted,
    RedoDamaged,
    SysfileDamaged,
    ValueOutOfRange,
)
from tidemark.engine.base.ids import gci_of
from tidemark.engine.disk.columns import region_words
from tidemark.engine.log.geometry import FOLDER as REDO_FOLDER
from tidemark.engine.log.geometry import Geometry, create_files, is_log_name
from tidemark.engine.log.group import Position
from tidemark.engine.log.reader import GroupRead, LogReader
from tidemark.engine.memory.arena import Arena
from tidemark.engine.store.replay import PartsOutOfMemory
from tidemark.engine.store.store import Store
from tidemark.engine.txn.delete_log import delete_log_words
from tidemark.engine.txn.resources import Resources
from tidemark.recovery.local_checkpoint.control import (
    Control,
    LogStart,
    control_ids,
    control_name,
    has_been_cut,
    log_start,
    make_newest_durable,
    read_controls,
    sweep,
    used_ids,
)
from tidemark.recovery.local_checkpoint.data_file import FOLDER as LCP_FOLDER
from tidemark.recovery.system_restart.disk import DiskRestart
from tidemark.recovery.system_restart.indexes import build_indexes
from tidemark.recovery.system_restart.load import (
    PARTS,
    DataFileDamaged,
    Loader,
    Place,
    Progress,
    must_fit,
)
from tidemark.recovery.system_restart.place import check_place, holds_rows
from tidemark.recovery.system_restart.replay import apply_schema, note_deletes, replay, schema_changes
from tidemark.recovery.system_restart.spool import Spooled, sweep_unreferred
from tidemark.recovery.system_restart.sysfile import (
    NAMES,
    Sysfile,
    SysfileKeeper,
    open_copies,
    read_sysfile,
    write_both,
    write_sysfile,
)

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.system_restart.through import Through
    from tidemark.recovery.system_restart.two_copies import TwoCopies

PROGRESS_BYTES = 16 << 20  # of the log between two reports
_log = logging.getLogger("tidemark.restart")


@dataclass
class Phase:
    """One step of a restart."""

    name: str
    ms: float
    rows: int = 0
    bytes: int = 0


@dataclass
class RestartReport:
    """The findings and steps of a restart, phase by phase."""

    phases: list[Phase] = field(default_factory=list)
    is_new: bool = False
    lcp_id: int = 0
    lcp_epoch: int = 0
    fallbacks: int = 0
    groups: int = 0
    end_lsn: int = 0
    epoch: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "phases": [dict(phase.__dict__) for phase in self.phases]}


@dataclass
class Opened:
    """A store that a restart has brought back, ready for threads."""

    store: Store
    sysfile: Sysfile
    keeper: SysfileKeeper
    controls: list[Control]
    unsound: frozenset[int]  # local checkpoints with damaged files
    report: RestartReport

    @property
    def identity(self) -> tuple[bytes, int]:
        """Store UUID and incarnation, for sealed units."""
        return self.sysfile.store, self.sysfile.incarnation


# --- the hook of a node restart -------------------------------------------------------------------
@dataclass(frozen=True)
class PrivateStore:
    """A store in memory as replay leaves it: rows without secondary indexes, no log, not visible to callers."""

    store: Store
    disk: DiskRestart
    clock: Clock
    next_sequence: int  # sequence of the next group in its own log


@dataclass(frozen=True)
class CaughtUp:
    """The position of a store that has caught up: its log continues with this sequence, after the end of this epoch.

    The epoch is open here until the first local checkpoint closes it; that checkpoint has the rows at its end. The
    stream continues with `next_epoch`, which is open on the live node.
    """

    sequence: int
    epoch: int
    next_epoch: int


class CatchUp(Protocol):
    """Brings a restarted store up to a live node, between replay and indexes (docs/internals/node-group.md). Until its
    end only disk pages have changed on disk, and their UNDO log reverts them: after a crash the node is at the end of
    its own log.
    """

    store: bytes  # UUID of the live node's store: a directory without one becomes a copy of it
    incarnation: int  # that of the live node; this node's must not be lower, or transaction ids would be reused

    def run(self, private: PrivateStore) -> CaughtUp:
        """Change rows, definitions and disk pages to those of the live node. Any error it raises ends the restart."""
        ...


# --- phases ---------------------------------------------------------------------------------------
class Restart:
    """One restart of one store."""

    def __init__(
        self,
        files: Files,
        options: Options,
        clock: Clock,
        through: Through | None = None,
        progress: Progress | None = None,
        catch_up: CatchUp | None = None,
        is_restoring: bool = False,
    ) -> None:
        """through: the end of the restart; later changes are dropped. progress: called with (done, in all,
        unit): rows loaded, bytes of the log read, indexes built. catch_up: the hook that brings the rows up to those of
        a live node. is_restoring: the store may be that of an unfinished restore.
        """
        self._is_restoring = is_restoring
        self._progress = progress
        self._catch_up = catch_up
        self._files = files
        self._options = options
        self._clock = clock
        self._through = through
        self._disk: DiskRestart | None = None
        self._damaged: dict[Place, str] = {}  # damaged data files, and their errors
        self._is_cut = False  # whether the log is to end before the last written group
        self._report = RestartReport()
        self._began = clock.monotonic()

    @property
    def report(self) -> RestartReport:
        """What the restart has found and done so far."""
        return self._report

    def _phase(self, name: str, rows: int = 0, size_bytes: int = 0) -> None:
        now = self._clock.monotonic()
        self._report.phases.append(Phase(name, (now - self._began) * 1_000, rows, size_bytes))
        self._began = now

    def run(self) -> Opened:
        """Restart the store; the caller holds the lock. Durable on return: everything that it shows.

        Raises: Damaged, ForeignFile, Incompatible, IoFailed, StorageFull; ValueOutOfRange for a `through` that is no
        longer kept; LimitExceeded if an option is too small for the store; the errors of `catch_up`.
        """
        self._files.read_errors_latch = False
        sysfile = read_sysfile(self._files, self._is_restoring)
        if sysfile is None:
            sysfile = self._create()
        if self._catch_up is not None:
            if sysfile.store != self._catch_up.store:
                raise ForeignFile("this directory holds another store than the live node; give an empty one")
            sysfile = replace(sysfile, incarnation=max(sysfile.incarnation, self._catch_up.incarnation))
        sysfile.check_openings()  # before anything changes
        controls = self._controls(sysfile)
        self._filtered_epoch = sysfile.filtered_epoch
        if self._through is not None:
            sysfile = self._through.sysfile(sysfile)
        self._phase("control files")
        with self._must_fit(sysfile, controls):
            store, loader, groups, reader = self._restore(sysfile, controls, True)
            loader.release()
            self._phase("join")
            try:
                if reader.end_lsn > sysfile.geometry.limit_lsn:
                    raise reader.damage("begins in a file that no copy of the sysfile has: they are of different times")
                caught_up = self._catch_up_with(store, reader)
                self._build_indexes(store)
            except BaseException:
                reader.close()
                raise
        assert self._disk is not None
        store.arena.keep_pages()
        sysfile = self._disk.sysfile
        self._files.read_errors_latch = True
        sysfile, copies = self.make_durable(sysfile, controls, reader, groups, caught_up)
        keeper = SysfileKeeper(copies, sysfile)
        self._attach(store, keeper, controls, groups, reader)
        if caught_up.epoch:
            with store.latch:
                store.epochs.resume(caught_up.epoch)
            self._report.epoch = caught_up.epoch
        unsound = frozenset(place[0] for place in self._damaged)
        return Opened(store, sysfile, keeper, controls, unsound, self._report)

    def run_without_writes(self) -> Store:
        """Restart the store in memory as `run` does, but stop before the first write. The store cannot commit.

        Raises: as `run`.
        """
        self._files.read_errors_latch = False
        sysfile = read_sysfile(self._files, self._is_restoring)
        if sysfile is None:
            raise SysfileDamaged("both copies of the sysfile are damaged; restore the store from a backup")
        controls = self._controls(sysfile)
        with self._must_fit(sysfile, controls):
            store, loader, _, reader = self._restore(sysfile, controls, False)
            loader.release()
            reader.close()
            self._build_indexes(store)
        self._report.epoch = max([self._highest_epoch, *(control.epoch for control in controls[:1])])
        return store

    def _must_fit(self, sysfile: Sysfile, controls: list[Control]) -> AbstractContextManager[None]:
        held_bytes = sysfile.durable_lsn
        if controls:
            loaded = sum(size_bytes for _, _, size_bytes in controls[0].fragments.values())
            held_bytes = loaded + max(0, sysfile.durable_lsn - controls[0].start_lsn)
        return must_fit("the rows in the local checkpoint and the log", held_bytes, self._options)

    def _catch_up_with(self, store: Store, reader: LogReader) -> CaughtUp:
        """Fetch rows from a live node, if there is one. Return where the store's log continues, and the epoch (0: an
        epoch after all those of the log).
        """
        if self._catch_up is None:
            return CaughtUp(reader.next_sequence, 0, 0)
        assert self._disk is not None
        caught_up = self._catch_up.run(PrivateStore(store, self._disk, self._clock, reader.next_sequence))
        self._phase("copy")
        return caught_up

    def _restore(
        self, sysfile: Sysfile, controls: list[Control], can_write: bool
    ) -> tuple[Store, Loader, list[GroupRead], LogReader]:
        """Rebuild the rows; retry without damaged files, or with one thread if memory is short."""
        parts = PARTS
        while True:
            if self._disk is not None:
                sysfile = self._disk.sysfile  # an earlier attempt may have voided UNDO groups
            try:
                return self._rebuild(sysfile, controls, parts, can_write)
            except DataFileDamaged as found:
                self._damaged[found.place] = str(found)
                _log.warning("local checkpoint %d: %s; using the one before", found.place[0], found)
            except PartsOutOfMemory:
                # Half of the arena was too small for its fragments: retry with the whole arena for one thread.
                if parts == 1:
                    raise
                parts = 1

    # --- a new store -----------------------------------------------------------------------------
    def _create(self) -> Sysfile:
        """Create a store where there is none. Its sysfile is written last, and its first intact copy makes it exist
        (F30).
        """
        files = self._files
        if holds_rows(files):
            raise SysfileDamaged("both copies of the sysfile are damaged; restore the store from a backup")
        # Check again, now under the lock: another process may have changed the directory since. A restore or a joining
        # node has made room already.
        if self._catch_up is None and not self._is_restoring:
            check_place(files, self._options.create)
        if files.exists(REDO_FOLDER):
            for name in files.list(REDO_FOLDER):
                if is_log_name(name):
                    files.unlink(f"{REDO_FOLDER}/{name}")
        for name in NAMES:
            if files.exists(name):
                files.unlink(name)
        geometry = Geometry.of(self._options.redo_log_bytes).begun()
        create_files(files, geometry)
        if not files.exists(LCP_FOLDER):
            files.make_directory(LCP_FOLDER)
        copies = open_copies(files)
        seed = int.from_bytes(self._clock.random_bytes(8), "little", signed=True)
        now_us = self._clock.wall_us()
        store = self._clock.random_bytes(16) if self._catch_up is None else self._catch_up.store
        made = Sysfile(store, 0, 0, 0, 0, 0, 0, geometry, seed, 1, 1, now_us, geometry.reach_step_bytes)
        self._report.is_new = True
        made = write_sysfile(copies, made)
        copies.close()
        self._phase("create", 0, geometry.made_count * geometry.file_bytes)
        return made

    # --- rebuilding in memory --------------------------------------------------------------------
    def _controls(self, sysfile: Sysfile) -> list[Control]:
        controls = read_controls(self._files, sysfile.store)
        is_cut = has_been_cut(self._files)
        if self._through is not None and controls:
            oldest = controls[-1].epoch
            controls = self._through.controls(controls)
            if not controls and is_cut:
                raise ValueOutOfRange(
                    f"epoch {self._through.epoch} is before the oldest state that is kept, the end of epoch {oldest};"
                    " restart through that one or a later one",
                    oldest=oldest,
                )
        if not controls and is_cut:
            raise LcpDamaged("no control file of a local checkpoint is intact; restore the store from a backup")
        return controls

    def _rebuild(
        self, sysfile: Sysfile, controls: list[Control], parts: int, can_write: bool
    ) -> tuple[Store, Loader, list[GroupRead], LogReader]:
        """Make one attempt to rebuild the rows. It writes only for disk columns, and can be repeated (D8)."""
        options = self._options
        region = region_words(options, sysfile.undo_geometry) + version_words(options) + delete_log_words(options)
        arena = Arena(options.data_memory_bytes, options.checkpoint_memory_bytes, region)
        # The incarnation of this opening, which the sysfile does not have yet.
        identity = (sysfile.store, sysfile.incarnation + 1)
        made_with = (arena, self._files, options, self._clock)
        store = Store(Resources(*made_with, identity, sysfile.geometry, sysfile.hash_seed, can_write=can_write))
        store.tables.next_id = sysfile.next_table_id
        if self._disk is not None:
            self._disk.close()
        disk = self._disk = DiskRestart(self._files, store, sysfile, can_write)
        disk.open(controls)
        if controls:
            store.tables.next_id = max(store.tables.next_id, controls[0].next_table_id)
            for definition in controls[0].tables:
                store.tables.install(definition)
        loader = Loader(store, self._files, sysfile.store, controls, parts, frozenset(self._damaged), self._progress)
        loader.load()
        disk.load_extents(loader.disk_control)
        self._phase("load", loader.result.rows, loader.result.size_bytes)
        self._report.fallbacks = loader.result.fallbacks
        groups, reader = self._read_log(sysfile, controls, loader)
        try:
            self._apply_schema(store, loader, groups, controls[0].epoch if controls else 0)
            if self._through is not None:
                self._through.check(store, self._filtered_epoch, self._cut_groups)
            spooled = Spooled(self._files, sysfile.store, groups)
            if len(spooled):
                self._phase("read spool files", len(spooled), spooled.size_bytes)
            operations = self._replay(store, loader, groups, spooled, disk)
            note_deletes(store.deletes, groups, spooled, self._start_epoch)
        except BaseException:
            reader.close()
            raise
        self._phase("redo", operations, sum(group.words.nbytes for group in groups))
        return store, loader, groups, reader

    def _build_indexes(self, store: Store) -> None:
        """Build the indexes; the report has their time if there are any."""
        if any(table.definition.indexes for table in store.tables.by_name.values()):
            self._phase("build indexes", build_indexes(store, self._progress))

    def _apply_schema(self, store: Store, loader: Loader, groups: list[GroupRead], known_epoch: int) -> None:
        try:
            apply_schema(store, schema_changes(groups), known_epoch, loader.adopt)
        except MemoryExhausted as error:
            raise PartsOutOfMemory from error  # descriptors come from one half; the whole arena may be enough

    def _replay(
        self, store: Store, loader: Loader, groups: list[GroupRead], spooled: Spooled, disk: DiskRestart
    ) -> int:
        """Undo disk pages, then replay REDO: tables in memory in parallel, tables with disk columns by one thread."""
        directory = store.tables.directory()
        disk.undo(loader.disk_control, directory)
        disk.release()
        if disk.undone:
            self._phase("undo", disk.undone)
        operations = replay(store, groups, spooled, loader.parts, directory)
        loader.release()
        return operations + disk.redo(groups, spooled, directory)

    def _read_log(self, sysfile: Sysfile, controls: list[Control], loader: Loader) -> tuple[list[GroupRead], LogReader]:
        start_lsn, start_sequence, self._start_epoch = 0, 1, 0
        used = list(loader.chosen.values())
        if controls and None not in used:
            oldest = min(
                (each for each in used if each is not None), key=lambda each: each.start_sequence, default=controls[0]
            )
            start_lsn, start_sequence, self._start_epoch = oldest.start_lsn, oldest.start_sequence, oldest.epoch
        reader = LogReader(self._files, sysfile.geometry, sysfile.store, writable=True)
        self._start = (start_lsn, start_sequence)
        floor_lsn, reach_lsn = sysfile.bounds(*self._start)
        is_before_seam = sysfile.is_before_seam(*self._start)
        self._is_cut = self._through is not None or is_before_seam
        if is_before_seam:
            self._check_seam(sysfile, controls, reader)
        try:
            found = reader.groups(start_lsn, start_sequence, floor_lsn, reach_lsn)
            groups = list(self._reported(found, start_lsn, floor_lsn))
            if reader.end_lsn < floor_lsn:
                raise reader.damage(f"is damaged, and the log was durable through LSN {floor_lsn}")
            self._report.groups = len(groups)
            self._highest_epoch = max([group.epoch for group in groups], default=0)
            if self._through is not None:
                groups, self._cut_groups = self._through.groups(groups, reader, self._start)
        except RedoDamaged as error:
            reader.close()
            if self._damaged and reader.end_lsn == start_lsn:
                raise LcpDamaged(
                    f"the log no longer reaches back to what the damaged local checkpoint would need"
                    f" ({'; '.join(self._damaged.values())}); restore from a backup"
                ) from error
            raise
        except BaseException:
            reader.close()
            raise
        self._report.end_lsn = reader.end_lsn
        self._phase("read log", len(groups), reader.end_lsn - start_lsn)
        return groups, reader

    def _reported(self, groups: Iterator[GroupRead], start_lsn: int, end_lsn: int) -> Iterator[GroupRead]:
        """Yield the groups, and report how far the log is read. end_lsn: the log reaches at least to it."""
        told = start_lsn
        for group in groups:
            if self._progress is not None and group.end_lsn - told >= PROGRESS_BYTES:
                told = group.end_lsn
                self._progress(told - start_lsn, max(told, end_lsn) - start_lsn, "bytes of log")
            yield group

    @staticmethod
    def _check_seam(sysfile: Sysfile, controls: list[Control], reader: LogReader) -> None:
        """Check that a restart that begins before the seam ignores no local checkpoint from after it: the log does not
        lead across the seam. Raises: LcpDamaged.
        """
        lost = [each for each in controls if not sysfile.is_before_seam(each.start_lsn, each.start_sequence)]
        if lost:
            reader.close()
            raise LcpDamaged(
                f"local checkpoint {lost[0].lcp_id} is damaged, the only one with the rows copied from another node;"
                " let this node join again",
                lcp_id=lost[0].lcp_id,
            )

    # --- the first writes ------------------------------------------------------------------------
    def make_durable(
        self,
        sysfile: Sysfile,
        controls: list[Control],
        reader: LogReader,
        groups: list[GroupRead],
        caught_up: CaughtUp,
    ) -> tuple[Sysfile, TwoCopies]:
        """Make the first writes: from here on the store changes. After a crash between any two steps, the next restart
        does the same.
        """
        highest = max(
            int(gci_of(self._highest_epoch)), sysfile.gci, *[int(gci_of(control.epoch)) for control in controls], 0
        )
        make_newest_durable(self._files, controls)
        copies = open_copies(self._files)
        if self._is_cut:
            # Lower the floor before the cut: otherwise, after a crash between the two, the log would end before the
            # floor. The new floor is the end of the kept log, so that end must be durable first.
            reader.make_durable()
            sysfile = write_both(
                copies,
                replace(
                    sysfile,
                    gci=highest,
                    durable_lsn=reader.end_lsn,
                    durable_sequence=reader.next_sequence - 1,
                    timeline=sysfile.timeline + 1,
                ),
            )
            for lcp_id in control_ids(self._files):
                if lcp_id not in {control.lcp_id for control in controls}:
                    self._files.unlink(control_name(lcp_id))
            self._files.sync_directory(LCP_FOLDER)
            reader.cut()
        reader.seal_tail()
        has_seam = caught_up.sequence != reader.next_sequence
        sysfile = sysfile.continued_at((reader.end_lsn, reader.next_sequence), caught_up.sequence)
        reader.next_sequence = caught_up.sequence
        closed = [group.epoch for group in groups] or [sysfile.closed_epoch]
        newest_lcp = max([*used_ids(self._files), sysfile.next_lcp_id - 1])
        written = write_both(
            copies,
            replace(
                sysfile,
                incarnation=sysfile.next_incarnation,
                gci=max(highest + 1, int(gci_of(caught_up.epoch))),
                closed_epoch=max([*closed, *(control.epoch for control in controls[:1])]),
                durable_lsn=reader.end_lsn,
                durable_sequence=reader.next_sequence - 1,
                next_lcp_id=max(newest_lcp + 1, 2 if has_seam else 1),  # number 1 needs the log from LSN 0
                reach_lsn=reader.end_lsn + sysfile.geometry.reach_step_bytes,
            ),
        )
        sweep(self._files)
        if self._disk is not None:
            space = self._disk.columns.space
            space.remove_unnamed(each for control in controls for each in control.tablespaces)
            space.free_dropped(owner for control in controls for owner in control.owners())
        self._phase("make durable")
        return written, copies

    def _attach(
        self,
        store: Store,
        keeper: SysfileKeeper,
        controls: list[Control],
        groups: list[GroupRead],
        reader: LogReader,
    ) -> None:
        sysfile = keeper.content
        start = log_start(controls, has_been_cut(self._files))
        # Until there are new checkpoints, the next restart needs all the log that this one needed (F59).
        if self._start < (start.lsn, start.sequence):
            start = LogStart(*self._start, "a restart: what the last one needed")
        # With one local checkpoint, the log is kept from its beginning: a second one may have been lost half-written.
        kept_from = (start.lsn, start.sequence) if len(controls) > 1 else (0, 1)
        store.spools.found(sweep_unreferred(self._files, reader, kept_from, groups))
        reader.close()
        position = Position(reader.next_sequence, reader.end_lsn, start.lsn, start.sequence)
        store.resources.open(position, sysfile.gci, sysfile.incarnation)
        store.log.set_tail(start.lsn, start.sequence, start.what)
        store.log.extend_reach = keeper.extend_reach
        store.log.declare_files = lambda geometry: keeper.write(geometry=geometry)
        store.disk.restorable_epoch = lambda: keeper.restorable_epoch
        store.disk.declare_undo = lambda geometry: keeper.write(undo_geometry=geometry)
        report = self._report
        report.epoch = store.epochs.current
        if controls:
            report.lcp_id, report.lcp_epoch = controls[0].lcp_id, controls[0].epoch
