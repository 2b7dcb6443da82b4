"""Writes rows of a DataFrame into load files, on executors (docs/spark.md, section 6; docs/load.md).

Tasks write files, and Spark's committer publishes those that its messages name. The committer is a process of its own
that does not have the store; it can only do one rename. Then the process that has the store open adopts the load.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import NoSuchColumn, SchemaInvalid, Unsupported
from tidemark.recovery.load import FragmentReport, LoadJob, abort, fragments_of, publish, write_parts
from tidemark.recovery.spark.failures import evidence_noted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

WRITE_OPTIONS = ("job",)
FRAGMENT_COLUMN = "$FRAGMENT"


@dataclass
class LoadMessage(WriterCommitMessage):
    """Result of one task."""

    reports: tuple[str, ...]


class LoadWriter(DataSourceArrowWriter):
    """Writes the rows of a load; its methods are called in different processes."""

    def __init__(self, job: LoadJob) -> None:
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> LoadMessage:
        """Write one load file for each fragment of which the task has rows. Durable on return: the files; they become
        part of the load when the task's message is committed.
        """
        task = TaskContext.get()
        # Other engines than Spark's own have no task context; a random number then distinguishes tasks.
        chance = int.from_bytes(SystemClock().random_bytes(4), "little") >> 1
        part, attempt = (chance, 0) if task is None else (task.partitionId(), task.taskAttemptId())
        with evidence_noted():
            reports = write_parts(self.job, attempt, iterator, part)
        return LoadMessage(tuple(report.to_json() for report in reports))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the files that the messages name, by one rename; repeating it is harmless."""
        reports = [
            FragmentReport.from_json(text)
            for message in messages
            if isinstance(message, LoadMessage)
            for text in message.reports
        ]
        with evidence_noted():
            publish(self.job, reports)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the load's files, unless it was published; a task that is still writing removes its own."""
        abort(self.job)


def make_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> LoadWriter:
    """Return the writer of a job. Raises: SchemaInvalid, Unsupported for overwriting, NoSuchColumn, Rejected without a
    job.
    """
    for name in options:
        if name.lower() not in (*WRITE_OPTIONS, "path"):
            raise SchemaInvalid(f"there is no option {name!r}; the only one is job", option=name)
    text = next((value for name, value in options.items() if name.lower() == "job"), None)
    if not text:
        raise SchemaInvalid("say what is loaded with .option('job', db.plan_load(table, directory).to_json())")
    if overwrite:
        raise Unsupported("a load adds rows to its table and replaces none; use mode('append')")
    job = LoadJob.from_json(text)
    known = {column.name for column in job.definition.columns}
    for name in schema.fieldNames():
        if name not in known:
            raise NoSuchColumn(
                f"{job.table} has no column {name!r}; it has {', '.join(sorted(known))}", table=job.table, column=name
            )
    return LoadWriter(job)


def write_load(frame: DataFrame, job: LoadJob, by_fragment: bool = False) -> None:
    """Write the rows of a DataFrame as a load and publish it. by_fragment: first shuffle so that each fragment's rows
    are in one task, which makes one file for each fragment; without it each task writes one file for each fragment of
    its rows.

    Durable on return: the published load, to be adopted. Raises: as Spark does; see `typed_errors`.
    """
    if by_fragment:
        frame = repartitioned_by_fragment(frame, job)
    frame.write.format("tidemark").mode("append").option("job", job.to_json()).save()


def repartitioned_by_fragment(frame: DataFrame, job: LoadJob) -> DataFrame:
    """Return the same rows, each fragment's in one task. Spark's own hash would mix fragments, so rows are
    repartitioned by fragment number.
    """
    import pyarrow as pa
    from pyspark.sql.functions import col
    from pyspark.sql.pandas.functions import arrow_udf

    key, first = job.definition.primary_key, job.fragments[0]

    def fragment_of(*columns: Any) -> Any:
        import numpy as np
        import pyarrow as pa

        numbers: Any = fragments_of(job, pa.RecordBatch.from_arrays(list(columns), names=list(key)))
        # Rows of no fragment may go to any task, which refuses them.
        return pa.array(np.where(numbers < 0, first, numbers), pa.int32())

    # Spark learns the kind of function from these annotations. Written as text they would be names that it cannot
    # resolve.
    fragment_of.__annotations__.update({"columns": pa.Array, "return": pa.Array})
    made: Any = arrow_udf
    number = made(fragment_of, "int")(*(col(f"`{name}`") for name in key))
    numbered = frame.withColumn(FRAGMENT_COLUMN, number)
    return numbered.repartitionById(len(job.fragments), col(f"`{FRAGMENT_COLUMN}`")).drop(FRAGMENT_COLUMN)
