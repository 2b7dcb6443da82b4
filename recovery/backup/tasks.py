"""The tasks of a restore: plain values that any process can carry out with only files (D11).

A task may run any number of times, even concurrently. Each attempt writes a file of its own, and its report names it;
files that no report names are removed. The restoring process plans tasks, takes one report of each, and commits.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.backup.fragment import attempt_name, write_fragment
from tidemark.recovery.backup.restore_task import SPLIT, RestoreTask, TaskReport
from tidemark.recovery.backup.split import split_name, split_segments
from tidemark.recovery.local_checkpoint.data_file import FOLDER
from tidemark.recovery.places.storage import at_place, full_disk_named
from tidemark.recovery.system_restart.sysfile import RESTORING, read_sysfile

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import Files

Advance = Callable[[int], None]
ATTEMPT_BYTES = 6
# The form of `split_name` and `attempt_name`; no file of a store has such a name.
_OF_ATTEMPT = re.compile(rf"{FOLDER}/\d+-(?:split-\d+|\d+-\d+)-[0-9a-f]{{{2 * ATTEMPT_BYTES}}}\.data")


def restore_fragment(task: RestoreTask, advance: Advance | None = None) -> TaskReport:
    """Carry out a task of a restore, in any process, thread or Spark executor that can open the place and the
    directory by the names in the task. advance: called with the number of rows done since the last call.

    Durable on return: content of the files the report names. Raises: Rejected if no restore is running there (it was
    abandoned, or is over), BackupDamaged, FileMissing, FileTruncated, ForeignFile, RedoDamaged, StorageFull; the files
    of the attempt are then removed.
    """
    if task.path is None:
        raise Rejected("this task was planned for the process that restores; plan it with a path and a place")
    with PosixFiles(task.path) as target:
        with at_place(task.place) as place, full_disk_named(task.path):
            return run_task(task, place, target, SystemClock(), advance)


def run_task(
    task: RestoreTask, place: Files, target: Files, clock: Clock, advance: Advance | None = None
) -> TaskReport:
    """Do `restore_fragment` with open files."""
    attempt = clock.random_bytes(ATTEMPT_BYTES).hex()
    _check_under_way(task, target)
    try:
        report = _carry_out(task, place, target, attempt, advance)
        _check_under_way(task, target)  # a process that abandoned the restore meanwhile has not seen these files
    except BaseException:
        if target.failure.first is None:
            _remove_files(task, target, attempt)
        raise
    return report


def _check_under_way(task: RestoreTask, target: Files) -> None:
    sysfile = read_sysfile(target, True) if target.exists(RESTORING) else None
    if sysfile is None or sysfile.store.hex() != task.store:
        raise Rejected(
            "the restore of this task does not run in that directory: it has ended or was abandoned; plan it again"
        )


def is_of_attempt(name: str) -> bool:
    return _OF_ATTEMPT.fullmatch(name) is not None


def _remove_files(task: RestoreTask, target: Files, attempt: str) -> None:
    """Remove the files of an attempt, which no report names."""
    names = [split_name(task.number, attempt)]
    if task.kind != SPLIT:
        names = [attempt_name(task.lcp_id, part["table_id"], part["fragment"], attempt) for part in task.work]
    for name in names:
        with contextlib.suppress(FileMissing):  # not created yet, or another process removed it
            target.unlink(name)


def _carry_out(task: RestoreTask, place: Files, target: Files, attempt: str, advance: Advance | None) -> TaskReport:
    if task.kind == SPLIT:
        return split_segments(place, target, task, attempt)
    operations = rows = 0
    files: list[Any] = []
    for part in task.work:
        made, changes = write_fragment(place, target, task, part, attempt, advance)
        files.append(made)
        operations += changes
        rows += made[3]
    return TaskReport(task.number, "", files, [], 0, operations, rows, task.size_bytes)
