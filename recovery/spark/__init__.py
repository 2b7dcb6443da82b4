"""Spark: the only home of pyspark (docs/spark.md)."""
