"""The data source "tidemark" of Spark (docs/spark.md, sections 3 and 4).

Spark creates these objects in planning processes of its own, pickles them, and calls `read` in executors. The imports
at the top are few: Spark imports this module to learn that the source exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidemark.recovery.spark.changes import ChangePlan, Opener
    from tidemark.recovery.spark.plan import ReadPlan


class TidemarkSource(DataSource):
    """`spark.read.format("tidemark").option("table", name).load(place)`; `.write` of a planned load; with
    `.option("changes", "true")` the row changes of a store, also as `spark.readStream`.
    """

    # Returns a function that opens the reader of a store's binlog. An upper floor sets it; None if there is none.
    opener: ClassVar[Callable[[], Opener] | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        # Created once and pickled with the source, so that the schema and the rows come from the same backup.
        self._plan: ReadPlan | None = None
        self._changes: ChangePlan | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidemark"

    def _planned(self) -> ReadPlan:
        from tidemark.recovery.spark.plan import make_plan

        if self._plan is None:
            self._plan = make_plan(dict(self.options))
        return self._plan

    def _planned_changes(self) -> ChangePlan | None:
        """Return the plan of a read of row changes; None for a read of rows."""
        from tidemark.recovery.spark.changes import make_change_plan, wants_changes

        if self._changes is None and wants_changes(self.options):
            self._changes = make_change_plan(dict(self.options))
        return self._changes

    def schema(self) -> StructType:
        """Return the columns of the table, or those of option `columns`; for row changes, the columns of a change."""
        from tidemark.recovery.spark.changes import change_spark_schema
        from tidemark.recovery.spark.types import spark_schema

        changes = self._planned_changes()
        if changes is not None:
            return change_spark_schema(changes.definition)

        plan = self._planned()
        return spark_schema(plan.chosen(), plan.hidden)

    def _change_reader(self, changes: ChangePlan, schema: StructType, kind: Any, known: Sequence[str]) -> Any:
        """Return a reader of changes. Raises: TypeMismatch for a schema of the user's own, SchemaInvalid,
        Unsupported.
        """
        from tidemark.engine.base.errors import TypeMismatch, Unsupported
        from tidemark.recovery.spark.changes import change_spark_schema
        from tidemark.recovery.spark.plan import checked_options

        checked_options(self.options, known)  # others have no meaning for this kind of read
        if schema != change_spark_schema(changes.definition):
            raise TypeMismatch("row changes have a fixed schema; leave the schema out, and select columns")
        opener = type(self).opener
        if opener is None:
            raise Unsupported("there is no reader of binlogs here; use format('tidemark') of an installed Tidemark")
        return kind(changes, opener())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream of row changes."""
        from tidemark.engine.base.errors import SchemaInvalid
        from tidemark.recovery.spark.changes import STREAM_OPTIONS, SWITCH
        from tidemark.recovery.spark.stream import ChangeStreamReader

        changes = self._planned_changes()
        if changes is None:
            raise SchemaInvalid(f"only row changes are a stream; say .option('{SWITCH}', 'true')", option=SWITCH)
        made: DataSourceStreamReader = self._change_reader(changes, schema, ChangeStreamReader, STREAM_OPTIONS)
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the columns of a schema, the table's or a user's own; or of row changes."""
        from tidemark.engine.base.errors import TypeMismatch
        from tidemark.recovery.spark.changes import BATCH_OPTIONS
        from tidemark.recovery.spark.plan import narrowed
        from tidemark.recovery.spark.stream import ChangeReader
        from tidemark.recovery.spark.types import spark_schema

        changes = self._planned_changes()
        if changes is not None:
            made: DataSourceReader = self._change_reader(changes, schema, ChangeReader, BATCH_OPTIONS)
            return made
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
        """Return a writer of a load; the job is an option."""
        from tidemark.recovery.spark.load import make_writer

        return make_writer(dict(self.options), schema, overwrite)


class Reader(DataSourceReader):
    """Reads a plan; many files in one task.

    It takes no filters from Spark (`pushFilters`): Spark 4.1 to 4.3 keep those of one query for others of the same
    DataFrame, which then return too few rows (docs/spark.md, section 4).
    """

    def __init__(self, plan: ReadPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks."""
        return [InputPartition(task) for task in self._plan.split_into_tasks()]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task in batches of exactly the declared types. partition: None if there is nothing."""
        from tidemark.recovery.spark.rows import read_task
        from tidemark.recovery.spark.types import arrow_schema, to_spark_batches

        schema = arrow_schema(self._plan.chosen(), self._plan.hidden)
        if partition is not None:
            for batch in read_task(partition.value):
                yield from to_spark_batches(batch, schema)
