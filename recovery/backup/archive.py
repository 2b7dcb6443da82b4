"""The archive of an open store: groups of closed epochs, copied out of the REDO log before it is truncated.

`Archiver` keeps an `Archive` attached to its place, and attaches another one after the place has failed. A place that
fails does not stop commits: the failure is counted, logged, and the next step tries again. The REDO log keeps what the
place lacks. If the failure lasts, the log becomes full, and commits wait.

Order of writes: spool files that groups refer to, then their segment, synced with its name; only then a local
checkpoint is published, and after that the log is cut (`Transactions.followers`). So the log still has every group that
the archive lacks. If a crash leaves a half-written segment, the next opening writes it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import (
    BackupDamaged,
    Damaged,
    Error,
    ForeignFile,
    RedoDamaged,
    StorageFull,
    StoreClosed,
)
from tidemark.engine.base.owner import call_owner
from tidemark.engine.files.durable_files import copy_file
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.spool_files import FOLDER as SPOOL_FOLDER
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.recovery.backup.segments import FOLDER, make_durable, read_segment, segment_names, write_segment

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.segments import Segment

_log = logging.getLogger("tidemark.archive")
SEGMENT_BYTES = 16 << 20


class Archive:
    """Archives the log of one store into one open place. `Archiver` serializes the calls, except for `status`."""

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
        this call, and later ones only after `copy`. `Archiver` ensures this as a follower of the store.

        Raises: ForeignFile if another log is archived there: of another store, or of another member of its group.
        """
        self._store = store
        self._files = files
        self._identity = identity
        self._timeline = timeline
        self._place = place
        self.last_epoch = 0
        self.segments = 0
        self.bytes_written = 0
        self._log = LogReader(files, geometry, identity[0])
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
                _warn_of_damage(error)
                continue
            if segment.store != self._identity[0]:
                raise ForeignFile(f"{name} belongs to another store; archive into another place", file=name)
            if segment.timeline == self._timeline:
                found.append(segment)
        for segment in reversed(found):  # older ones need no sync: each was durable before the next was written
            try:
                last = make_durable(self._place, segment)
            except BackupDamaged as error:
                _warn_of_damage(error)
                continue
            if segment.next < tail:
                break
            self._check_ours(segment, last, tail)
            self.last_epoch = segment.last_epoch
            return segment.next
        return tail

    def _check_ours(self, segment: Segment, last: GroupRead, tail: tuple[int, int]) -> None:
        """Check that this log continues a segment. Members of a node group are one store, but each has its own log, and
        a member that copies everything starts a new log. Raises: ForeignFile.
        """
        at, log = segment.next, self._store.log

        def continues() -> bool:
            return self._log.group_at(*at) is not None or at == (log.durable_lsn, log.durable_sequence + 1)

        is_ours = continues() or continues()  # the group there may have been written between both looks
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

    def copy(self) -> None:
        """Archive all closed epochs. Durable on return: these epochs in the archive. Raises: RedoDamaged, and the
        errors of the place.
        """
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
        self._hold(None)
        self._log.close()
        self._place.close_all()


def _warn_of_damage(error: Damaged) -> None:
    what = error.message.partition(";")[0]
    _log.warning("%s; its groups are archived again if the log has them", what)


class Archiver:
    """Archives the log of one store into one place. Any thread may call any method."""

    def __init__(
        self,
        store: Store,
        files: Files,
        geometry: Geometry,
        identity: tuple[bytes, int],
        timeline: int,
        name: Any,
        open_place: Callable[[], Files],
    ) -> None:
        """files: of the store. name: the name of the place, for messages. From here on a local checkpoint is published
        only after the log through its epoch is archived. Call `attach` to open the place.
        """
        self._store = store
        self._files = files
        self._about = (geometry, identity, timeline)
        self.name = name
        self._open_place = open_place
        self._turn = threading.Lock()
        self._is_closed = False
        self.archive: Archive | None = None
        self._last: dict[str, Any] = {"last_epoch": 0, "lsn": 0, "segments": 0, "bytes_written": 0}
        self._earlier = {"segments": 0, "bytes_written": 0}  # by archives that were closed
        self.failures = 0
        self.last_error: str | None = None  # None while there is no error
        store.room.followers["archive"] = call_owner(self._reach)

    def _reach(self, epoch: int) -> None:
        """Archive the log through the epoch of a local checkpoint that is to be published. Raises: StorageFull if the
        place is full or has failed: the checkpoint is abandoned, and the log is not cut; RedoDamaged, StoreFailed.
        """
        with self._turn:
            try:
                self._attached().copy()
            except Error as error:
                if self._is_own(error):
                    raise
                self.failed(error)
                if isinstance(error, StorageFull):
                    raise
                raise StorageFull(
                    f"the archive in {self.name} cannot be written, and the log waits for it ({error.message});"
                    " make it writable again"
                ) from error

    def _is_own(self, error: Error) -> bool:
        """Whether an error is of the store or its log, and not of the place."""
        return self._is_closed or self._files.failure.first is not None or isinstance(error, RedoDamaged)

    def attach(self) -> None:
        """Open the place and find where to continue. Raises: ForeignFile, FileMissing, Rejected, IoFailed, …"""
        with self._turn:
            self._attached()

    def _attached(self) -> Archive:
        if self._is_closed:
            raise StoreClosed("the store is closed, and its archive with it; open it again")
        if self.archive is None:
            place = self._open_place()
            try:
                self.archive = Archive(self._store, self._files, *self._about, place)
            except BaseException:
                place.close_all()
                raise
        return self.archive

    def copy(self) -> dict[str, Any]:
        """Archive all closed epochs. Durable on return: these epochs in the archive. Returns `status`. Raises: the
        errors of the place or the log. If the place has failed, the next call opens it again.
        """
        with self._turn:
            try:
                archive = self._attached()
                archive.copy()
            except Error as error:
                self.failed(error)
                raise
            if self.last_error is not None:
                _log.info("the log is archived to %s again, through epoch %d", self.name, archive.last_epoch)
                self.last_error = None
        return self.status()

    def step(self) -> bool:
        """Do `copy`, for timers; return whether it succeeded. Raises: StoreFailed if the store itself failed;
        RedoDamaged if the log cannot be read back.
        """
        try:
            self.copy()
        except Error as error:
            if self._is_own(error):
                raise
            return False
        return True

    def failed(self, error: Error) -> None:
        self.failures += 1
        if self.last_error != error.message:  # logged once, not at every step
            _log.warning("the log is not archived to %s: %s; it is kept until it can be", self.name, error.message)
        self.last_error = error.message
        archive = self.archive
        if archive is not None and archive.place_has_failed:
            self.detach(archive)

    def detach(self, archive: Archive) -> None:
        """Close the archive; the next step, or local checkpoint, opens the place again."""
        self._last = archive.status()
        for name in self._earlier:
            self._earlier[name] += self._last[name]
        self.archive = None
        archive.close()

    def status(self) -> dict[str, Any]:
        """Return the position of the archive, its writes since the store was opened, and the state of the place."""
        archive = self.archive
        found = self._last if archive is None else archive.status()
        written = {name: value + (0 if archive is None else found[name]) for name, value in self._earlier.items()}
        return {
            **found,
            **written,
            "place": str(self.name),
            "is_attached": archive is not None,
            "lag_bytes": max(0, self._store.log.durable_lsn - found["lsn"]),
            "failures": self.failures,
            "last_error": self.last_error,
        }

    def close(self) -> None:
        """Stop archiving: the log is then cut without waiting, and no later call opens the place again."""
        with self._turn:
            self._is_closed = True
            self._store.room.followers.pop("archive", None)
            if self.archive is not None:
                self.detach(self.archive)
