"""Two million sensor readings: a bulk load, SQL by DuckDB, and a snapshot that stays as it was next to a writer.

    python docs/examples/sensor_data.py [FOLDER] [--readings 2000000]

docs/tutorials/sensor-data.md explains it step by step. DuckDB and NumPy are needed: pip install duckdb numpy.
"""

import argparse
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import tidemark as tm

SENSORS = 2_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def batch(minute: int) -> pa.RecordBatch:
    """One reading of each sensor, as columns of Arrow."""
    time = np.full(SENSORS, np.datetime64("2026-01-01T00:00", "us") + np.timedelta64(minute, "m"))
    return pa.record_batch(
        {
            "sensor": pa.array(np.arange(SENSORS, dtype=np.int32)),
            "ts": pa.array(time, pa.timestamp("us", "UTC")),
            "value": pa.array(20.0 + np.random.default_rng(minute).normal(size=SENSORS)),
        }
    )


def hottest(readings: tm.TableDataset) -> list[tuple[int, int, float, float]]:
    """Three sensors. DuckDB finds the argument under its name, and reads no other columns than these."""
    query = "select sensor, count(*), avg(value), max(value) from readings group by sensor order by 4 desc limit 3"
    return duckdb.sql(query).fetchall()


def main(folder: Path, minutes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    history = minutes * 9 // 10
    with tm.open(folder / "meters", data_memory="512 MiB", redo_log="256 MiB", durability="epoch") as db:
        columns = [tm.Column("sensor", tm.Int32), tm.Column("ts", tm.Timestamp), tm.Column("value", tm.Float64)]
        readings = db.create_table("plant.reading", columns, primary_key=["sensor", "ts"])

        # In bulk: one transaction, and the batches are made one after the other while the load goes on.
        batches = (batch(minute) for minute in range(history))
        loaded = db.load("plant.reading", pa.RecordBatchReader.from_batches(batch(0).schema, batches))
        print(f"loaded in bulk: {loaded:,} readings of {SENSORS:,} sensors")
        assert loaded == len(readings) == history * SENSORS

        rows = hottest(readings.dataset())
        print("sensor  readings   mean    max")
        for sensor, count, mean, peak in rows:
            print(f"{sensor:6} {count:9} {mean:6.2f} {peak:6.2f}")
            assert count == history
        hot = readings.scan(where=tm.col("value") > 23.0)  # no SQL is needed for a count, a sum or a mean
        print(f"above 23.0: {hot.count():,} readings, mean {hot.mean('value'):.3f}")

        def go_on() -> None:
            for minute in range(history, minutes):
                readings.insert_many(batch(minute))  # one transaction each

        writer = threading.Thread(target=go_on)
        with db.snapshot() as snapshot:
            writer.start()
            as_it_was = snapshot["plant.reading"]
            before = as_it_was.aggregate(count=("count",), peak=("max", "value"))
            again = hottest(as_it_was.dataset())
            writer.join()
            after = as_it_was.aggregate(count=("count",), peak=("max", "value"))
        print(f"in the snapshot: {before.count:,} readings, and {after.count:,} after the writer had ended")
        assert before == after == (loaded, rows[0][3])
        assert [sensor for sensor, *_ in again] == [sensor for sensor, *_ in rows]
        print(f"in the table: {len(readings):,} readings")
        assert len(readings) == minutes * SENSORS

        # The oldest tenth goes.
        gone = readings.delete_where(tm.col("ts") < BEGIN + timedelta(minutes=minutes // 10))
        print(f"deleted: {gone:,} old readings, {len(readings):,} left")
        assert gone == minutes // 10 * SENSORS and len(readings) == minutes * SENSORS - gone


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path, help="an empty folder; a temporary one if left out")
    parser.add_argument("--readings", type=int, default=2_000_000, help=f"a multiple of {10 * SENSORS:,}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        main(given.folder or Path(temporary), given.readings // SENSORS)
