"""Loads Parquet files, or a DataFrame, into a table by tasks on executors (docs/spark.md, section 6; docs/load.md).

Rows cross from Java as Parquet: Spark writes a DataFrame into a folder of the load, without compression. Each task
reads some row groups by pyarrow, and writes load files. The files that one attempt of each task reports are published.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import FileMissing, IoFailed, TypeMismatch
from tidemark.engine.rows.columnar import check_columns
from tidemark.recovery.load.commit import publish
from tidemark.recovery.load.directory import directory_of
from tidemark.recovery.load.job import FragmentReport, LoadJob
from tidemark.recovery.load.parquet import RowGroups, batches_in, cut, row_groups
from tidemark.recovery.load.tasks import write_numbered
from tidemark.recovery.places.names import canonical_place, shown_place
from tidemark.recovery.spark.failures import typed_errors
from tidemark.recovery.spark.jobs import TASK_BYTES, from_text, mapped, to_text
from tidemark.recovery.spark.read import spark_place
from tidemark.recovery.spark.session import session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

# Of Parquet that is read once, by pyarrow, and then removed.
SCRATCH_OPTIONS = {
    "compression": "none",
    "parquet.enable.dictionary": "false",
    "parquet.block.size": str(TASK_BYTES),
}


def load_source(source: Any, job: LoadJob) -> None:
    """Write the rows of a DataFrame, or of paths of Parquet, as a load and publish it. Durable on return: the published
    load, to be adopted. Raises: as `load_places`; TypeMismatch for another source.
    """
    from pyspark.sql import DataFrame

    if isinstance(source, DataFrame):
        load_frame(source, job)
        return
    paths = [source] if isinstance(source, (str, os.PathLike)) else source
    if not isinstance(paths, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in paths):
        raise TypeMismatch(f"a DataFrame or paths of Parquet are loaded, got {type(source).__name__}")
    load_places(session(), [canonical_place(each) for each in paths], job)


def load_frame(frame: DataFrame, job: LoadJob) -> None:
    """Write the rows of a DataFrame as a load and publish it. Durable on return: the published load, to be adopted.

    Raises: as `load_places`; IoFailed if rows are missing in what the executors wrote.
    """
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    _check_names(frame.columns, job)
    seen = Observation()
    directory, mark, query = job.directory.partition("?")
    scratch = f"{directory}/{job.name}{mark}{query}"
    observed = frame.observe(seen, count(lit(1)).alias("rows"))
    target = spark_place(frame.sparkSession, scratch)
    with typed_errors():
        observed.write.options(**SCRATCH_OPTIONS).parquet(target)
    load_places(frame.sparkSession, [scratch], job, int(seen.get["rows"]))


def load_places(spark: SparkSession, places: Sequence[str], job: LoadJob, rows: int | None = None) -> None:
    """Write the rows of Parquet files as a load and publish it. rows: how many there must be, if that is known.

    Durable on return: the published load, to be adopted. Raises: LoadRefused, NoSuchColumn, TypeMismatch, FileMissing,
    Rejected, IoFailed, StorageFull.
    """
    import pyarrow as pa

    groups: list[RowGroups] = []
    for place in places:
        try:
            schemas, found = row_groups(place, job.definition)
        except FileMissing:
            if rows is None:
                raise
            schemas, found = [], []  # Spark wrote all of it elsewhere
        for schema in {str(each): each for each in schemas}.values():
            check_columns(job.shape.format, pa.RecordBatch.from_pylist([], schema=schema), True)
        groups += found
    if rows is not None and rows != (there := sum(group.rows for group in groups)):
        raise IoFailed(
            f"Spark wrote {rows} rows, but there are {there} in {shown_place(job.directory)}: an executor does not see"
            " it; give a directory that all executors and this process see"
        )
    tasks, first_row = [], 0
    for part, task in enumerate(cut(groups, len(job.fragments), TASK_BYTES)):
        # The text alone has the directory with its secrets.
        about = {"job": job.to_dict(), "directory": job.directory, "part": part, "first_row": first_row}
        tasks.append(to_text({**about, "groups": [astuple(group) for group in task]}))
        first_row += sum(group.rows for group in task)
    reports = mapped(spark, write_task, tasks)
    with directory_of(job) as directory:
        directory.remove(job.name)
    publish(job, [FragmentReport.from_json(report) for text in reports for report in from_text(text)])


def _check_names(names: Sequence[str], job: LoadJob) -> None:
    """Check the columns of a DataFrame before Spark writes it. Raises: NoSuchColumn."""
    for name in names:
        if name not in job.shape.format.names:
            raise job.shape.format.no_such_column(name, None)


def write_task(text: str) -> str:
    """Carry out a task on an executor: write a load file for each fragment of which its row groups have rows."""
    from pyspark import TaskContext

    task = from_text(text)
    job = LoadJob.from_dict(task["job"], task["directory"])
    context = TaskContext.get()
    attempt = 0 if context is None else context.taskAttemptId()

    def numbered() -> Iterator[tuple[int, pa.RecordBatch]]:
        row = task["first_row"]
        for values in task["groups"]:
            for batch in batches_in(RowGroups(*values), job.definition):
                yield row, batch
                row += batch.num_rows

    with directory_of(job) as directory:
        reports = write_numbered(job, attempt, numbered(), task["part"], directory)
    return to_text([report.to_json() for report in reports])
