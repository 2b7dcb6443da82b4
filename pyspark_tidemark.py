"""Found by Spark through its name: makes `format("tidemark")` known in every session without a call."""

from recovery.spark.source import TidemarkSource as DefaultSource

__all__ = ["DefaultSource"]
