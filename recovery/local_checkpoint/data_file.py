"""One data file of a local checkpoint: sealed blocks of row entries, written once, sequentially."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from tidemark.engine.base.errors import FileTruncated, ForeignFile, LcpDamaged
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.sequential import SequentialFile
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS, LCP_BLOCK, UNIT_WORDS_MIN
from tidemark.engine.sealed.sealed_layout import (
    KIND_LCP_BLOCK,
    SEAL,
    header_of,
    is_sealed,
    seal_units,
    store_of,
    write_seal,
)
from tidemark.engine.sealed.version import check_version

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.memory.arena import Words

FOLDER = "lcp"
BLOCK_WORDS = 1 << 17  # 1 MiB
SPAN_WORDS = 4 * BLOCK_WORDS  # blocks are sealed and written in spans of this size


def data_name(lcp_id: int, table_id: int, fragment: int) -> str:
    return f"{FOLDER}/{lcp_id}-{table_id}-{fragment}.data"


def copies_name(lcp_id: int) -> str:
    """Return the name of the file of old rows copied by commits."""
    return f"{FOLDER}/{lcp_id}-copies.data"


def new_span() -> Words:
    """Return memory for blocks of a data file that are not written yet. Several writers may use it in turn."""
    return np.empty(SPAN_WORDS, dtype=np.int64)


class DataFileWriter:
    """Writes one data file; `close` syncs it. Entries go into `block`; `state` = [words used, entries].

    Finished blocks wait in the span until it is full, and are then sealed in one call and written in another. Each call
    releases the GIL; if another thread is busy, getting it back takes Python's switch interval (5 ms).
    """

    def __init__(
        self,
        files: Files,
        name: str,
        identity: tuple[bytes, int],
        place: tuple[int, int, int],
        span: Words,
    ) -> None:
        """place: number of the checkpoint, table, fragment. span: see `new_span`."""
        self.name = name
        self._identity = identity
        self._place = place
        self._out = SequentialFile(files, name)
        self._span = span
        self._units: list[tuple[int, int]] = []  # finished blocks in the span: start, words
        self._start = 0  # start of the block that is being filled
        self.block: Words = span[:BLOCK_WORDS]
        self.state: Words = np.array([BLOCK_HEADER_WORDS, 0], dtype=np.int64)
        self.blocks = 0
        self.entries = 0

    @property
    def size_bytes(self) -> int:
        return self._out.size_bytes

    def make_room(self, words: int) -> None:
        """Finish the block; the next one has room for at least `words` words of entries."""
        if int(self.state[0]) > BLOCK_HEADER_WORDS:
            self._finish(False)
        wanted = max(BLOCK_WORDS, words + BLOCK_HEADER_WORDS)
        if self._start + wanted > self._span.size:
            self._write()
        if wanted > self._span.size:
            self._span = np.empty(wanted, dtype=np.int64)
        self.block = self._span[self._start : self._start + wanted]

    def append(self, entries: Words) -> None:
        """Add finished entries, which the caller counts."""
        if int(self.state[0]) + entries.size > self.block.size:
            self.make_room(entries.size)
        at = int(self.state[0])
        self.block[at : at + entries.size] = entries
        self.state[0] += entries.size

    def _finish(self, is_last: bool) -> None:
        used = int(self.state[0])
        words = max(used, UNIT_WORDS_MIN)
        block = self.block
        block[used:words] = 0
        block[:BLOCK_HEADER_WORDS] = 0
        header = header_of(block, LCP_BLOCK)
        write_seal(header, KIND_LCP_BLOCK, words, *self._identity)
        header["lcp_id"], header["table_id"], header["fragment"] = self._place
        header["number"] = self.blocks
        header["is_last"] = int(is_last)
        header["entries"] = int(self.state[1])
        header["entry_words"] = used - BLOCK_HEADER_WORDS
        self.entries += int(self.state[1])
        header["total_entries"] = self.entries
        self._units.append((self._start, words))
        self._start += words
        self.blocks += 1
        self.state[0] = BLOCK_HEADER_WORDS
        self.state[1] = 0

    def _write(self) -> None:
        if not self._start:
            return
        seal_units(self._span, self._units)
        self._out.write(self._span[: self._start].data.cast("B"))
        self._units.clear()
        self._start = 0

    def close(self) -> None:
        """Write the last blocks and sync. Durable on return: the content; the name needs a sync of the directory."""
        self._finish(True)
        self._write()
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file, unless it is closed, without its last blocks and without a sync."""
        self._out.leave()


class DataBlock(NamedTuple):
    """A verified block: words[BLOCK_HEADER_WORDS:stop] are entries. The words are valid until the next block."""

    words: Words
    stop: int
    blocks: int  # in the file up to here, with this one
    size_bytes: int  # of these blocks


def read_blocks(
    files: Files, name: str, store: bytes, lcp_id: int, table_id: int, fragment: int
) -> Iterator[DataBlock]:
    """Yield every block of a data file, checked; there is one at least.

    Raises: LcpDamaged, FileMissing, FileTruncated, ForeignFile; IoFailed if it is unreadable.
    """
    with Opened(files, files.open(name, False)) as file:
        size = files.size(file)
        offset = 0
        number = 0
        buffer: Words = np.empty(min(size // 8, BLOCK_WORDS), dtype=np.int64)
        while True:
            words, buffer = read_block(files, file, name, offset, size, buffer)
            header = header_of(words, LCP_BLOCK)
            place = (int(header["lcp_id"]), int(header["table_id"]), int(header["fragment"]), int(header["number"]))
            used = int(header["entry_words"])
            if store_of(words) != store:
                raise ForeignFile(f"{name} belongs to another store; put the right one back", file=name)
            check_version(words, name)
            if place != (lcp_id, table_id, fragment, number):
                raise LcpDamaged(f"{name} holds a block of another file at {offset}", file=name, offset=offset)
            if used > words.size - BLOCK_HEADER_WORDS:
                raise LcpDamaged(f"{name} has an impossible block at {offset}", file=name, offset=offset)
            offset += words.size * 8
            number += 1
            yield DataBlock(words, BLOCK_HEADER_WORDS + used, number, offset)
            if int(header["is_last"]):
                return


def read_block(files: Files, file: File, name: str, offset: int, size: int, buffer: Words) -> tuple[Words, Words]:
    """Read the block at `offset` of a file of `size` bytes into `buffer` or a larger one; return both.

    Pass the same buffer each time: memory touched for the first time costs more than reading into it.
    """
    if offset + BLOCK_HEADER_WORDS * 8 > size:
        raise FileTruncated(f"{name} ends at {size}, in the middle of a block", file=name, offset=offset)
    # This is usually the whole block. Bytes of the next block are read again later.
    got = min(buffer.size, (size - offset) // 8)
    files.pread_into(file, offset, buffer[:got].data.cast("B"))
    count = int(header_of(buffer, SEAL)["words"])
    if count < UNIT_WORDS_MIN or offset + count * 8 > size:
        raise LcpDamaged(f"{name} has a damaged block at {offset}", file=name, offset=offset)
    if count > got:
        if count > buffer.size:
            buffer = np.empty(count, dtype=np.int64)
        files.pread_into(file, offset, buffer[:count].data.cast("B"))
    words = buffer[:count]
    if not is_sealed(words, KIND_LCP_BLOCK, count):
        raise LcpDamaged(f"{name} fails its checksum at {offset}", file=name, offset=offset)
    return words, buffer
