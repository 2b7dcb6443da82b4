"""A restore: a new store made of a backup and archived log, in a directory of its own.

Order of writes: the mark `restoring`, durable; an empty store with a new identity; tablespaces; rows and log in memory,
disk parts as in a restart; one local checkpoint; what a restart makes of it compared; the mark away. Until then
an opening refuses the directory (`RestoreUnfinished`), so a crash leaves nothing that could be taken for a store.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from engine.disk.tablespaces import DEFAULT_BYTES, TablespaceDefinition
from engine.errors import BackupDamaged, MemoryExhausted, Rejected
from engine.files import LOCK_NAME
from engine.ids import gci_of, make_epoch
from engine.kernels.setup import set_pool
from engine.layout.arena import F_ROWS, S_POOL
from recovery.backup.load import BackupLoader
from recovery.backup.segments import groups_of
from recovery.local_checkpoint.copies import CopySink
from recovery.local_checkpoint.writer import LocalCheckpoint
from recovery.sysfile import RESTORING
from recovery.system_restart.disk import disk_directory
from recovery.system_restart.indexes import build_indexes
from recovery.system_restart.load import PartsOutOfMemory
from recovery.system_restart.replay import apply_schema, replay, schema_changes, table_directory
from recovery.system_restart.restart import Restart
from recovery.system_restart.spool import Spooled

if TYPE_CHECKING:
    from engine.clock import Clock
    from engine.file_protocol import Files
    from engine.log.reader import GroupRead
    from engine.options import Options
    from engine.store import Store
    from engine.table import Table
    from recovery.backup.plan import Plan
    from recovery.system_restart.disk import DiskRestart
    from recovery.system_restart.restart import Opened

Progress = Callable[[int, int, str], None]
FIRST_LCP = 2  # behind number 1 a restart that finds it damaged would look for the log from its beginning
UNDO_SHARE = 6  # local checkpoints empty the UNDO log when this part of it has been written
GROUPS_BYTES = 64 << 20  # of archived log replayed at a time


@dataclass
class RestoreReport:
    """What a restore did."""

    epoch: int
    server_id: int  # of the store that was backed up
    backup: int
    tables: int = 0
    rows: int = 0
    groups: int = 0
    operations: int = 0
    indexes: int = 0  # entries of them
    size_bytes: int = 0
    seconds: float = 0.0
    is_verified: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return dict(self.__dict__)


def names_of(files: Files, folder: str = "") -> Iterator[str]:
    """Names of all files in a directory and the folders in it, but for LOCK."""
    for leaf in files.list(folder):
        name = f"{folder}/{leaf}" if folder else leaf
        if name == LOCK_NAME:
            continue
        try:
            yield from names_of(files, name)
        except Rejected:
            yield name  # no folder


def holds_files(files: Files) -> bool:
    """Whether there is anything but empty folders. Raises: InvalidName for names no store gives."""
    return any(True for _ in names_of(files))


def clear(files: Files) -> None:
    """Remove all files of a directory that was restored into; folders stay, empty."""
    for name in list(names_of(files)):
        files.unlink(name)


class _RestoringRestart(Restart):
    """Makes the empty store, and brings the finished one back for comparison, past the mark."""

    is_restoring = True

    @property
    def disk(self) -> DiskRestart:
        """The disk columns of the store it has opened."""
        assert self._disk is not None, "only behind `run`"
        return self._disk


class _Adopter:
    """What `apply_schema` asks of a loader: tables that come take their memory from the one pool."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def adopt(self, table: Table) -> None:
        for fragment in table.fragments:
            set_pool(self._store.mem, fragment, S_POOL)


class Restore:
    """Carries out one plan."""

    def __init__(
        self,
        place: Files,
        plan: Plan,
        files: Files,
        options: Options,
        clock: Clock,
        is_verified: bool = True,
        progress: Progress | None = None,
        finish: Callable[[Store], None] | None = None,
    ) -> None:
        """place: of the backups; files: of the directory the store is to be in, which nobody may use. finish: called
        with the store when its rows are there, to commit what it wants.
        """
        self._place = place
        self._plan = plan
        self._files = files
        self._options = options
        self._clock = clock
        self._is_verified = is_verified
        self._progress = progress
        self._finish = finish
        self._undo_bytes = 0  # of the UNDO log when it was last emptied
        self._lcp: LocalCheckpoint | None = None
        self._disk: DiskRestart | None = None

    def run(self) -> RestoreReport:
        """Make the store. Durable on return: all of it, ready to be opened; `files` are closed.

        Raises: Rejected if the directory is not empty, BackupDamaged and the like, MemoryExhausted, StorageFull.
        """
        began = self._clock.monotonic()
        files, manifest = self._files, self._plan.manifest
        files.lock()
        if holds_files(files):
            raise Rejected("the directory is not empty; a restore goes into a new one, never over anything")
        files.close(files.create(RESTORING))
        files.sync_directory("")
        report = RestoreReport(self._plan.epoch, manifest.server_id, manifest.number)
        rows = self._build(report)
        if self._is_verified:
            self._compare(rows)
            report.is_verified = True
        files.mark("restored", epoch=report.epoch)
        files.unlink(RESTORING)
        files.sync_directory("")
        report.tables, report.rows = len({table for table, _ in rows}), sum(rows.values())
        report.seconds = self._clock.monotonic() - began
        return report

    # --- making it -------------------------------------------------------------------------------
    def _build(self, report: RestoreReport) -> dict[tuple[str, int], int]:
        """Rows of each fragment of the store that is now on disk, by table and number."""
        restart = _RestoringRestart(self._files, replace(self._options, create=True), self._clock)
        opened = restart.run()
        store = self._store = opened.store
        self._disk = restart.disk
        sink = CopySink(store.latch)
        store.sink = sink
        self._lcp = LocalCheckpoint(store, self._files, opened.identity, sink, FIRST_LCP)
        self._set_clock(opened)
        self._make_tables()
        manifest = self._plan.manifest
        loader = BackupLoader(store, self._disk, self._place, manifest, self._relieve, self._progress)
        loader.load()
        report.groups, report.operations = self._replay()
        try:
            report.indexes = build_indexes(store)
        except PartsOutOfMemory as error:
            raise self._no_memory() from error
        if self._finish is not None:
            self._finish(store)
        self._relieve()
        report.size_bytes = self._lcp.run().size_bytes
        opened.keeper.write(gci=int(gci_of(store.epochs.current)) + 1, next_table_id=store.next_table_id)
        rows = {
            (table.name, number): int(store.mem[fragment + F_ROWS])
            for table in store.tables.values()
            for number, fragment in table.by_number.items()
        }
        store.log.flush()
        store.disk.close()
        self._disk.close()
        store.log.close()
        return rows

    def _set_clock(self, opened: Opened) -> None:
        """The new store's epochs come behind all that its rows have."""
        store = opened.store
        highest = max(self._plan.epoch, self._plan.reach, self._plan.manifest.epoch)
        with store.latch:
            store.epochs.current = int(make_epoch(int(gci_of(highest)) + 1, 0))
            store.log.close_epoch(store.epochs.current)

    def _make_tables(self) -> None:
        store, manifest = self._store, self._plan.manifest
        for definition, size_bytes in manifest.tablespaces:
            self._make_tablespace(definition, size_bytes)
        try:
            for table in manifest.tables:
                store.install_table(table)
        except MemoryExhausted as error:
            raise self._no_memory() from error
        store.next_table_id = max(store.next_table_id, manifest.next_table_id)

    def _make_tablespace(self, definition: TablespaceDefinition, size_bytes: int) -> None:
        """Under its name, with numbers and files of the new store."""
        if definition.name not in self._store.space.by_name:
            unnumbered = replace(definition, tablespace_id=0, file_ids=())
            self._store.create_tablespace(unnumbered, max(size_bytes, definition.extent_bytes))

    def _no_memory(self) -> MemoryExhausted:
        return MemoryExhausted("the backup does not fit into data_memory; restore with a larger data_memory")

    def _relieve(self, coming_bytes: int = 0) -> None:
        """Keep the UNDO log from filling: what a local checkpoint has need not be undone, for nobody goes back.

        coming_bytes: of the records that are replayed next.
        """
        store = self._store
        if self._lcp is None or not store.disk.is_started:
            return
        undo = store.disk.undo
        written = undo.bytes_written - self._undo_bytes
        if written and (written + 2 * coming_bytes) * UNDO_SHARE > undo.geometry.capacity_bytes:
            # Its tail moves when two have been made.
            self._lcp.run()
            self._lcp.run()
            self._undo_bytes = undo.bytes_written

    # --- archived log ----------------------------------------------------------------------------
    def _groups(self) -> Iterator[GroupRead]:
        """The archived groups behind the backup, in order, up to the end of the plan."""
        plan = self._plan
        for segment in plan.segments:
            for group in groups_of(self._place, segment):
                if plan.manifest.epoch < group.epoch <= plan.epoch:
                    yield group

    def _portions(self) -> Iterator[list[GroupRead]]:
        portion: list[GroupRead] = []
        size_bytes = 0
        for group in self._groups():
            portion.append(group)
            size_bytes += group.words.nbytes
            if size_bytes >= GROUPS_BYTES:
                yield portion
                portion, size_bytes = [], 0
        if portion:
            yield portion

    def _replay(self) -> tuple[int, int]:
        """Schema records of all groups first, then the groups; (groups, operations)."""
        store, disk, epoch = self._store, self._disk, self._plan.manifest.epoch
        assert disk is not None
        changes = [change for portion in self._portions() for change in schema_changes(portion)]
        if not changes and not self._plan.segments:
            return 0, 0
        try:
            self._apply_schema(changes, epoch)
            directory = table_directory(store)
            groups = operations = 0
            for portion in self._portions():
                spooled = Spooled(self._place, self._plan.manifest.store, portion)
                operations += replay(store, portion, spooled, 1, disk_directory(store, directory, False))
                tables = disk_directory(store, directory, True)
                for group in portion if tables.any() else []:
                    for some in spooled.records(group):
                        self._relieve((some.stop - some.start) * 8)
                        operations += disk.replay_records(group, some, tables)
                groups += len(portion)
        except PartsOutOfMemory as error:
            raise self._no_memory() from error
        return groups, operations

    def _apply_schema(self, changes: list[tuple[int, dict[str, Any]]], epoch: int) -> None:
        """Tablespaces get numbers of the new store; their data files grow as they are needed."""
        kept: list[tuple[int, dict[str, Any]]] = []
        for at, change in changes:
            if "tablespace" in change:
                definition = TablespaceDefinition.from_json(json.dumps(change["tablespace"]).encode())
                self._make_tablespace(definition, min(DEFAULT_BYTES, definition.limit_bytes or DEFAULT_BYTES))
            elif "datafile" not in change and "drop_tablespace" not in change:
                kept.append((at, change))
        apply_schema(self._store, _Adopter(self._store), kept, epoch)

    # --- verification ----------------------------------------------------------------------------
    def _compare(self, rows: dict[tuple[str, int], int]) -> None:
        """Bring the store back from its files as an opening does, in memory. Raises: BackupDamaged."""
        del self._store
        self._lcp = self._disk = None
        gc.collect()  # two stores in memory would be one too many
        store = _RestoringRestart(self._files, self._options, self._clock).rehearse()
        found = {
            (table.name, number): int(store.mem[fragment + F_ROWS])
            for table in store.tables.values()
            for number, fragment in table.by_number.items()
        }
        store.disk.close()
        if found != rows:
            wrong = next(place for place in rows.keys() | found.keys() if rows.get(place) != found.get(place))
            raise BackupDamaged(
                f"the store as restored has {found.get(wrong)} rows in fragment {wrong[1]} of {wrong[0]}, not"
                f" {rows.get(wrong)}; restore again",
                table=wrong[0],
            )
