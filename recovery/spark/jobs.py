"""Jobs over files on executors: verification, restore, comparison (docs/spark.md, section 7).

What is done to a file, and how it is cut into tasks, is the business of other rooms; here their tasks travel, as text,
and so do their reports. A task that fails or is killed is tried again by Spark; all of them may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.recovery.backup.restore_task import RestoreTask, TaskReport
from tidemark.recovery.backup.tasks import restore_fragment
from tidemark.recovery.backup.verify import VerifyReport, VerifyTask, verify_task
from tidemark.recovery.spark.failures import evidence_noted, typed_errors
from tidemark.recovery.verification.digest_tasks import digest_fragment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of files for each task of a verification: some hundred ms of work beside the 30 that a task costs.
VERIFY_TASK_BYTES = 64 << 20
TASKS_PER_CORE = 4  # so that one large fragment at the end does not leave the other cores idle


def mapped(spark: SparkSession, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """function(task) of each task, in their order, each in a task of Spark. Both sides travel: plain values, and a
    function of a module. Raises: what the function raises, as its own class, with its evidence.
    """
    if not tasks:
        return []
    with typed_errors():
        return list(spark.sparkContext.parallelize(tasks, len(tasks)).map(partial(_noted, function)).collect())


def _noted(function: Callable[[Any], Any], task: Any) -> Any:
    with evidence_noted():
        return function(task)


def cores(spark: SparkSession) -> int:
    """Tasks Spark runs at a time."""
    return int(spark.sparkContext.defaultParallelism)


def _verified(text: str) -> str:
    return verify_task(VerifyTask.from_json(text)).to_json()


def verifier(spark: SparkSession) -> Callable[[list[VerifyTask]], Iterable[VerifyReport]]:
    """Carries out tasks of a verification."""
    return lambda tasks: map(VerifyReport.from_json, mapped(spark, _verified, [task.to_json() for task in tasks]))


def restored_task(text: str) -> str:
    return restore_fragment(RestoreTask.from_json(text)).to_json()


def restorer(spark: SparkSession) -> Callable[[list[RestoreTask]], Iterable[TaskReport]]:
    """Carries out tasks of a restore."""
    return lambda tasks: map(TaskReport.from_json, mapped(spark, restored_task, [task.to_json() for task in tasks]))


def digester(spark: SparkSession) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Carries out tasks of a comparison."""
    return lambda tasks: mapped(spark, digest_fragment, list(tasks))
