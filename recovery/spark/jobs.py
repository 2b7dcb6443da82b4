"""Jobs over files on executors: verification, restore, comparison, load (docs/spark.md, section 7).

A job is a DataFrame of task texts, one in each partition, that Spark maps to report texts. So it needs nothing that
Spark Connect lacks. Other rooms decide how files are processed and split into tasks. Spark retries a task that fails or
is killed, and may run it twice; all of these tasks may be repeated.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.recovery.backup.restore_task import RestoreTask, TaskReport
from tidemark.recovery.backup.tasks import restore_fragment
from tidemark.recovery.backup.verify import VerifyReport, VerifyTask, verify_task
from tidemark.recovery.spark.failures import evidence_noted, typed_errors
from tidemark.recovery.verification.digest_tasks import digest_fragment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

# Bytes of files for each task of a verification or a load: a few hundred ms of work, while a task itself costs 30 ms.
TASK_BYTES = 64 << 20
NUMBER, TEXT = "number", "text"
_BYTES = "$base64"


def mapped(spark: SparkSession, function: Callable[[str], str], tasks: Sequence[str]) -> list[str]:
    """Return function(task) for each task, in their order; each call is a task of Spark. The function is pickled, so it
    belongs to a module. Raises: the errors of the function, as their own class, with their evidence and the host.
    """
    if not tasks:
        return []
    import pyarrow as pa
    from pyspark.sql.functions import col

    table = pa.table({NUMBER: pa.array(range(len(tasks)), pa.int32()), TEXT: pa.array(tasks, pa.string())})
    frame = spark.createDataFrame(table).repartitionById(len(tasks), col(NUMBER))
    with typed_errors():
        found = frame.mapInArrow(partial(_mapped_batches, function), frame.schema).collect()
    return [row[TEXT] for row in sorted(found, key=lambda row: row[NUMBER])]


def _mapped_batches(function: Callable[[str], str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        with evidence_noted():
            texts = [function(text) for text in batch.column(TEXT).to_pylist()]
        yield pa.RecordBatch.from_arrays([batch.column(NUMBER), pa.array(texts, pa.string())], names=[NUMBER, TEXT])


def to_text(value: Any) -> str:
    """Return plain values, bytes among them, as text."""
    return json.dumps(value, separators=(",", ":"), default=lambda data: {_BYTES: b64encode(data).decode()})


def from_text(text: str) -> Any:
    return json.loads(text, object_hook=lambda value: b64decode(value[_BYTES]) if _BYTES in value else value)


def verifier(spark: SparkSession) -> Callable[[list[VerifyTask]], Iterable[VerifyReport]]:
    return lambda tasks: [
        VerifyReport(**from_text(text)) for text in mapped(spark, _verify, [to_text(asdict(task)) for task in tasks])
    ]


def restorer(spark: SparkSession) -> Callable[[list[RestoreTask]], Iterable[TaskReport]]:
    return lambda tasks: map(TaskReport.from_json, mapped(spark, _restore, [task.to_json() for task in tasks]))


def digester(spark: SparkSession) -> Callable[[Sequence[Any]], Iterable[Any]]:
    return lambda tasks: map(from_text, mapped(spark, _digest, list(map(to_text, tasks))))


def _verify(text: str) -> str:
    return to_text(asdict(verify_task(VerifyTask(**from_text(text)))))


def _restore(text: str) -> str:
    return restore_fragment(RestoreTask.from_json(text)).to_json()


def _digest(text: str) -> str:
    return to_text(digest_fragment(from_text(text)))
