"""Places of backups: their content, verification, retention, and stores restored from them (docs/backup.md)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Unpack

from tidemark.database import check_store
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.engine.base.out_of_memory import types_memory_error
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.backup.manifest import find_backups
from tidemark.recovery.backup.plan import check_number, make_plan
from tidemark.recovery.backup.planner import planned_tasks
from tidemark.recovery.backup.restore import Restore, RestoreSettings, check_empty, clear
from tidemark.recovery.backup.retention import prune as prune_files
from tidemark.recovery.backup.segments import Until
from tidemark.recovery.backup.verify import verify as verify_files
from tidemark.recovery.backup.workers import Workers
from tidemark.recovery.places.storage import at_place, full_disk_named
from tidemark.recovery.system_restart.kept_options import keep_options
from tidemark.recovery.system_restart.load import PARTS
from tidemark.replication.injector.binlog_restore import RestoreBinlog
from tidemark.replication.settings.options import OpenKeywords, split_keywords
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS, NDB_BINLOG_INDEX, made_table
from tidemark.session import Transaction

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.store.store import Store
    from tidemark.recovery.backup.restore_task import Runner

Progress = Callable[[int, int, str], None]
Place = Any  # a path, a URI, or (pyarrow filesystem, path)
PROCESSES_MAX = 256
_EPOCH_OF_TIME = datetime(1970, 1, 1, tzinfo=UTC)


@types_memory_error()
def backups(place: Place, *, binlog: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Return the content of a place.

    Returns:
        `backups`, newest first, each with epoch, rows and bytes; the numbers of `unfinished` ones; `damaged` manifests,
        each with what is wrong. With a `binlog` also its first and last epoch, when these were closed, files, `gaps`
        and `damage`.

    Raises:
        FileMissing: There is no such place.
        Incompatible: The place was written by an incompatible version.
        BinlogDamaged: The index of the binlog is damaged.

    Examples:
        >>> from tidemark import backup
        >>> report = db.backup("backups")
        >>> [(each["number"], each["rows"]) for each in backup.backups("backups")["backups"]]
        [(1, 3)]
    """
    with at_place(place) as files:
        found = find_backups(files)
    listed: dict[str, Any] = {
        "backups": [each.summary() for each in found.manifests],
        "unfinished": found.unfinished,
        "damaged": found.damaged,
    }
    if binlog is not None:
        with RestoreBinlog.at(binlog) as log:
            listed["binlog"] = log.to_dict()
    return listed


def until_of(value: int | datetime | None) -> Until:
    """Return the end of a restore. value: an epoch, a time (without a zone: local time), or None for the latest state.
    Raises: Rejected.
    """
    if isinstance(value, datetime):
        return Until(wall_us=int((value.astimezone(UTC) - _EPOCH_OF_TIME).total_seconds() * 1_000_000))
    return Until() if value is None else Until(epoch=check_number(value))


@types_memory_error()
def plan(
    place: Place,
    until: int | datetime | None = None,
    number: int | None = None,
    *,
    processes: int = 1,
    binlog: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return which files `restore` with the same arguments would read, in which tasks, and the epoch it would reach.

    Nothing is written.

    Raises: FileMissing, BackupDamaged, ForeignFile; ValueOutOfRange if `until` is out of reach; with a binlog,
    as `restore`.

    Examples:
        >>> from tidemark import backup
        >>> number = db.backup("backups")["number"]
        >>> db["item"].insert((4, "ink", 7))
        >>> archived = db.archive("backups")
        >>> planned = backup.plan("backups")
        >>> planned["backup"]["number"], planned["epoch"] == archived["last_epoch"]
        (1, True)
    """
    _check_processes(processes)
    with at_place(place) as files, _opened(binlog) as log:
        planned = make_plan(files, until_of(until), number, log)
    return {**planned.to_dict(), "tasks": planned_tasks(planned, processes)}


def _opened(binlog: str | os.PathLike[str] | None) -> AbstractContextManager[RestoreBinlog | None]:
    return nullcontext() if binlog is None else RestoreBinlog.at(binlog)


@types_memory_error("the directory has the whole store, or none")
def restore(
    place: Place,
    path: str | os.PathLike[str],
    until: int | datetime | None = None,
    *,
    number: int | None = None,
    apply_status: bool = False,
    verify: bool = True,
    processes: int = 1,
    runner: Runner | None = None,
    binlog: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> dict[str, Any]:
    """Restore a backup, the log archived after it, and then the `binlog` if one is given, as a new store.

    Args:
        place: A path, a URI, or (pyarrow filesystem, path).
        path: The directory of the new store, missing or empty.
        until: The state at the end of this epoch, or at this time; None: the latest state.
        number: The backup to begin with; None: the newest one from which `until` can be reached.
        apply_status: Write the row of `mysql.ndb_apply_status` that lets a replica continue after the epoch. The store
            that was backed up must have had a server id.
        verify: Recover the new store in memory, as an opening does, and count its rows.
        processes: How many processes restore fragments and archived log in parallel. 1: this one, with two threads;
            more need a place that is a path or a URI.
        runner: Runs the tasks in place of processes, at most `processes` at a time (`recovery/backup/tasks.py`).
        binlog: The folder of the binlog of the store that was backed up, or the directory of that store. Its epochs
            after the end of the archive are applied one by one. docs/backup.md, section 6, lists what a binlog lacks.
        progress: Called with (done, total, unit).
        options: As for `open`. The new store keeps them.

    Returns:
        A report with `epoch`, `server_id` and `notes`.

    Durable on return: the store; open it as any other.

    Raises:
        Rejected: The directory is not empty, or arguments exclude each other.
        FileMissing: The place has no backup.
        BackupDamaged: A file of the backup or the archive is damaged.
        ForeignFile: The place has a file of another store.
        ValueOutOfRange: `until` is out of reach.
        LimitExceeded: An option is too small for the rows, such as `data_memory`.
        StorageFull: The disk has no room.
        PositionLost: The binlog begins too late.
        EpochGap: The binlog has an incident.
        BinlogDamaged: The binlog is damaged.

    A change in the binlog that cannot be applied raises its own error. After an error the directory has no files of
    the new store, only `LOCK` and folders, unless its disk has failed.

    Examples:
        >>> number = db.backup("backups")["number"]
        >>> report = tm.restore("backups", "restored", data_memory="64 MiB")
        >>> report["backup"], report["rows"]
        (1, 3)
        >>> with tm.open("restored", data_memory="64 MiB") as restored:
        ...     restored["item"][1]
        Row(id=1, name='pen', stock=10)
    """
    parsed = split_keywords(options)[0]
    _check_processes(processes)
    if processes > 1 and runner is None and isinstance(place, tuple):
        raise Rejected("worker processes need a place that is a path or a URI; restore with processes=1")
    # Each callback runs even if the one before it raises, as may happen when memory is exhausted.
    with at_place(place) as source, _opened(binlog) as log, ExitStack() as ends:
        planned = make_plan(source, until_of(until), number, log)
        if log is not None and planned.later is not None:
            log.keep(planned.later)
        if apply_status and not planned.manifest.server_id:
            raise Rejected(
                "the store that was backed up had no server_id, so it cannot be the source of a replica; restore"
                " without apply_status"
            )
        files = PosixFiles(path, create=True)
        ends.callback(files.unlock)
        ends.callback(files.close_all)
        finish = _position_writer(planned.manifest.server_id, planned.end_epoch) if apply_status else None
        how = RestoreSettings(
            is_verified=verify,
            empty=frozenset([NDB_BINLOG_INDEX]),  # it names binlog files of the other store
            native=frozenset([NDB_APPLY_STATUS] if apply_status else []),
            finish=finish,
            later=log,
            runner=runner,
            where=(source.directory if isinstance(source, PosixFiles) else place, files.directory),
            parallel=PARTS if processes == 1 and runner is None else processes,
        )
        workers = Workers(processes)
        if processes > 1 and runner is None:
            how = replace(how, runner=workers)
        restoring = Restore(source, planned, files, parsed, SystemClock(), how, progress)
        ends.callback(restoring.abandon)
        workers.advance = restoring.advance
        with workers, full_disk_named(files.directory):
            report = asdict(restoring.run())
        keep_options(files, parsed, options)
        return report


def check_target(path: str | os.PathLike[str]) -> None:
    """Check that a store may be restored into a directory: it is missing, or holds nothing but what another restore has
    left. Nothing is written.

    Raises: Rejected if it has anything else, or is a file.

    Examples:
        >>> from tidemark import backup
        >>> backup.check_target("restored")
    """
    try:
        files = PosixFiles(path)
    except FileMissing:
        return
    with files:
        check_empty(files)


def _check_processes(processes: object) -> None:
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= PROCESSES_MAX:
        raise Rejected(f"processes must be a whole number from 1 to {PROCESSES_MAX}, got {processes!r}")


@types_memory_error()
def verify(
    place: Place, number: int | None = None, progress: Progress | None = None, *, rows: bool = False
) -> dict[str, Any]:
    """Read every byte of the backups in a place (or of one), and of the archive: each must have its digest, and the
    levels of each fragment must have as many rows as were backed up. Nothing is changed.

    Args:
        place: A path, a URI, or (pyarrow filesystem, path).
        number: The number of the backup to read; None: all.
        progress: Called with (done, total, unit).
        rows: Also decode every row, and encode it as a restore does. That takes about as long as a restore.

    Returns:
        A report. `is_sound` is False if `problems` has anything.

    Raises:
        FileMissing: There is no such place, or it has nothing to read.

    Examples:
        >>> from tidemark import backup
        >>> number = db.backup("backups")["number"]
        >>> backup.verify("backups")["is_sound"]
        True
    """
    with at_place(place) as files:
        return verify_files(files, number, progress, with_rows=rows).to_dict()


@types_memory_error("the files removed so far belong to no backup that is kept")
def prune(place: Place, keep: int) -> dict[str, Any]:
    """Remove all but the newest `keep` backups, with the files and the archived log that only they need.

    Returns:
        A report of what was removed.

    Raises:
        Rejected: A manifest cannot be read; nothing is removed.
        ValueOutOfRange: `keep` is less than 1.
        Locked: Another process writes to the place.

    Examples:
        >>> from tidemark import backup
        >>> numbers = [db.backup("backups")["number"] for _ in range(3)]
        >>> backup.prune("backups", keep=1)["removed"]
        [2, 1]
    """
    with at_place(place, is_locked=True) as files:
        return asdict(prune_files(files, keep))


@types_memory_error()
def drill(
    place: Place,
    scratch: str | os.PathLike[str],
    until: int | datetime | None = None,
    *,
    processes: int = 1,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> dict[str, Any]:
    """Prove that a restore would succeed: restore into a scratch directory, check the store there, and remove its
    files.

    Args:
        scratch: A directory, missing or empty.
        options: As for `restore`, like the other arguments.

    Returns:
        A report: `restored`, that of `restore`; `checked`, that of the check; `is_sound`. The files of a store with
        problems stay.

    Raises: as `restore`.

    Examples:
        >>> from tidemark import backup
        >>> number = db.backup("backups")["number"]
        >>> backup.drill("backups", "scratch", data_memory="64 MiB")["is_sound"]
        True
    """
    restored = restore(place, scratch, until, processes=processes, progress=progress, **options)
    checked = check_store(scratch, progress, **options)
    if checked["is_sound"]:
        with PosixFiles(scratch) as files:
            clear(files)
    return {"restored": restored, "checked": checked, "is_sound": checked["is_sound"]}


def drills(
    place: Place,
    scratch: str | os.PathLike[str],
    every_seconds: float,
    until: int | datetime | None = None,
    *,
    clock: Clock | None = None,
    processes: int = 1,
    **options: Unpack[OpenKeywords],
) -> Iterator[dict[str, Any]]:
    """Yield the report of a `drill` now, and of another one at each multiple of the interval from the start.

    If a drill takes longer than the interval, the times it missed are skipped. The iteration ends after the first
    report that is not sound; the files of that drill stay.

    Args:
        every_seconds: The interval, above 0.
        clock: None: that of the system.

    Raises: as `drill`; an error ends the schedule. Rejected if the interval is not above 0.

    Examples:
        >>> from tidemark import backup
        >>> number = db.backup("backups")["number"]
        >>> schedule = backup.drills("backups", "scratch", every_seconds=86_400, data_memory="64 MiB")
        >>> next(schedule)["is_sound"]
        True
        >>> schedule.close()
    """
    if isinstance(every_seconds, bool) or not isinstance(every_seconds, (int, float)) or not every_seconds > 0:
        raise Rejected(
            f"every_seconds must be a number of seconds above 0, got {every_seconds!r}; give 86_400 for a day"
        )
    time = SystemClock() if clock is None else clock
    due = time.monotonic()
    while True:
        report = drill(place, scratch, until, processes=processes, **options)
        yield report
        if not report["is_sound"]:
            return
        now = time.monotonic()
        due += every_seconds * (int((now - due) // every_seconds) + 1)
        time.sleep(due - now)


def _position_writer(server_id: int, epoch: int) -> Callable[[Store], None]:
    """Return a function that writes the row by which a replica, restored from its source, learns where to continue."""

    def write(store: Store) -> None:
        with store.transactions.begin(kind=Transaction) as txn:
            made_table(store, NDB_APPLY_STATUS)
            row = {"server_id": server_id, "epoch": epoch, "log_name": "", "start_pos": 0, "end_pos": 0}
            txn.write(NDB_APPLY_STATUS, row)

    return write
