"""Verifies the files of disk columns: data files, double-write file, UNDO log. It changes nothing.

The log is followed from the mark of the older kept local checkpoint to its end, group by group and record by record.
The mark of each kept local checkpoint must be the first record of the group that its control file names.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import FileMissing, UndoDamaged
from tidemark.engine.disk.cache_layout import FILE_SHIFT, PAGE_IN_FILE_MASK
from tidemark.engine.disk.data_file import file_bytes, file_name, open_data_file
from tidemark.engine.disk.disk_layout import UNDO_GROUP_WORDS, UNDO_KIND_MASK, UNDO_LCP
from tidemark.engine.disk.double_write import FILE_NAME, torn_pages
from tidemark.engine.disk.undo_reader import UndoReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from tidemark.engine.disk.tablespaces import TablespaceDefinition
    from tidemark.engine.disk.undo_reader import UndoGroup
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.store.store import Store
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.system_restart.sysfile import Sysfile
    from tidemark.recovery.verification.findings import CheckReport


class DiskFileCheck:
    """Verifies the files in `space/` and `undo/` of one store. Damage becomes problems of the report."""

    def __init__(self, files: Files, sysfile: Sysfile, report: CheckReport) -> None:
        self._files = files
        self._sysfile = sysfile
        self._report = report
        self.torn_pages = 0  # torn pages that the next opening repairs

    def closed(self, controls: list[Control]) -> None:
        """Check all files of a store that no process has open. controls: intact ones, newest first."""
        if self._sysfile.undo_geometry is None:
            return
        definitions = controls[0].tablespaces if controls else []
        self._data_files(definitions)
        self._double_write(definitions)
        marks = [control for control in controls if control.undo is not None]
        oldest = controls[-1].undo if controls else None
        start = (1, 0) if oldest is None else (oldest.sequence, oldest.position)
        geometry = self._sysfile.undo_geometry
        self._guarded(geometry, lambda reader: self._whole_log(reader, start, marks))

    def live(self, store: Store, lcp_turn: AbstractContextManager[object]) -> None:
        """Check all files of an open store."""
        self._data_files(store.space.definitions())
        with lcp_turn:  # while it is held the log is not cut
            undo = store.disk.undo
            with store.latch:
                start, end = (undo.tail_sequence, undo.tail), undo.sequence
            self._guarded(undo.geometry, lambda reader: self._kept_log(reader, start, end))

    def _guarded(self, geometry: Geometry, work: Callable[[UndoReader], None]) -> None:
        with (
            self._report.noting(self._files),
            closing(UndoReader(self._files, geometry, self._sysfile.store)) as reader,
        ):
            self._report.files += geometry.file_count
            work(reader)

    # --- UNDO log --------------------------------------------------------------------------------
    def _whole_log(self, reader: UndoReader, start: tuple[int, int], controls: list[Control]) -> None:
        newest = controls[0].undo.sequence if controls and controls[0].undo is not None else 0
        reader.find_end(*start, newest)
        marks = {each.undo.sequence: each for each in controls if each.undo is not None}
        for group in reader.forward(*start):
            self._group(reader, group)
            control = marks.pop(group.sequence, None)
            if control is not None:
                self._mark(group, control)
        for control in marks.values():
            self._report.add(f"the UNDO log does not have the mark of local checkpoint {control.lcp_id}")

    def _mark(self, group: UndoGroup, control: Control) -> None:
        assert control.undo is not None
        first = group.words[UNDO_GROUP_WORDS : UNDO_GROUP_WORDS + 4].tolist() if group.records else [0, 0, 0, 0]
        found = (group.position, first[0] & UNDO_KIND_MASK, first[1], first[2])
        if found != (control.undo.position, UNDO_LCP, control.undo.lsn, control.lcp_id):
            self._report.add(
                f"UNDO group {group.sequence} does not begin with the mark of local checkpoint {control.lcp_id}, as its"
                " control file says"
            )

    def _kept_log(self, reader: UndoReader, start: tuple[int, int], end: int) -> None:
        sequence, position = start
        for group in reader.forward(sequence, position):
            self._group(reader, group)
            sequence, position = group.sequence + 1, group.end
            if sequence >= end:
                return
        if sequence < end:
            raise UndoDamaged(f"UNDO group {sequence} (position {position}) is damaged; make a local checkpoint now")

    def _group(self, reader: UndoReader, group: UndoGroup) -> None:
        """Check the shapes of a group's records, and their LSNs."""
        self._report.groups += 1
        self._report.bytes += group.size_bytes
        offsets = reader.offsets_of(group)
        lsns = group.words[offsets + 1]
        if lsns.size and not (lsns[0] >= group.first_lsn and lsns[-1] < group.next_lsn):
            self._report.add(f"UNDO group {group.sequence} has records that do not belong to its place in the log")

    # --- space -----------------------------------------------------------------------------------
    def _data_files(self, definitions: Iterable[TablespaceDefinition]) -> None:
        for definition in definitions:
            for file_id in definition.file_ids:
                self._report.files += 1
                with self._report.noting(self._files):
                    file, extents = open_data_file(self._files, self._sysfile.store, definition, file_id)
                    self._report.bytes += file_bytes(definition, extents)
                    self._files.close(file)

    def _double_write(self, definitions: Iterable[TablespaceDefinition]) -> None:
        if not self._files.exists(FILE_NAME):
            self._report.notes.append(f"{FILE_NAME} is missing; the next opening creates it again")
            return
        self._report.files += 1
        torn: Sequence[int] = ()
        with self._report.noting(self._files), closing(_Places(self._files, definitions)) as places:
            torn = torn_pages(self._files, places, self._sysfile.store)
        self.torn_pages = len(torn)
        for page in torn:
            self._report.notes.append(f"{file_name(page >> FILE_SHIFT)}, page {page & PAGE_IN_FILE_MASK} is torn")


class _Places:
    """The places of pages, in data files opened for reading."""

    def __init__(self, files: Files, definitions: Iterable[TablespaceDefinition]) -> None:
        self._files = files
        self._sizes = {each: definition.page_bytes for definition in definitions for each in definition.file_ids}
        self._open: dict[int, File] = {}

    def place(self, page: int) -> tuple[File, int]:
        """Return file and offset of a page. Raises: FileMissing."""
        number = page >> FILE_SHIFT
        if number not in self._sizes:
            raise FileMissing(f"no tablespace has a data file {number}", page=page)
        if number not in self._open:
            self._open[number] = self._files.open(file_name(number), False)
        return self._open[number], (page & PAGE_IN_FILE_MASK) * self._sizes[number]

    def sync_files(self) -> None:
        """Do nothing: nothing is ever written."""

    def close(self) -> None:
        for file in self._open.values():
            self._files.close(file)
