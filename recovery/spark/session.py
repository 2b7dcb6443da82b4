"""A session of Spark with the settings that Tidemark needs (docs/spark.md, section 2).

A session's Java keeps the environment it is started with: the variables are set only while it starts.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Rejected, Unsupported
from tidemark.recovery.spark.java import java_variables
from tidemark.recovery.spark.options import option_map

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Setting = str | int | bool


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
    cores = os.cpu_count() or 1
    chosen: dict[str, Setting] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": bool(sys.stderr is not None and sys.stderr.isatty()),
        "spark.sql.shuffle.partitions": cores,
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
        return builder.getOrCreate()


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
        raise Unsupported("Spark is not installed; pip install 'tidemark[spark]'")


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
