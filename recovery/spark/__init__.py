"""Spark: the only home of pyspark (docs/spark.md).

`read` gives Spark the Parquet files of a backup, and `load` takes Parquet files from it. `source` is the data source of
row changes (`changes`, `stream`). `jobs` runs tasks of other rooms on executors. `session`, `java` and `daemon` start
Spark's processes; `failures`, `types` and `options` translate errors, types and options.
"""
