"""Spark: the only home of pyspark (docs/spark.md).

`source` is the data source. A read of rows: `plan` fixes files and tasks, `rows` reads them. Row changes: `changes` and
`stream`. A bulk load: `load`. `jobs` runs tasks of other rooms on executors. `session`, `java` and `daemon` start
Spark's processes; `failures`, `types` and `conditions` translate errors, types and conditions.
"""
