"""Verifies a place of backups: every byte of every file, and that the levels of each fragment have its rows. It
changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import Damaged, Incompatible
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.recovery.backup.chain import Chain
from tidemark.recovery.backup.level_file import read_level
from tidemark.recovery.backup.manifest import Manifest, find_backups
from tidemark.recovery.backup.plan import no_backup
from tidemark.recovery.backup.restore_task import read_definition
from tidemark.recovery.backup.rows_file import Level, RowsReader
from tidemark.recovery.backup.segments import groups_of, read_segment, segment_names
from tidemark.recovery.places.storage import at_place
from tidemark.recovery.verification.findings import Findings

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

Progress = Callable[[int, int, str], None]


@dataclass
class VerifyReport(Findings):
    """Counts of a verification, and the problems found."""

    backups: int = 0
    files: int = 0
    rows: int = 0
    segments: int = 0
    groups: int = 0
    size_bytes: int = 0
    rows_bytes: int = field(default=0, repr=False)
    # Readable segments: name, timeline, and begin and end of each (LSN, sequence).
    places: list[Any] = field(default_factory=list, repr=False)

    def take(self, other: VerifyReport) -> None:
        for problem in other.problems:
            self.add(problem)
        self.notes += other.notes
        self.places += other.places
        for name in ("backups", "files", "rows", "segments", "groups", "size_bytes", "rows_bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def add_error(self, error: Exception, name: str) -> None:
        said = str(error)
        self.add(said if name in said else f"{name}: {said}")

    def to_dict(self) -> dict[str, Any]:
        shown = {name: value for name, value in self.__dict__.items() if name not in ("rows_bytes", "places")}
        return {**shown, "is_sound": not self.problems}


@dataclass(frozen=True)
class VerifyTask:
    """Some files of a place, to be read by any process that can reach it under this name; plain values."""

    place: Any  # a path or a URI; None if the executing process has its own
    store: str  # UUID, in hexadecimal
    tables: list[Any] = field(default_factory=list)  # their definitions
    # The values of each level of a fragment, newest first, and the numbers of the levels to read.
    chains: list[Any] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    with_rows: bool = False  # also decode and encode every row


# Carries out tasks, in any order and anywhere, and returns the report of each.
Runner = Callable[[list[VerifyTask]], Iterable[VerifyReport]]


def verify(
    files: Files,
    number: int | None = None,
    progress: Progress | None = None,
    runner: Runner | None = None,
    where: Any = None,
    task_bytes: int = 0,
    with_rows: bool = False,
) -> VerifyReport:
    """Read everything the backups (or one of them) need, and the archive. with_rows: also decode every row.

    runner: carries out the tasks, each of about `task_bytes`, with the place under the name `where`; None: this
    process, file by file. Raises: FileMissing if there is nothing to read, StoreFailed if the disk fails.
    """
    report = VerifyReport()
    found = find_backups(files)
    for other, why in found.damaged.items():
        if number in (None, other):
            report.add(why)
    chosen = [each for each in found.manifests if number in (None, each.number)]
    if number is not None and not chosen and number not in found.damaged:
        report.add(f"there is no backup {number} here")
    report.notes += [f"backup {each} was not finished" for each in found.unfinished]
    tasks, total = _rows_tasks(chosen, report, VerifyTask(where, "", with_rows=with_rows), task_bytes)
    if number is None:
        tasks += _segment_tasks(files, where, task_bytes)
    done = (run_task(files, task) for task in tasks) if runner is None else runner(tasks)
    for each in done if tasks else ():
        report.take(each)
        if progress is not None:
            progress(min(report.rows_bytes, total), total, "bytes")
    _note_gaps(report, found.manifests)
    if not (report.backups or report.segments or report.problems or report.notes):
        raise no_backup(files)  # a mistyped path is not sound
    return report


def verify_task(task: VerifyTask) -> VerifyReport:
    """Carry out a task, in any process, thread or Spark executor that can reach the place under the task's name for it.

    Raises: FileMissing if there is no such place, StoreFailed.
    """
    with at_place(task.place) as files:
        return run_task(files, task)


def run_task(files: Files, task: VerifyTask) -> VerifyReport:
    """Do `verify_task` with open files."""
    report, store = VerifyReport(), bytes.fromhex(task.store)
    tables = {each.table_id: each for each in map(read_definition, task.tables)}
    for values, wanted in task.chains:
        levels = [Level.of(each) for each in values]
        definition = tables[levels[0].table_id]
        try:
            chain = Chain(files, store, definition, levels)
        except (Damaged, Incompatible) as error:
            report.add_error(error, levels[0].name)
            chain = None
        for number in wanted:
            level = levels[number]
            try:
                _verify_level(files, store, level)
                if chain is not None and task.with_rows:
                    for _ in chain.entries(chain.contents[number]):
                        pass
            except (Damaged, Incompatible) as error:
                report.add_error(error, level.name)
            report.files += 1
            report.rows += level.entries
            report.rows_bytes += level.size_bytes
            report.size_bytes += level.size_bytes
    for name in task.segments:
        _verify_segment(files, name, report)
    return report


def _verify_level(files: Files, store: bytes, level: Level) -> None:
    """Read the files of a level. Raises: Damaged, Incompatible."""
    content = read_level(files, store, level.level_name, level)
    with RowsReader(files, store, level, content.ranges) as reader:
        reader.verify()


def _rows_tasks(
    manifests: Iterable[Manifest], report: VerifyReport, base: VerifyTask, task_bytes: int
) -> tuple[list[VerifyTask], int]:
    """Return tasks that read each level once, for the newest manifest that names it, and the bytes of all of them.
    Manifests must agree on sizes; the newest one counts.
    """
    known: dict[str, tuple[Level, int]] = {}
    tasks: list[VerifyTask] = []
    sizes = 0
    number = 0
    for manifest in manifests:
        report.backups += 1
        for (table_id, _), levels in sorted(manifest.levels.items()):
            wanted = []
            for at, level in enumerate(levels):
                first, other = known.setdefault(level.name, (level, manifest.number))
                if first != level:
                    report.add_error(ValueError(f"manifests {other} and {manifest.number} differ"), level.name)
                elif other == manifest.number:
                    wanted.append(at)
            if not wanted:
                continue
            # Definitions come from a manifest, so a task has files of one manifest only.
            if not tasks or sizes >= task_bytes or manifest.number != number:
                tasks.append(replace(base, store=manifest.store.hex(), tables=[], chains=[]))
                sizes, number = 0, manifest.number
            definition = json.loads(manifest.definition(table_id).to_json())
            if definition not in tasks[-1].tables:
                tasks[-1].tables.append(definition)
            tasks[-1].chains.append([[each.values() for each in levels], wanted])
            sizes += sum(levels[at].size_bytes for at in wanted)
    return tasks, sum(level.size_bytes for level, _ in known.values())


def _segment_tasks(files: Files, where: Any, task_bytes: int) -> list[VerifyTask]:
    tasks: list[VerifyTask] = []
    sizes = 0
    for name in segment_names(files):
        if not tasks or sizes >= task_bytes:
            tasks.append(VerifyTask(where, ""))
            sizes = 0
        tasks[-1].segments.append(name)
        sizes += files.size(name)
    return tasks


def _verify_segment(files: Files, name: str, report: VerifyReport) -> None:
    """Verify one segment with the spool files it refers to."""
    try:
        segment = read_segment(files, name)
        report.places.append((name, segment.timeline, segment.start_lsn, segment.start_sequence, *segment.next))
        for group in groups_of(files, segment):
            report.groups += 1
            what = referred(group)
            if what is not None:
                report.size_bytes += SpoolReader(files, segment.store, what).verify()
        report.segments += 1
        report.size_bytes += segment.size_bytes
    except (Damaged, Incompatible) as error:
        report.add_error(error, name)


def _note_gaps(report: VerifyReport, manifests: list[Manifest]) -> None:
    """Note gaps: segments that do not follow the one before, and the first of a timeline if all its backups are from
    before it. A gap is a note, not a problem: a plan says what it can reach.
    """
    at: tuple[int, int, int] = (-1, 0, 0)
    for name, timeline, lsn, sequence, next_lsn, next_sequence in sorted(report.places, key=lambda each: each[1:]):
        if at[0] != timeline and all(each.log[0] < lsn for each in manifests if each.timeline == timeline):
            report.notes.append(f"the archive has a gap before {name}: no backup here reaches it")
        elif at[0] == timeline and at[1:] != (lsn, sequence):
            report.notes.append(f"the archive has a gap before {name}")
        at = (timeline, next_lsn, next_sequence)
