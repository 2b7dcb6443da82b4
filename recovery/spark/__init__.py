"""Spark: the only home of pyspark (docs/spark.md).

`read` gives Spark the Parquet files of a backup. `source` is the data source: row changes (`changes`, `stream`) and
bulk loads (`load`). `jobs` runs tasks of other rooms on executors. `session`, `java` and `daemon` start Spark's
processes; `failures`, `types` and `options` translate errors, types and options.
"""
