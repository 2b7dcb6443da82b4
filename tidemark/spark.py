"""Spark and the store: sessions, tables as DataFrames, bulk work on many cores (docs/spark.md).

`import tidemark.spark` needs no Spark. The calls need it (`pip install '.[spark]'` in a checkout) and report what
is missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from tidemark.backup import PROCESSES_MAX, Place
from tidemark.backup import restore as restore_natively
from tidemark.engine.base.errors import Damaged, Rejected, Retryable
from tidemark.engine.files.directory import PosixFiles
from tidemark.recovery.backup.verify import verify as verify_files
from tidemark.recovery.load import abort as abort_load
from tidemark.recovery.places.names import canonical_place
from tidemark.recovery.places.storage import at_place
from tidemark.recovery.spark import jobs
from tidemark.recovery.spark.failures import typed_errors
from tidemark.recovery.spark.options import option_map
from tidemark.recovery.spark.read import frame_of, rows_of_backup
from tidemark.recovery.spark.session import check_installed, session
from tidemark.recovery.verification.digest_tasks import diff_files

Progress = Callable[[int, int, str], None]

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidemark.database import Database
    from tidemark.recovery.load.adopt import AdoptReport
    from tidemark.replication.settings.options import OpenKeywords

__all__ = [
    "changes",
    "diff",
    "load",
    "read",
    "restore",
    "session",
    "stream",
    "typed_errors",
    "verify",
]


def read(
    spark: SparkSession,
    place: str | os.PathLike[str],
    table: str | None = None,
    *,
    number: int | None = None,
    hidden: bool = False,
) -> DataFrame:
    """Return a table of a backup as a DataFrame, as at the backup's epoch.

    Spark reads the Parquet files itself, with page checksums verified. This process reads manifest, level files and the
    tail of each Parquet file first, and checks their digests. For an incremental backup it also reads which rows
    of older files are gone; a broadcast join takes these away.

    Args:
        place: A path or URI, as all executors see it.
        table: May be omitted if there is only one.
        number: Of the backup; None: the newest.
        hidden: With the columns `$ROWID`, `$EPOCH`, `$AUTHOR` and `$FRAGMENT` at the end.

    Raises: FileMissing, NoSuchTable, SchemaInvalid (several tables and no name), BackupDamaged, ForeignFile, Rejected
    for a place that Spark cannot name. A page that fails its checksum ends the query with Spark's own error.

    Examples:
        ```python
        import tidemark.spark as ts

        frame = ts.read(ts.session(), "/backups/shop", "item")
        frame.where("stock > 0").groupBy("stock").count().show()
        ```
    """
    rows = rows_of_backup(place, table, number)
    with typed_errors():
        return frame_of(spark, rows, hidden)


def changes(
    spark: SparkSession,
    path: str | os.PathLike[str],
    table: str | None = None,
    since: int = 0,
    until: int | None = None,
    *,
    options: Mapping[str, Any] = {},
) -> DataFrame:
    """Return the row changes of a table in the epochs after `since`, from the binlog of a store.

    Another process may have the store open. Columns are `epoch`, `operation`, and the structs `before` and `after` of
    all columns, with the meaning they have in `Database.changes`.

    Args:
        path: The directory of the store, as all executors see it.
        table: May be omitted if there is only one.
        since: The epochs after this one; 0: from the first epoch on.
        until: The last epoch; None: the newest in the binlog when it is read.
        options: Other options of docs/spark.md, section 8.

    Raises: FileMissing, NoSuchTable. The read raises PositionLost for epochs that were purged or not logged, EpochGap
    for an epoch that the store does not have, Rejected without a binlog, Unsupported for schema changes that rows
    cannot show, BinlogDamaged.

    Examples:
        ```python
        import tidemark.spark as ts

        changed = ts.changes(ts.session(), "/stores/shop", "item")
        changed.where("operation = 'update'").select("epoch", "before.stock", "after.stock").show()
        ```
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
    """Return the changes of `changes` as a stream, from `starting_epoch` or the checkpoint of the query on.

    With an idempotent sink, each change arrives exactly once. Epochs that the query has yet to read are not purged
    while it runs.

    Args:
        max_epochs: The most epochs in one batch (needs Spark 4.2); None: no limit.
        options: Other options of docs/spark.md, section 8.

    Raises: as `changes`; a running query ends with its error, after the changes before it.

    Examples:
        ```python
        import tidemark.spark as ts

        frame = ts.stream(ts.session(), "/stores/shop", "item")
        query = frame.writeStream.format("console").option("checkpointLocation", "/queries/item").start()
        query.awaitTermination()
        ```
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
    source: DataFrame | str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    table: str,
    *,
    directory: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> AdoptReport:
    """Load the rows of Parquet files or of a DataFrame into a table, visible at once or not at all; return the report
    of `Database.adopt`.

    Executors write load files, and the store, which is open here, adopts them. Spark writes a DataFrame as Parquet into
    the directory first, so for rows that are in Parquet files their paths are faster.

    Args:
        source: Paths or URIs of Parquet files, or of folders with such files, as all executors of the running session
            (`session()`) see them; or a DataFrame. Columns are matched by name.
        directory: A path or URI that all executors see; None: in the store's own directory, for executors of this
            machine. On the file system of the store, files are not copied.
        progress: Called with (rows loaded, rows in all, "rows").

    Durable on return: all rows.

    Raises: LoadRefused (values that do not fit their column, keys that exist already; `examples` of both),
    NoSuchTable, NoSuchColumn, TypeMismatch, FileMissing, StorageFull. Nothing is loaded then. Otherwise as
    `Database.adopt`.

    Examples:
        ```python
        import tidemark as tm
        import tidemark.spark as ts

        spark = ts.session()
        with tm.open("/stores/shop") as db:
            report = ts.load(db, "/lake/item", "item")
            changed = spark.read.parquet("/lake/price").selectExpr("id", "cents / 100 as price")
            ts.load(db, changed, "price")
            print(report.rows)
        ```
    """
    check_installed()
    from tidemark.recovery.spark.load import load_source

    job = db.plan_load(table, directory)
    try:
        load_source(source, job)
    except BaseException:
        abort_load(job, published=True)
        raise
    try:
        return db.adopt(job, progress=progress)
    except (Rejected, Retryable, Damaged):
        # Nothing was adopted. After any other error the log may already name the files.
        abort_load(job, published=True)
        raise


def verify(
    spark: SparkSession,
    place: Place,
    number: int | None = None,
    progress: Progress | None = None,
    *,
    rows: bool = False,
) -> dict[str, Any]:
    """Run `tidemark.backup.verify` on executors: read every byte of the backups in a place (or of one), and of the
    archive.

    Args:
        place: A path or URI that all executors see.
        number: Of the backup to read; None: all.
        progress: Called with (done, total, unit).
        rows: Also decode every row.

    Raises: FileMissing if there is no such place, or it has nothing to read; Rejected.

    Examples:
        ```python
        import tidemark.spark as ts

        report = ts.verify(ts.session(), "/backups/shop")
        assert report["is_sound"], report["problems"]
        ```
    """
    with at_place(place) as files:
        where = files.directory if isinstance(files, PosixFiles) else place
        runner = jobs.verifier(spark)
        return verify_files(files, number, progress, runner, where, jobs.TASK_BYTES, rows).to_dict()


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
    """Run `tidemark.backup.restore` on executors, with the same arguments, report and errors.

    Executors read and write fragments and the archived log in parallel. The driver combines them and applies a binlog
    after them. Place and path are as all executors see them. Progress is reported at the end of each of the two jobs.

    Durable on return: the store.

    Raises: as `tidemark.restore`.

    Examples:
        ```python
        import tidemark.spark as ts

        report = ts.restore(ts.session(), "/backups/shop", "/stores/shop again", data_memory="8 GiB")
        print(report["epoch"], report["rows"])
        ```
    """
    how: dict[str, Any] = {"number": number, "apply_status": apply_status, "verify": verify, "binlog": binlog}
    runner = jobs.restorer(spark)
    # With so many, bytes alone decide how many tasks there are.
    how |= {"runner": runner, "processes": PROCESSES_MAX, "progress": progress}
    return restore_natively(place, path, until, **how, **options)


def diff(
    spark: SparkSession,
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    *,
    numbers: tuple[int | None, int | None] = (None, None),
    limit: int | None = 1_000,
) -> dict[str, Any]:
    """Compare two copies in files, digested on executors; the report is that of `tidemark.diff`.

    Args:
        a: The directory of a store (its newest local checkpoint, memory columns) or a place of backups, as all
            executors see it.
        b: Likewise.
        tables: Names of tables; None: all except system tables.
        numbers: Of local checkpoints or backups; None: the newest.
        limit: Stop after this many rows that differ; None: never.

    Raises: Damaged, FileMissing, NoSuchTable.

    Examples:
        ```python
        import tidemark.spark as ts

        report = ts.diff(ts.session(), "/stores/shop", "/backups/shop", ["item"])
        print(report["is_equal"], report["differences"])
        ```
    """
    report: dict[str, Any] = diff_files(
        canonical_place(a), canonical_place(b), tables, numbers=numbers, limit=limit, run=jobs.digester(spark)
    )
    return report
