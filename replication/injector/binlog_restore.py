"""Restore from a store's binlog what comes after backup and archive (docs/backup.md, section 6).

This is the reader that `recovery/backup/later_changes.py` requires. Planning reads the binlog after the backup: first
where epochs end, then which images the rows of the wanted epochs have. So changes that cannot be applied are found
before anything is written. Another process may have the store open: its files are read while it writes them, and files
being read are pinned against purging.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tidemark.engine.base.closable import Closable
from tidemark.engine.base.errors import (
    BinlogDamaged,
    EpochGap,
    Error,
    FileMissing,
    ForeignFile,
    LimitExceeded,
    PositionLost,
    Rejected,
    Unsupported,
)
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.types.base import counted
from tidemark.recovery.backup.later_changes import LaterPlan, LaterReport
from tidemark.recovery.system_restart.sysfile import NAMES, read_copy
from tidemark.replication.applier.replay import EpochReplay
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, Loss, Statement, transactions
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog.concurrent_reader import ConcurrentReader
from tidemark.replication.binlog.listing import bases
from tidemark.replication.binlog.position import Position
from tidemark.replication.injector.binlog_images import ImageCheck, notes_of
from tidemark.replication.injector.mark import FOLDER, load_mark
from tidemark.replication.settings.system_tables import NDB_BINLOG_INDEX

if TYPE_CHECKING:
    import os

    import pyarrow as pa

    from tidemark.engine.files.protocol import Files
    from tidemark.recovery.backup.later_changes import ApplyContext, RestoredState
    from tidemark.recovery.backup.segments import Until
    from tidemark.replication.binlog.stream import Boundary


class Span(NamedTuple):
    """The planned part of a binlog; both ends are between transactions."""

    start: Position
    end: Position


class _Reach:
    """The result of the walk over the binlog after an epoch."""

    def __init__(self) -> None:
        self.epochs = self.first_epoch = self.epoch = self.reach = 0
        self.wall_us = (0, 0)
        self.is_over = False  # whether an epoch after the wanted end was seen
        self.end: Position | None = None
        self.obstacle: Error | None = None
        self.servers: set[int] = set()


class RestoreBinlog(Closable):
    """The files of one binlog. `with` closes them."""

    def __init__(self, files: Files, folder: str, store: bytes | None = None) -> None:
        """`store` is the UUID of the store whose directory has the folder, None if there is no such store.

        Raises: FileMissing without a binlog there, Rejected for several, BinlogDamaged.
        """
        files.read_errors_latch = False
        self._files = files
        self._folder = folder
        self._store = store
        found = bases(files, folder)
        if not found:
            raise FileMissing(f"there is no binlog in {folder}, no file .index; give its folder", file=folder)
        if len(found) > 1:
            raise Rejected(
                f"{folder} has the binlogs {', '.join(found)}; move all but the store's own to another place"
            )
        self.base = found[0]
        self._concurrent = ConcurrentReader(files, folder, self.base)
        self._pin: Any = None

    @staticmethod
    def at(place: str | os.PathLike[str]) -> RestoreBinlog:
        """Open the binlog in a directory, or in the folder `binlog` of a store's directory. Raises: as the
        constructor.
        """
        files = PosixFiles(place, what="binlog")
        if not bases(files, "") and bases(files, FOLDER):
            return _opened(files, FOLDER)
        files.close_all()
        above, _, folder = files.directory.rpartition("/")
        return _opened(PosixFiles(above or "/", what="binlog"), folder)

    def close(self) -> None:
        """Close the files; a second call is harmless."""
        if self._pin is not None:
            self._pin.release()
            self._pin = None
        self._files.close_all()

    # --- description -------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Return a description in plain values: first and last epoch, their commit times, the files, the incidents
        (`gaps`), and the error at which reading ends (`damage`).
        """
        index = self._concurrent.index()
        epochs: list[tuple[int, int]] = []
        count = 0
        gaps: list[str] = []
        damage = ""
        try:
            for _, boundary in self._concurrent.boundaries(self._oldest()):
                if boundary.incident is not None:
                    gaps.append(f"after epoch {epochs[-1][0] if epochs else 0}: {boundary.incident}")
                if boundary.epoch:
                    epochs[1:] = [(boundary.epoch, boundary.commit_us or 0)]
                    count += 1
        except (BinlogDamaged, FileMissing, LimitExceeded, PositionLost) as error:
            damage = error.message
        first, last = (epochs[0], epochs[-1]) if epochs else ((0, 0), (0, 0))
        return {
            "first_epoch": first[0],
            "first_wall_us": first[1],
            "last_epoch": last[0],
            "last_wall_us": last[1],
            "epochs": count,
            "files": [{"file": name, "bytes": self._files.size(index.path(name))} for name in index.names],
            "gaps": gaps,
            "damage": damage,
        }

    def _oldest(self) -> Position:
        names = self._concurrent.index().names
        if not names:
            raise FileMissing(f"the binlog {self.base} has no files; give another place", file=self._folder)
        return Position(names[0], b.FIRST_POSITION)

    # --- the plan ----------------------------------------------------------------------------------
    def plan(self, restored_state: RestoredState, until: Until) -> LaterPlan:
        """See `LaterChanges.plan`.

        Raises: ForeignFile for a binlog of another store, PositionLost if it begins too late, EpochGap for an incident,
        BinlogDamaged, FileMissing, FileTruncated, Unsupported and others for changes that cannot be applied.
        """
        manifest = restored_state.manifest
        if self._store not in (None, manifest.store):
            raise ForeignFile(
                "the binlog is in the directory of a store that is not the one backed up; give the binlog of that one"
            )
        self._check_places(restored_state)
        start = self._position_after(restored_state.epoch)
        found = self._walk(start, restored_state, until)
        if manifest.server_id and found.servers - {manifest.server_id}:
            other = min(found.servers - {manifest.server_id})
            raise ForeignFile(
                f"the binlog is of server {other}, and the backup of server {manifest.server_id}; give the store's own",
                server_id=other,
            )
        is_late = until.epoch is not None and until.epoch > found.reach
        if found.obstacle is not None and not found.is_over and until.epoch is None:
            raise found.obstacle
        notes = [found.obstacle.message] if found.obstacle is not None and is_late else []
        if not found.epochs or found.end is None:
            return LaterPlan(found.reach, notes=tuple(notes))
        span = Span(start, found.end)
        check = ImageCheck(self._log(), restored_state)
        check.run(*span)
        notes[:0] = notes_of(restored_state, check)
        files = tuple(self._sizes(span))
        counted = (found.reach, found.epochs, found.first_epoch, found.epoch, found.wall_us)
        return LaterPlan(*counted, files, tuple(notes), span)

    def _log(self) -> LogFolder:
        return LogFolder(self._files, self._folder, self.base)

    def _check_places(self, restored_state: RestoredState) -> None:
        """Check that the newest epoch of these files in the `ndb_binlog_index` of the backup is at the position that
        the table names.

        Raises: ForeignFile.
        """
        newest = (0, "", 0)
        for batch in restored_state.rows(NDB_BINLOG_INDEX, ["epoch", "File", "Position"]):
            newest = max(newest, _newest_place(batch, self._concurrent.index().names))
        epoch, name, position = newest
        if not epoch:
            return
        try:
            there = next(
                (each.epoch for _, each in self._concurrent.boundaries(Position(name, position)) if each.epoch), 0
            )
        except (BinlogDamaged, LimitExceeded) as error:
            raise ForeignFile(
                f"the backup says that epoch {epoch} is in {name} at {position}, and there is none: the binlog is"
                f" another one, or damaged ({error.message})",
                file=name,
                position=position,
            ) from error
        if there != epoch:
            raise ForeignFile(
                f"the backup says that epoch {epoch} is in {name} at {position}, and found there is {there or 'none'}:"
                " the binlog is another one; give the store's own",
                file=name,
                position=position,
            )

    def _position_after(self, epoch: int) -> Position:
        """Return the position after an epoch. Raises: PositionLost, BinlogDamaged."""
        try:
            return self._concurrent.position_after(epoch)
        except PositionLost as error:
            raise self._lost(epoch) from error

    def _lost(self, epoch: int) -> PositionLost:
        return PositionLost(
            f"the binlog does not go back to epoch {epoch}, where backup and archive end: restore a later backup, or"
            " add older files of the binlog",
            epoch=epoch,
        )

    def _walk(self, start: Position, restored_state: RestoredState, until: Until) -> _Reach:
        found = _Reach()
        found.reach = restored_state.epoch
        is_first = start == Position(start.file, b.FIRST_POSITION) and start == self._oldest()
        has_statement = False
        try:
            for file, boundary in self._concurrent.boundaries(start):
                if is_first and boundary.incident is not None and load_mark(boundary.incident) is None:
                    raise self._lost(restored_state.epoch)
                found.obstacle = self._obstacle(boundary, found.reach)
                if found.obstacle is not None:
                    break
                has_statement |= boundary.statement is not None
                if not boundary.epoch:
                    continue
                if is_first and not has_statement and self._is_empty(file, boundary):
                    # Binlogs of early versions begin like this, without an incident: the changes before are missing.
                    raise self._lost(restored_state.epoch)
                is_first = False
                self._take(found, Position(file, boundary.end), boundary, until)
        except (BinlogDamaged, FileMissing, LimitExceeded) as error:
            found.obstacle = error
        return found

    def _obstacle(self, boundary: Boundary, epoch: int) -> Error | None:
        """Return why a reader cannot continue after `epoch`, None if it can."""
        if boundary.incident is not None:
            mark = load_mark(boundary.incident)
            if mark is None:
                text = f"the binlog has a gap after epoch {epoch} ({boundary.incident}); "
            else:
                text = (
                    f"a load of {counted(mark.rows, 'row')} into {mark.table} in epoch {mark.epoch} is not in the"
                    " binlog (log_load_rows was off); "
                )
            return EpochGap(f"{text}restore until epoch {epoch}, or from a backup after it", epoch=epoch)
        if boundary.is_transaction and boundary.statement is None:
            if not boundary.epoch:
                return Unsupported(
                    f"a transaction after epoch {epoch} has no epoch: no store of Tidemark wrote it; restore until"
                    f" epoch {epoch}"
                )
            if boundary.epoch <= epoch:
                return BinlogDamaged(
                    f"epoch {boundary.epoch} comes after epoch {epoch} in the binlog; restore until epoch {epoch}"
                )
        return None

    def _take(self, found: _Reach, end: Position, boundary: Boundary, until: Until) -> None:
        found.reach = boundary.epoch
        wall_us = boundary.commit_us or 0
        if found.is_over or not until.includes(boundary.epoch, wall_us):
            found.is_over = True
            return
        found.servers.add(boundary.server_id)
        found.epochs += 1
        found.epoch, found.end = boundary.epoch, end
        if found.epochs == 1:
            found.first_epoch, found.wall_us = boundary.epoch, (wall_us, wall_us)
        found.wall_us = (found.wall_us[0], wall_us)

    def _is_empty(self, file: str, boundary: Boundary) -> bool:
        """Whether a transaction has no row of a user."""
        check = ImageCheck(self._log(), None)
        check.run(Position(file, boundary.start), Position(file, boundary.end))
        return check.rows_events == 0

    def _sizes(self, span: Span) -> Iterator[tuple[str, int]]:
        index = self._concurrent.index()
        for name in index.names[index.place_of(span.start.file) : index.place_of(span.end.file) + 1]:
            start = span.start.position if name == span.start.file else 0
            end = span.end.position if name == span.end.file else self._files.size(index.path(name))
            if end > start:
                yield name, end - start

    # --- carrying it out ---------------------------------------------------------------------------
    def keep(self, plan: LaterPlan) -> None:
        """Keep the planned files from being purged until `close`. Raises: PositionLost if they have been purged."""
        if plan.where is None or not isinstance(self._files, PosixFiles):
            return
        name = plan.where.start.file
        self._pin = self._files.pin(f"{self._folder}/{name}")
        if self._pin is None or name not in self._concurrent.index().names:
            raise self._lost(plan.first_epoch - 1)

    def apply(self, plan: LaterPlan, context: ApplyContext) -> LaterReport:
        """See `LaterChanges.apply`. Raises: EpochGap, BinlogDamaged, and the errors of `EpochReplay.apply`."""
        replay = EpochReplay(context.store, context.make_room)
        report = LaterReport()
        statements: list[Statement] = []
        for each in transactions(self._log(), plan.where.start, plan.where.end):
            if isinstance(each, Statement):
                statements.append(each)
            elif isinstance(each, Loss):
                raise EpochGap(
                    f"the binlog has a gap that it did not have when the restore was planned: {each.message}; restore"
                    " again"
                )
            elif isinstance(each, EpochTransaction):
                replay.apply(each, statements)
                report.epochs += 1
                report.statements += len(statements)
                statements = []
                context.advance(1)
        report.rows = replay.rows
        if report.epochs != plan.epochs:
            raise BinlogDamaged(
                f"the plan has {counted(plan.epochs, 'epoch')}, the binlog {report.epochs}; restore again"
            )
        return report


def _newest_place(batch: pa.RecordBatch, names: list[str]) -> tuple[int, str, int]:
    """Return (epoch, file, position) of the newest epoch in some rows of `ndb_binlog_index` that is in one of the
    files; (0, "", 0) if there is none.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    known = batch.filter(pc.is_in(batch.column(1), value_set=pa.array(names, batch.column(1).type)))
    if not known.num_rows:
        return 0, "", 0
    row = int(np.argmax(known.column(0).to_numpy(zero_copy_only=False)))
    epoch, file, position = (column[row].as_py() for column in known.columns)
    return epoch, file, position


def _opened(files: PosixFiles, folder: str) -> RestoreBinlog:
    """Open the binlog in a folder of these files; close the files if that fails."""
    try:
        return RestoreBinlog(files, folder, _store_in(files))
    except BaseException:
        files.close_all()
        raise


def _store_in(files: Files) -> bytes | None:
    """Return the UUID of the store in a directory, None if there is none, or if no copy of its sysfile is valid."""
    copies = [copy for copy in (read_copy(files, name) for name in NAMES if files.exists(name)) if copy is not None]
    return max(copies, key=lambda copy: copy.generation).store if copies else None
