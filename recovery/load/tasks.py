"""The tasks of a load: turn rows into load files, anywhere, with only the job (docs/load.md, section 2).

A bad value does not fail a task, because a retry would meet it again: the row is left out, counted and shown, and
`publish` refuses the load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.checks import refuse_broken
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import (
    CheckFailed,
    FileMissing,
    LoadEnded,
    NotNullViolation,
    Rejected,
    RowTooLarge,
    TypeMismatch,
    ValueOutOfRange,
)
from tidemark.engine.memory.arena_layout import TAG_BITS
from tidemark.engine.rows.columnar import encode_keys, encode_rows
from tidemark.engine.rows.computed_columns import NoNumbers, filled_columns
from tidemark.engine.rows.key_hashes import hash_images, order_by_fragment
from tidemark.engine.schema.partition_words import fragments_of_keys
from tidemark.engine.schema.partitions_layout import HH_PARTITION
from tidemark.recovery.load.directory import OPEN, directory_of
from tidemark.recovery.load.file_writer import FileWriter
from tidemark.recovery.load.job import EXAMPLES_MAX, FragmentReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from tidemark.engine.log.load_files import LoadFile
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.rows.columnar import EncodedRows
    from tidemark.engine.store.load_shape import LoadShape
    from tidemark.recovery.load.directory import Directory
    from tidemark.recovery.load.job import LoadJob

BATCH_ROWS = 1 << 16
REFUSED_MAX = 1_000  # refused rows that are examined one by one
SHOWN_CHARACTERS = 80
_BAD_VALUE = (TypeMismatch, ValueOutOfRange, NotNullViolation, RowTooLarge, CheckFailed)


class Refusals:
    """Rows that the table cannot hold: of a task, or of an adoption."""

    def __init__(self) -> None:
        self.count = 0
        self.is_at_least = False
        self.examples: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch, at: int, row: int, error: Rejected, rows: int = 1) -> None:
        """Count a row of a batch, number `row` of the input. rows: more than 1 if they were not examined one by one."""
        self.count += 1
        self.is_at_least |= rows > 1
        if len(self.examples) < EXAMPLES_MAX:
            values = {name: shown(value) for name, value in batch.slice(at, 1).to_pylist()[0].items()}
            self.examples.append(
                {
                    "row": row,
                    "column": error.evidence.get("column"),
                    "error": type(error).__name__,
                    "text": error.message,
                    "values": values,
                }
            )


def shown(value: Any) -> str:
    """Return a value for display, at most a line long."""
    text = str(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"


def write_fragment(
    job: LoadJob,
    fragment: int,
    attempt: int,
    batches: Iterable[pa.RecordBatch],
    part: int = 0,
    place: Directory | None = None,
) -> FragmentReport:
    """Write the rows of one fragment into one load file. Durable on return: the file.

    batches: with any of the table's columns; rows of other fragments are refused. part, attempt: the
    caller's numbers. place: the job's directory, if it is open already. Raises: LoadEnded, StorageFull, IoFailed,
    FileMissing; NoSuchColumn, TypeMismatch, NotNullViolation for batches that do not fit the table at all.
    """
    if fragment not in job.fragments:
        raise Rejected(f"{job.table} has no fragment {fragment}; its fragments are {job.fragments}", table=job.table)
    with directory_of(job, place) as opened:
        return _Task(job, opened, part, attempt, (fragment,)).run(_numbered(batches))[0]


def write_parts(
    job: LoadJob, attempt: int, batches: Iterable[pa.RecordBatch], part: int = 0, place: Directory | None = None
) -> list[FragmentReport]:
    """Write rows of any fragments, one load file for each fragment with rows. Return a report for each, by number.

    Refused rows are in the first report. Otherwise as `write_fragment`.
    """
    with directory_of(job, place) as opened:
        return write_numbered(job, attempt, _numbered(batches), part, opened)


def write_numbered(
    job: LoadJob, attempt: int, batches: Iterable[tuple[int, pa.RecordBatch]], part: int, place: Directory
) -> list[FragmentReport]:
    """Do `write_parts` for batches that come with the number of their first row in the input."""
    return _Task(job, place, part, attempt, job.fragments).run(batches)


def _numbered(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    row = 0
    for batch in batches:
        yield row, batch
        row += batch.num_rows


class _Task:
    """One attempt to write some rows."""

    def __init__(self, job: LoadJob, place: Directory, part: int, attempt: int, fragments: tuple[int, ...]) -> None:
        self._job = job
        self._shape: LoadShape = job.shape
        self._place = place
        self._part = part
        self._fragments = fragments
        self._refused = Refusals()
        tag = int.from_bytes(SystemClock().random_bytes(4), "little")
        self._writers = {
            number: FileWriter(job, place, number, part, attempt, tag, len(fragments)) for number in fragments
        }

    def run(self, batches: Iterable[tuple[int, pa.RecordBatch]]) -> list[FragmentReport]:
        """Write all rows; no file stays if it raises."""
        try:
            self._check_open()
            for row, batch in batches:
                for begin in range(0, batch.num_rows, BATCH_ROWS):
                    self._add(batch.slice(begin, BATCH_ROWS), row + begin)
            return self._finish()
        except BaseException as error:
            for writer in self._writers.values():
                writer.discard()
            if isinstance(error, FileMissing):
                self._check_open()  # the file may be missing because the job ended and its files were removed
            raise

    def _check_open(self) -> None:
        if not self._place.exists(self._job.name + OPEN):
            raise LoadEnded(f"load {self._job.name} was published or aborted; plan another one", job=self._job.number)

    def _add(self, batch: pa.RecordBatch, first_row: int) -> None:
        has_partitions = bool(self._shape.hash_header[HH_PARTITION])
        for begin, rows in _encoded(self._shape, batch, first_row, self._refused):
            if len(self._fragments) == 1 and self._job.fragments == self._fragments and not has_partitions:
                self._writers[self._fragments[0]].add(rows)
                continue
            self._spread(batch, begin, rows, first_row)

    def _spread(self, batch: pa.RecordBatch, begin: int, rows: EncodedRows, first_row: int) -> None:
        """Give rows to the writers of their fragments; the first one is row `begin` of the batch."""
        header = self._shape.hash_header
        hashes, found = hash_images(header, self._shape.key_words, rows.images, rows.offsets, rows.count)
        if found != rows.count:
            self._apart(batch, begin, rows.count, first_row)
            return
        limit = self._job.definition.partition.next_number
        order, stops = order_by_fragment(hashes, limit)
        before = 0
        for number, stop in enumerate(stops.tolist()):
            if stop > before:
                positions = order[before:stop]
                if number in self._writers:
                    self._writers[number].add(rows, positions)
                else:
                    for at in (begin + positions).tolist():
                        text = f"row {first_row + at} belongs to fragment {number}, not to {self._fragments[0]}"
                        self._refused.add(batch, at, first_row + at, Rejected(text))
            before = stop

    def _apart(self, batch: pa.RecordBatch, begin: int, count: int, first_row: int) -> None:
        """Refuse the rows that no partition takes."""
        numbers = fragments_of(self._job, batch.slice(begin, count))
        for at in np.flatnonzero(numbers < 0).tolist():
            text = f"no partition of {self._job.table} takes row {first_row + begin + at}"
            self._refused.add(batch, begin + at, first_row + begin + at, Rejected(text))
        # The load can no longer be published, so the content of the files does not matter.

    def _finish(self) -> list[FragmentReport]:
        files: list[LoadFile | None] = [writer.close() for writer in self._writers.values()]
        if any(file is not None for file in files):
            self._place.sync()
        self._check_open()  # after the rename: a process that ended the job before it has not seen the files
        refused = self._refused
        reports: list[FragmentReport] = []
        for number, file in zip(self._writers, files, strict=True):
            refusals = refused if not reports else Refusals()
            reports.append(
                FragmentReport(
                    self._job.number,
                    number,
                    self._part,
                    file,
                    refusals.count,
                    refusals.is_at_least,
                    tuple(refusals.examples),
                )
            )
        return reports


def _encoded(
    shape: LoadShape, batch: pa.RecordBatch, first_row: int, refused: Refusals
) -> list[tuple[int, EncodedRows]]:
    """Return images of the good rows of a batch as runs of consecutive rows: the start of each, and its rows."""
    found: list[tuple[int, EncodedRows]] = []
    row_format, clock = shape.format, SystemClock()
    numbers = NoNumbers(row_format.definition.name, row_format.numbered.name if row_format.numbered else "")

    def encode(begin: int, count: int) -> None:
        part = batch.slice(begin, count)
        if shape.format.computed:
            part = filled_columns(shape.format, part, clock, numbers, first_row + begin)
        rows = encode_rows(shape.format, part, first_row + begin)
        if shape.checks is not None:
            refuse_broken(shape, shape.checks, rows.images, rows.offsets, rows.count, first_row + begin)
        found.append((begin, rows))

    _halve(batch, first_row, refused, encode)
    return found


def _halve(batch: pa.RecordBatch, first_row: int, refused: Refusals, work: Callable[[int, int], None]) -> None:
    """Do `work(begin, rows)` on the whole batch. If a value is refused, do it on the halves, down to the bad rows."""
    waiting = [(0, batch.num_rows)]
    while waiting:
        begin, count = waiting.pop()
        if count == 0:
            continue
        try:
            work(begin, count)
        except _BAD_VALUE as error:
            if error.evidence.get("row") is None:
                raise  # a column that the table does not have, or of a type that holds no value of it
            if count == 1 or refused.count >= REFUSED_MAX:
                refused.add(batch, begin, first_row + begin, error, count)
                continue
            half = count // 2
            waiting += [(begin + half, count - half), (begin, half)]


def fragments_of(job: LoadJob, batch: Any) -> Words:
    """Return the fragment of each row of a record batch, or of a mapping of columns, that has at least the key columns;
    -1 for rows whose key is invalid for the table, or that no partition takes. Shapes: (rows,) int64. Raises: as
    `write_fragment`.
    """
    import pyarrow as pa

    shape = job.shape
    names = list(job.definition.primary_key)
    if not isinstance(batch, pa.RecordBatch):
        columns = batch.combine_chunks() if isinstance(batch, pa.Table) else batch
        arrays = [columns[name] for name in names]
        arrays = [each.combine_chunks() if isinstance(each, pa.ChunkedArray) else each for each in arrays]
        batch = pa.RecordBatch.from_arrays([pa.array(each) for each in arrays], names=names)
    keys = batch.select(names)
    numbers: Words = np.full(keys.num_rows, -1, dtype=np.int64)

    def number(begin: int, count: int) -> None:
        encoded = encode_keys(shape.format, keys.slice(begin, count), begin)
        numbers[begin : begin + count] = fragments_of_keys(
            shape.hash_header, encoded.keys, encoded.key_offsets, encoded.key_stride, encoded.count
        )

    _halve(keys, 0, Refusals(), number)
    return numbers


assert TAG_BITS < 63
