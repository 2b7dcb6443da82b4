"""Two million sensor readings: a bulk load, SQL by DuckDB, and a snapshot that stays as it was next to a writer.

    python docs/examples/sensor_data.py [--readings 2000000]

docs/tutorials/sensor-data.md explains it step by step. DuckDB is needed: in a checkout, pip install '.[duckdb]'.
"""

import argparse
import tempfile
import threading
from datetime import UTC, datetime, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import tidemark as tm

SENSORS = 2_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def batch(minute: int) -> pa.RecordBatch:
    """One reading of each sensor, as columns of Arrow."""
    sensors = np.arange(SENSORS, dtype=np.int32)
    times = pa.array([BEGIN + timedelta(minutes=minute)] * SENSORS, pa.timestamp("us", "UTC"))
    values = 20.0 + np.random.default_rng(minute).normal(size=SENSORS)
    return pa.record_batch({"sensor": sensors, "ts": times, "value": values})


def hottest(readings: tm.TableDataset) -> list[tuple[int, int, float, float]]:
    """Three sensors. DuckDB finds the argument under its name, and reads no other columns than these."""
    query = "select sensor, count(*), avg(value), max(value) from readings group by sensor order by 4 desc limit 3"
    return duckdb.sql(query).fetchall()


def main(folder: str, minutes: int) -> None:
    history = minutes * 9 // 10
    with tm.open(f"{folder}/meters", data_memory="512 MiB", redo_log="256 MiB", durability="epoch") as db:
        columns = [tm.Column("sensor", tm.Int32), tm.Column("ts", tm.Timestamp), tm.Column("value", tm.Float64)]
        readings = db.create_table("plant.reading", columns, primary_key=["sensor", "ts"])

        # In bulk: one transaction, and the batches are made one after the other while the load goes on.
        batches = (batch(minute) for minute in range(history))
        loaded = db.load("plant.reading", pa.RecordBatchReader.from_batches(batch(0).schema, batches))
        print(f"loaded in bulk: {loaded:,} readings of {SENSORS:,} sensors")
        assert loaded == len(readings) == history * SENSORS

        rows = hottest(readings.dataset())
        print("sensor  readings   mean    max")
        for row in rows:
            print("{:6} {:9} {:6.2f} {:6.2f}".format(*row))
        hot = readings.scan(where=tm.col("value") > 23.0)  # no SQL is needed for a count, a sum or a mean
        print(f"above 23.0: {hot.count():,} readings, mean {hot.mean('value'):.3f}")

        def write_more() -> None:
            for minute in range(history, minutes):
                readings.insert_many(batch(minute))  # one transaction each

        writer = threading.Thread(target=write_more)
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

        # The oldest tenth goes.
        gone = readings.delete_where(tm.col("ts") < BEGIN + timedelta(minutes=minutes // 10))
        print(f"deleted: {gone:,} old readings, {len(readings):,} left")
        assert gone == minutes // 10 * SENSORS and len(readings) == minutes * SENSORS - gone


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--readings", type=int, default=2_000_000, help=f"a multiple of {10 * SENSORS:,}")
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary, parser.parse_args().readings // SENSORS)
