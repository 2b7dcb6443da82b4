"""Story: a query that Spark ended because its planner had not connected in ten seconds failed a run of all tests on a
busy machine. Such a query is started again, a bounded number of times; a query that ends otherwise is not.

Five starts were not enough for another run: Spark's Python processes compiled a zipped pyspark at each start. Those of
the tests import the installed one.
"""

from __future__ import annotations

import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.sinks import STARTS_MAX, run_query

UNCONNECTED = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
LOST = "[STREAM_FAILED] tidemark: PositionLost"


class Writer:
    """A writer of a stream: its query ends with each of `ends` in turn, then succeeds."""

    def __init__(self, ends: list[str]) -> None:
        self.ends = ends
        self.starts = 0

    def trigger(self, **_: Any) -> Writer:
        return self

    def start(self) -> Writer:
        self.starts += 1
        return self

    def awaitTermination(self) -> None:
        if self.starts <= len(self.ends):
            raise StreamingQueryException(self.ends[self.starts - 1])


@pytest.mark.parametrize(
    ("ends", "said"),
    [([UNCONNECTED] * (STARTS_MAX - 1), ""), ([UNCONNECTED] * STARTS_MAX, "connect back"), ([LOST], "PositionLost")],
)
def test_query_is_started_again_only_if_its_planner_did_not_connect_and_not_for_ever(ends: list[str], said: str):
    writer = Writer(ends)
    with pytest.raises(StreamingQueryException, match=said) if said else nullcontext():
        run_query(writer)
    assert writer.starts == min(STARTS_MAX, len(ends) + (not said))


def test_processes_of_spark_import_the_installed_pyspark(python: Path):
    paths = "/zipped/pyspark.zip:/one with a blank:/zipped/py4j-src.zip:/another"
    code = "import os, pyspark; print(pyspark.__file__, os.environ['PYTHONPATH'], sep='|')"
    ran = subprocess.run(
        [python, "-c", code], env={"PYTHONPATH": paths}, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout == f"{pyspark.__file__}|/one with a blank:/another\n"
