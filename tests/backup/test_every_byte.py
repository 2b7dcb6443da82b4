"""Each byte of each file of a place of backups, changed twice: verification finds it, and so does the part of a restore
that reads it, before any row of it is served.

Ordinary runs take some bytes of each file, long runs all of them. No byte is left out: padding is under the seals.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import tidemark as tm
from tests.backup.support import ROOM, SMALL, Contents, restored, whole_place
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.recovery.backup.manifest import find_backups
from tidemark.recovery.backup.plan import make_plan
from tidemark.recovery.backup.restore import Restore, RestoreSettings
from tidemark.recovery.backup.restore_task import FRAGMENTS, SPLIT, RestoreTask, TaskReport
from tidemark.recovery.backup.rows_file import Level
from tidemark.recovery.backup.tasks import run_task
from tidemark.recovery.backup.verify import VerifyTask
from tidemark.recovery.backup.verify import run_task as verify_files
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROWS = (".parquet", ".level")
LARGE = 4_000  # bytes; of larger files a restore is tested with so many
Check = Callable[[MemoryFiles], bool]


@pytest.fixture(scope="module")
def place() -> tuple[Contents, Any]:
    return whole_place()


# --- what reads each file -------------------------------------------------------------------------
def is_refused(work: Callable[[], object]) -> bool:
    try:
        work()
    except (tm.Damaged, tm.Incompatible):
        return True
    return False


def carried_out(task: RestoreTask, place: MemoryFiles, target: MemoryFiles) -> None:
    """Do a task once more, and remove the files it has made."""
    report = run_task(task, place, target, ManualClock(seed=99))
    for name in [report.file] if task.kind == SPLIT else [each[2] for each in report.made]:
        target.unlink(name)


def verifications(files: MemoryFiles) -> dict[str, Check]:
    """Of each file the part of `verify` that reads it."""
    found: dict[str, Check] = {}
    for manifest in find_backups(files).manifests:
        found[f"{manifest.number}/manifest"] = lambda files: bool(find_backups(files).damaged)
        for _, level in manifest.files():
            definition = json.loads(manifest.definition(level.table_id).to_json())
            levels = manifest.levels[level.table_id, level.fragment]
            chain = [[each.values() for each in levels], [levels.index(level)]]
            task = VerifyTask(None, manifest.store.hex(), [definition], [chain])
            for name in (level.name, level.level_name):
                found[name] = lambda files, task=task: bool(verify_files(files, task).problems)
    segments = [name for name in files.snapshot() if name.endswith(".redo")]
    for name in segments:
        task = VerifyTask(None, "", segments=[name])
        found[name] = lambda files, task=task: bool(verify_files(files, task).problems)
    for name in files.snapshot():
        if name.startswith(("spool/", "load/")) and not name.endswith("/"):
            task = VerifyTask(None, "", segments=segments)
            found[name] = lambda files, task=task: bool(verify_files(files, task).problems)
    return found


def levels_of(task: RestoreTask) -> set[str]:
    """Names of the files of levels that a task reads."""
    levels = [Level.of(values) for part in task.work for values in part["levels"]]
    return {name for level in levels for name in (level.name, level.level_name)}


class Captured:
    """The tasks of a restore, and the directory of the new store as it was before each kind was carried out."""

    def __init__(self, contents: Contents, number: int | None = None) -> None:
        self.tasks: dict[str, list[RestoreTask]] = {}
        self.targets: dict[str, MemoryFiles] = {}
        source, self._files = MemoryFiles.from_snapshot(contents), MemoryFiles()
        self._source = source
        options = Options.from_keywords({**SMALL, **ROOM})
        how = RestoreSettings(runner=self._run, parallel=4)
        Restore(source, make_plan(source, number=number), self._files, options, ManualClock(), how).run()

    def _run(self, tasks: list[RestoreTask]) -> Iterator[TaskReport]:
        kind = tasks[0].kind
        self.tasks[kind] = tasks
        self.targets[kind] = MemoryFiles.from_snapshot(self._files.snapshot())
        for task in tasks:
            yield run_task(task, self._source, self._files, ManualClock(task.number))

    def reader(self, kind: str, tasks: list[RestoreTask]) -> Check:
        """Whether tasks are refused, over some place."""

        def read(files: MemoryFiles) -> bool:
            return any(is_refused(partial(carried_out, each, files, self.targets[kind])) for each in tasks)

        return read

    def readers(self, contents: Contents) -> dict[str, Check]:
        """For each file of a place, the part of a restore that reads it, except files of disk columns."""
        found: dict[str, Check] = {}
        older = Captured(contents, 1)  # all of the log lies after the first backup
        for name in contents:
            if name.endswith("manifest"):
                number = int(name.partition("/")[0])
                found[name] = lambda files, number=number: is_refused(lambda: make_plan(files, number=number))
            elif not name.endswith(ROWS):
                split = older.reader(SPLIT, older.tasks[SPLIT])
                # The header of a segment is read by the plan, the rest by the tasks.
                found[name] = lambda files, split=split: is_refused(lambda: make_plan(files, number=1)) or split(files)
            tasks = [each for each in self.tasks[FRAGMENTS] if name in levels_of(each)]
            if tasks:
                found[name] = self.reader(FRAGMENTS, tasks)
        return found


def sweep(
    contents: Contents, checks: dict[str, Check], most: int | None, rng: random.Random, is_whole: bool = True
) -> Counter[str]:
    """Change bytes of each file in two ways, one bit and the next value; return how many changes each kind of file had.

    is_whole: all bytes of large files, too, in a run that takes all of them.
    """
    files = MemoryFiles.from_snapshot(contents)
    swept: Counter[str] = Counter()
    for name, check in checks.items():
        text = contents[name]
        assert not check(files), name
        file = files.open(name, True)
        count = len(text) if most is None else min(most, len(text))
        if count > LARGE and not is_whole:
            count = LARGE
        for at in sorted(rng.sample(range(len(text)), count)):
            for changed in (text[at] ^ 1 << rng.randrange(8), (text[at] + 1) % 256):
                files.pwrite(file, at, bytes([changed]))
                assert check(files), f"byte {at} of {name} changed from {text[at]} to {changed}"
            files.pwrite(file, at, text[at : at + 1])
            swept[name.rpartition(".")[2] if "." in name else "manifest"] += 2
        files.fdatasync(file)
        files.close(file)
    print(dict(swept), "changes,", len(checks), "files")
    return swept


MOST = pytest.param(12, id="some"), pytest.param(None, id="all", marks=[pytest.mark.soak, pytest.mark.timeout(3_000)])


@pytest.mark.parametrize("most", MOST)
def test_each_changed_byte_of_a_place_is_found_by_its_verification(place: tuple[Contents, Any], most: Any) -> None:
    contents = place[0]
    checks = verifications(MemoryFiles.from_snapshot(contents))
    assert checks.keys() == contents.keys()
    swept = sweep(contents, checks, most, random.Random(31))
    assert set(swept) == {"parquet", "level", "manifest", "redo", "spool", "load"}
    assert most is not None or sum(swept.values()) == 2 * sum(map(len, contents.values()))


@pytest.mark.parametrize("most", MOST)
def test_each_changed_byte_is_refused_by_what_a_restore_does_with_it(place: tuple[Contents, Any], most: Any) -> None:
    contents = place[0]
    captured = Captured(contents)
    checks = captured.readers(contents)
    unread = contents.keys() - checks.keys()
    sweep(contents, checks, most, random.Random(32), is_whole=False)
    # Rows of disk columns are read by the process that restores: a whole restore for each of these bytes.
    assert unread and all(name.endswith(ROWS) for name in unread)
    rng = random.Random(33)
    for name in unread:
        text = contents[name]
        for at in sorted(rng.sample(range(len(text)), 2 if most else 20)):
            harmed = text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]
            assert is_refused(lambda changed={**contents, name: harmed}: restored_of(changed)), f"byte {at} of {name}"


def restored_of(contents: Contents) -> MemoryFiles:
    return restored(MemoryFiles.from_snapshot(contents), **ROOM)


@pytest.mark.parametrize("most", MOST)
def test_each_changed_byte_of_a_split_log_is_found_by_the_tasks_that_read_it(
    place: tuple[Contents, Any], most: Any
) -> None:
    captured = Captured(place[0])
    target = captured.targets[FRAGMENTS]
    source = MemoryFiles.from_snapshot(place[0])
    contents = {name: text for name, text in target.snapshot().items() if "-split-" in name}
    tasks = captured.tasks[FRAGMENTS]

    def read(files: MemoryFiles) -> bool:
        return any(is_refused(partial(carried_out, each, source, files)) for each in tasks)

    # Sections of tables with disk columns, and of tables that are made empty, are not read by tasks.
    sections = [tuple(each) for task in tasks for part in task.work for each in part["sections"]]
    rng = random.Random(34)
    swept = 0
    for _, _, name, offset, _, _, size in sections:
        text = contents[name]
        file = target.open(name, True)
        span = range(offset, offset + size)
        for at in span if most is None else sorted(rng.sample(span, min(most, size))):
            target.pwrite(file, at, bytes([text[at] ^ 1 << rng.randrange(8)]))
            assert read(target), f"byte {at} of {name}"
            target.pwrite(file, at, text[at : at + 1])
            swept += 1
        target.fdatasync(file)
        target.close(file)
    print(swept, "changes")
    assert sections and not read(target)
