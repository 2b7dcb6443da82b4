"""Writes a backup while transactions continue.

Order of writes: each fragment's rows file, synced, its name synced, read back; its level file; when all are at one
epoch, the manifest. A crash before that leaves no backup, only files that the next backup may use.

If the snapshot becomes too old, the backup continues with a new one: fragments that are already written get an
incremental level up to its epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS, ScanBatch
from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import BackupDamaged, Damaged, ForeignFile, SnapshotTooOld
from tidemark.engine.files.durable_files import make_folder
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import F_PAGES, F_SLOTS
from tidemark.engine.queries.column_scans import ColumnBatch, ColumnScan
from tidemark.recovery.backup.chain import Chain
from tidemark.recovery.backup.level_file import LevelFile, columns_of, read_level, write_level
from tidemark.recovery.backup.manifest import (
    FULL,
    INCREMENTAL,
    Found,
    Manifest,
    find_backups,
    folders,
    write_manifest,
)
from tidemark.recovery.backup.rows_file import COLUMNS_AFTER, PLACE, ROWID_MASK, Level, RowsReader, RowsWriter
from tidemark.recovery.places.storage import make_file_durable

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

_log = logging.getLogger("tidemark.backup")
Progress = Callable[[int, int, str], None]
Fragment = tuple[int, int]
ATTEMPTS = 8
LEVELS_MAX = 16  # a fragment with this many is written whole again: a restore reads every level
DEAD_SHARE = 20  # likewise one of which more than this part of the rows in its files would be dead: 5 %,
DEAD_MIN = 1_000  # and more than so many: fewer cost a reader nothing


@dataclass
class BackupReport:
    """Result of one backup."""

    number: int
    epoch: int
    kind: str
    parent: int
    rows: int = 0  # in all tables
    written_rows: int = 0
    written_bytes: int = 0
    attempts: int = 1
    resumed_files: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


class Unchanged:
    """The rows of a fragment that have not changed since its newest level, by ROWID: a byte for each slot."""

    def __init__(self, pages: int, slots: int) -> None:
        self._slots = slots
        self._is_noted = np.zeros(pages * slots, dtype=bool)

    def _places(self, rowids: Words) -> Words:
        return (rowids >> 16) * self._slots + (rowids & 0xFFFF)

    def note(self, rowids: Words) -> None:
        """Note these rows, which are in order."""
        places = self._places(rowids)
        if places.size and int(places[-1]) >= self._is_noted.size:  # pages were released since
            more = np.zeros(int(places[-1]) + 1 - self._is_noted.size, dtype=bool)
            self._is_noted = np.append(self._is_noted, more)
        self._is_noted[places] = True

    def take(self, rowids: Words, dead: Words) -> Any:
        """Return whether each row, unless its position is among the dead, is noted; forget these. Shapes: (rows,)."""
        places = self._places(rowids)
        found = places < self._is_noted.size  # a store that was opened again has no pages past its last row
        found[dead] = False
        found[found] = self._is_noted[places[found]]
        self._is_noted[places[found]] = False
        return found

    def count(self) -> int:
        return int(np.count_nonzero(self._is_noted))


class BackupWriter:
    """Writes one backup of an open store into a place that no other process writes to."""

    def __init__(
        self,
        store: Store,
        files: Files,
        identity: tuple[bytes, int],
        timeline: int,
        server_id: int = 0,
        is_verified: bool = True,
        progress: Progress | None = None,
    ) -> None:
        """identity: store UUID and incarnation. is_verified: read back the written files.

        progress: called with rows done, rows in all, and "rows".
        """
        self._store = store
        self._files = files
        self._identity = identity
        self._timeline = timeline
        self._server_id = server_id
        self._is_verified = is_verified
        self._progress = progress
        self._number = 0  # of this backup
        self._folders: set[str] = set()  # those made
        self._chains: dict[Fragment, list[Level]] = {}
        self._done_rows = self._total_rows = 0

    def run(self, incremental: bool = False) -> BackupReport:
        """Write one backup; incremental: on top of the newest backup, if there is one of this store and timeline.

        Where the level below cannot complete an incremental one, or is damaged, the fragment is written whole.

        Durable on return: the backup. Raises: SnapshotTooOld (writers changed more than `snapshot_memory` holds, eight
        times), StorageFull, ForeignFile, FileMissing if a file of an earlier backup is gone, BackupDamaged if a written
        file cannot be read back, StoreFailed.
        """
        began = self._store.clock.monotonic()
        found = find_backups(self._files)
        for each in found.manifests:
            if each.store != self._identity[0]:
                raise ForeignFile(f"backup {each.number} here belongs to another store; choose another place")
        number = self._number = max([0, *folders(self._files)]) + 1
        parent = self._parent(found) if incremental else None
        kind = INCREMENTAL if parent else FULL
        report = BackupReport(number, 0, kind, parent.number if parent else 0)
        if incremental and parent is None:
            report.notes.append("there is no backup to continue from: a full one was made")
        if parent is not None:
            self._chains = {place: list(levels) for place, levels in parent.levels.items()}
        self._resume(found, report)
        self._files.make_directory(str(number))
        self._files.sync_directory("")
        manifest = self._attempt(report)
        manifest.kind, manifest.parent = kind, report.parent
        self._check_named(manifest)
        self._files.mark("backup", number=number, epoch=manifest.epoch)
        write_manifest(self._files, manifest)
        report.epoch, report.rows = manifest.epoch, manifest.rows
        report.seconds = self._store.clock.monotonic() - began
        return report

    def _parent(self, found: Found) -> Manifest | None:
        for each in found.manifests:
            if each.timeline == self._timeline:
                return each
        return None

    def _check_named(self, manifest: Manifest) -> None:
        """Check that the files of earlier backups still exist. Raises: FileMissing."""
        for _, level in manifest.files():
            if level.backup != manifest.number:
                self._files.size(level.name)
                self._files.size(level.level_name)

    # --- what an unfinished backup has left ------------------------------------------------------
    def _resume(self, found: Found, report: BackupReport) -> None:
        """Take whole rows files of unfinished backups as levels if they continue the chain."""
        newest = max((each.number for each in found.manifests), default=0)
        names = [
            f"{number}/{leaf}"
            for number in found.unfinished
            if number > newest
            for leaf in self._files.list(str(number))
            if leaf.endswith(".level")
        ]
        candidates: list[Level] = []
        for name in names:
            try:
                candidates.append(self._level_in(name))
            except Damaged as error:
                _log.info("%s of an unfinished backup cannot be used: %s", name, error)
        for level in sorted(candidates, key=lambda each: (each.epoch, -each.since)):
            chain = self._chains.get((level.table_id, level.fragment), [])
            if level.since == (chain[0].epoch if chain else 0) < level.epoch:
                self._chains[level.table_id, level.fragment] = [level, *chain]
                # Its rows file was durable before. It may be only in the page cache itself, if its writer was killed
                # before a sync (F39).
                make_file_durable(self._files, level.level_name)
                report.resumed_files += 1

    def _level_in(self, name: str) -> Level:
        """Return the level of a file that is valid without a manifest. Raises: Damaged."""
        content = read_level(self._files, self._identity[0], name)
        if content.level.timeline != self._timeline or content.level.table_id not in self._store.tables.by_id:
            raise ForeignFile(f"the content of {name} does not belong to its name")
        self._verify(content)
        return content.level

    def _verify(self, content: LevelFile) -> None:
        """Read the rows file of a level back. Raises: Damaged."""
        with RowsReader(self._files, self._identity[0], content.level, content.ranges) as reader:
            reader.verify()

    def _make_folders(self, level: Level) -> None:
        """Make the folders of a rows file. Durable on return: their names."""
        for path in (level.folder.partition("/")[0], level.folder):
            if path not in self._folders:
                make_folder(self._files, path)
                self._folders.add(path)

    # --- one snapshot ----------------------------------------------------------------------------
    def _attempt(self, report: BackupReport) -> Manifest:
        """Write all fragments at the epoch of one snapshot."""
        while True:
            with_snapshot = self._store.snapshots.begin(Snapshot)
            try:
                return self._write_all(with_snapshot, report)
            except SnapshotTooOld:
                if report.attempts == ATTEMPTS:
                    raise
                report.attempts += 1
                _log.warning("backup %d: its snapshot is too old; continuing with a new one", report.number)
            finally:
                with_snapshot.close()

    def _write_all(self, snapshot: Snapshot, report: BackupReport) -> Manifest:
        store = self._store
        with store.latch:
            spaces = [
                (each.definition, each.extents * each.definition.extent_bytes) for each in store.space.tablespaces()
            ]
            next_table_id = store.tables.next_id
        tables = list(snapshot.by_name.values())
        self._done_rows = 0
        self._total_rows = sum(table.count() for table in tables)
        for table in tables:
            for fragment in table.by_number:
                self._write_fragment(snapshot, table, fragment, report)
        snapshot.check()
        self._files.sync_directory(str(report.number))
        return Manifest(
            report.number,
            snapshot.epoch,
            *self._identity,
            self._timeline,
            FULL,
            0,
            store.clock.wall_us(),
            self._server_id,
            snapshot.log_start,
            next_table_id,
            [table.definition for table in tables],
            spaces,
            {
                (table.table_id, each): self._chains[table.table_id, each]
                for table in tables
                for each in table.by_number
            },
        )

    def _write_fragment(self, snapshot: Snapshot, table: Table, number: int, report: BackupReport) -> None:
        key = (table.table_id, number)
        before, levels = self._chains.get(key, []), None
        if before and len(before) < LEVELS_MAX:
            try:
                levels = self._continue(snapshot, table, number, before)
            except Damaged as error:
                # A level that the levels below cannot complete would make this backup and all after it useless.
                report.notes.append(f"fragment {number} of {table.name} was written whole again: {error}")
        if levels is None:
            writer = self._begin_level(snapshot, table, number, 0)
            try:
                level = writer.close(self._fill(writer, snapshot, table, None))
            finally:
                writer.discard()
            levels = [self._end_level(LevelFile(level, columns_of(table.definition), writer.ranges))]
        if levels[0] not in before:
            report.written_rows += levels[0].entries
            report.written_bytes += levels[0].size_bytes
        self._chains[key] = levels

    def _continue(self, snapshot: Snapshot, table: Table, number: int, levels: list[Level]) -> list[Level] | None:
        """Write a level on top of these, and return all: the same ones if nothing changed, None if the fragment must be
        written whole. Raises: Damaged if these cannot complete a level; no file of the new one is then left.
        """
        columns = columns_of(table.definition)
        if read_level(self._files, self._identity[0], levels[0].level_name, levels[0]).columns != columns:
            return None
        chain = Chain(self._files, self._identity[0], table.definition, levels)
        arena, fragment = self._store.arena, table.by_number[number]
        unchanged = Unchanged(arena.word(fragment, F_PAGES), arena.word(fragment, F_SLOTS))
        writer = self._begin_level(snapshot, table, number, levels[0].epoch)
        try:
            rows = self._fill(writer, snapshot, table, unchanged)
            if not writer.rows and rows == chain.rows:
                return levels
            dead = self._dead(chain, unchanged)
            size = sum(each.entries for each in levels)
            gone = sum(each.size for each in dead.values())
            self.check_complete(writer, rows, size - gone)
            if gone <= DEAD_MIN or gone * DEAD_SHARE <= size + writer.rows:
                return [self._end_level(LevelFile(writer.close(rows), columns, writer.ranges, dead)), *levels]
        except Damaged:
            self._remove(writer)
            raise
        finally:
            writer.discard()
        self._remove(writer)
        return None

    def check_complete(self, writer: RowsWriter, rows: int, alive: int) -> None:
        """Check that a level and the rows alive below it are all rows of the fragment. Raises: BackupDamaged."""
        if writer.rows + alive != rows:
            raise BackupDamaged(f"{writer.level.name} has {writer.rows} rows and the levels below {alive}, not {rows}")

    def _remove(self, writer: RowsWriter) -> None:
        writer.discard()
        if self._files.exists(writer.level.name):
            self._files.unlink(writer.level.name)

    def _begin_level(self, snapshot: Snapshot, table: Table, number: int, since: int) -> RowsWriter:
        slots = self._store.arena.word(table.by_number[number], F_SLOTS)
        about = (table.table_id, table.name, number, snapshot.epoch, since, self._timeline, slots)
        level = Level(self._number, *about, table.definition.version)
        return RowsWriter(self._files, self._identity, level, table.format, self._make_folders)

    def _end_level(self, content: LevelFile) -> Level:
        """Make the level of a rows file that is closed. Durable on return: both files and their names."""
        self._files.sync_directory(content.level.folder)
        if self._is_verified:
            self._verify(content)
        write_level(self._files, self._identity, content)
        return content.level

    def _fill(self, writer: RowsWriter, snapshot: Snapshot, table: Table, unchanged: Unchanged | None) -> int:
        """Add the rows of a fragment that changed, with disk parts, and note the others in `unchanged`; None: add all.
        Return the number of rows of the fragment.
        """
        level, has_disk = writer.level, table.format.has_disk
        rows = 0
        for batch in self._batches(writer, snapshot, table, unchanged is None):
            rows += batch.count
            self._done_rows += batch.count
            if self._progress is not None:
                self._progress(self._done_rows, max(self._done_rows, self._total_rows), "rows")
            if isinstance(batch, ColumnBatch):
                writer.add_columns(batch.columns)
                continue
            if unchanged is not None:
                is_changed = batch.epochs() > level.since
                unchanged.note(batch.rowids()[~is_changed])
                offsets = batch.offsets[is_changed]
                batch = ScanBatch(batch.entries, offsets)
                if has_disk and batch.count:
                    batch = snapshot_reads.read_found(snapshot, table, batch.entries, offsets)
            writer.add(batch)
        return rows

    def _batches(
        self, writer: RowsWriter, snapshot: Snapshot, table: Table, is_whole: bool
    ) -> Iterator[ScanBatch | ColumnBatch]:
        """Yield the rows of a fragment; if it is written whole, as columns where kernels copy them."""
        number = writer.level.fragment
        if is_whole and writer.takes_columns:
            columns = ColumnScan(table, None, [*table.format.names, *COLUMNS_AFTER])
            if columns.is_possible:
                yield from columns.fragment_batches(snapshot, number)
                return
        # An incremental backup reads disk parts of changed rows only, so it first scans all rows without them.
        with_disk = table.format.has_disk and is_whole
        scan = snapshot_reads.fragment_scan(snapshot, table, table.by_number[number], with_disk)
        while not scan.is_end:
            yield scan.next(SCAN_BATCH_ROWS)

    def _dead(self, chain: Chain, unchanged: Unchanged) -> dict[int, Words]:
        """Return the positions of rows in the files of these levels that are gone or replaced, by epoch of the level.
        Raises: BackupDamaged unless each unchanged row is found once, and Damaged.
        """
        found: dict[int, Words] = {}
        for content in chain.contents:
            pieces = [NOTHING]
            for first, batch, dead in chain.groups(content, [PLACE]):
                is_alive = unchanged.take(batch.column(0).to_numpy() & ROWID_MASK, dead)
                pieces.append(np.flatnonzero(~is_alive) + first)
            found[content.level.epoch] = np.concatenate(pieces)
        left = unchanged.count()
        if left:
            name = chain.contents[0].level.name
            raise BackupDamaged(f"{left} rows without a change are not in {name} and those below", file=name)
        return {epoch: dead for epoch, dead in found.items() if dead.size}
