"""One Spark for all tests of it: they stand in one file, so that one process starts one Java."""

from __future__ import annotations

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


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    try:
        made = tidemark.spark.session("local[2,3]", "tests", SETTINGS)  # a task that fails is tried three times
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
