"""Spark and the store: sessions, tables as DataFrames, bulk work on many cores (docs/spark.md).

`import tidemark.spark` needs no Spark; its calls do (`pip install 'tidemark[spark]'`), and say what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

from tidemark.backup import PROCESSES_MAX, Place
from tidemark.backup import restore as restore_natively
from tidemark.engine.base.errors import Damaged, Rejected, Retryable
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.backup.storage import at_place
from tidemark.recovery.backup.verify import verify as verify_files
from tidemark.recovery.load import abort as give_up
from tidemark.recovery.spark import jobs
from tidemark.recovery.spark.conditions import to_text as condition
from tidemark.recovery.spark.failures import typed_errors
from tidemark.recovery.spark.plan import newest_local_checkpoint, option_map
from tidemark.recovery.spark.session import session
from tidemark.recovery.verification.digest_tasks import diff_files

Progress = Callable[[int, int, str], None]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.database import Database
    from tidemark.engine.programs.expressions import Expression
    from tidemark.recovery.load.adopt import AdoptReport
    from tidemark.replication.settings.options import OpenKeywords

__all__ = [
    "Pinned",
    "changes",
    "condition",
    "diff",
    "load",
    "pinned",
    "read",
    "restore",
    "session",
    "stream",
    "typed_errors",
    "verify",
]


class Pinned:
    """The newest local checkpoint of a store, kept until `close`, the end of the block, or the end of this process."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        files = PosixFiles(path)
        try:
            self.directory = files.directory
            self.lcp_id, self.epoch, self._pin = newest_local_checkpoint(files)
        finally:
            files.close_all()

    @property
    def options(self) -> dict[str, str]:
        """What names it to `spark.read.format("tidemark").options(...)`, the path included."""
        return {"path": self.directory, "lcp": str(self.lcp_id)}

    def close(self) -> None:
        """Let it go: the next local checkpoints may remove it. Harmless twice."""
        self._pin.release()

    def __enter__(self) -> Pinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def pinned(path: str | os.PathLike[str]) -> Pinned:
    """Keep the newest local checkpoint of a store, which another process may have open, for reads that take long or
    are repeated: the owner goes on making local checkpoints, but does not remove this one.

    Memory columns only. Raises: FileMissing (no store, or no local checkpoint yet), Unsupported where the file system
    has no locks.
    """
    return Pinned(path)


def read(
    spark: SparkSession,
    place: str | os.PathLike[str] | Pinned,
    table: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    where: Expression | None = None,
    options: Mapping[str, Any] = {},
) -> DataFrame:
    """A table as a DataFrame: of the newest backup in a place, or of a local checkpoint of a store.

    table: may be left out if there is one only. where: `tm.col("id") > 5`; rows are judged in the executors, before
    they are decoded, as by a scan with this condition. options: the others of docs/spark.md, section 3.
    Raises: FileMissing, NoSuchTable, NoSuchColumn, SchemaInvalid, BackupDamaged, LcpDamaged, SnapshotTooOld.
    """
    chosen = {**(place.options if isinstance(place, Pinned) else {"path": os.fspath(place)}), **options}
    if table is not None:
        chosen["table"] = table
    if columns is not None:
        chosen["columns"] = ",".join(columns)
    if where is not None:
        chosen["where"] = condition(where)
    with typed_errors():
        return spark.read.format("tidemark").options(**option_map(chosen)).load()


def changes(
    spark: SparkSession,
    path: str | os.PathLike[str],
    table: str | None = None,
    since: int = 0,
    until: int | None = None,
    *,
    options: Mapping[str, Any] = {},
) -> DataFrame:
    """Row changes of the epochs behind `since`, up to `until` (None: the newest in the binlog when it is read), of one
    table of a store, which another process may have open. Columns `epoch`, `operation`, and the structs `before` and
    `after` of all columns; what they mean, and which there are, is as of `Database.changes`.

    table: may be left out if there is one only. options: the others of docs/spark.md, section 8.
    Raises: FileMissing, NoSuchTable; and when it is read PositionLost for what was purged or not logged, EpochGap for
    an epoch that is not one of the store, Rejected without a binlog, Unsupported for changes of the schema that rows do
    not tell, BinlogDamaged.
    """
    chosen: dict[str, Any] = {"path": os.fspath(path), "changes": True, "since": since, **options}
    if until is not None:
        chosen["until"] = until
    if table is not None:
        chosen["table"] = table
    with typed_errors():
        return spark.read.format("tidemark").options(**option_map(chosen)).load()


def stream(
    spark: SparkSession,
    path: str | os.PathLike[str],
    table: str | None = None,
    starting_epoch: int = 0,
    *,
    max_epochs: int | None = None,
    options: Mapping[str, Any] = {},
) -> DataFrame:
    """The same as a stream: the changes behind `starting_epoch`, or behind what the checkpoint of the query says, as
    they come; with a sink that can be written to again, each exactly once.

    max_epochs: of one batch (needs Spark 4.2). What the query has not taken yet is kept from purging while it runs.
    Raises: as `changes`; a running query ends with its error, behind what was before it.
    """
    chosen: dict[str, Any] = {"path": os.fspath(path), "changes": True, "startingEpoch": starting_epoch, **options}
    if max_epochs is not None:
        chosen["maxEpochsPerTrigger"] = max_epochs
    if table is not None:
        chosen["table"] = table
    with typed_errors():
        return spark.readStream.format("tidemark").options(**option_map(chosen)).load()


def load(
    db: Database,
    frame: DataFrame,
    table: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    by_fragment: bool = False,
    progress: Progress | None = None,
) -> AdoptReport:
    """Load the rows of a DataFrame into a table, visible at once or not at all: executors write load files, and the
    store, which is open here, adopts them. Returns the report of `Database.adopt`.

    directory: a path or URI all executors see; None: in the store's own directory, for executors of this machine.
    by_fragment: shuffle the rows, so that each fragment has one file; without it each task writes one for each.

    Durable on return: all rows. Raises: LoadRefused (values that are none of their columns, keys that are there
    already; `examples` of both), NoSuchColumn, TypeMismatch, StorageFull; and nothing is loaded then.
    """
    from tidemark.recovery.spark.load import write_load

    job = db.plan_load(table, directory)
    try:
        with typed_errors():
            write_load(frame, job, by_fragment)
    except BaseException:
        give_up(job, published=True)
        raise
    try:
        return db.adopt(job, progress=progress)
    except (Rejected, Retryable, Damaged):
        # Nothing happened. Of any other error nobody knows: the log may name the files already.
        give_up(job, published=True)
        raise


def verify(
    spark: SparkSession, place: Place, number: int | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """`tidemark.backup.verify` on executors: every byte of the backups in a place (or of one), and of the archive.

    place: a path or URI all executors see. Raises: FileMissing if there is no such place, Rejected.
    """
    with at_place(place) as files:
        where = files.directory if isinstance(files, PosixFiles) else place
        runner = jobs.verifier(spark)
        return verify_files(files, number, progress, runner, where, jobs.VERIFY_TASK_BYTES).to_dict()


def restore(
    spark: SparkSession,
    place: Place,
    path: str | os.PathLike[str],
    until: int | datetime | None = None,
    *,
    number: int | None = None,
    apply_status: bool = False,
    verify: bool = True,
    binlog: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[OpenKeywords],
) -> dict[str, Any]:
    """`tidemark.backup.restore` on executors: fragments, and the archived log, are read and written there in parallel;
    what binds them together is done here, and so is what a binlog has behind them. Arguments, report and errors are
    those.

    place and path: as all executors see them. Progress comes at the end of each of the two jobs.
    """
    tasks = min(PROCESSES_MAX, jobs.cores(spark) * jobs.TASKS_PER_CORE)
    how: dict[str, Any] = {"number": number, "apply_status": apply_status, "verify": verify, "binlog": binlog}
    runner = jobs.restorer(spark)
    return restore_natively(place, path, until, runner=runner, processes=tasks, progress=progress, **how, **options)


def diff(
    spark: SparkSession,
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    *,
    numbers: tuple[int | None, int | None] = (None, None),
    limit: int | None = 1_000,
) -> dict[str, Any]:
    """What differs between two copies that lie in files, digested on executors; the report is that of `tidemark.diff`.

    a, b: directories of stores (newest local checkpoint, memory columns) or places of backups, as all executors see
    them. numbers: of local checkpoints or backups. Raises: Damaged, FileMissing, NoSuchTable.
    """
    report: dict[str, Any] = diff_files(a, b, tables, numbers=numbers, limit=limit, run=jobs.digester(spark))
    return report
