"""Programs run over entries in private memory: one, or batch after batch; and the error of one that fails in a row."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tidemark.engine.base.errors import (
    NotNullViolation,
    PageDamaged,
    ProgramFailed,
    ProgramInvalid,
    Rejected,
    ValueOutOfRange,
)
from tidemark.engine.memory.arena import NOTHING, Words
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.group_memory import grown
from tidemark.engine.programs.vm_batch_kernels import run_batch

if TYPE_CHECKING:
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.rows.row_format import RowFormat

FIRST_IMAGE: Words = np.array([ENTRY_WORDS], dtype=np.int64)  # offset of the image of a single entry
# Instructions of one call over rows in private memory: some tens of milliseconds, in which Ctrl-C has no effect.
STEPS_PER_CALL = 1 << 22
# Words of rows of one such call, times the comparisons of bytes and patterns of the program.
MATCHED_WORDS_PER_CALL = 1 << 21
ERRORS: dict[int, tuple[type[Rejected], str]] = {
    p.PE_NULL: (ProgramFailed, "arithmetic met NULL"),
    p.PE_CALLS: (ProgramFailed, "calls nest too deep"),
    p.PE_STEPS: (ProgramFailed, f"more than {p.PROGRAM_STEPS_MAX} instructions were run"),
    p.PE_MATCH: (
        ProgramFailed,
        f"a pattern with _ between letters takes more than {p.MATCH_STEPS_PER_BYTE} steps for each byte",
    ),
    p.PE_OVERFLOW: (ValueOutOfRange, "a number does not fit its 64 or 128 bits"),
    p.PE_DIVISION: (ProgramFailed, "division by zero"),
    p.PE_RANGE: (ValueOutOfRange, "a new value does not fit its column"),
    p.PE_NOT_NULL: (NotNullViolation, "a column that is not nullable would become NULL"),
}


class _Memory(threading.local):
    """What a thread has to run programs in. A call of a kernel needs nothing of the calls before it, and leaves nothing
    in it for Python: so a signal handler or a finalizer may run a program between any two calls.
    """

    def __init__(self) -> None:
        self.rows: Words = np.zeros(p.ROWS_WORDS, dtype=np.int64)
        self.work: Words = np.zeros(p.work_words(1), dtype=np.int64)

    def work_for(self, outputs: int) -> Words:
        if self.work.size < p.work_words(outputs):
            self.work = np.zeros(p.work_words(outputs), dtype=np.int64)
        return self.work


_memory = _Memory()


def rows_memory() -> Words:
    """Return memory for the planes of rows in the next call of a kernel in this thread."""
    return _memory.rows


def run_one(program: Program, table: Judged, entry: Words) -> list[int]:
    """Run a program without accumulators over one entry in private memory; return its verdict, a code, and
    OUTPUT_PLANES words for each output. Raises: the error of `failed`.
    """
    outputs = len(program.outputs)
    # Not of the thread's memory: a signal handler may run a program before this one's results are read.
    out = np.empty(2 + outputs * p.OUTPUT_PLANES, dtype=np.int64)
    status = run_batch(entry, FIRST_IMAGE, 1, NOTHING, program.words, _memory.rows, _memory.work_for(outputs), out)
    found: list[int] = out.tolist()
    if status == p.RUN_BROKEN:
        raise _broken(table)
    if status == p.RUN_ERROR:
        raise failed(table, entry[ENTRY_WORDS:], found[1])
    return found


def is_accepted(program: Program, table: Judged, entry: Words) -> bool:
    """Whether a condition accepts one entry in private memory. Raises: the error of `failed`."""
    return run_one(program, table, entry)[0] in (p.VERDICT_OK, p.VERDICT_LAST)


def _broken(table: Judged) -> ProgramInvalid:
    return ProgramInvalid(f"{table.name}: the program does not fit the rows; build it again", table=table.name)


class Running:
    """A program that one thread runs, batch after batch; accumulators continue from batch to batch."""

    __slots__ = ("_matches", "_own", "program", "rows_per_call")

    def __init__(self, program: Program) -> None:
        facts = program.facts
        self.program = program
        self.rows_per_call = max(1, STEPS_PER_CALL // (facts.steps * p.VECTOR_ROWS)) * p.VECTOR_ROWS
        self._matches = facts.matches
        self._own: Words | None = program.new_work() if facts.accumulators or facts.key_words else None

    @property
    def work(self) -> Words:
        """Memory for the next call of a kernel in this thread; it has the accumulators."""
        return _memory.work_for(len(self.program.outputs)) if self._own is None else self._own

    @property
    def rows(self) -> Words:
        """See `rows_memory`."""
        return _memory.rows

    def run(self, table: Judged, entries: Words, offsets: Words, parameters: Words = NOTHING) -> tuple[int, Words]:
        """Run over entries in private memory; return (RUN_OK, RUN_LAST or RUN_ERROR; planes as of `run_batch`).

        Shapes: planes (2 + 3 * outputs, rows); parameters (words a row * rows,), a plane for each.
        """
        if offsets.size > self.rows_per_call or entries.size * self._matches > MATCHED_WORDS_PER_CALL:
            return self._run_in_parts(table, entries, offsets, parameters)
        return self._run_once(table, entries, offsets, parameters)

    def _run_once(self, table: Judged, entries: Words, offsets: Words, parameters: Words) -> tuple[int, Words]:
        """Do `run` in one call, which no signal interrupts."""
        count = offsets.size
        planes = np.empty((2 + len(self.program.outputs) * p.OUTPUT_PLANES, count), dtype=np.int64)
        words = self.program.words
        status = int(run_batch(entries, offsets, count, parameters, words, self.rows, self.work, planes.reshape(-1)))
        if status == p.RUN_BROKEN:
            raise _broken(table)
        if status == p.RUN_FULL:
            done = int(self.work[p.W_GROUPS + p.GS_DONE])
            self.grow(table)
            status, planes[:, done:] = self._run_once(table, entries, offsets[done:], parameters)
        return status, planes

    def grow(self, table: Judged) -> None:
        """Make room for more groups, after RUN_FULL. Raises: LimitExceeded."""
        self._own = grown(self.work, table.name)

    def _run_in_parts(self, table: Judged, entries: Words, offsets: Words, parameters: Words) -> tuple[int, Words]:
        """Do `run` for more rows than one call may process."""
        given = parameters.reshape(-1, offsets.size)
        parts: list[Words] = []
        status = p.RUN_OK
        first = 0
        ends = np.cumsum(np.abs(np.diff(offsets, append=entries.size)) * self._matches)
        while first < offsets.size or not parts:
            done = int(ends[first - 1]) if first else 0
            stop = int(np.searchsorted(ends, done + MATCHED_WORDS_PER_CALL, "right"))
            stop = min(max(stop, first + 1), first + self.rows_per_call, offsets.size)
            if status == p.RUN_OK:
                some = np.ascontiguousarray(given[:, first:stop]).reshape(-1)
                status, planes = self._run_once(table, entries, offsets[first:stop], some)
            else:  # no row after the last one, or after one with an error, was run
                planes = np.zeros((parts[0].shape[0], stop - first), dtype=np.int64)
                planes[0] = p.VERDICT_NONE
            parts.append(planes)
            first = stop
        return status, np.concatenate(parts, axis=1)

    def accepted(self, table: Judged, entries: Words, offsets: Words, most: int = sys.maxsize) -> tuple[Words, bool]:
        """Return (places of the accepted rows, at most `most`; whether the scan ends with them).

        Raises: the error of `failed`, unless `most` rows before the failing one were accepted.
        """
        status, planes = self.run(table, entries, offsets)
        places = (planes[0] & p.VERDICT_OK).nonzero()[0][:most]  # VERDICT_OK and VERDICT_LAST
        if places.size == most:
            return places, True
        _check_planes(table, status, planes, entries, offsets)
        return places, status == p.RUN_LAST

    def judged(self, table: Judged, entries: Words, offsets: Words, parameters: Words = NOTHING) -> tuple[Words, Words]:
        """Return (mask of the rows with VERDICT_OK, planes as of `run`). Raises: the error of `failed`."""
        status, planes = self.run(table, entries, offsets, parameters)
        _check_planes(table, status, planes, entries, offsets)
        return planes[0] == p.VERDICT_OK, planes


def _check_planes(table: Judged, status: int, planes: Words, entries: Words, offsets: Words) -> None:
    if status == p.RUN_ERROR:
        place = int(np.argmax(planes[0] == p.VERDICT_ERROR))
        raise failed(table, entries[int(offsets[place]) :], int(planes[1, place]))


class Judged(Protocol):
    """A table whose rows a program judges: in memory, or read from files."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def format(self) -> RowFormat:
        """The table's row format."""

    def format_key(self, key: Any) -> str:
        """Return a key for a message."""


def failed(table: Judged, image: Words, code: int) -> Rejected | PageDamaged:
    """Return the error of a program in the row whose image is at the start of an array."""
    if code == p.PE_DAMAGED:
        return PageDamaged(
            f"{table.name}: the lengths in a row contradict each other; run `tidemark check`", table=table.name
        )
    key = table.format.decode_key(table.format.image_key(image))
    kind, what = ERRORS.get(code, (ProgramFailed, f"error {code}"))
    return kind(
        f"{table.name}: {what} in the row with key {table.format_key(key)}; nothing was changed",
        table=table.name,
        key=key,
        code=code,
    )
