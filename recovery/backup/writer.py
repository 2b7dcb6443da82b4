"""Writes a backup while transactions continue.

Order of writes: each fragment's rows file, synced, its name synced, read back; when all are at one epoch, the manifest.
A crash before that leaves no backup, only files that the next backup may use.

If the snapshot becomes too old, the backup continues with a new one: fragments that are already written get an
incremental level up to its epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS
from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.base.errors import Damaged, ForeignFile, SnapshotTooOld
from tidemark.engine.memory.arena_layout import F_PAGES, F_SLOTS, OK, ST_SPACE
from tidemark.engine.schema.row_shape import RowLayout, compute_layout
from tidemark.recovery.backup.entries_kernels import append_entries
from tidemark.recovery.backup.entries_layout import B_NEXT, B_ROWS
from tidemark.recovery.backup.manifest import (
    FULL,
    INCREMENTAL,
    Found,
    Manifest,
    find_backups,
    folders,
    write_manifest,
)
from tidemark.recovery.backup.rows_file import BLOCK_WORDS, ChainProof, Level, Place, RowsReader, RowsWriter
from tidemark.recovery.backup.storage import make_file_durable

if TYPE_CHECKING:
    from tidemark.engine.access.scan_batch import ScanBatch
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

_log = logging.getLogger("tidemark.backup")
Progress = Callable[[int, int, str], None]
Fragment = tuple[int, int]
ATTEMPTS = 8
LEVELS_MAX = 16  # a fragment with this many is written whole again: a restore reads every level
NEVER = (1 << 62) - 1  # no row changes after this epoch


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

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return dict(self.__dict__)


def layout_at(definition: TableDefinition, version: int) -> RowLayout:
    """Return the layout of rows written under this version of a table: before its first var column they have no var
    part.
    """
    layout = compute_layout(definition)
    return replace(layout, has_var=layout.has_var and version >= layout.var_since)


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
        self._block: Words = np.empty(BLOCK_WORDS, dtype=np.int64)
        self._chains: dict[Fragment, list[Level]] = {}
        self._done_rows = self._total_rows = 0

    def run(self, incremental: bool = False) -> BackupReport:
        """Write one backup; incremental: on top of the newest backup, if there is one of this store and timeline.

        Where the level below cannot complete an incremental one, or is damaged, the fragment is written whole (with
        `is_verified`).

        Durable on return: the backup. Raises: SnapshotTooOld (writers changed more than `snapshot_memory` holds, eight
        times), StorageFull, ForeignFile, FileMissing if a file of an earlier backup is gone, BackupDamaged if a written
        file cannot be read back, StoreFailed.
        """
        began = self._store.clock.monotonic()
        found = find_backups(self._files)
        for each in found.manifests:
            if each.store != self._identity[0]:
                raise ForeignFile(f"backup {each.number} here belongs to another store; choose another place")
        number = max([0, *folders(self._files)]) + 1
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
            if level.place.backup != manifest.number:
                self._files.size(level.place.name)

    # --- what an unfinished backup has left ------------------------------------------------------
    def _resume(self, found: Found, report: BackupReport) -> None:
        """Take whole rows files of unfinished backups as levels if they continue the chain."""
        newest = max((each.number for each in found.manifests), default=0)
        names = [
            f"{number}/{leaf}"
            for number in found.unfinished
            if number > newest
            for leaf in self._files.list(str(number))
            if leaf.endswith(".rows")
        ]
        candidates: list[Level] = []
        for name in names:
            try:
                candidates.append(self._level_in(name))
            except Damaged as error:
                _log.info("%s of an unfinished backup cannot be used: %s", name, error)
        for level in sorted(candidates, key=lambda each: (each.place.epoch, -each.place.since)):
            place = (level.place.table_id, level.place.fragment)
            chain = self._chains.get(place, [])
            known = chain[0].place.epoch if chain else 0
            if level.place.since == known and level.place.epoch > known and self._is_completed(level, chain):
                self._chains[place] = [level, *chain]
                # If its writer was killed before the sync, the file may be only in the page cache (F39).
                make_file_durable(self._files, level.place.name)
                report.resumed_files += 1

    def _is_completed(self, level: Level, chain: list[Level]) -> bool:
        """Whether the newest of these levels has the rows that a level of an unfinished backup needs below it."""
        if chain and self._is_verified:
            try:
                self._verify(self._store.by_id[level.place.table_id].definition, [level, *chain])
            except Damaged as error:
                _log.info("%s of an unfinished backup cannot be used: %s", level.place.name, error)
                return False
        return True

    def _level_in(self, name: str) -> Level:
        """Return the level of a file that is valid without a manifest. Raises: Damaged."""
        reader = RowsReader(self._files, self._identity[0], name)
        place = reader.place()
        if place.name != name or place.timeline != self._timeline or place.table_id not in self._store.by_id:
            raise ForeignFile(f"the content of {name} does not belong to its name")
        layout = layout_at(self._store.by_id[place.table_id].definition, place.table_version)
        return Level(place, reader.verify(place, layout))

    # --- one snapshot ----------------------------------------------------------------------------
    def _attempt(self, report: BackupReport) -> Manifest:
        """Write all fragments at the epoch of one snapshot."""
        while True:
            with_snapshot = self._store.snapshots.begin(self._store, Snapshot)
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
            next_table_id = store.next_table_id
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
        chain = self._chains.get((table.table_id, number), [])
        if len(chain) >= LEVELS_MAX:
            chain = []
        arena, fragment = self._store.arena, table.by_number[number]
        slots = arena.word(fragment, F_SLOTS)
        since = chain[0].place.epoch if chain else 0
        version = table.definition.version
        place = Place(report.number, table.table_id, number, snapshot.epoch, since, self._timeline, slots, version)
        live: Words = np.zeros(-(-arena.word(fragment, F_PAGES) * slots // 64) if since else 0, dtype=np.int64)
        writer = RowsWriter(self._files, self._identity, place, self._block)
        try:
            for batch in self._batches(snapshot, table, place, writer, live):
                self._append(table, batch, writer, place.rows_since, self._store.no_words)
            rows = int(writer.state[B_ROWS])
            if chain and not writer.has_rows and rows == chain[0].sizes.rows:
                return
            if since:
                writer.add_live_map(live)
            sizes = writer.close()
        except BaseException:
            writer.discard()
            raise
        self._files.sync_directory(str(report.number))
        levels = [Level(place, sizes), *chain]
        if self._is_verified:
            try:
                self._verify(table.definition, levels)
            except Damaged as error:
                if not chain:
                    raise
                # A level that the levels below cannot complete would make this backup and all after it useless.
                self._files.unlink(place.name)
                report.notes.append(f"fragment {number} of {table.name} was written whole again: {error}")
                self._chains[table.table_id, number] = []
                self._write_fragment(snapshot, table, number, report)
                return
        self._chains[table.table_id, number] = levels
        report.written_rows += sizes.entries
        report.written_bytes += sizes.size_bytes

    def _verify(self, definition: TableDefinition, levels: list[Level]) -> None:
        """Read the newest level back, and prove that the level below it has the rows it needs. Raises: Damaged."""
        proof = ChainProof(self._files, self._identity[0])
        for level in levels[:2]:
            layout = layout_at(definition, level.place.table_version)
            proof.read(level, layout, is_verified=level is levels[0])

    def _batches(
        self, snapshot: Snapshot, table: Table, place: Place, writer: RowsWriter, live: Words
    ) -> Iterator[ScanBatch]:
        """Yield the rows of a fragment that may go into its file, with disk parts. Count all rows and note them in
        `live`.
        """
        # An incremental backup reads disk parts of changed rows only, so it first scans all rows without them.
        is_whole = table.format.has_disk and not place.since
        scan = snapshot_reads.fragment_scan(snapshot, table, table.by_number[place.fragment], is_whole)
        while not scan.is_end:
            batch = scan.next(SCAN_BATCH_ROWS)
            self._count(table, batch, writer, live, place.slots)
            if is_whole or not table.format.has_disk:
                yield batch
                continue
            changed = batch.offsets[batch.epochs() > place.since]
            if changed.size:
                yield snapshot_reads.read_found(snapshot, table, batch.entries, changed)

    def _count(self, table: Table, batch: ScanBatch, writer: RowsWriter, live: Words, slots: int) -> None:
        """Note all rows of a batch in the live map, and count them."""
        rows = int(writer.state[B_ROWS])
        if live.size:
            writer.state[B_NEXT] = 0
            shape = (table.format.fixed_words, 0, 0, NEVER, batch.count)
            append_entries(batch.entries, batch.offsets, *shape, live, slots, self._store.no_words, writer.state)
        writer.state[B_ROWS] = rows + batch.count
        self._done_rows += batch.count
        if self._progress is not None:
            self._progress(self._done_rows, max(self._done_rows, self._total_rows), "rows")

    def _append(self, table: Table, batch: ScanBatch, writer: RowsWriter, since: int, live: Words) -> None:
        layout = table.format.layout
        shape = (layout.fixed_words, int(layout.has_var), int(table.format.has_disk), since, batch.count)
        rows = int(writer.state[B_ROWS])
        writer.state[B_NEXT] = 0
        while True:
            status = append_entries(batch.entries, batch.offsets, *shape, live, 0, writer.block, writer.state)
            if status == OK:
                break
            writer.make_room(ST_SPACE - status)
        writer.state[B_ROWS] = rows
