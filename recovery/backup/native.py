"""Tables that the restoring process builds itself: those with disk columns, whose pages, extents and UNDO records
belong to the store, and small tables that the restore still changes (docs/backup.md, 4).

Rows are loaded level by level. A row goes to its ROWID with its epoch and author; disk parts are replayed as REDO. Then
the sections of the split log are replayed strictly, fragment by fragment.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import BackupDamaged, RedoDamaged
from tidemark.engine.log.redo_layout import pack_identity
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.engine.store.disk_replay import DiskReplay
from tidemark.engine.store.fragment_load import EntryDoesNotFit, FragmentLoad, end_load
from tidemark.engine.store.replay import Replay
from tidemark.recovery.backup.chain import Chain
from tidemark.recovery.backup.entries_kernels import records_of_entries
from tidemark.recovery.backup.entries_layout import B_NEXT, B_USED, BACKUP_STATE_WORDS
from tidemark.recovery.backup.restore_kernels import take_epoch
from tidemark.recovery.backup.restore_layout import R_NEXT, R_USED, RESTORE_STATE_WORDS
from tidemark.recovery.backup.split import read_section
from tidemark.recovery.system_restart.spool import Records

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.backup.manifest import Manifest
    from tidemark.recovery.backup.planner import Sections
    from tidemark.recovery.backup.rows_file import Level
    from tidemark.recovery.backup.split import Section

RECORD_WORDS = 1 << 16


@dataclass(frozen=True)
class NativeTables:
    """Restores some tables of a backup into a store that is not in use otherwise."""

    _store: Store
    _place: Files  # of the backups
    _target: Files  # of the new store
    _manifest: Manifest
    _relieve: Callable[[int], None]  # called with the bytes of the next records, to make room in the UNDO log
    _advance: Callable[[int], None]  # called with the number of rows done

    def make(self, tables: Collection[int], sections: Sections, identity: bytes) -> int:
        """Load rows, then replay the archived log; return the number of operations. identity: UUID of the new store.

        Raises: BackupDamaged and the like, RedoDamaged, PartsOutOfMemory, StorageFull.
        """
        self._load_levels(tables)
        operations = 0
        for (table_id, _), some in sorted(sections.items()):
            if table_id in tables:
                for section in some:
                    operations += self._replay(table_id, section, identity)
        return operations

    def _replay(self, table_id: int, section: Section, identity: bytes) -> int:
        directory: Words = np.zeros(table_id + 1, dtype=np.int64)
        directory[table_id] = self._store.tables.directory()[table_id]
        state: Words = np.zeros(RESTORE_STATE_WORDS, dtype=np.int64)
        has_disk = self._store.tables.by_id[table_id].format.has_disk
        replay = (DiskReplay if has_disk else Replay)(self._store, directory)
        for words, stop in read_section(self._target, identity, section):
            records: Words = np.empty(words.size, dtype=np.int64)
            state[R_NEXT] = BLOCK_HEADER_WORDS
            while (epoch := int(take_epoch(words, BLOCK_HEADER_WORDS, stop, records, state))) >= 0:
                used = int(state[R_USED])
                if has_disk:
                    self._relieve(used * 8)
                Records(records, 0, used, epoch, file=section[2]).replay(replay)
            if epoch == a.ST_INVARIANT:
                raise RedoDamaged(f"{section[2]} has an invalid record; restore again", file=section[2])
        return replay.operations

    # --- levels ----------------------------------------------------------------------------------
    def _load_levels(self, tables: Collection[int]) -> None:
        manifest = self._manifest
        for (table_id, number), levels in sorted(manifest.levels.items()):
            table = self._store.tables.by_id.get(table_id)
            if table_id not in tables or table is None or number not in table.by_number:
                continue  # done elsewhere, or dropped later
            fragment = table.by_number[number]
            self._load(table, fragment, levels)
            # Records replayed from here on are later than the backup; the epochs of empty slots are lost (D1).
            self._store.arena.set_word(fragment, a.F_REPLAY_EPOCH, manifest.epoch)
            end_load(self._store.mem, fragment, manifest.epoch)

    def _load(self, table: Table, fragment: int, levels: list[Level]) -> None:
        definition = self._manifest.definition(table.table_id)
        chain = Chain(self._place, self._manifest.store, definition, levels)
        load = FragmentLoad(self._store.mem, fragment)
        has_var = int(compute_layout(definition).has_var)
        self._store.arena.set_word(fragment, a.F_LCP_HAS_VAR, has_var)
        if not table.format.has_disk:
            table.reserve_index(fragment, chain.rows)
        for content in chain.contents:
            level = content.level
            for batch, words in chain.entries(content):
                if table.format.has_disk:
                    self._place_disk(table, load, level, has_var, batch.entries, words)
                else:
                    with self._refused(level):
                        load.take(batch.entries, 0, words)
                self._advance(batch.count)
        if not table.format.has_disk:
            with self._refused(levels[0]):
                load.finish()
        if self._store.arena.word(fragment, a.F_ROWS) != chain.rows:
            raise BackupDamaged(f"{table.name} has other rows than its backup says; restore another backup")

    @contextmanager
    def _refused(self, level: Level) -> Iterator[None]:
        try:
            yield
        except EntryDoesNotFit as error:
            raise self._impossible(level, error.at, error.status) from error

    @staticmethod
    def _impossible(level: Level, at: int, status: int) -> BackupDamaged:
        return BackupDamaged(
            f"{level.name} has an impossible row at word {at} of a block (status {status}); restore another backup",
            file=level.name,
        )

    # --- rows ------------------------------------------------------------------------------------
    def _place_disk(
        self, table: Table, load: FragmentLoad, level: Level, has_var: int, entries: Words, words: int
    ) -> None:
        """Replay rows as INSERT records with an epoch after the backup's; then set the epoch of each such row to that
        of its entry.
        """
        layout = table.format.layout
        identity = pack_identity(level.table_id, level.fragment, level.table_version)
        shape = np.array([layout.fixed_words, has_var, identity, level.table_id, level.fragment], dtype=np.int64)
        state = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
        records: Words = np.empty(RECORD_WORDS, dtype=np.int64)
        status = a.ST_SPACE
        while status != a.OK:
            state[B_USED] = 0
            status = int(records_of_entries(entries, 0, words, shape, records, state))
            if status == a.ST_INVARIANT:
                raise self._impossible(level, int(state[B_NEXT]), status)
            if status <= a.ST_SPACE and not int(state[B_USED]):
                records = np.empty(a.ST_SPACE - status, dtype=np.int64)
                continue
            self._insert(table, records, int(state[B_USED]), level)
            self._relieve(0)
        shape[2] = self._manifest.epoch
        with self._refused(level):
            load.stamp(entries, 0, words, shape)

    def _insert(self, table: Table, records: Words, used: int, level: Level) -> None:
        directory = np.zeros(table.table_id + 1, dtype=np.int64)
        directory[table.table_id] = table.handle
        some = Records(records, 0, used, self._manifest.epoch + 1, file=level.name)
        some.replay(DiskReplay(self._store, directory))
