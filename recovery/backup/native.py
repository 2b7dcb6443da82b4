"""Tables that the restoring process builds itself: those with disk columns, whose pages, extents and UNDO records
belong to the store, and small tables that the restore still changes (docs/backup.md, 4).

`BackupLoader` places the rows of the levels. Then the sections of the split log are replayed strictly, fragment by
fragment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import RedoDamaged
from tidemark.engine.memory.arena_layout import ST_INVARIANT
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS
from tidemark.engine.store.disk_replay import DiskReplay
from tidemark.engine.store.replay import Replay
from tidemark.recovery.backup.load import BackupLoader
from tidemark.recovery.backup.restore_kernels import take_epoch
from tidemark.recovery.backup.restore_layout import R_NEXT, R_USED, RESTORE_STATE_WORDS
from tidemark.recovery.backup.split import read_section
from tidemark.recovery.system_restart.spool import Records

if TYPE_CHECKING:
    from collections.abc import Collection

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.manifest import Manifest
    from tidemark.recovery.backup.planner import Sections
    from tidemark.recovery.backup.split import Section


class NativeTables:
    """Restores some tables of a backup into a store that is not in use otherwise."""

    def __init__(
        self,
        store: Store,
        place: Files,
        target: Files,
        manifest: Manifest,
        relieve: Callable[[int], None],
        advance: Callable[[int], None],
    ) -> None:
        """relieve: called with the number of bytes of the next records, to make room in the UNDO log."""
        self._store = store
        self._place = place
        self._target = target
        self._manifest = manifest
        self._relieve = relieve
        self._advance = advance

    def make(self, tables: Collection[int], sections: Sections, identity: bytes) -> int:
        """Load rows, then replay the archived log; return the number of operations. identity: UUID of the new store.

        Raises: BackupDamaged and the like, RedoDamaged, PartsOutOfMemory, StorageFull.
        """
        place = (self._store, self._place, self._manifest, lambda: self._relieve(0), self._advance)
        BackupLoader(*place).load(tables)
        operations = 0
        for (table_id, _), some in sorted(sections.items()):
            if table_id in tables:
                for section in some:
                    operations += self._replay(table_id, section, identity)
        return operations

    def _replay(self, table_id: int, section: Section, identity: bytes) -> int:
        directory: Words = np.zeros(table_id + 1, dtype=np.int64)
        directory[table_id] = self._store.directory()[table_id]
        state: Words = np.zeros(RESTORE_STATE_WORDS, dtype=np.int64)
        has_disk = self._store.by_id[table_id].format.has_disk
        replay = (DiskReplay if has_disk else Replay)(self._store, directory)
        for words, stop in read_section(self._target, identity, section):
            records: Words = np.empty(words.size, dtype=np.int64)
            state[R_NEXT] = BLOCK_HEADER_WORDS
            while (epoch := int(take_epoch(words, BLOCK_HEADER_WORDS, stop, records, state))) >= 0:
                used = int(state[R_USED])
                if has_disk:
                    self._relieve(used * 8)
                Records(records, 0, used, epoch, file=section[2]).replay(replay)
            if epoch == ST_INVARIANT:
                raise RedoDamaged(f"{section[2]} has an invalid record; restore again", file=section[2])
        return replay.operations
