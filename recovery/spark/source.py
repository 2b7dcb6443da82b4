"""The data source "tidemark" of Spark (docs/spark.md, sections 3 and 4).

Spark makes these objects in planning processes of their own, pickles them, and calls `read` in executors. What is
imported at the top is little: Spark imports this module to learn that there is such a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from recovery.spark.plan import ReadPlan


class TidemarkSource(DataSource):
    """`spark.read.format("tidemark").option("table", name).load(place)`; `.write` of a load that was planned."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        # Made once and pickled with the source: the schema a user is shown and the rows read are of one backup.
        self._plan: ReadPlan | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidemark"

    def _planned(self) -> ReadPlan:
        from recovery.spark.plan import make_plan

        if self._plan is None:
            self._plan = make_plan(dict(self.options))
        return self._plan

    def schema(self) -> StructType:
        """The columns of the table, or those of option `columns`."""
        from recovery.spark.types import spark_schema

        plan = self._planned()
        return spark_schema(plan.chosen(), plan.hidden)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns of a schema, which is ours or a user's own."""
        from engine.errors import TypeMismatch
        from recovery.spark.plan import narrowed
        from recovery.spark.types import spark_schema

        plan = self._planned()
        if schema.fieldNames() != [*plan.columns, *plan.hidden]:
            plan = narrowed(plan, schema.fieldNames())
        ours = spark_schema(plan.chosen(), plan.hidden)
        for given, own in zip(schema.fields, ours.fields, strict=True):
            if given.dataType != own.dataType:
                raise TypeMismatch(
                    f"column {given.name} is {own.dataType.simpleString()} in Spark, not"
                    f" {given.dataType.simpleString()}; leave the schema out, and cast",
                    column=given.name,
                )
        return Reader(plan)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a load, whose job is an option."""
        from recovery.spark.load import make_writer

        return make_writer(dict(self.options), schema, overwrite)


class Reader(DataSourceReader):
    """Reads a plan; many files in one task.

    It takes no filters from Spark (`pushFilters`): Spark 4.1 to 4.3 keep those of one query for others of the same
    DataFrame, which then give too few rows (docs/spark.md, section 4).
    """

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [InputPartition(task) for task in self._plan.divided()]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a task in batches of exactly the declared types. partition: None if there is nothing to read."""
        from recovery.spark.rows import read_task
        from recovery.spark.types import arrow_schema, to_spark_batches

        schema = arrow_schema(self._plan.chosen(), self._plan.hidden)
        if partition is not None:
            for batch in read_task(partition.value):
                yield from to_spark_batches(batch, schema)
