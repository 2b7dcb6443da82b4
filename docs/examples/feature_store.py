"""A feature store: Spark computes features and loads them, a program reads them by key, Spark checks a backup.

    python docs/examples/feature_store.py [FOLDER]

Spark and Java are needed: in a checkout, pip install '.[spark,java]'. Spark's warnings go to standard error.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tidemark as tm
import tidemark.spark as ts
from pyspark.sql import DataFrame, SparkSession

USERS, NEW_USERS, CALLS = 20_000, 1_000, 1_000
TABLE, KEY = "feature.user", "user_id"


def features(spark: SparkSession, day: int, first: int, end: int) -> DataFrame:
    """What a job over orders would give: a row of features for each user from first to end."""
    users = spark.range(first, end).withColumnRenamed("id", KEY)
    return users.selectExpr(
        KEY,
        f"cast((user_id * 7 + {day}) % 50 as int) as orders",
        f"(user_id * 31 + {day}) % 10000 / 100.0D as mean_price",
        f"date'2026-01-01' + {day} as as_of",
    )


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spark = ts.session("local[2]")
    with tm.open(folder / "store", data_memory="64 MiB", redo_log="32 MiB") as db:
        columns = [
            tm.Column(KEY, tm.Int64),
            tm.Column("orders", tm.Int32),
            tm.Column("mean_price", tm.Float64),
            tm.Column("as_of", tm.Date),
        ]
        served = db.create_table(TABLE, columns, primary_key=KEY)

        # The first batch: executors write load files, and all rows become visible at once.
        first_day = features(spark, 0, 0, USERS)
        report = ts.load(db, first_day, TABLE)
        print(f"loaded by Spark: {report.rows:,} users")
        assert report.rows == len(served) == USERS

        # Serving: rows come as an Arrow record batch, in the order of their keys; a missing key is left out.
        keys = list(range(100, 116))
        rows = served.get_many([*keys, USERS + 5], ["user_id", "orders", "mean_price"])
        print(f"served for {rows.num_rows} of {len(keys) + 1} keys: {rows.to_pylist()[0]}")
        quickest = min(timed(lambda: served.get_many(keys)) for _ in range(CALLS))
        assert rows.num_rows == len(keys)
        print(
            f"the quickest of {CALLS:,} such calls took {quickest:.0f} µs", file=sys.stderr
        )  # differs from run to run

        # The second batch has users that are there and new ones. A load only adds rows, so this one comes as Arrow.
        second_day = features(spark, 1, USERS - NEW_USERS, USERS + NEW_USERS)
        inserted = served.upsert_many(second_day.toArrow())
        print(f"upserted: {inserted:,} new users, {len(served):,} in all")
        assert inserted == NEW_USERS and served[USERS - 1].as_of.day == 2 and served[0].as_of.day == 1

        # Spark reads files and not the open store: a backup has every row as at the end of one epoch.
        db.backup(folder / "backups")
        stored = ts.read(spark, folder / "backups", TABLE)
        expected = first_day.where(f"user_id < {USERS - NEW_USERS}").union(second_day)
        missing, surplus = expected.exceptAll(stored).count(), stored.exceptAll(expected).count()
        print(f"backup: {stored.count():,} rows, {missing} missing, {surplus} surplus")
        assert missing == surplus == 0 and stored.count() == USERS + NEW_USERS
    spark.stop()


def timed(call: Callable[[], object]) -> float:
    """Return how many microseconds a call takes."""
    begin = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - begin) / 1_000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
