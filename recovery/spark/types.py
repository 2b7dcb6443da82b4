"""Types of columns in Spark, and in the Arrow batches that it takes (docs/spark.md, section 5).

Spark has no unsigned numbers: each becomes the next wider signed type, UInt64 decimal(20,0). Spark compares the first
batch of a task with the declared schema and trusts every later one, so batches are cast to exactly these types. Spark
would refuse a field that is not nullable, a dictionary, a large string or a time in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.engine.schema.types import Decimal, Enum, Integer
from tidemark.engine.schema.types_calendar import Calendar
from tidemark.engine.schema.types_text import Binary, LongBinary, LongText, VarBinary

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.types_base import ColumnType

UINT64_DIGITS = 20


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type in which Spark exchanges values of a column."""
    import pyarrow as pa

    if isinstance(kind, Integer) and not kind.signed:
        return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bits, pa.decimal128(UINT64_DIGITS, 0))
    if isinstance(kind, (Enum, LongText)):
        return pa.string()
    if isinstance(kind, (Binary, VarBinary, LongBinary)):
        return pa.binary()
    if isinstance(kind, Calendar) and repr(kind) == "Time":
        return pa.time64("ns")
    return kind.arrow_type()


def spark_type(kind: ColumnType) -> DataType:
    import pyarrow as pa
    from pyspark.sql import types as s

    made = arrow_type(kind)
    if isinstance(kind, Decimal) or pa.types.is_decimal(made):
        return s.DecimalType(made.precision, made.scale)
    if pa.types.is_time64(made):
        return s.TimeType(6)
    if pa.types.is_timestamp(made):
        return s.TimestampNTZType() if made.tz is None else s.TimestampType()
    plain: list[tuple[Any, DataType]] = [
        (pa.int8(), s.ByteType()),
        (pa.int16(), s.ShortType()),
        (pa.int32(), s.IntegerType()),
        (pa.int64(), s.LongType()),
        (pa.float32(), s.FloatType()),
        (pa.float64(), s.DoubleType()),
        (pa.bool_(), s.BooleanType()),
        (pa.string(), s.StringType()),
        (pa.binary(), s.BinaryType()),
        (pa.date32(), s.DateType()),
    ]
    return next(known for arrow, known in plain if arrow == made)


def spark_schema(columns: Sequence[Column], hidden: Sequence[str] = ()) -> StructType:
    """Return the schema of a DataFrame with these columns, then hidden ones. Spark takes all as nullable."""
    from pyspark.sql import types as s

    fields = [s.StructField(column.name, spark_type(column.type)) for column in columns]
    return s.StructType([*fields, *(s.StructField(name, s.LongType()) for name in hidden)])


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
