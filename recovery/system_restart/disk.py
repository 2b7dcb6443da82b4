"""Disk columns at restart: repairs pages, reverts them to the local checkpoint by UNDO, and replays REDO through cache
and UNDO log (D7, D8).

Order of writes: torn pages, from their copies in the double-write file; the end of the UNDO log; undone pages, each
through the double-write file; the UNDO_RESTART record, after all of them are durable; then the changes of REDO, as in
any commit.

After a crash before that record, the next restart does the same again; the LSN of each page shows what was undone.
After a crash past the record, it undoes the changes of REDO, and nothing twice. It then does not write a second
UNDO_RESTART record: it declares the groups after the first one void in the sysfile, and continues there.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import SysfileDamaged, UndoDamaged
from tidemark.engine.disk.disk_layout import UNDO_KIND_MASK, UNDO_LCP, UNDO_RESTART
from tidemark.engine.disk.double_write import rewrite_last_batch
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.engine.store.disk_replay import DiskReplay
from tidemark.recovery.local_checkpoint.extents_file import read_extents, restore_extents
from tidemark.recovery.system_restart.load import EXTENTS, DataFileDamaged
from tidemark.recovery.system_restart.sysfile import open_copies, write_both

if TYPE_CHECKING:
    from tidemark.engine.disk.undo_reader import UndoGroup
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.system_restart.spool import Spooled
    from tidemark.recovery.system_restart.sysfile import Sysfile


class DiskRestart:
    """Restores the disk columns of one store; each attempt of a restart creates a new one."""

    def __init__(
        self,
        files: Files,
        store: Store,
        sysfile: Sysfile,
        can_write: bool,
    ) -> None:
        self._files = files
        self.sysfile = sysfile
        self._store = store
        self._can_write = can_write
        self._reader: UndoReader | None = None
        self.columns = store.disk
        self.columns.restorable_epoch = lambda: sysfile.filtered_epoch
        self.undone = 0
        self._has_marks = False  # whether a local checkpoint refers to the UNDO log
        self._has_restart = False  # whether the UNDO log has the UNDO_RESTART record of this checkpoint

    def open(self, controls: list[Control]) -> None:
        """Read the UNDO log to its end and open the tablespaces of the newest checkpoint.

        If it may write, it makes the end of the log durable and creates a missing double-write file; else it writes
        nothing. Raises: UndoDamaged, FileMissing, ForeignFile, PageDamaged; SysfileDamaged if a checkpoint has an UNDO
        log and the sysfile has none.
        """
        geometry = self.sysfile.undo_geometry
        if geometry is None:
            if any(control.undo is not None or control.tablespaces for control in controls):
                raise SysfileDamaged(
                    "the sysfile says that there is no UNDO log, a local checkpoint that there are tablespaces;"
                    " restore the store from a backup"
                )
            return
        marks = [control.undo for control in controls]
        oldest = marks[-1] if marks and marks[-1] is not None else None
        newest = marks[0] if marks else None
        self._has_marks = newest is not None
        reader = UndoReader(self._files, geometry, self.sysfile.store, self.sysfile.undo_void, writable=True)
        self._reader = reader
        reader.find_end(
            1 if oldest is None else oldest.sequence,
            0 if oldest is None else oldest.position,
            0 if newest is None else newest.sequence,
        )
        if self._can_write:
            reader.seal_tail()
            self.columns.make_double_write()
        self.columns.start(geometry, reader.next_position(0 if newest is None else newest.sequence))
        space = self.columns.space
        for control in controls[:1]:
            space.next_tablespace_id = control.next_tablespace_id
            space.next_file_id = control.next_file_id
            for definition in control.tablespaces:
                space.restore(definition)

    def load_extents(self, control: Control | None) -> None:
        """Restore the owners and free words that extents had at the checkpoint's epoch. Raises: DataFileDamaged."""
        if control is not None and control.undo is not None:
            headers = read_extents(self._files, self.sysfile.store, control.lcp_id, control.extents)
            restore_extents(self._store, headers, control.lcp_id)

    def declare_undo(self, geometry: Geometry) -> None:
        """Record in the sysfile that there is an UNDO log, if the first tablespace is created before the log opens."""
        self._write_sysfile(replace(self.sysfile, undo_geometry=geometry))

    def _write_sysfile(self, content: Sysfile) -> None:
        with closing(open_copies(self._files)) as copies:
            self.sysfile = write_both(copies, content)

    def close(self) -> None:
        """Close the files of this attempt; its memory is lost as in a crash."""
        self.columns.close()
        self.columns.space.close()
        self.release()

    def release(self) -> None:
        """Close the handles of the log, which has been read."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    # --- UNDO ------------------------------------------------------------------------------------
    def undo(self, control: Control | None, tables: Words) -> None:
        """Revert pages to the end of the checkpoint's epoch. tables: descriptors by number.

        Raises: UndoDamaged; PageDamaged; DataFileDamaged if the pages cannot be reverted to this checkpoint.
        """
        if self._reader is None:
            return
        if self._can_write:
            self.columns.pages_repaired = rewrite_last_batch(self._files, self.columns.space, self.sysfile.store)
        if control is None or control.undo is None:
            # No extent was in use then, so neither the content of the pages nor their UNDO records matter.
            if self._can_write and not self._has_marks:
                self._rewind(None)
                self._has_restart = True
            return
        replay = DiskReplay(self._store, tables)
        earlier: UndoGroup | None = None
        for group, newest_first in self._reader.backward():
            offsets = np.ascontiguousarray(newest_first[::-1])
            # A group with all records filtered exists only for its LSNs.
            if earlier is None and offsets.size and _is_restart_of(control.undo.lsn, group.words, int(offsets[0])):
                earlier = replace(group, words=group.words[:0])
            at = offsets.size - 1
            while (at := replay.undo(group.words, offsets, at, control.undo.lsn)) >= 0:
                if self._is_mark_of(control, group.words, int(offsets[at])):
                    self.undone = replay.undone
                    self._finish_undo(control, replay.undone + replay.skipped > 0, earlier)
                    return
                at -= 1
        raise UndoDamaged(
            f"the UNDO log does not reach back to local checkpoint {control.lcp_id}; restore the store from a backup",
            lcp_id=control.lcp_id,
        )

    def _is_mark_of(self, control: Control, words: Words, at: int) -> bool:
        """Whether a mark is that of the checkpoint. Raises: DataFileDamaged if an earlier restart went back past it."""
        kind, lsn = int(words[at]) & UNDO_KIND_MASK, int(words[at + 1])
        assert control.undo is not None
        if kind == UNDO_RESTART and int(words[at + 3]) < control.undo.lsn < lsn:
            text = (
                f"an earlier restart went back past local checkpoint {control.lcp_id}, to local checkpoint"
                f" {int(words[at + 2])}"
            )
            raise DataFileDamaged((control.lcp_id, *EXTENTS), UndoDamaged(text))
        return kind == UNDO_LCP and int(words[at + 2]) == control.lcp_id

    def _finish_undo(self, control: Control, has_records: bool, earlier: UndoGroup | None) -> None:
        """earlier: the group with the UNDO_RESTART record that an earlier restart wrote for this checkpoint."""
        assert control.undo is not None
        if not self._can_write:
            return
        self._has_restart = has_records or earlier is not None
        if not has_records:
            return
        self.columns.flush()
        if earlier is None:
            self.columns.undo.mark_restart(
                control.lcp_id, control.undo.lsn, control.undo.sequence, control.undo.position
            )
        else:
            self._rewind(earlier)

    def _rewind(self, group: UndoGroup | None) -> None:
        """Continue the log after this group: all later groups are undone and no longer needed. Otherwise restarts that
        are interrupted in REDO would fill the log. None: no group is needed.
        """
        assert self._reader is not None
        void = self._reader.void_after(group)
        if void == self.sysfile.undo_void:
            return
        self._write_sysfile(replace(self.sysfile, undo_void=void))
        self.columns.undo.rewind(group)

    # --- REDO ------------------------------------------------------------------------------------
    def redo(self, groups: list[GroupRead], spooled: Spooled, tables: Words) -> int:
        """Replay the groups' records of tables with disk columns; return how many. Raises: RedoDamaged, PageDamaged."""
        replay = DiskReplay(self._store, tables)
        if replay.has_tables:
            for group in groups:
                for some in spooled.records(group):
                    some.replay(replay)
        if self._has_restart:
            self.columns.undo.count_replayed_once()
        return replay.operations


def _is_restart_of(lcp_lsn: int, words: Words, at: int) -> bool:
    """Whether a record is the UNDO_RESTART of a restart that went back to this local checkpoint."""
    return int(words[at]) & UNDO_KIND_MASK == UNDO_RESTART and int(words[at + 3]) == lcp_lsn
