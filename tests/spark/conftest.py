"""One Spark for all of its tests: they are in one file, so that one process starts one Java."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
import tidemark.spark
from tests.spark.support import SMALL, every_column, every_row, rows_of

# Small and quick to start.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.streaming.noDataMicroBatches.enabled": False,
    "spark.sql.session.timeZone": "America/St_Johns",
}

# Spark's Python processes find a zipped pyspark first and compile it at each start: 1.5 s of a core, and the installed
# one takes 0.4 s. The process that plans a stream has ten seconds to connect (tests/spark/sinks.py).
WITHOUT_ZIPS = """#!/bin/sh
set -f
IFS=: kept=
for place in $PYTHONPATH; do
    case $place in
        *.zip) ;;
        *) kept=$kept${{kept:+:}}$place ;;
    esac
done
PYTHONPATH=$kept exec "{executable}" "$@"
"""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A command that is this interpreter, with the installed pyspark."""
    command = tmp_path_factory.mktemp("python") / "python"
    command.write_text(WITHOUT_ZIPS.format(executable=sys.executable), encoding="utf-8")
    command.chmod(0o755)
    return command


@pytest.fixture(scope="session")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Spark's event logs."""
    return tmp_path_factory.mktemp("events")


def logged(events: Path) -> dict[str, Any]:
    """Settings for event logs there."""
    return {
        "spark.eventLog.enabled": True,
        "spark.eventLog.compress": False,
        "spark.eventLog.dir": events.as_uri(),
    }


@pytest.fixture(scope="session")
def spark(python: Path, events: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", str(python))
        settings = {**SETTINGS, **logged(events)}
        try:
            made = tidemark.spark.session("local[2,3]", "tests", settings)  # a task that fails is tried three times
        except tm.Unsupported as error:
            pytest.skip(str(error))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def every(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Any, ...]]]:
    """A backup of rows of every type, and the rows."""
    root = tmp_path_factory.mktemp("every")
    with tm.open(root / "store", **SMALL) as db:
        db.create_table("every", every_column(), "id", partition=tm.HashPartition(3))
        db["every"].insert_many(every_row(100))
        db.backup(root / "place")
        return root / "place", rows_of(db, "every")
