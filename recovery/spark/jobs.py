"""Jobs over files on executors: verification, restore, comparison (docs/spark.md, section 7).

Other rooms decide how files are processed and split into tasks. This module sends tasks and reports, as plain values.
Spark retries a task that fails or is killed; all of these tasks may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tidemark.recovery.backup.tasks import restore_fragment
from tidemark.recovery.backup.verify import verify_task
from tidemark.recovery.spark.failures import evidence_noted, typed_errors
from tidemark.recovery.verification.digest_tasks import digest_fragment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.recovery.backup.restore_task import RestoreTask, TaskReport
    from tidemark.recovery.backup.verify import VerifyReport, VerifyTask

# Bytes of files for each task of a verification: a few hundred ms of work, while a task itself costs 30 ms.
VERIFY_TASK_BYTES = 64 << 20
TASKS_PER_CORE = 4  # so that one large fragment at the end does not leave the other cores idle


def mapped(spark: SparkSession, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
    """Return function(task) for each task, in their order; each call is a task of Spark. Both are pickled, so tasks are
    plain values and the function belongs to a module. Raises: the errors of the function, as their own class, with
    their evidence.
    """
    if not tasks:
        return []
    with typed_errors():
        return list(spark.sparkContext.parallelize(tasks, len(tasks)).map(partial(_noted, function)).collect())


def _noted(function: Callable[[Any], Any], task: Any) -> Any:
    with evidence_noted():
        return function(task)


def cores(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at a time."""
    return int(spark.sparkContext.defaultParallelism)


def verifier(spark: SparkSession) -> Callable[[list[VerifyTask]], Iterable[VerifyReport]]:
    """Return a function that carries out tasks of a verification."""
    return lambda tasks: mapped(spark, verify_task, tasks)


def restorer(spark: SparkSession) -> Callable[[list[RestoreTask]], Iterable[TaskReport]]:
    """Return a function that carries out tasks of a restore."""
    return lambda tasks: mapped(spark, restore_fragment, tasks)


def digester(spark: SparkSession) -> Callable[[Sequence[Any]], Iterable[Any]]:
    """Return a function that carries out tasks of a comparison."""
    return lambda tasks: mapped(spark, digest_fragment, tasks)
