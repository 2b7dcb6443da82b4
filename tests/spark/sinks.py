"""Sinks of a stream, and oracles for the rows it must have given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tidemark as tm
import tidemark.spark

STARTS_MAX = 5


def run_query(writer: Any) -> None:
    """Start a query and await its end; start it again if Spark ended it because its planner had not connected.

    Spark waits ten seconds for the Python process that plans a stream to connect, whatever the load, and then ends the
    query before any of our code has run (`createSimpleWorker`, SPARK-45245). At a load of 16 the imports of pyspark
    took longer, and one run of all tests failed by it. Another failed in spite of five starts: then the imports took
    four times as long as with the command of `tests/spark/conftest.py`. More than a few such ends in a row are a fault.
    """
    from pyspark.errors import StreamingQueryException

    for start in range(1, STARTS_MAX + 1):
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            return
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error) or start == STARTS_MAX:
                raise


def closed(db: tm.Database) -> int:
    epoch = db.sync()
    db.binlog.write_closed_epochs()
    return epoch


class Sink:
    """Keeps the batches of a query by their numbers, as a sink that may be written to again."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.batches: dict[int, list[Any]] = {}
        self.fails_in: int | None = None

    def take(self, frame: Any, number: int) -> None:
        rows = [tuple(row.values()) for row in frame.toArrow().to_pylist()]
        again = self.batches.setdefault(number, rows)
        assert again == rows  # the same offsets give the same rows
        if number == self.fails_in:
            raise RuntimeError("the sink failed")

    def run(self, stream: Any) -> None:
        """Read to the current end."""
        with tidemark.spark.typed_errors():
            run_query(stream.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.place)))

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def rows_of_feed(db: tm.Database, table: str, since: int = 0) -> list[Any]:
    with db.changes(since, [table]) as changes:
        return [
            (row.epoch, row.operation, *(None if each is None else each._asdict() for each in (row.before, row.after)))
            for epoch in changes
            for row in epoch
        ]


def rows_of_duckdb(path: Path) -> dict[str, tuple[Any, ...]]:
    """For each column of a Parquet file: rows, values, distinct ones, least, greatest, and a sum of hashes."""
    import duckdb

    with duckdb.connect() as oracle:
        names = oracle.from_parquet(str(path)).columns
        # Hashed as text: the same value may have another type in another file (a decimal of another width).
        asked = (
            "count(*), count({0}), count(DISTINCT {0}), min({0})::VARCHAR, max({0})::VARCHAR, sum(hash({0}::VARCHAR))"
        )
        found = {}
        for name in names:
            found[name] = oracle.execute(f"SELECT {asked.format(name)} FROM read_parquet('{path}')").fetchall()[0]
        return found
