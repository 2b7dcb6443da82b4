"""The data source "tidemark" of Spark (docs/spark.md, sections 3 and 4).

Spark creates these objects in planning processes of its own, pickles them, and calls `read` in executors. The imports
at the top are few: Spark imports this module to learn that the source exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tidemark.recovery.spark.changes import ChangePlan, Opener


class TidemarkSource(DataSource):
    """`spark.read.format("tidemark").option("changes", "true")`: the row changes of a store, also as
    `spark.readStream`.
    """

    # Returns a function that opens the reader of a store's binlog. An upper floor sets it; None if there is none.
    opener: ClassVar[Callable[[], Opener] | None] = None

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        # Created once and pickled with the source, so that the schema and the rows come from the same definition.
        self._changes: ChangePlan | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "tidemark"

    def _planned(self) -> ChangePlan:
        """Return the plan of a read of row changes. Raises: SchemaInvalid for a read of rows."""
        from tidemark.engine.base.errors import SchemaInvalid
        from tidemark.recovery.spark.changes import SWITCH, make_change_plan, wants_changes

        if self._changes is None:
            if not wants_changes(self.options):
                raise SchemaInvalid(
                    f"the format reads row changes only: say .option('{SWITCH}', 'true'), or read the rows of a backup"
                    " with tidemark.spark.read(spark, place, table)",
                    option=SWITCH,
                )
            self._changes = make_change_plan(dict(self.options))
        return self._changes

    def schema(self) -> StructType:
        from tidemark.recovery.spark.changes import change_spark_schema

        return change_spark_schema(self._planned().definition)

    def _reader(self, schema: StructType, kind: Any, known: Sequence[str]) -> Any:
        """Return a reader of changes. Raises: TypeMismatch for a schema of the user's own, SchemaInvalid,
        Unsupported.
        """
        from tidemark.engine.base.errors import TypeMismatch, Unsupported
        from tidemark.recovery.spark.changes import change_spark_schema
        from tidemark.recovery.spark.options import checked_options

        changes = self._planned()
        checked_options(self.options, known)  # others have no meaning for this kind of read
        if schema != change_spark_schema(changes.definition):
            raise TypeMismatch("row changes have a fixed schema; leave the schema out, and select columns")
        opener = type(self).opener
        if opener is None:
            raise Unsupported("there is no reader of binlogs here; use format('tidemark') of an installed Tidemark")
        return kind(changes, opener())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tidemark.recovery.spark.changes import STREAM_OPTIONS
        from tidemark.recovery.spark.stream import ChangeStreamReader

        made: DataSourceStreamReader = self._reader(schema, ChangeStreamReader, STREAM_OPTIONS)
        return made

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidemark.recovery.spark.changes import BATCH_OPTIONS
        from tidemark.recovery.spark.stream import ChangeReader

        made: DataSourceReader = self._reader(schema, ChangeReader, BATCH_OPTIONS)
        return made
