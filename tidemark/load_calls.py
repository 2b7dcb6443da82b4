"""`db.plan_load`, `db.adopt`, `db.load` and `db.loads`: rows by the million into an open store (docs/load.md).

The calls import `tidemark.recovery.load` when they run: most programs load nothing in bulk and should start without it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark.engine.access.computed_values import filled_batch
from tidemark.engine.base.errors import Rejected
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.rows.column_input import BATCH_ROWS, Batch, to_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.load.adopt import AdoptReport
    from tidemark.recovery.load.commit import FoundLoad
    from tidemark.recovery.load.job import LoadJob
    from tidemark.session import Transaction

Progress = Callable[[int, int, str], None]
LOAD_ROWS_MIN = 50_000  # fewer are inserted at least as quickly
WORKERS_MAX = 64
WRITTEN = "rows written"  # the unit of progress before rows are adopted


@types_memory_errors()
class LoadCalls:
    """The calls of an open store that load rows in bulk."""

    def __init__(
        self,
        store: Store,
        files: Files,
        directory: str | None,
        identity: tuple[bytes, int],
        transaction: Callable[[], Transaction],
    ) -> None:
        """transaction: begins one."""
        self._store = store
        self._files = files
        self._directory = directory
        self._identity = identity
        self._transaction = transaction

    def plan_load(self, table: str, directory: str | os.PathLike[str] | None = None) -> LoadJob:
        """Plan a load of rows into a table by many processes, which need the returned job and nothing else. The store
        does not change.

        Args:
            directory: A path or URI that all processes see; created if missing. The job has a path as an absolute
                one. None: in the store's own directory, and the job ends when the store is closed.

        Durable on return: the plan.

        Raises: NoSuchTable, StorageFull, StoreFailed; Rejected for a bad URI.

        Examples:
            >>> job = db.plan_load("item", "jobs")
            >>> job.table, job.directory.endswith("/jobs")
            ('main.item', True)
        """
        from tidemark.recovery.load.commit import plan_load

        self._store.failure.check()
        place = None if directory is None else str(directory)
        return plan_load(self._store.tables.named(table), self._identity, self._files, self._directory, place)

    def adopt(self, job: LoadJob | str, progress: Progress | None = None) -> AdoptReport:
        """Adopt all rows of a published load, or none, in one transaction, while other transactions continue.

        A second call returns the report of the first.

        Args:
            job: The job, or the name of one in the store's own directory.
            progress: Called with (rows loaded, rows in all, "rows").

        Returns:
            A report with `rows`, `files`, `size_bytes`, `txid`, and whether it `is_repeated`.

        Durable on return: the rows.

        Raises:
            FileMissing: The load is not published.
            LoadRefused: Keys exist (`duplicates`, `examples`), or the table was changed.
            LoadDamaged: A file of the load is damaged.
            ForeignFile: Another store planned the load.
            Rejected: The load was adopted, and its outcome is no longer in the log.
            OutcomeUnknown: The commit was interrupted; call `adopt` again.

        It also raises LockTimeout, MemoryExhausted, StorageFull and RedoOverloaded. After all but OutcomeUnknown
        nothing has changed.

        Examples:
            >>> import pyarrow as pa
            >>> from tidemark.recovery import load
            >>> job = db.plan_load("item", "jobs")
            >>> rows = pa.RecordBatch.from_pylist([{"id": 4, "name": "ink", "stock": 7}])
            >>> manifest = load.publish(job, load.write_parts(job, 0, [rows], 0))
            >>> db.adopt(job).rows
            1
        """
        from tidemark.recovery.load.adopt import Adopter

        self._store.failure.check()
        return Adopter(self._store, self._files, self._identity).adopt(job, progress=progress)

    def loads(self, directory: str | os.PathLike[str]) -> list[FoundLoad]:
        """Return the loads that have files in a directory: those under way, and what is left of others.

        Args:
            directory: As for `plan_load`; not a store's own, which is swept when the store is opened.

        Returns:
            Of each its `name`, `state` ("open", "published", "adopting", "ended"), `table`, UUID of its `store`,
            `files` and `size_bytes`. Table and store are None if no file tells them.

        Raises: FileMissing, Rejected, IoFailed.

        Examples:
            >>> job = db.plan_load("item", "jobs")
            >>> [(each.state, each.table) for each in db.loads("jobs")]
            [('open', 'main.item')]
        """
        from tidemark.recovery.load.commit import find_loads
        from tidemark.recovery.load.directory import shared_directory

        self._store.failure.check()
        with shared_directory(directory) as place:
            return find_loads(place)

    def sweep_loads(self, directory: str | os.PathLike[str]) -> list[FoundLoad]:
        """Abort the loads of this store in a directory, remove their files, and return them. Tasks that still write end
        with LoadEnded.

        Loads of other stores stay. So does a load that was adopted with an outcome that is no longer in the log.

        Args:
            directory: As for `loads`.

        Durable on return: the removal.

        Raises: FileMissing, Rejected, IoFailed.

        Examples:
            >>> job = db.plan_load("item", "jobs")
            >>> len(db.sweep_loads("jobs")), db.loads("jobs")
            (1, [])
        """
        from tidemark.recovery.load.adopt import Adopter
        from tidemark.recovery.load.directory import shared_directory

        self._store.failure.check()
        with shared_directory(directory) as place:
            return Adopter(self._store, self._files, self._identity).sweep(place)

    def load(self, table: str, source: Any, *, workers: int | None = None, progress: Progress | None = None) -> int:
        """Insert many rows in one transaction, all or none; return how many. Threads write them into load files first.

        An input of fewer than 50,000 rows is inserted as `insert_many` does.

        Args:
            source: What `insert_many` takes, or the path of a CSV, Parquet or Arrow file, or a list of paths.
            workers: Threads; None: as many as there are cores.
            progress: Called with (rows so far, -1, "rows written") while files are written, then as for `adopt`.

        Durable on return: the rows.

        Raises: LoadRefused (`refused`, `duplicates`, `examples`) for many rows; for few, what `insert_many` raises;
        NoSuchTable, NoSuchColumn, TypeMismatch; Rejected for a file that cannot be read; and what `adopt` raises.

        Examples:
            >>> db.load("item", {"id": range(4, 1004), "name": ["nail"] * 1000, "stock": [1] * 1000})
            1000
        """
        self._store.failure.check()
        target = self._store.tables.named(table)
        batches = batches_of(source, target.newest.definition)
        if target.newest.format.computed:
            batches = (self._filled(target, batch) for batch in batches)
        count = len(os.sched_getaffinity(0)) if workers is None else workers
        if count < 1:
            raise Rejected(f"workers is {workers}; give 1 or more", workers=workers)
        return self._load_batches(target, batches, min(count, WORKERS_MAX), progress)

    def _load_batches(self, table: Table, batches: Iterator[Batch], workers: int, progress: Progress | None) -> int:
        """Load record batches, in order, each with the number of its first row."""
        few, is_all = _first_rows(batches)
        if is_all:
            return self._insert(table, few)
        from tidemark.recovery.load.commit import abort, plan_load, publish
        from tidemark.recovery.load.directory import own_directory
        from tidemark.recovery.load.native import write_natively

        job = plan_load(table, self._identity, self._files, self._directory)
        place = None if self._directory is not None else own_directory(self._files)

        def numbered() -> Iterator[tuple[int, pa.RecordBatch]]:
            for batch in itertools.chain(few, batches):
                self._store.failure.check()
                yield batch.first_row, batch.columns
                if progress is not None:
                    progress(batch.first_row + batch.columns.num_rows, -1, WRITTEN)

        try:
            reports = write_natively(job, numbered(), workers, place)
            publish(job, reports, own_directory(self._files))
            return self.adopt(job, progress).rows
        except BaseException:
            if self._store.failure.first is None:
                abort(job, True, own_directory(self._files))
            raise

    def _filled(self, table: Table, batch: Batch) -> Batch:
        """Return a batch with the values of computed defaults, its columns in the order of the table."""
        txn = self._transaction()
        try:
            txn.check(locks=True)
            columns = filled_batch(txn, table.newest, batch.columns, batch.first_row)
        finally:
            txn.rollback()
        names = columns.schema.names
        known = [name for name in table.newest.format.names if name in names]
        if len(known) == len(names) == len(set(names)):
            columns = columns.select(known)
        return batch._replace(columns=columns)

    def _insert(self, table: Table, few: list[Batch]) -> int:
        if not few:
            return 0
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(few[0].columns.schema, [batch.columns for batch in few])
        with self._transaction() as txn:
            return txn.insert_many(table.newest.name, reader)


def _first_rows(batches: Iterator[Batch]) -> tuple[list[Batch], bool]:
    """Return the first batches, until they have LOAD_ROWS_MIN rows, and whether these are all."""
    few: list[Batch] = []
    rows = 0
    for batch in batches:
        few.append(batch)
        rows += batch.columns.num_rows
        if rows >= LOAD_ROWS_MIN:
            return few, False
    return few, True


def batches_of(source: Any, definition: TableDefinition) -> Iterator[Batch]:
    """Yield the rows of a source of `load` in batches. Raises: Rejected, TypeMismatch."""
    paths = [source] if isinstance(source, (str, os.PathLike)) else source
    is_files = (
        isinstance(paths, (list, tuple)) and paths and all(isinstance(each, (str, os.PathLike)) for each in paths)
    )
    if not is_files:
        yield from to_columns(source, definition)
        return
    from pyarrow import ArrowException

    from tidemark.sources import open_source

    row = 0
    for path in paths:
        try:
            for batch in open_source(path, definition).batches:
                for begin in range(0, max(batch.num_rows, 1), BATCH_ROWS):
                    yield Batch(batch.slice(begin, BATCH_ROWS), row + begin)
                row += batch.num_rows
        except (ArrowException, OSError) as error:
            raise Rejected(
                f"{os.fspath(path)} cannot be read: {error}; nothing was loaded", file=os.fspath(path)
            ) from error
