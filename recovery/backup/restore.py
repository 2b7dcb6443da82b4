"""A restore: builds a new store from a backup and archived log, in a directory of its own (docs/backup.md, 4).

Order of writes: the mark `restoring`, durable; an empty store with a new identity; the archived log split by fragment;
tables with disk columns, as in a restart; data files of all other fragments, each by a task that may run anywhere; the
local checkpoint that names all of them; changes of another log after the archive, applied by transactions of the fully
opened store. Then the store is loaded as by a restart and its rows are counted, and the mark is removed. Until then an
opening refuses the directory (`RestoreUnfinished`), so no crash leaves files that could be taken for a store.
"""

from __future__ import annotations

import contextlib
import gc
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    BackupDamaged,
    Damaged,
    Error,
    FileMissing,
    InvariantBroken,
    Rejected,
)
from tidemark.engine.base.ids import gci_of, make_epoch
from tidemark.engine.disk.tablespaces import DEFAULT_BYTES, TablespaceDefinition
from tidemark.engine.files.directory import LOCK_NAME
from tidemark.engine.memory.arena_layout import F_SLOTS
from tidemark.recovery.backup.native import NativeTables
from tidemark.recovery.backup.planner import Sections, fragment_tasks, parts_of, split_tasks
from tidemark.recovery.backup.restore_task import FRAGMENTS, RestoreTask, TaskReport
from tidemark.recovery.backup.tasks import is_of_attempt, run_task
from tidemark.recovery.backup.whole import WholeStore, close_files, fragment_rows, index_entries
from tidemark.recovery.local_checkpoint.data_file import FOLDER, data_name
from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint, Sizes
from tidemark.recovery.system_restart.indexes import build_indexes
from tidemark.recovery.system_restart.load import must_fit
from tidemark.recovery.system_restart.place import is_own
from tidemark.recovery.system_restart.replay import apply_schema
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.sysfile import RESTORING

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.backup.later_changes import LaterChanges
    from tidemark.recovery.backup.plan import Plan
    from tidemark.recovery.backup.restore_task import Runner
    from tidemark.recovery.system_restart.restart import Opened

Progress = Callable[[int, int, str], None]
FIRST_LCP = 2  # if number 1 were damaged, a restart would look for the log from its beginning
UNDO_SHARE = 6  # local checkpoints empty the UNDO log after this part of it has been used


@dataclass
class RestoreReport:
    """Result of a restore."""

    epoch: int
    server_id: int  # of the store that was backed up
    backup: int
    tables: int = 0
    rows: int = 0
    groups: int = 0
    operations: int = 0  # of the archived log, in restored tables
    later_epochs: int = 0  # applied from another log than the archive
    later_rows: int = 0  # changed by these epochs
    tasks: int = 0
    indexes: int = 0  # their entries, as counted by the verification
    size_bytes: int = 0
    seconds: float = 0.0
    is_verified: bool = False
    notes: list[str] = field(default_factory=list)  # of the plan


def names_of(files: Files, folder: str = "") -> Iterator[str]:
    """Yield the names of all files in a directory and its folders, except LOCK."""
    for leaf in files.list(folder):
        name = f"{folder}/{leaf}" if folder else leaf
        if name == LOCK_NAME:
            continue
        try:
            yield from names_of(files, name)
        except FileMissing:
            continue  # a task has removed it
        except Rejected:
            yield name  # no folder


def remove(files: Files, names: Iterable[str]) -> None:
    """Remove files. A task that outlives its restore, or its executor, may be removing its own files meanwhile."""
    for name in names:
        with contextlib.suppress(FileMissing):
            files.unlink(name)


def clear(files: Files) -> None:
    """Remove all files of a directory that was restored into; empty folders stay."""
    remove(files, list(names_of(files)))


def check_empty(files: Files) -> bool:
    """Return whether a directory has the mark of another restore. Raises: Rejected if it has anything that no restore
    has left.
    """
    left = list(names_of(files))
    is_marked = RESTORING in left
    # Without a mark: files of tasks that were killed after their restore had been abandoned.
    others = [name for name in left if not is_of_attempt(name) and not (is_marked and is_own(name))]
    if others:
        raise Rejected(f"the directory is not empty: it has {others[0]}; restore into a new or empty one")
    return is_marked


@dataclass(frozen=True)
class RestoreSettings:
    """Settings of a restore, apart from what it restores.

    empty: tables that are created without rows. native: tables that `finish` writes to. finish: called with the store
    after the `native` tables have their rows, and after the changes of `later`. later: applies the planned changes of
    another log. runner: carries out the tasks; None: threads of the restoring process. where: place of the backups and
    directory of the new store, as other processes find them. parallel: how many tasks may run at a time.
    """

    is_verified: bool = True
    empty: frozenset[str] = frozenset()
    native: frozenset[str] = frozenset()
    finish: Callable[[Store], None] | None = None
    later: LaterChanges | None = None
    runner: Runner | None = None
    where: tuple[Any, str | None] = (None, None)
    parallel: int = 1


IN_THIS_PROCESS = RestoreSettings()


class Restore:
    """Carries out one plan."""

    def __init__(
        self,
        place: Files,
        plan: Plan,
        files: Files,
        options: Options,
        clock: Clock,
        settings: RestoreSettings = IN_THIS_PROCESS,
        progress: Progress | None = None,
    ) -> None:
        """place: of the backups; files: of the directory for the store, which must not be in use."""
        self._place = place
        self._plan = plan
        self._files = files
        self._options = options
        self._clock = clock
        self._settings = settings
        self._progress = progress
        self._progress_turn = threading.Lock()
        self._rows_done = 0
        self._undo_bytes = 0  # of the UNDO log when it was last emptied
        self._lcp: LocalCheckpoint | None = None
        self._is_under_way = False

    def run(self) -> RestoreReport:
        """Build the store. Durable on return: all of it, ready to be opened; `files` are closed.

        Raises: Rejected if the directory has other files than those of an interrupted restore, BackupDamaged and the
        like, StorageFull; LimitExceeded if an option is too small for the rows.
        """
        with must_fit("the rows of the backup", self._plan.manifest.size_bytes, self._options):
            return self._run()

    def _run(self) -> RestoreReport:
        began = self._clock.monotonic()
        files, manifest = self._files, self._plan.manifest
        files.lock()
        self._begin()
        report = RestoreReport(self._plan.end_epoch, manifest.server_id, manifest.number, notes=list(self._plan.notes))
        rows = self._build(report)
        if self._has_later_log:
            rows = self._apply_later_log(report)
        if self._settings.is_verified:
            report.indexes = self.compare(rows)
            report.is_verified = True
        files.mark("restored", epoch=report.epoch)
        files.unlink(RESTORING)  # from here on the store is whole
        self._is_under_way = False
        files.sync_directory("")
        self._remove_attempts()  # of tasks that have ended since; a task that ends from now on finds no mark
        report.tables, report.rows = len({table for table, _ in rows}), sum(rows.values())
        report.seconds = self._clock.monotonic() - began
        return report

    def _begin(self) -> None:
        """Empty the directory of what another restore has left, and mark it. Durable on return: the mark.

        Raises: Rejected if it has anything else, and then nothing is removed.
        """
        files = self._files
        is_marked = check_empty(files)
        self._is_under_way = True
        if not is_marked:
            files.close(files.create(RESTORING))
        files.sync_directory("")  # a killed restore may not have synced its mark
        self._remove_all()

    def _remove_all(self) -> None:
        """Remove all files but the mark. Durable on return: that they are gone."""
        names = [name for name in names_of(self._files) if name != RESTORING]
        remove(self._files, names)
        for folder in {name.rpartition("/")[0] for name in names}:
            self._files.sync_directory(folder)

    def abandon(self) -> None:
        """Remove all files of a restore that ended with an error, the mark last. Do nothing if the restore did not
        begin, or has finished and removed the mark. Call it when no task is running. Never raises: on a failing disk
        the mark stays, with files.
        """
        files = self._files
        if not self._is_under_way or files.failure.first is not None:
            return
        with contextlib.suppress(Error):
            if not files.exists(RESTORING):
                return
            self._remove_all()  # durable first: if a crash brings a file back, the mark must still be there
            if files.exists(RESTORING):
                files.unlink(RESTORING)
                files.sync_directory("")

    # --- building --------------------------------------------------------------------------------
    def _build(self, report: RestoreReport) -> dict[tuple[str, int], int]:
        """Build the store on disk; return the number of rows of each fragment, by table and number."""
        opened = self._restart(replace(self._options, create=True)).run()
        store = self._store = opened.store
        lcp = self._lcp = LocalCheckpoint(store, self._files, opened.identity, FIRST_LCP)
        self._set_clock(opened)
        self._make_tables()
        sections = self._split(opened.identity, report)
        self._make_native(opened.identity[0], sections, report)
        lcp.adopted = self._write_fragments(opened.identity, sections, report)
        report.size_bytes = lcp.run().size_bytes
        lcp.forget_older()
        opened.keeper.write(gci=int(gci_of(store.epochs.current)) + 1, next_table_id=store.tables.next_id)
        made = {
            (store.tables.by_id[table_id].name, number): sizes[0] for (table_id, number), sizes in lcp.adopted.items()
        }
        rows = {**fragment_rows(store), **made}
        store.log.flush()
        close_files(store)
        return rows

    def _restart(self, options: Options) -> Restart:
        return Restart(self._files, options, self._clock, is_restoring=True)

    def _set_clock(self, opened: Opened) -> None:
        """Set the new store's current epoch after all epochs of its rows. If another log follows, its changes keep
        their epochs.
        """
        store = opened.store
        if self._has_later_log:
            with store.latch:
                store.epochs.resume(max(self._plan.epoch, store.epochs.current))
            return
        highest = max(self._plan.epoch, self._plan.reach, self._plan.manifest.epoch)
        with store.latch:
            store.epochs.current = int(make_epoch(int(gci_of(highest)) + 1, 0))
            store.log.close_epoch(store.epochs.current)

    def _make_tables(self) -> None:
        store, manifest = self._store, self._plan.manifest
        for definition, size_bytes in manifest.tablespaces:
            self._make_tablespace(definition, size_bytes)
        for table in manifest.tables:
            store.tables.install(table)
        store.tables.next_id = max(store.tables.next_id, manifest.next_table_id)

    def _make_tablespace(self, definition: TablespaceDefinition, size_bytes: int) -> None:
        """Create a tablespace, with numbers and files of the new store, unless one of this name exists."""
        if definition.name not in self._store.space.by_name:
            unnumbered = replace(definition, tablespace_id=0, file_ids=())
            self._store.create_tablespace(unnumbered, max(size_bytes, definition.extent_bytes))

    def _relieve(self, coming_bytes: int = 0) -> None:
        """Keep the UNDO log from filling: after local checkpoints no restart needs its records.

        coming_bytes: of the records that are replayed next.
        """
        store = self._store
        if self._lcp is None or not store.disk.is_started:
            return
        undo = store.disk.undo
        used = undo.bytes_used - self._undo_bytes
        if used and (used + 2 * coming_bytes) * UNDO_SHARE > undo.geometry.capacity_bytes:
            # The tail moves only after two checkpoints.
            self._lcp.run()
            self._lcp.run()
            self._undo_bytes = undo.bytes_used

    # --- tasks -----------------------------------------------------------------------------------
    def _base(self, identity: tuple[bytes, int]) -> RestoreTask:
        plan, lcp = self._plan, self._lcp
        assert lcp is not None
        numbers = (identity[1], lcp.next_id, plan.manifest.epoch, plan.epoch)
        return RestoreTask(FRAGMENTS, 0, *self._settings.where, plan.manifest.store.hex(), identity[0].hex(), *numbers)

    def _carry_out(self, tasks: list[RestoreTask], report: RestoreReport) -> list[TaskReport]:
        """Return the report of each task, in their order. Raises: the errors of tasks, InvariantBroken."""
        found: dict[int, TaskReport] = {}
        reported = self._rows_done
        runner = self._settings.runner
        done: Iterable[TaskReport] = self._alone(tasks) if runner is None else runner(tasks)
        for each in done if tasks else ():
            found.setdefault(each.number, each)
            reported += tasks[each.number].rows
            self.advance(max(0, reported - self._rows_done))
        if len(found) != len(tasks):
            raise InvariantBroken(f"{len(tasks)} tasks of a restore gave {len(found)} reports; restore again")
        report.tasks += len(tasks)
        report.operations += sum(each.operations for each in found.values() if not each.groups)
        return [found[task.number] for task in tasks]

    def _alone(self, tasks: list[RestoreTask]) -> Iterator[TaskReport]:
        """Carry out tasks, in threads of this process if several may run at a time: they hardly need the GIL."""

        def run(task: RestoreTask) -> TaskReport:
            return run_task(task, self._place, self._files, self._clock, self.advance)

        if self._settings.parallel == 1:
            yield from map(run, tasks)
            return
        pool = ThreadPoolExecutor(self._settings.parallel, "restore")
        try:
            for future in as_completed([pool.submit(run, task) for task in tasks]):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def advance(self, rows: int) -> None:
        """Report progress of this many rows, for runners that learn of it before the task's report. Any thread may call
        it.
        """
        with self._progress_turn:
            self._rows_done += rows
            if self._progress is not None and rows:
                self._progress(self._rows_done, self._plan.manifest.rows, "rows")

    def _split(self, identity: tuple[bytes, int], report: RestoreReport) -> Sections:
        """Split the archived log by fragment and apply its schema records, which gives tables their final
        definitions.
        """
        sections: Sections = {}
        schema: list[tuple[int, dict[str, Any]]] = []
        for each in self._carry_out(split_tasks(self._plan, self._base(identity), self._settings.parallel), report):
            report.groups += each.groups
            schema += [(epoch, change) for epoch, change in each.schema]
            for section in each.made:
                sections.setdefault((section[0], section[1]), []).append(section)
        self._apply_schema(schema, self._plan.manifest.epoch)
        for table_id, number in sections:
            table = self._store.tables.by_id.get(table_id)
            if table is not None and number >= table.definition.partition.next_number:
                raise BackupDamaged(
                    f"the archived log has rows of fragment {number} of {table.name}, which has no such fragment;"
                    " restore to an earlier epoch, or from another backup",
                    table=table.name,
                )
        return sections

    def _is_native(self, table: Table) -> bool:
        return table.format.has_disk or table.name in self._settings.native

    def _make_native(self, identity: bytes, sections: Sections, report: RestoreReport) -> None:
        """Restore tables with disk columns, and tables that `finish` writes to."""
        store = self._store
        tables = {table.table_id for table in store.tables.by_name.values() if self._is_native(table)}
        place = (store, self._place, self._files, self._plan.manifest, self._relieve, self.advance)
        report.operations += NativeTables(*place).make(tables, sections, identity)
        build_indexes(store)
        if self._settings.finish is not None and not self._has_later_log:
            self._settings.finish(store)
        self._relieve()

    def _write_fragments(
        self, identity: tuple[bytes, int], sections: Sections, report: RestoreReport
    ) -> dict[tuple[int, int], Sizes]:
        """Write the data files of all other fragments under their final names; remove all other files of tasks."""
        store, files, lcp = self._store, self._files, self._lcp
        assert lcp is not None

        def slots(fragment: int) -> int:
            return store.arena.word(fragment, F_SLOTS)

        parts = [
            part
            for table in store.tables.by_name.values()
            if not self._is_native(table) and table.name not in self._settings.empty
            for part in parts_of(self._plan.manifest, table, slots, sections)
        ]
        tasks = fragment_tasks(parts, self._base(identity), self._settings.parallel, self._plan.manifest.tables)
        adopted: dict[tuple[int, int], Sizes] = {}
        for report_of in self._carry_out(tasks, report):
            for table_id, number, name, *sizes in report_of.made:
                files.rename(name, data_name(lcp.next_id, table_id, number))
                adopted[table_id, number] = (sizes[0], sizes[1], sizes[2])
        if adopted.keys() != {(part["table_id"], part["fragment"]) for part in parts}:
            raise InvariantBroken("tasks of a restore have not written the files of all fragments; restore again")
        self._remove_attempts()
        return adopted

    def _remove_attempts(self) -> None:
        """Remove split files, and files of attempts that no report named or whose report came too late."""
        names = [f"{FOLDER}/{leaf}" for leaf in self._files.list(FOLDER)]
        remove(self._files, filter(is_of_attempt, names))

    def _apply_schema(self, changes: list[tuple[int, dict[str, Any]]], epoch: int) -> None:
        """Apply schema changes. Tablespaces get numbers of the new store; their data files grow as needed."""
        kept: list[tuple[int, dict[str, Any]]] = []
        for at, change in changes:
            if "tablespace" in change:
                definition = TablespaceDefinition.from_json(json.dumps(change["tablespace"]).encode())
                self._make_tablespace(definition, min(DEFAULT_BYTES, definition.limit_bytes or DEFAULT_BYTES))
            elif "datafile" not in change and "drop_tablespace" not in change:
                kept.append((at, change))
        apply_schema(self._store, kept, epoch)

    # --- another log -----------------------------------------------------------------------------
    @property
    def _has_later_log(self) -> bool:
        """Whether another log than the archive has changes to apply."""
        return self._plan.later is not None and self._plan.later.epochs > 0

    def _apply_later_log(self, report: RestoreReport) -> dict[tuple[str, int], int]:
        """Open the store fully and apply the other log's changes; return the rows of each fragment. Durable on return:
        the changes.
        """
        plan, settings = self._plan.later, self._settings
        assert plan is not None and settings.later is not None
        self._drop_store()
        whole = WholeStore(self._restart(self._options).run(), self._files)
        done = 0

        def advance(epochs: int) -> None:
            nonlocal done
            done += epochs
            if self._progress is not None:
                self._progress(done, plan.epochs, "epochs")

        applied = whole.apply(settings.later, plan, advance)
        report.later_epochs, report.later_rows = applied.epochs, applied.rows
        whole.continue_after(self._plan.reach)
        if settings.finish is not None:
            settings.finish(whole.store)
        return whole.close()

    def _drop_store(self) -> None:
        """Drop the store in memory, which has no room for two."""
        if hasattr(self, "_store"):
            del self._store
        self._lcp = None
        gc.collect()

    # --- verification ----------------------------------------------------------------------------
    def compare(self, rows: dict[tuple[str, int], int]) -> int:
        """Load the store in memory from its files, as an opening does, and compare the rows of each fragment with
        `rows`; return the number of entries of its indexes.

        Raises: BackupDamaged, LimitExceeded.
        """
        self._drop_store()
        try:
            store = self._restart(self._options).run_without_writes()
        except Damaged as error:
            raise BackupDamaged(
                f"the restored store is damaged ({error.message}); restore again, or another backup"
            ) from error
        found, entries = fragment_rows(store), index_entries(store)
        store.disk.close()
        if found != rows:
            wrong = next(place for place in rows.keys() | found.keys() if rows.get(place) != found.get(place))
            raise BackupDamaged(
                f"the restored store has {found.get(wrong)} rows in fragment {wrong[1]} of {wrong[0]}, not"
                f" {rows.get(wrong)}; restore again",
                table=wrong[0],
            )
        return entries
