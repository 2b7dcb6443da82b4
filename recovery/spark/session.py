"""A session of Spark with the settings that Tidemark needs (docs/spark.md, section 2).

A session's Java keeps the environment it is started with: the variables are set only while it starts.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import Rejected, Unsupported
from tidemark.engine.base.extras import advice
from tidemark.recovery.spark.java import java_variables
from tidemark.recovery.spark.options import option_map

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidemark.engine.base.clock import Clock

Setting = str | int | bool
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
EXECUTORS_WAIT_S = 30.0
EXECUTORS_QUIET_S = 1.0
POLL_S = 0.1


def session(master: str = "local[*]", name: str = "tidemark", settings: Mapping[str, Setting] = {}) -> SparkSession:
    """Return the running session of Spark, or a new one. master and name count for a new one alone.

    Args:
        master: Where tasks run, as Spark names it; "local[4]" is four threads of this machine.
        name: Name of the application.
        settings: Spark's own; they override the defaults here.

    Raises: Unsupported if Spark or Java is missing, with what to install; Rejected if `settings` are not those of the
    running session.

    Examples:
        ```python
        import tidemark.spark as ts

        spark = ts.session("local[4]", settings={"spark.driver.memory": "4g"})
        ```
    """
    check_installed()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        _check_same(running, settings)
        return running
    chosen: dict[str, Setting] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": bool(sys.stderr is not None and sys.stderr.isatty()),
        "spark.sql.execution.arrow.pyspark.enabled": True,
        # TIME is still optional in Spark 4.1: without it plans with such a column are refused.
        "spark.sql.timeType.enabled": True,
        # Workers are forked from a process that has done the imports of tasks.
        "spark.python.daemon.module": "tidemark.recovery.spark.daemon",
        # Kernels run in one thread each: Spark schedules the cores.
        "spark.executorEnv.NUMBA_NUM_THREADS": "1",
        **settings,
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in option_map(chosen).items():
        builder = builder.config(key, value)
    variables = {"NUMBA_NUM_THREADS": "1", **java_variables()}
    # Without an activated environment Spark would start the first python3 on the path, which lacks these packages.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        variables[variable] = os.environ.get(variable, sys.executable)
    with _environment(variables):
        spark = builder.getOrCreate()
    if SHUFFLE_PARTITIONS not in settings:
        spark.conf.set(SHUFFLE_PARTITIONS, str(_cores(spark, SystemClock())))
    return spark


def _cores(spark: SparkSession, clock: Clock) -> int:
    """Return how many tasks run at a time. On a cluster, wait until executors are there and no more arrive."""
    context = spark.sparkContext
    if not re.fullmatch(r"local(\[.*\])?", str(context.master)):
        executors = context._jsc.sc().getExecutorMemoryStatus
        begin = since = clock.monotonic()
        known = 1  # the driver is one of them
        while (now := clock.monotonic()) - begin < EXECUTORS_WAIT_S and (known == 1 or now - since < EXECUTORS_QUIET_S):
            found = int(executors().size())
            if found != known:
                known, since = found, now
            clock.sleep(POLL_S)
    return int(context.defaultParallelism)


def _check_same(running: SparkSession, settings: Mapping[str, Setting]) -> None:
    other = {
        name: (running.conf.get(name, None), value)
        for name, value in option_map(settings).items()
        if running.conf.get(name, None) != value
    }
    if other:
        said = ", ".join(f"{name} is {has}, not {value}" for name, (has, value) in other.items())
        raise Rejected(f"Spark runs with other settings: {said}; stop the session first, or leave them out")


def check_installed() -> None:
    """Raise Unsupported if pyspark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise Unsupported(f"Spark is not installed; {advice('spark')}")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
