"""The archive of an open store: groups of closed epochs, copied out of the REDO log before it is truncated.

Order of writes: spool files that groups refer to, then their segment, synced with its name; only then a local
checkpoint is published, and after that the log is cut (`Transactions.followers`). So the log still has every group that
the archive lacks. If a crash leaves a half-written segment, the next opening writes it again.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import BackupDamaged, Damaged, Error, ForeignFile, RedoDamaged, StorageFull
from tidemark.engine.files.firm import copy_file
from tidemark.engine.log.geometry import open_files
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.spool_files import FOLDER as SPOOL_FOLDER
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.recovery.backup.segments import FOLDER, firm_up, read_segment, segment_names, write_segment

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.segments import Segment

_log = logging.getLogger("tidemark.archive")
SEGMENT_BYTES = 16 << 20


class Archive:
    """Archives the log of one store into one place. Any thread may call any method."""

    def __init__(
        self,
        store: Store,
        files: Files,
        geometry: Geometry,
        identity: tuple[bytes, int],
        timeline: int,
        place: Files,
    ) -> None:
        """files: of the store; place: one that no other archive writes to. No local checkpoint may be published during
        this call, and later ones only after `reach`. `Archiver` ensures this as a follower of the store.

        Raises: ForeignFile if another log is archived there: of another store, or of another member of its group.
        """
        self._store = store
        self._files = files
        self._identity = identity
        self._timeline = timeline
        self._place = place
        self._turn = threading.Lock()
        self.last_epoch = 0
        self.segments = 0
        self.bytes_written = 0
        self._log = LogReader(files, geometry, identity[0], open_files(files, geometry, False))
        try:
            for folder in (FOLDER, SPOOL_FOLDER, LOAD_FOLDER):
                if not place.exists(folder):
                    place.make_directory(folder)
            place.sync_directory("")
            self._at = self._start()
            self._hold(self._at[0])
        except BaseException:
            self._log.close()
            raise

    @property
    def place_has_failed(self) -> bool:
        """Whether the place has failed and is unusable until it is opened again."""
        return self._place.failure.first is not None

    def _start(self) -> tuple[int, int]:
        """Return the LSN and sequence to continue from: after the last whole segment, or the beginning of the log."""
        tail = (self._store.log.tail_lsn, self._store.log.tail_sequence)
        found: list[Segment] = []
        for name in segment_names(self._place):
            try:
                segment = read_segment(self._place, name)
            except Damaged as error:
                _log.warning("%s; its groups are archived again if the log has them", error)
                continue
            if segment.store != self._identity[0]:
                raise ForeignFile(f"{name} belongs to another store; archive into another place", file=name)
            if segment.timeline == self._timeline:
                found.append(segment)
        for segment in reversed(found):  # older ones need no sync: each was durable before the next was written
            try:
                last = firm_up(self._place, segment)
            except BackupDamaged as error:
                _log.warning("%s; its groups are archived again if the log has them", error)
                continue
            if segment.next < tail:
                break
            self._check_ours(segment, last, tail)
            self.last_epoch = segment.last_epoch
            return segment.next
        return tail

    def _check_ours(self, segment: Segment, last: GroupRead, tail: tuple[int, int]) -> None:
        """Check that this log continues a segment. Members of a node group are one store with a log each, and a member
        that copies everything begins its log again. Raises: ForeignFile.
        """
        (lsn, sequence), log = segment.next, self._store.log
        durable_lsn = log.durable_lsn
        if lsn < durable_lsn:
            is_ours = self._log.group_at(lsn, sequence) is not None
        else:
            is_ours = (lsn, sequence) == (durable_lsn, log.durable_sequence + 1)
        if is_ours and (last.lsn, last.sequence) >= tail:
            own = self._log.group_at(last.lsn, last.sequence)
            is_ours = own is not None and np.array_equal(own.words, last.words)
        if not is_ours:
            raise ForeignFile(
                f"{segment.name} is not of this log: another member of the node group archived there, or this one"
                " before it copied everything; archive into another place and make a full backup there",
                file=segment.name,
            )

    def _hold(self, lsn: int | None) -> None:
        with self._store.latch:
            self._store.log.hold_tail(self, "the archive", lsn)

    def reach(self, epoch: int) -> None:
        """Return after everything through a closed epoch is archived. Raises: StorageFull if the place is full or has
        failed: the local checkpoint that waits is abandoned, and the log is not cut.
        """
        try:
            self.copy()
        except StorageFull:
            raise
        except Error as error:
            if self._files.failure.first is not None or isinstance(error, RedoDamaged):
                raise
            raise StorageFull(f"the archive cannot be written, and the log waits for it: {error.message}") from error

    def copy(self) -> dict[str, Any]:
        """Archive all closed epochs. Durable on return: these epochs in the archive. Returns `status`."""
        with self._turn:
            with self._store.latch:
                closed = self._store.epochs.current - 1
            self._store.log.flush()
            durable_lsn = self._store.log.durable_lsn
            groups: list[GroupRead] = []
            size_bytes = 0
            lsn, sequence = self._at
            while lsn < durable_lsn:
                group = self._log.group_at(lsn, sequence)
                if group is None:
                    raise RedoDamaged(
                        f"REDO group {sequence} at LSN {lsn} was durable and cannot be read back to archive it; make a"
                        " backup now",
                        lsn=lsn,
                    )
                if group.epoch > closed:
                    break
                groups.append(group)
                size_bytes += group.words.nbytes
                lsn, sequence = group.end_lsn, group.sequence + 1
                if size_bytes >= SEGMENT_BYTES:
                    self._write(groups)
                    groups, size_bytes = [], 0
            if groups:
                self._write(groups)
            return self.status()

    def _write(self, groups: list[GroupRead]) -> None:
        place = self._place
        for group in groups:
            what = referred(group)
            if what is not None:
                for file in what.files:
                    if place.exists(file.name):
                        place.unlink(file.name)
                    # `verify` below finds a copy that is too short.
                    self.bytes_written += copy_file(self._files, file.name, place, file.name, file.size_bytes)
                for folder in sorted({name.partition("/")[0] for name in what.names}):
                    place.sync_directory(folder)
                SpoolReader(place, self._identity[0], what).verify()
        segment = write_segment(self._place, self._identity, self._timeline, groups)
        self._at = segment.next
        self._hold(self._at[0])
        self.last_epoch = segment.last_epoch
        self.segments += 1
        self.bytes_written += segment.size_bytes

    def status(self) -> dict[str, Any]:
        """Return the position of the archive, and its writes since this object was created."""
        return {
            "last_epoch": self.last_epoch,
            "lsn": self._at[0],
            "segments": self.segments,
            "bytes_written": self.bytes_written,
        }

    def close(self) -> None:
        """Stop archiving."""
        with self._turn:
            self._hold(None)
            self._log.close()
            self._place.close_all()
