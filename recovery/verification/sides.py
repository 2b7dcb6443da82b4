"""The comparable sides: an open store, an attached local checkpoint, a backup; each at one epoch.

A side returns rows as entries in private memory, in the form of scans, fragment by fragment in the order of ROWIDs. It
returns the same rows each time, or raises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import scan
from tidemark.engine.access.scan_batch import SCAN_BATCH_ROWS, ScanBatch
from tidemark.engine.access.snapshot import Snapshot
from tidemark.engine.memory.arena_layout import F_PAGES, F_SLOTS
from tidemark.engine.rows.row_format import RowFormat
from tidemark.recovery.backup.chain import Chain
from tidemark.recovery.verification.digest_ranges import ROWID_BITS

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.backup.manifest import Manifest
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.system_restart.attach import View

PageRanges = dict[int, list[tuple[int, int]]]  # by fragment number: first logical page, and the end after the last
ALL_PAGES = [(0, (1 << 32) - 1)]
_ROWID_PAGE_SHIFT = 16
_SPARE_PAGES = 16
_JOINED_PAGES = 4


@dataclass(frozen=True)
class Extent:
    """The extent of a table on a side: numbers of its fragments; about how many pages the largest has; about how many
    rows.
    """

    numbers: tuple[int, ...]
    pages: int
    rows: int


class Side(ABC):
    """One side of a comparison."""

    epoch: int
    store: str  # UUID in hexadecimal
    what: str  # for display

    @abstractmethod
    def definitions(self) -> dict[str, TableDefinition]:
        """Return the definitions of the tables by qualified name."""

    @abstractmethod
    def extent(self, name: str) -> Extent:
        """Return the extent of a table."""

    @abstractmethod
    def row_format(self, name: str) -> RowFormat:
        """Return the format of the images of a table's rows."""

    @abstractmethod
    def scan(self, name: str, with_disk: bool, pages: PageRanges | None = None) -> Iterator[ScanBatch]:
        """Yield the rows. pages: those of the wanted rows, None for all rows; a side may yield other rows, too.
        with_disk: rows must have their disk parts; otherwise they may have them.
        """

    def whole(self, name: str, batch: ScanBatch, chosen: Words) -> ScanBatch:
        """Read rows of a batch again, with disk parts. Shapes: chosen (rows,), image offsets."""
        return ScanBatch(batch.entries, chosen)

    def to_dict(self) -> dict[str, object]:
        return {"what": self.what, "store": self.store, "epoch": self.epoch}


class _StoreSide(Side):
    """Tables in an arena."""

    _tables: dict[str, Table]

    def definitions(self) -> dict[str, TableDefinition]:
        return {name: table.definition for name, table in self._tables.items()}

    def row_format(self, name: str) -> RowFormat:
        return self._tables[name].format

    def extent(self, name: str) -> Extent:
        table = self._tables[name]
        pages = max(table.arena.word(each, F_PAGES) for each in table.fragments)
        return Extent(tuple(table.by_number), pages, table.count())


class SnapshotSide(_StoreSide):
    """An open snapshot of a store."""

    def __init__(self, snapshot: Snapshot, store: bytes) -> None:
        self.snapshot = snapshot
        self.epoch = snapshot.epoch
        self.store = store.hex()
        self.what = "open store"
        self._tables = snapshot.by_name

    def scan(self, name: str, with_disk: bool, pages: PageRanges | None = None) -> Iterator[ScanBatch]:
        """Raises: SnapshotTooOld, SnapshotClosed, PageDamaged, StoreFailed."""
        table = self._tables[name]
        self.snapshot.check()
        for number, fragment in table.by_number.items():
            # Pages that were added after the snapshot's epoch have no rows that it shows.
            wanted = [(0, table.arena.word(fragment, F_PAGES))] if pages is None else pages.get(number, [])
            for first, stop in wanted:
                yield from self._pages(table, fragment, with_disk, first, stop)

    def _pages(self, table: Table, fragment: int, with_disk: bool, first: int, stop: int) -> Iterator[ScanBatch]:
        part = snapshot_reads.fragment_scan(self.snapshot, table, fragment, with_disk, first << 16)
        while not part.is_end and part.page < stop:
            batch = part.next(min(SCAN_BATCH_ROWS, (stop - part.page) * table.arena.word(fragment, F_SLOTS)))
            if batch.count:
                yield batch

    def whole(self, name: str, batch: ScanBatch, chosen: Words) -> ScanBatch:
        table = self._tables[name]
        if not table.format.has_disk:
            return super().whole(name, batch, chosen)
        return snapshot_reads.read_found(self.snapshot, table, batch.entries, chosen)


class ViewSide(_StoreSide):
    """A local checkpoint in private memory."""

    def __init__(self, view: View) -> None:
        self.epoch = view.epoch
        self.store = view.sysfile.store.hex()
        self.what = f"local checkpoint {view.lcp_id}"
        self._store: Store = view.store  # it must live as long as this side
        self._tables = view.store.tables.by_name

    def scan(self, name: str, with_disk: bool, pages: PageRanges | None = None) -> Iterator[ScanBatch]:
        table = self._tables[name]
        numbers = list(table.by_number) if pages is None else [each for each in table.by_number if pages.get(each)]
        yield from scan(table, None, None, None if with_disk else list(table.definition.primary_key), numbers)


class FileSide(Side):
    """Tables read from files."""

    def __init__(self, files: Files, content: Manifest | Control, store: bytes, number: int, what: str) -> None:
        """number: of the local checkpoint or backup, whichever is `what`."""
        self._files = files
        self.number = number
        self.epoch = content.epoch
        self.store = store.hex()
        self.what = f"{what} {number}"
        self._definitions = {each.name: each for each in content.tables}
        self._formats: dict[str, RowFormat] = {}

    def definitions(self) -> dict[str, TableDefinition]:
        return self._definitions

    def row_format(self, name: str) -> RowFormat:
        if name not in self._formats:
            self._formats[name] = RowFormat(self._definitions[name])
        return self._formats[name]


class BackupSide(FileSide):
    """A backup, read from its files."""

    def __init__(self, files: Files, manifest: Manifest) -> None:
        super().__init__(files, manifest, manifest.store, manifest.number, "backup")
        self._manifest = manifest

    def extent(self, name: str) -> Extent:
        """Return an estimate; the number of pages is a guess, since no file has it."""
        levels = [self._manifest.levels[place][0] for place in self._places(name)]
        numbers = tuple(level.fragment for level in levels)
        pages = max(2 * level.rows // max(1, level.slots) + _SPARE_PAGES for level in levels)
        return Extent(numbers, pages, sum(level.rows for level in levels))

    def _places(self, name: str) -> list[tuple[int, int]]:
        definition = self._definitions[name]
        return [(definition.table_id, number) for number in definition.partition.numbers]

    def scan(self, name: str, with_disk: bool, pages: PageRanges | None = None) -> Iterator[ScanBatch]:
        """Raises: BackupDamaged, FileMissing, FileTruncated, ForeignFile."""
        for place in self._places(name):
            if pages is None or pages.get(place[1]):
                levels = self._manifest.levels[place]
                yield from Chain(self._files, self._manifest.store, self._definitions[name], levels).batches()


def page_ranges(numbers: Words, shift: int) -> PageRanges:
    """Return the logical pages of ranges by ROWID; ranges with few pages between them become one. numbers: place >>
    shift of each, ascending.
    """
    found: PageRanges = {}
    for number in numbers.tolist():
        place = number << shift
        fragment, rowid = place >> ROWID_BITS, place & ((1 << ROWID_BITS) - 1)
        first = rowid >> _ROWID_PAGE_SHIFT
        stop = ((rowid + (1 << shift) - 1) >> _ROWID_PAGE_SHIFT) + 1
        held = found.setdefault(fragment, [])
        if held and first <= held[-1][1] + _JOINED_PAGES:
            held[-1] = (held[-1][0], max(stop, held[-1][1]))
        else:
            held.append((first, stop))
    return found


def numbers_of(sides: Sequence[Side], name: str) -> tuple[int, ...] | None:
    """Return the fragment numbers of a table if they are the same on all sides, else None."""
    each = {tuple(sorted(side.extent(name).numbers)) for side in sides}
    return each.pop() if len(each) == 1 else None


def rowid_places(batch: ScanBatch) -> Words:
    return np.asarray((batch.fragments() << ROWID_BITS) | batch.rowids(), dtype=np.int64)
