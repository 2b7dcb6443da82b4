"""One load file, written sequentially: insert records in sealed blocks, under a temporary name until it is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.log.load_arena_layout import (
    LS_RECORD,
    LS_ROWS,
    LS_USED,
    LS_WORDS,
)
from tidemark.engine.log.load_files import LoadFile
from tidemark.engine.log.load_kernels import pack_rows_of_file
from tidemark.engine.log.redo_layout import GROUP_WORDS, OPERATION_WORDS, TRANSACTION_WORDS
from tidemark.engine.log.spool_layout import DIGEST_PAD_WORDS, SPOOL_ALIGN_WORDS, SPOOL_BLOCK, SPOOL_HEADER_WORDS
from tidemark.engine.log.spool_reader import records_digest
from tidemark.engine.sealed.sealed_layout import KIND_SPOOL, header_of, seal, write_seal
from tidemark.recovery.load.directory import NEW

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.columnar import EncodedRows
    from tidemark.recovery.load.directory import Directory
    from tidemark.recovery.load.job import LoadJob

FIRST_WORD = GROUP_WORDS + TRANSACTION_WORDS  # place of the first record of a transaction
BLOCK_WORDS = 1 << 17  # 1 MiB
BLOCK_WORDS_MIN = 1 << 13
BLOCKS_WORDS_MAX = 1 << 23  # of all files that a task writes at once
SYNC_BYTES = 64 << 20  # sync this often; else one sync at the end would hold up all other syncs
_NO_ORDER: Words = np.zeros(0, dtype=np.int64)


class FileWriter:
    """Writes the rows of one fragment. `close` finishes the file, `discard` removes it."""

    def __init__(
        self, job: LoadJob, place: Directory, fragment: int, part: int, attempt: int, tag: int, files: int
    ) -> None:
        """files: the number of files written at once."""
        self._job = job
        self._place = place
        self._identity = (fragment, part, attempt, tag)
        self._shape = job.shape.words(fragment)
        words = max(BLOCK_WORDS_MIN, min(BLOCK_WORDS, BLOCKS_WORDS_MAX // files))
        self._block: Words = np.empty(words, dtype=np.int64)
        self._state: Words = np.zeros(LS_WORDS, dtype=np.int64)
        self._state[LS_USED] = SPOOL_HEADER_WORDS
        self._file: File | None = None
        self._checksums: list[int] = []
        self._size_bytes = self._unsynced_bytes = self._records_words = 0

    @property
    def leaf(self) -> str:
        """The final name of the file."""
        return self._described(0).leaf

    def add(self, rows: EncodedRows, order: Words | None = None) -> None:
        """Append rows of the fragment: all, or those at the given positions. Raises: StorageFull, IoFailed."""
        positions = _NO_ORDER if order is None else order
        stop = rows.count if order is None else order.size
        offsets = _NO_ORDER if rows.stride_words else rows.offsets
        at = 0
        while True:
            at = int(
                pack_rows_of_file(self._shape, rows.images, offsets, positions, at, stop, self._block, self._state)
            )
            if at == stop:
                return
            if int(self._state[LS_USED]) > SPOOL_HEADER_WORDS:
                self._write_block()
                continue
            row = int(positions[at]) if order is not None else at
            words = rows.stride_words or int(rows.offsets[row + 1] - rows.offsets[row])
            self._block = np.empty(SPOOL_HEADER_WORDS + OPERATION_WORDS + words + SPOOL_ALIGN_WORDS, dtype=np.int64)

    def _write_block(self) -> None:
        used = int(self._state[LS_USED])
        words = -(-used // SPOOL_ALIGN_WORDS) * SPOOL_ALIGN_WORDS
        if words > self._block.size:
            grown: Words = np.empty(words, dtype=np.int64)
            grown[:used] = self._block[:used]
            self._block = grown
        unit = self._block[:words]
        unit[used:] = 0
        unit[:SPOOL_HEADER_WORDS] = 0
        header = header_of(unit, SPOOL_BLOCK)
        write_seal(header, KIND_SPOOL, words, self._job.store, self._job.incarnation)
        header["txid"] = self._job.number
        header["number"] = len(self._checksums)
        header["start_word"] = FIRST_WORD + self._records_words
        header["records_words"] = used - SPOOL_HEADER_WORDS
        seal(unit, words)
        files = self._place.files
        if self._file is None:
            self._file = files.create(self._place.name(self.leaf + NEW))
        files.pwrite(self._file, self._size_bytes, unit.data.cast("B"))
        self._checksums.append(int(unit[0]))
        self._records_words += used - SPOOL_HEADER_WORDS
        self._size_bytes += unit.nbytes
        self._unsynced_bytes += unit.nbytes
        if self._unsynced_bytes >= SYNC_BYTES:
            files.fdatasync(self._file)
            self._unsynced_bytes = 0
        self._state[LS_USED] = SPOOL_HEADER_WORDS
        self._state[LS_RECORD] = 0

    def _described(self, digest: int) -> LoadFile:
        fragment, part, attempt, tag = self._identity
        rows = int(self._state[LS_ROWS])
        return LoadFile(
            self._job.number,
            self._job.definition.table_id,
            fragment,
            part,
            attempt,
            tag,
            rows,
            -(-rows // self._job.shape.slots),
            len(self._checksums),
            self._records_words,
            self._size_bytes,
            digest,
        )

    def close(self) -> LoadFile | None:
        """Give the file its name and return its description; return None, and leave no file, if there is no row.
        Durable on return: the content; the name needs the directory's next sync. Raises: StorageFull, IoFailed,
        SyncFailed; LoadEnded or FileMissing if the job was aborted.
        """
        if int(self._state[LS_USED]) > SPOOL_HEADER_WORDS:
            self._write_block()
        if self._file is None:
            return None
        files = self._place.files
        files.fdatasync(self._file)
        files.close(self._file)
        files.rename(self._place.name(self.leaf + NEW), self._place.name(self.leaf))
        sums: Words = np.zeros(DIGEST_PAD_WORDS + len(self._checksums), dtype=np.int64)
        sums[DIGEST_PAD_WORDS:] = self._checksums
        return self._described(records_digest(sums))

    def discard(self) -> None:
        """Remove the file under either name. Never raises if the disk fails: the file is swept later."""
        files = self._place.files
        if self._file is not None and self._file.is_open:
            files.close(self._file)
        if files.failure.first is None:
            self._place.remove(self.leaf + NEW)
            if self._place.exists(self.leaf):
                self._place.sync()  # the name first: names and removals must be durable in the same order
                self._place.remove(self.leaf)
