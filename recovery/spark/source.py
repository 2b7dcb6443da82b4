"""The data source "tidemark" of Spark (docs/spark.md, sections 3 and 4).

Spark makes these objects in planning processes of their own, pickles them, and calls `read` in executors. What is
imported at the top is little: Spark imports this module to learn that there is such a source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from recovery.spark.plan import ReadPlan, ReadTask


class TidemarkSource(DataSource):
    """`spark.read.format("tidemark").option("table", name).load(place)`."""

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
        from recovery.spark.plan import is_true, narrowed
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
        return PushdownReader(plan) if is_true(dict(self.options), "pushdown") else Reader(plan)


class Reader(DataSourceReader):
    """Reads a plan; many files in one task."""

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def _tasks(self) -> list[ReadTask]:
        return self._plan.divided()

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks."""
        return [InputPartition(task) for task in self._tasks()]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a task in batches of exactly the declared types. partition: None if there is nothing to read."""
        from recovery.spark.rows import read_task
        from recovery.spark.types import arrow_schema, to_spark_batches

        schema = arrow_schema(self._plan.chosen(), self._plan.hidden)
        if partition is not None:
            for batch in read_task(partition.value):
                yield from to_spark_batches(batch, schema)


class PushdownReader(Reader):
    """A reader that looks at filters. A class of its own: Spark refuses one that could, where pushdown is off."""

    def __init__(self, plan: ReadPlan) -> None:
        super().__init__(plan)
        self._where: Any = None

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # Spark's name
        """Take what can be taken; all of it goes back, for Spark to judge the rows once more."""
        from recovery.spark.filters import condition_of

        self._where = condition_of(self._plan.origin.definition, filters)
        yield from filters

    def _tasks(self) -> list[ReadTask]:
        from recovery.spark.filters import fragments_of

        if self._where is None:
            return super()._tasks()
        return self._plan.divided(self._where, fragments_of(self._plan.origin.definition, self._where))
