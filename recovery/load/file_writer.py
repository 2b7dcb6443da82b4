"""One load file, written sequentially: insert records in sealed blocks, under a temporary name until it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.files.sequential import SequentialFile
from tidemark.engine.log.load_blocks import RecordPacker
from tidemark.engine.log.load_files import LoadFile
from tidemark.engine.log.spool_reader import FIRST_WORD, records_digest, seal_block
from tidemark.recovery.load.directory import NEW

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.columnar import EncodedRows
    from tidemark.recovery.load.directory import Directory
    from tidemark.recovery.load.job import LoadJob

BLOCK_WORDS = 1 << 17  # 1 MiB
BLOCK_WORDS_MIN = 1 << 13
BLOCKS_WORDS_MAX = 1 << 23  # of all files that a task writes at once
SYNC_BYTES = 64 << 20
_NO_ORDER: Words = np.zeros(0, dtype=np.int64)


class FileWriter:
    """Writes the rows of one fragment. `close` finishes the file, `discard` removes it."""

    def __init__(
        self, job: LoadJob, place: Directory, fragment: int, part: int, attempt: int, tag: int, files: int
    ) -> None:
        """part, attempt, tag: of the file's name; tag is random. files: the number of files written at once."""
        self._job = job
        self._place = place
        self._identity = (job.number, job.definition.table_id, fragment, part, attempt, tag)
        self.leaf = LoadFile(*self._identity, 0, 0, 0, 0, 0, 0).leaf  # the final name of the file
        words = max(BLOCK_WORDS_MIN, min(BLOCK_WORDS, BLOCKS_WORDS_MAX // files))
        self._packer = RecordPacker(job.shape.words(fragment), words)
        self._checksums: list[int] = []
        self._records_words = 0
        self._out = SequentialFile(place.files, place.name(self.leaf + NEW), SYNC_BYTES)

    def add(self, rows: EncodedRows, order: Words | None = None) -> None:
        """Append rows of the fragment: all, or those at the given positions. Raises: StorageFull, IoFailed."""
        positions = _NO_ORDER if order is None else order
        stop = rows.count if order is None else order.size
        at = 0
        while (at := self._packer.append(rows.images, rows.offsets, positions, at, stop)) < stop:
            self._write_block()

    def _write_block(self) -> None:
        unit, records_words = self._packer.unit(), self._packer.records_words
        identity, start_word = (self._job.store, self._job.incarnation), FIRST_WORD + self._records_words
        number = len(self._checksums)
        checksum = seal_block(unit, identity, self._job.number, number, start_word, records_words)
        self._out.write(unit.data.cast("B"))
        self._checksums.append(checksum)
        self._records_words += records_words
        self._packer.clear()

    def close(self) -> LoadFile | None:
        """Give the file its name and return its description; return None, and leave no file, if there is no row.
        Durable on return: the content; the name needs the directory's next sync. Raises: StorageFull, IoFailed,
        SyncFailed; LoadEnded or FileMissing if the job was aborted.
        """
        if self._packer.records_words:
            self._write_block()
        if not self._out.size_bytes:
            return None
        self._out.close()
        self._place.files.rename(self._place.name(self.leaf + NEW), self._place.name(self.leaf))
        rows = self._packer.rows
        counts = (rows, -(-rows // self._job.shape.slots), len(self._checksums), self._records_words)
        return LoadFile(*self._identity, *counts, self._out.size_bytes, records_digest(self._checksums))

    def discard(self) -> None:
        """Remove the file under either name. Never raises if the disk fails: the file is swept later."""
        self._out.leave()
        if self._place.files.failure.first is None:
            self._place.remove(self.leaf + NEW)
            if self._place.exists(self.leaf):
                self._place.sync()  # the name first: names and removals must be durable in the same order
                self._place.remove(self.leaf)
