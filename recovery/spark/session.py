"""A session of Spark with the settings that matter here (docs/spark.md, section 2).

What a session's Java is started with it keeps: variables of the environment are set for that moment alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import Unsupported
from tidemark.recovery.spark.java import java_variables
from tidemark.recovery.spark.plan import option_map

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Setting = str | int | bool


def session(master: str = "local[*]", name: str = "tidemark", settings: Mapping[str, Setting] = {}) -> SparkSession:
    """The running session of Spark, or a new one. settings: Spark's own, before those that are made here.

    Raises: Unsupported, if Spark or Java is missing, saying what to install.
    """
    check_installed()
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    cores = os.cpu_count() or 1
    chosen: dict[str, Setting] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": bool(sys.stderr is not None and sys.stderr.isatty()),
        "spark.sql.shuffle.partitions": cores,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        # TIME is still a choice in Spark 4.1: without it plans with such a column are refused.
        "spark.sql.timeType.enabled": True,
        # Workers are forked from a process that has imported what tasks need.
        "spark.python.daemon.module": "tidemark.recovery.spark.daemon",
        # Kernels run in one thread each: the cores are Spark's to give away.
        "spark.executorEnv.NUMBA_NUM_THREADS": "1",
        **settings,
    }
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in option_map(chosen).items():
        builder = builder.config(key, value)
    variables = {"NUMBA_NUM_THREADS": "1", **java_variables()}
    # Without an activated environment Spark would start the first python3 of the path, which has none of this.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        variables[variable] = os.environ.get(variable, sys.executable)
    with _environment(variables):
        return builder.getOrCreate()


def check_installed() -> None:
    """Raises: Unsupported if pyspark is not installed."""
    if importlib.util.find_spec("pyspark") is None:
        raise Unsupported("Spark is not installed; pip install 'tidemark[spark]'")


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables of the environment, for the block alone."""
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
