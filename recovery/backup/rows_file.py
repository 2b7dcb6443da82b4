"""A rows file: the rows of one fragment at the end of one epoch, in sealed blocks, written once, sequentially.

It describes itself without any other file, so a file without a manifest can still be verified.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import BackupDamaged, FileTruncated, ForeignFile, IoFailed
from tidemark.engine.files.sequential import SequentialFile
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import OK
from tidemark.engine.rows.backup_layout import (
    BACKUP_BLOCK,
    BACKUP_BLOCK_WORDS,
    BACKUP_UNIT_WORDS_MIN,
    CONTENT_LIVE,
    CONTENT_ROWS,
)
from tidemark.engine.sealed.sealed_layout import (
    KIND_BACKUP_BLOCK,
    SEAL,
    header_of,
    is_sealed,
    seal,
    store_of,
    write_seal,
)
from tidemark.engine.sealed.version import check_version
from tidemark.recovery.backup.entries_kernels import check_entries
from tidemark.recovery.backup.entries_layout import B_ENTRIES, B_NEXT, B_ROWID, B_ROWS, B_USED, BACKUP_STATE_WORDS

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import File, Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.row_shape import RowLayout

BLOCK_WORDS = 1 << 17  # 1 MiB
LEVEL_FIELDS = 10


@dataclass(frozen=True)
class Place:
    """The identity of a rows file, repeated in every block."""

    backup: int
    table_id: int
    fragment: int
    epoch: int
    since: int
    timeline: int
    slots: int
    table_version: int

    @property
    def name(self) -> str:
        """The file's name in the place of backups."""
        return f"{self.backup}/{self.table_id}-{self.fragment}-{self.epoch:x}.rows"

    @property
    def rows_since(self) -> int:
        """The file has only rows of later epochs than this; -1: all rows, since rows loaded in bulk have epoch 0."""
        return self.since or -1


@dataclass(frozen=True)
class Sizes:
    """The sizes of a rows file in its manifest."""

    entries: int
    blocks: int
    size_bytes: int
    rows: int  # live in the fragment at the file's epoch, in the file or not


@dataclass(frozen=True)
class Level:
    """One rows file of a fragment, and its sizes by the manifest."""

    place: Place
    sizes: Sizes

    def numbers(self) -> list[int]:
        """Return the ten whole numbers of a level, without table and fragment; `of` is the inverse."""
        place = self.place
        place_numbers = (place.backup, place.epoch, place.since, place.timeline, place.slots, place.table_version)
        return [*place_numbers, *astuple(self.sizes)]

    @staticmethod
    def of(table_id: int, fragment: int, row: list[Any]) -> Level:
        """Return the level with the numbers that `numbers` returned. Raises: ValueError, TypeError."""
        if len(row) != LEVEL_FIELDS or not all(isinstance(each, int) and 0 <= each < 1 << 63 for each in row):
            raise ValueError("a level must have ten whole numbers")
        backup, epoch, since, timeline, slots, version = row[:6]
        place = Place(backup, table_id, fragment, epoch, since, timeline, slots, version)
        return Level(place, Sizes(*row[6:]))


class RowsWriter:
    """Writes one rows file. Entries go into `block` from `state[B_USED]` on; `close` syncs the file."""

    def __init__(self, files: Files, identity: tuple[bytes, int], place: Place, block: Words) -> None:
        """block: BLOCK_WORDS words; several writers may use it in turn."""
        self._identity = identity
        self.place = place
        self._out = SequentialFile(files, place.name)  # a fragment without a change gets no file
        self.block = block
        self.state: Words = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
        self.state[B_USED] = BACKUP_BLOCK_WORDS
        self.state[B_ROWID] = -1
        self._content = CONTENT_ROWS
        self._sealed_entries = 0
        self._blocks = 0

    @property
    def has_rows(self) -> bool:
        """Whether the file has any row."""
        return bool(self.state[B_ENTRIES])

    def make_room(self, words: int) -> None:
        """Write the block; the next one has room for at least `words` words."""
        if int(self.state[B_USED]) > BACKUP_BLOCK_WORDS:
            self._finish(False)
        if words + BACKUP_BLOCK_WORDS > self.block.size:
            self.block = np.empty(words + BACKUP_BLOCK_WORDS, dtype=np.int64)

    def add_live_map(self, live: Words) -> None:
        """Append the live map after the rows."""
        if int(self.state[B_USED]) > BACKUP_BLOCK_WORDS:
            self._finish(False)
        self._content = CONTENT_LIVE
        room = BLOCK_WORDS - BACKUP_BLOCK_WORDS
        for start in range(0, live.size, room):
            if start:
                self._finish(False)
            piece = live[start : start + room]
            self.block[BACKUP_BLOCK_WORDS : BACKUP_BLOCK_WORDS + piece.size] = piece
            self.state[B_USED] = BACKUP_BLOCK_WORDS + piece.size

    def _finish(self, is_last: bool) -> None:
        used = int(self.state[B_USED])
        words = max(used, BACKUP_UNIT_WORDS_MIN)
        block = self.block
        block[used:words] = 0
        block[:BACKUP_BLOCK_WORDS] = 0
        header = header_of(block, BACKUP_BLOCK)
        write_seal(header, KIND_BACKUP_BLOCK, words, *self._identity)
        place = self.place
        header["backup"], header["table_id"], header["fragment"] = place.backup, place.table_id, place.fragment
        header["epoch"], header["since"], header["timeline"] = place.epoch, place.since, place.timeline
        header["slots"], header["table_version"] = place.slots, place.table_version
        header["number"], header["content"], header["is_last"] = self._blocks, self._content, int(is_last)
        total = int(self.state[B_ENTRIES])
        header["entries"], header["total_entries"] = total - self._sealed_entries, total
        header["rows"] = int(self.state[B_ROWS])
        header["used_words"] = used - BACKUP_BLOCK_WORDS
        seal(block, words)
        self._out.write(block[:words].data.cast("B"))
        self._sealed_entries = total
        self._blocks += 1
        self.state[B_USED] = BACKUP_BLOCK_WORDS

    def close(self) -> Sizes:
        """Write the last block and sync. Durable on return: the content; the name needs a sync of the directory."""
        self._finish(True)
        self._out.close()
        return Sizes(int(self.state[B_ENTRIES]), self._blocks, self._out.size_bytes, int(self.state[B_ROWS]))

    def discard(self) -> None:
        """Close without finishing: the file is then invalid."""
        self._out.leave()


@dataclass(frozen=True)
class Block:
    """One verified block with content in words[BACKUP_BLOCK_WORDS:stop]. The words are valid until the next block."""

    words: Words
    stop: int
    content: int


class RowsReader:
    """Reads one rows file, verifying every block."""

    def __init__(self, files: Files, store: bytes, name: str) -> None:
        self._files = files
        self._store = store
        self._name = name

    def place(self) -> Place:
        """Return the identity that the first block gives. Raises: as `blocks`."""
        file = self._files.open(self._name)
        try:
            words, _ = self._block(file, 0, self._files.size(file), np.empty(BLOCK_WORDS, dtype=np.int64))
            place = _place_of(words)
            if max(astuple(place)) >= 1 << 63:  # no kernel takes such a number (F112)
                raise self._damaged(0, "has an impossible block")
            return place
        finally:
            self._files.close(file)

    def blocks(self, place: Place, expected: Sizes | None = None) -> Iterator[Block]:
        """Yield every block, in order, of the file of this place; at the end, compare with the sizes in a manifest.

        Raises: BackupDamaged, FileMissing, FileTruncated, ForeignFile; IoFailed if it is unreadable.
        """
        file = self._files.open(self._name)
        try:
            size = self._files.size(file)
            buffer: Words = np.empty(min(size // 8, BLOCK_WORDS), dtype=np.int64)
            offset = number = entries = content = 0
            while True:
                words, buffer = self._block(file, offset, size, buffer)
                header = header_of(words, BACKUP_BLOCK)
                used = int(header["used_words"])
                if _place_of(words) != place or int(header["number"]) != number:
                    raise self._damaged(offset, "holds a block of another file")
                is_wrong = used > words.size - BACKUP_BLOCK_WORDS or int(header["content"]) < content
                entries += int(header["entries"])
                content = int(header["content"])
                if is_wrong or content > CONTENT_LIVE or entries != int(header["total_entries"]):
                    raise self._damaged(offset, "has an impossible block")
                yield Block(words, BACKUP_BLOCK_WORDS + used, content)
                offset += words.size * 8
                number += 1
                if int(header["is_last"]):
                    break
            found = Sizes(entries, number, offset, int(header["rows"]))
            if offset != size or expected not in (None, found):
                raise FileTruncated(
                    f"{self._name} has (entries, blocks, bytes, rows) {astuple(found)} in {size} bytes, which differs"
                    " from its manifest; restore it from a copy",
                    file=self._name,
                )
        finally:
            self._files.close(file)

    def verify(self, place: Place, layout: RowLayout, expected: Sizes | None = None, wanted: Words = NOTHING) -> Sizes:
        """Read the whole file and check every entry. Clear the bits of its rows in `wanted`. Raises: as `blocks`."""
        state = np.zeros(BACKUP_STATE_WORDS, dtype=np.int64)
        state[B_ROWID] = -1
        shape = np.array(
            [
                layout.fixed_words,
                int(layout.has_var),
                int(layout.disk is not None),
                place.table_id,
                place.fragment,
                place.slots,
                place.since,
                place.epoch,
            ],
            dtype=np.int64,
        )
        blocks = size_bytes = rows = alive = 0
        for block in self.blocks(place, expected):
            if block.content == CONTENT_LIVE:
                alive += set_bits(block.words[BACKUP_BLOCK_WORDS : block.stop])
            if block.content == CONTENT_ROWS:
                status = check_entries(block.words, BACKUP_BLOCK_WORDS, block.stop, shape, wanted, state)
                if status != OK:
                    raise self._damaged(size_bytes + int(state[B_NEXT]) * 8, "has an impossible row")
            blocks += 1
            size_bytes += block.words.size * 8
            rows = int(header_of(block.words, BACKUP_BLOCK)["rows"])
        found = Sizes(int(state[B_ENTRIES]), blocks, size_bytes, rows)
        if expected not in (None, found) or rows != (alive if place.since else found.entries):
            raise self._damaged(0, "does not have the rows its blocks count")
        return found

    def live_map(self, place: Place, expected: Sizes | None = None) -> Words:
        """Return the live map of an incremental level. Raises: as `blocks`."""
        pieces = [
            block.words[BACKUP_BLOCK_WORDS : block.stop].copy()
            for block in self.blocks(place, expected)
            if block.content == CONTENT_LIVE
        ]
        # A fragment without pages has a map of no words. Kernels take that for a level without a map.
        return np.concatenate([*pieces, np.zeros(1, dtype=np.int64)])

    def _damaged(self, offset: int, what: str) -> BackupDamaged:
        return BackupDamaged(f"{self._name} {what} at {offset}; use another copy", file=self._name, offset=offset)

    def _block(self, file: File, offset: int, size: int, buffer: Words) -> tuple[Words, Words]:
        """Read the block at `offset` into `buffer` or into a larger one; return block and buffer."""
        if offset + BACKUP_UNIT_WORDS_MIN * 8 > size:
            raise FileTruncated(
                f"{self._name} ends at {size}, in the middle of a block; use another copy", file=self._name, size=size
            )
        got = min(buffer.size, (size - offset) // 8)
        self._read(file, offset, buffer[:got])
        count = int(header_of(buffer, SEAL)["words"])
        if count < BACKUP_UNIT_WORDS_MIN or offset + count * 8 > size:
            raise self._damaged(offset, "has a damaged block")
        if count > got:
            buffer = buffer if count <= buffer.size else np.empty(count, dtype=np.int64)
            self._read(file, offset, buffer[:count])
        words = buffer[:count]
        if not is_sealed(words, KIND_BACKUP_BLOCK, count):
            raise self._damaged(offset, "fails its checksum")
        if store_of(words) != self._store:
            raise ForeignFile(f"{self._name} belongs to another store; put the right one back", file=self._name)
        check_version(words, self._name)
        return words, buffer

    def _read(self, file: File, offset: int, words: Words) -> None:
        try:
            got = self._files.pread_into(file, offset, words.data.cast("B"))
        except IoFailed as error:
            if self._files.failure.first is not None:
                raise
            raise self._damaged(offset, "cannot be read") from error
        if got != words.nbytes:
            raise FileTruncated(f"{self._name} ends in the middle of a block; use another copy", file=self._name)


def _place_of(words: Words) -> Place:
    header = header_of(words, BACKUP_BLOCK)
    fields = ("backup", "table_id", "fragment", "epoch", "since", "timeline", "slots", "table_version")
    return Place(*(int(header[name]) for name in fields))


def set_bits(words: Words) -> int:
    """Return how many bits are 1."""
    return int(np.unpackbits(words.view(np.uint8)).sum())


class ChainProof:
    """Proves that the levels of one fragment can be restored together: each row that is live at a level is in its file
    or live at the level below. Levels are read newest first, each once (an incremental one twice: its map is at its
    end).
    """

    def __init__(self, files: Files, store: bytes) -> None:
        self._files = files
        self._store = store
        self._above: Place | None = None
        self._wanted: Words = NOTHING  # bits of the rows that the level above needs from the next one

    def begin(self) -> None:
        """Start again: the next level is needed by none above it."""
        self._above, self._wanted = None, NOTHING

    def read(self, level: Level, layout: RowLayout, is_verified: bool = True) -> None:
        """Verify the next level, and that it has the rows the one above needs. is_verified: check its entries too; an
        incremental level is otherwise only asked for its live rows.

        Raises: as `RowsReader.blocks`. After an error the next level is not compared.
        """
        above, wanted = self._above, self._wanted
        self.begin()
        place, sizes = level.place, level.sizes
        reader = RowsReader(self._files, self._store, place.name)
        if not place.since:
            reader.verify(place, layout, sizes, wanted)
        else:
            live = reader.live_map(place, sizes)
            shared = min(live.size, wanted.size)
            wanted[:shared] &= ~live[:shared]
            if is_verified:
                alive = set_bits(live)
                reader.verify(place, layout, sizes, live)
                if alive - set_bits(live) != sizes.entries:
                    raise BackupDamaged(
                        f"{place.name} has a row that its live map does not have; use another copy", file=place.name
                    )
                self._above, self._wanted = place, live
        if above is not None and wanted.any():
            raise BackupDamaged(
                f"{above.name} needs {set_bits(wanted)} rows that {place.name}, the level below it, does not have; its"
                " backup and those that continue it cannot be restored: use an older one, and make a full one now",
                file=above.name,
            )


class LevelsReader:
    """Reads the levels of one fragment, newest first. All rows of the newest are taken; of an older one exactly those
    whose bit in `live`, the live map of the newest, is still set. A kernel that takes a row clears its bit.
    """

    def __init__(self, files: Files, store: bytes, levels: list[Level]) -> None:
        """levels: newest first; none for a fragment that was not backed up. Raises: as `RowsReader.blocks`."""
        self._files = files
        self._store = store
        self.levels = levels
        self.rows = levels[0].sizes.rows if levels else 0  # as the manifest says
        self.live: Words = NOTHING
        if levels and levels[0].place.since:
            newest = levels[0]
            self.live = RowsReader(files, store, newest.place.name).live_map(newest.place, newest.sizes)

    def is_newest(self, level: Level) -> bool:
        """Whether a level is the one whose rows are all taken."""
        return level is self.levels[0]

    def blocks(self, level: Level) -> Iterator[Block]:
        """Yield the blocks of a level that have rows. Raises: as `RowsReader.blocks`."""
        for block in RowsReader(self._files, self._store, level.place.name).blocks(level.place, level.sizes):
            if block.content == CONTENT_ROWS:
                yield block

    def check(self, rows: int, fragment: int, table: str) -> None:
        """Check that `rows`, the number of rows taken, is the number that was backed up. Raises: BackupDamaged."""
        if rows != self.rows or self.live.any():
            raise BackupDamaged(
                f"the files of fragment {fragment} of {table} give {rows} rows where {self.rows} were backed up; use"
                " another backup",
                table=table,
            )
