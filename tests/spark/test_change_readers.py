"""The calls by which Spark reads row changes, without Spark: offsets, tasks, options."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.spark.support import LOGGED, NUMBERS, logged, place_of

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "store", **LOGGED) as opened:
        yield opened


def stream_reader(place: Path, **options: Any) -> Any:
    from pyspark_tidemark import DefaultSource

    given = {"path": str(place), "changes": "true", **{name: str(value) for name, value in options.items()}}
    source = DefaultSource(given)
    return source.streamReader(source.schema())


def rows_of_batch(reader: Any, start: Any, end: Any) -> list[int]:
    """Keys of the rows of a batch; each task runs on a copy of the reader without access to the store."""
    found = []
    for partition in reader.partitions(start, end):
        copy = pickle.loads(pickle.dumps(reader))
        found += [row["after"]["id"] for batch in copy.read(partition) for row in batch.to_pylist()]
    return found


def test_batches_of_a_reader_are_the_same_for_the_same_offsets_whichever_reader_plans_them(db: tm.Database) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    db.create_table("numbers", NUMBERS, "id")
    for key in range(6):
        db["numbers"].insert((key, "x"))
        logged(db)
    place = place_of(db)
    reader = stream_reader(place, maxEpochsPerTrigger=4, taskBytes=1)
    limit = reader.getDefaultReadLimit()
    start = reader.initialOffset()
    middle = reader.latestOffset(start, limit)
    end = reader.latestOffset(middle, limit)
    assert start == {"epoch": 0} and reader.latestOffset(end, limit) == end
    assert reader.latestOffset(start, ReadAllAvailable()) == end and reader.partitions(end, end) == []
    first, second = rows_of_batch(reader, start, middle), rows_of_batch(reader, middle, end)
    assert first + second == list(range(6)) and first and second
    db["numbers"].insert((6, "x"))
    logged(db)
    # Another reader, as after a restart of the query, plans a batch without a prior call for the latest offset.
    other = stream_reader(place)
    assert rows_of_batch(other, middle, end) == second
    # Spark before 4.2 does not pass the start, and knows no limit.
    newest = other.latestOffset()
    assert rows_of_batch(other, end, newest) == [6] and other.latestOffset() == newest
    # With the data that existed when it began, whatever is added later.
    other.prepareForTriggerAvailableNow()
    db["numbers"].insert((7, "x"))
    logged(db)
    assert other.latestOffset(middle, ReadAllAvailable()) == newest == other.latestOffset(newest, ReadAllAvailable())
    later = {"epoch": newest["epoch"] + (99 << 32)}
    for call in (lambda: stream_reader(place).latestOffset(later, limit), lambda: other.partitions(newest, later)):
        with pytest.raises(tm.EpochGap):
            call()
    for made in (reader, other):
        made.stop()
        made.stop()


def test_options_of_one_kind_of_read_are_refused_by_the_other(db: tm.Database) -> None:
    from pyspark_tidemark import DefaultSource
    from tidemark.recovery.spark.source import TidemarkSource

    db.create_table("numbers", NUMBERS, "id")
    place = place_of(db)
    with pytest.raises(tm.SchemaInvalid, match="no option 'since'"):
        stream_reader(place, since=1)
    source = DefaultSource({"path": str(place), "changes": "true", "startingEpoch": "1"})
    with pytest.raises(tm.SchemaInvalid, match="no option 'startingEpoch'"):
        source.reader(source.schema())
    with pytest.raises(tm.TypeMismatch, match="select"):
        source.streamReader(type(source.schema())([]))
    bare = TidemarkSource({"path": str(place), "changes": "true"})
    with pytest.raises(tm.Unsupported, match="reader of binlogs"):
        bare.streamReader(bare.schema())
    with pytest.raises(tm.SchemaInvalid, match="changes"):
        TidemarkSource({"path": str(place)}).streamReader(source.schema())
