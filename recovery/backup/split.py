"""Archived log split by fragment, so that each fragment's task reads only its own changes.

Some segments become one file of *sections*. A section has blocks as in data files of local checkpoints, all of one
fragment, with its changes in the order of the log (`restore_kernels.py`); only records that change no row are dropped.
A split file exists as long as the restore; after a crash it is swept when the directory is opened or cleared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import BackupDamaged, ForeignFile
from tidemark.engine.files.opened import Opened
from tidemark.engine.log.redo_layout import FRAGMENT_SHIFT, TABLE_MASK
from tidemark.engine.memory.arena_layout import OK, ST_INVARIANT, ST_SPACE
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS, LCP_BLOCK
from tidemark.engine.sealed.sealed_layout import header_of, store_of
from tidemark.engine.sealed.version import check_version
from tidemark.recovery.backup.restore_kernels import collect_changes, gather_changes
from tidemark.recovery.backup.restore_layout import R_COUNT, R_NEXT, R_USED, RESTORE_STATE_WORDS
from tidemark.recovery.backup.restore_task import TaskReport
from tidemark.recovery.backup.segments import Segment, groups_of
from tidemark.recovery.local_checkpoint.data_file import BLOCK_WORDS, FOLDER, DataFileWriter, new_span, read_block
from tidemark.recovery.system_restart.replay import schema_changes
from tidemark.recovery.system_restart.spool import Spooled

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.recovery.backup.restore_task import RestoreTask
    from tidemark.recovery.system_restart.spool import Records

POOL_WORDS = 4 << 20  # changes held in memory before they are sorted by fragment
PLACES_WORDS = 1 << 20
SPLIT_LCP = 0  # no local checkpoint has this number, so an opening sweeps leftovers

# One section of a split file: table, fragment, file, offset, blocks, changes, bytes.
Section = list[Any]


def split_name(number: int, attempt: str) -> str:
    return f"{FOLDER}/{SPLIT_LCP}-split-{number}-{attempt}.data"


class _Sections(DataFileWriter):
    """Writes sections consecutively."""

    def begin(self, table_id: int, fragment: int) -> int:
        """Begin the section of a fragment; return its offset in the file."""
        self._place = (SPLIT_LCP, table_id, fragment)
        self.blocks = self.entries = 0
        self.make_room(0)
        return self.size_bytes + self._start * 8

    def end(self) -> tuple[int, int, int]:
        """End the section; return blocks, changes, and the offset after it."""
        self._finish(True)
        return self.blocks, self.entries, self.size_bytes + self._start * 8

    def finish(self) -> None:
        """Write waiting blocks and close. A split file is never synced: an interrupted restore starts again."""
        self._write()
        self._out.leave()


class _Splitter:
    """Collects changes and writes them out, sorted by fragment, whenever its memory is full."""

    def __init__(self, writer: _Sections) -> None:
        self._writer = writer
        self.sections: list[Section] = []  # of each fragment, in the order of the log
        self.operations = 0
        self._pool: Words = np.empty(POOL_WORDS, dtype=np.int64)
        self._places: Words = np.empty(PLACES_WORDS, dtype=np.int64)
        self._state: Words = np.zeros(RESTORE_STATE_WORDS, dtype=np.int64)

    def take(self, some: Records) -> None:
        """Take the changes among some records. Raises: RedoDamaged."""
        state = self._state
        state[R_NEXT] = some.start
        while True:
            place = (some.words, some.start, some.stop, some.epoch)
            status = int(collect_changes(*place, self._pool, self._places, state))
            if status == OK:
                return
            if status == ST_INVARIANT:
                raise some.misfit(int(state[R_NEXT]), status)
            if int(state[R_COUNT]):
                self.flush()
            else:
                self._pool = np.empty(ST_SPACE - status, dtype=np.int64)

    def flush(self) -> None:
        """Write what has been collected: a section for each fragment."""
        state, count = self._state, int(self._state[R_COUNT])
        if not count:
            return
        places = self._places[: 2 * count].reshape(-1, 2)
        order = np.argsort(places[:, 0], kind="stable")
        keys, offsets = places[order, 0], np.ascontiguousarray(places[order, 1])
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), count], strict=True):
            key = int(keys[start])
            self._write(key & TABLE_MASK, key >> FRAGMENT_SHIFT, offsets, start, stop)
        self.operations += count
        state[R_USED] = state[R_COUNT] = 0

    def _write(self, table_id: int, fragment: int, offsets: Words, start: int, stop: int) -> None:
        writer = self._writer
        offset = writer.begin(table_id, fragment)
        state: Words = np.zeros(RESTORE_STATE_WORDS, dtype=np.int64)
        state[R_NEXT] = start
        while (status := int(gather_changes(self._pool, offsets, stop, writer.block, writer.state, state))) != OK:
            writer.make_room(ST_SPACE - status)
        blocks, entries, end = writer.end()
        self.sections.append([table_id, fragment, writer.name, offset, blocks, entries, end - offset])


def split_segments(place: Files, target: Files, task: RestoreTask, attempt: str) -> TaskReport:
    """Split the groups of a task's segments after the backup, up to the end of the restore. Every group is verified,
    with its spool files. Raises: BackupDamaged, SpoolDamaged, RedoDamaged, ForeignFile.
    """
    name, source = split_name(task.number, attempt), bytes.fromhex(task.source)
    schema: list[Any] = []
    groups = 0
    with _Sections(target, name, task.identity, (SPLIT_LCP, 0, 0), new_span()) as writer:
        splitter = _Splitter(writer)
        for each in task.work:
            for group in groups_of(place, Segment(source, *each)):
                if task.since < group.epoch <= task.until:
                    groups += 1
                    schema += [[epoch, change] for epoch, change in schema_changes([group])]
                    for some in Spooled(place, source, [group]).records(group):
                        splitter.take(some)
        splitter.flush()
        writer.finish()
    return TaskReport(task.number, name, splitter.sections, schema, groups, splitter.operations, 0, task.size_bytes)


def read_section(files: Files, store: bytes, section: Section) -> Iterator[tuple[Words, int]]:
    """Yield the blocks of a section as (words, end of the last change); changes begin after the block's header. The
    words are valid until the next block. Raises: BackupDamaged, LcpDamaged, FileMissing, FileTruncated, ForeignFile.
    """
    table_id, fragment, name, offset, blocks, entries, size_bytes = section
    with Opened(files, files.open(name)) as file:
        size = files.size(file)
        buffer: Words = np.empty(min(size // 8, BLOCK_WORDS), dtype=np.int64)
        at = offset
        found = 0
        for number in range(blocks):
            words, buffer = read_block(files, file, name, at, size, buffer)
            header = header_of(words, LCP_BLOCK)
            if store_of(words) != store:
                raise ForeignFile(f"{name} belongs to another restore; restore again", file=name)
            check_version(words, name)
            place = tuple(int(header[each]) for each in ("lcp_id", "table_id", "fragment", "number"))
            used = int(header["entry_words"])
            if place != (SPLIT_LCP, table_id, fragment, number) or used > words.size - BLOCK_HEADER_WORDS:
                raise BackupDamaged(f"{name} holds another block at {at}; restore again", file=name, offset=at)
            found += int(header["entries"])
            yield words, BLOCK_HEADER_WORDS + used
            at += words.size * 8
        if (found, at - offset) != (entries, size_bytes):
            raise BackupDamaged(f"{name} lacks changes it had; restore again", file=name, offset=offset)
