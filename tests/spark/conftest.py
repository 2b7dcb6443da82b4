"""One Spark for all tests of it: they stand in one file, so that one process starts one Java."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
import tidemark.spark

# Small and quick to start; a task that fails is tried again.
SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.log.level": "OFF",
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.session.timeZone": "America/St_Johns",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    try:
        made = tidemark.spark.session("local[2,4]", "tests", SETTINGS)
    except tm.Unsupported as error:
        pytest.skip(str(error))
    yield made
    made.stop()
