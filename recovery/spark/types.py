"""Types of columns in Spark, and in the Arrow batches that it takes (docs/spark.md, section 5).

Spark has no unsigned numbers: each becomes the next wider signed type, UInt64 decimal(20,0). Spark compares the first
batch of a task with the declared schema and trusts every later one, so batches are cast to exactly these types. Spark
would refuse a field that is not nullable, a dictionary, a large string or a time in microseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tidemark.engine import types as t

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from tidemark.engine.schema.column import Column
    from tidemark.engine.types import ColumnType

UINT64_DIGITS = 20


def _own(kind: ColumnType) -> pa.DataType:
    return kind.arrow_type()


def _signed(kind: t.Integer) -> pa.DataType:
    import pyarrow as pa

    if kind.signed:
        return kind.arrow_type()
    return {8: pa.int16(), 16: pa.int32(), 32: pa.int64()}.get(kind.bits, pa.decimal128(UINT64_DIGITS, 0))


def _string(kind: ColumnType) -> pa.DataType:
    import pyarrow as pa

    return pa.string()


def _binary(kind: ColumnType) -> pa.DataType:
    import pyarrow as pa

    return pa.binary()


def _nanoseconds(kind: t.TimeOfDay) -> pa.DataType:
    import pyarrow as pa

    return pa.time64("ns")


class SparkType(NamedTuple):
    """A class of column types in Spark. arrow: the Arrow type in which Spark exchanges values; its own type follows
    from that. kept: the type as which Spark reads a column of a backup, if that is another one; then `shown` is the
    expression for its values, with {} for the column.
    """

    arrow: Callable[[Any], pa.DataType]
    kept: Callable[[Any], pa.DataType] | None = None
    shown: str = "{}"


_HYPHENATED = "lower(regexp_replace(hex({}), '(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})', '$1-$2-$3-$4-$5'))"
SPARK_TYPES: dict[type[ColumnType], SparkType] = {
    t.Integer: SparkType(_signed),
    t.Boolean: SparkType(_own),
    t.Floating: SparkType(_own),
    t.Decimal: SparkType(_own),
    t.Enum: SparkType(_string),
    t.Char: SparkType(_own),
    t.VarChar: SparkType(_own),
    t.LongText: SparkType(_string),
    t.Binary: SparkType(_binary),
    t.VarBinary: SparkType(_binary),
    t.LongBinary: SparkType(_binary),
    t.Uuid: SparkType(_string, _binary, _HYPHENATED),
    t.Document: SparkType(_string),
    t.CalendarDate: SparkType(_own),
    t.TimeOfDay: SparkType(_nanoseconds),
    t.LocalDateTime: SparkType(_own),
    t.Instant: SparkType(_own),
}


def arrow_type(kind: ColumnType) -> pa.DataType:
    """Return the Arrow type in which Spark exchanges values of a column."""
    return SPARK_TYPES[type(kind)].arrow(kind)


def _spark_type(made: pa.DataType) -> DataType:
    import pyarrow as pa
    from pyspark.sql import types as s

    if pa.types.is_decimal(made):
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


def spark_schema(columns: Sequence[Column]) -> StructType:
    """Return the schema of a DataFrame with these columns. Spark takes all as nullable."""
    from pyspark.sql import types as s

    return s.StructType([s.StructField(column.name, _spark_type(arrow_type(column.type))) for column in columns])


def kept_schema(columns: Sequence[Column], hidden: Sequence[str]) -> StructType:
    """Return the schema in which Spark reads the files of a backup: these columns, then hidden ones."""
    from pyspark.sql import types as s

    rows = [(column, SPARK_TYPES[type(column.type)]) for column in columns]
    fields = [s.StructField(column.name, _spark_type((row.kept or row.arrow)(column.type))) for column, row in rows]
    return s.StructType([*fields, *(s.StructField(name, s.LongType()) for name in hidden)])


def shown_column(column: Column, quoted: str) -> str:
    """Return the expression of Spark for the values of a column of a backup. quoted: its name."""
    return SPARK_TYPES[type(column.type)].shown.format(quoted)


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
