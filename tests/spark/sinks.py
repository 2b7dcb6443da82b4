"""What takes a stream, and oracles that tell what it must have given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tidemark as tm
import tidemark.spark


def closed(db: tm.Database) -> int:
    epoch = db.sync()
    db.binlog.write_closed_epochs()
    return epoch


class Sink:
    """Takes the batches of a query by their numbers, as a sink does that may be written to again."""

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
        """To the end there is now."""
        begun = stream.writeStream.foreachBatch(self.take).option("checkpointLocation", str(self.place))
        query = begun.trigger(availableNow=True).start()
        with tidemark.spark.typed_errors():
            query.awaitTermination()

    @property
    def rows(self) -> list[Any]:
        return [row for number in sorted(self.batches) for row in self.batches[number]]


def told_by_feed(db: tm.Database, table: str, since: int = 0) -> list[Any]:
    with db.changes(since, [table]) as changes:
        return [
            (row.epoch, row.operation, *(None if each is None else each._asdict() for each in (row.before, row.after)))
            for epoch in changes
            for row in epoch
        ]


def told_by_duckdb(path: Path) -> dict[str, tuple[Any, ...]]:
    """Of each column of a Parquet file: rows, values, different ones, least, greatest, and a sum of hashes."""
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
