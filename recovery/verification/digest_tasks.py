"""A comparison of files in tasks, each of one fragment, that may run in any process with access to the files.

A task and its report are dicts of plain values and bytes, so any scheduler can pass them on. A task reads only the
files of its fragment (and the manifest or control file that names them), and communicates with no other process. Sums
of tasks add up in any order. A task that runs twice returns the same report, of which only one is used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.scan_batch import ScanBatch
from tidemark.engine.base.errors import FileMissing, LcpDamaged
from tidemark.recovery.backup.plan import chosen_backup
from tidemark.recovery.places.storage import at_place
from tidemark.recovery.system_restart.sysfile import has_sysfile
from tidemark.recovery.verification.definitions import Comparable
from tidemark.recovery.verification.digest_files import LcpFragment
from tidemark.recovery.verification.digest_ranges import Ranges
from tidemark.recovery.verification.digest_reading import BY_KEY, Collected, RangeReader
from tidemark.recovery.verification.log_listing import StoreListing
from tidemark.recovery.verification.report import Pair
from tidemark.recovery.verification.sides import BackupSide, Extent, FileSide, PageRanges, Side

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.files.protocol import Files

Task = dict[str, Any]
Report = dict[str, Any]
Run = Callable[[Sequence[Task]], Iterable[Report]]
_SUM = "sum"
_ROWS = "rows"


class LcpSide(FileSide):
    """A local checkpoint, read from its files without an arena: tables of memory columns."""

    def __init__(self, files: Files, number: int | None = None) -> None:
        """number: of the local checkpoint, None for the newest. Raises: FileMissing, LcpDamaged, SysfileDamaged."""
        listing = StoreListing(files)
        controls = [each for each in listing.controls if number in (None, each.lcp_id)]
        if not controls:
            raise FileMissing(f"the store has no local checkpoint{f' {number}' if number else ''}; make one first")
        control = self._control = controls[0]
        self._store_id = listing.sysfile.store
        super().__init__(files, control, self._store_id, control.lcp_id, "local checkpoint")

    def extent(self, name: str) -> Extent:
        """Return an estimate without rows copied by commits; its pages are not used, as ROWIDs are not compared."""
        definition = self._definitions[name]
        numbers = tuple(definition.partition.numbers)
        held = self._control.fragments
        rows = sum(held.get((definition.table_id, number), (0,))[0] for number in numbers)
        return Extent(numbers, 1, rows)

    def scan(self, name: str, with_disk: bool, pages: PageRanges | None = None) -> Iterator[ScanBatch]:
        """Raises: LcpDamaged, FileMissing, FileTruncated, ForeignFile, Unsupported."""
        definition = self._definitions[name]
        for number in definition.partition.numbers:
            if pages is None or pages.get(number):
                yield from LcpFragment(self._files, self._store_id, self._control, definition, number).batches()


@contextmanager
def file_side(place: Any, number: int | None = None) -> Iterator[Side]:
    """Open a side in files: the directory of a store (its newest local checkpoint), or a place of backups.

    Raises: FileMissing, Damaged, Rejected.
    """
    with at_place(place, what="store or backup") as files:
        if has_sysfile(files):
            yield LcpSide(files, number)
        else:
            yield BackupSide(files, chosen_backup(files, number))


def digest_fragment(task: Task) -> Report:
    """Carry out a task: return the sums of its ranges over one fragment, or the rows of the ranges (Arrow IPC bytes).

    A report has the task's `table`, `fragment` and `side`, `rows_read`, and `sums` (int64 words as bytes) or `rows`.
    Raises: Damaged (a file disagrees with manifest or control file), FileMissing, StoreFailed.
    """
    table = Comparable(task["table"], tuple(task["columns"]), tuple(task["key"]))
    wanted = np.frombuffer(task["wanted"], dtype=np.int64).copy()
    ranges = Ranges(wanted, task["shift_before"], task["shift"], task["fan_bits"])
    report = {name: task[name] for name in ("table", "fragment", "side")}
    with file_side(task["place"], task["number"]) as side:
        rows: list[int] = []
        reader = RangeReader(side, table, rows.append, task["fragment"])
        if task["what"] == _SUM:
            reader.sum(ranges, task["by"], task["is_all"])
            found = {"sums": ranges.sums.tobytes(), "has_overflown": ranges.has_overflown}
        else:
            found = {"rows": _to_bytes(reader.collect(ranges, task["by"]).batches)}
        return {**report, "rows_read": sum(rows), **found}


def _to_bytes(batches: list[pa.RecordBatch]) -> bytes:
    import pyarrow as pa

    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


class TaskReader(RangeReader):
    """Reads the ranges of one table of one side by tasks that the caller's function runs."""

    def __init__(
        self, side: Side, table: Comparable, on_rows: Callable[[int], None], place: Any, letter: str, run: Run
    ) -> None:
        super().__init__(side, table, on_rows)
        self._place = place
        self._letter = letter
        self._run = run

    def _tasks(self, what: str, ranges: Ranges, by: str, is_all: bool) -> list[Task]:
        assert isinstance(self._side, FileSide)
        return [
            {
                "place": self._place,
                "number": self._side.number,
                "side": self._letter,
                "table": self._table.name,
                "columns": list(self._table.columns),
                "key": list(self._table.key),
                "fragment": fragment,
                "what": what,
                "by": by,
                "is_all": is_all,
                "wanted": ranges.wanted.tobytes(),
                "shift_before": ranges.shift_before,
                "shift": ranges.shift,
                "fan_bits": ranges.fan_bits,
            }
            for fragment in self._side.extent(self._table.name).numbers
        ]

    def _reports(self, tasks: list[Task]) -> Iterator[Report]:
        """Yield one report of each task, even if some ran twice. Raises: LcpDamaged if one is missing."""
        left = {task["fragment"] for task in tasks}
        for report in self._run(tasks):
            if report["fragment"] in left:
                left.remove(report["fragment"])
                self._on_rows(report["rows_read"])
                yield report
        if left:
            raise LcpDamaged(f"tasks of fragments {sorted(left)} of {self._table.name} gave no report; run them again")

    def sum(self, ranges: Ranges, by: str, is_all: bool) -> None:
        for report in self._reports(self._tasks(_SUM, ranges, by, is_all)):
            ranges.sums += np.frombuffer(report["sums"], dtype=np.int64)
            ranges.has_overflown |= report["has_overflown"]

    def collect(self, wanted: Ranges, by: str) -> Collected:
        import pyarrow as pa

        found = Collected()
        for report in self._reports(self._tasks(_ROWS, wanted, by, False)):
            if report["rows"]:
                for batch in pa.ipc.open_stream(report["rows"]):
                    found.add(batch, self._table)
        return found


def diff_files(
    a: Any,
    b: Any,
    tables: Sequence[str] | None = None,
    *,
    numbers: tuple[int | None, int | None] = (None, None),
    limit: int | None = 1_000,
    run: Run = lambda tasks: map(digest_fragment, tasks),
) -> Report:
    """Compare two copies in files, fragment by fragment in tasks; the report is that of `tm.diff`.

    a and b: directories of stores (their newest local checkpoints; memory columns), or places of backups, as every task
    can reach them. numbers: of the local checkpoints or backups. limit: the most differing rows to list, None for all.
    run: takes tasks and returns the reports of `digest_fragment` for them, in any order. A local checkpoint that its
    store retires meanwhile is FileMissing.

    Raises: as `digest_fragment`, NoSuchTable.
    """
    with file_side(a, numbers[0]) as side_a, file_side(b, numbers[1]) as side_b:
        readers = (_reader_of(a, "a", run), _reader_of(b, "b", run))
        return Pair(side_a, side_b, tables, BY_KEY, readers=readers).diff(limit)


def _reader_of(place: Any, letter: str, run: Run) -> Callable[[Side, Comparable, Callable[[int], None]], RangeReader]:
    shown = os.fspath(place) if isinstance(place, os.PathLike) else place
    return lambda side, table, on_rows: TaskReader(side, table, on_rows, shown, letter, run)
