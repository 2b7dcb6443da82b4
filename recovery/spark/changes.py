"""Row changes of a store for Spark: plans of epochs, tasks, and batches (docs/spark.md, section 8).

The binlog is read by an upper floor, which passes its reader in (`ChangeLog`). This module changes no file. An offset
of a stream is an epoch: the changes between two epochs are the same whenever they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidemark.engine.base.errors import EpochGap, Error, FileMissing, SchemaInvalid, TypeMismatch
from tidemark.engine.base.ids import gci_of
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.spark.options import TASK_BYTES, checked_options, find_table, whole_number
from tidemark.recovery.spark.types import arrow_schema
from tidemark.recovery.system_restart.sysfile import read_sysfile
from tidemark.recovery.verification.log_listing import StoreListing

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from tidemark.engine.types import ColumnType

SWITCH = "changes"
BATCH_OPTIONS = ("path", "table", SWITCH, "since", "until", "taskBytes")
STREAM_OPTIONS = ("path", "table", SWITCH, "startingEpoch", "maxEpochsPerTrigger", "taskBytes")
OPTIONS = (*BATCH_OPTIONS, *STREAM_OPTIONS[3:5])
EPOCH, OPERATION, BEFORE, AFTER = "epoch", "operation", "before", "after"
# Small changes are combined into batches of about this size.
BATCH_ROWS = 8_192
BATCH_BYTES = 8 << 20


class ChangePiece(NamedTuple):
    """A part of one binlog file, between the ends of two statements. `epoch` is that of the transaction in which the
    part begins, 0 if it begins between transactions.
    """

    file: str
    start: int
    end: int
    epoch: int


@dataclass(frozen=True)
class Reach:
    """The changes that can be read after some epoch: through `epoch`, in these pieces. `obstacle` is an error that
    stops all later changes, None if there is none.
    """

    epoch: int
    pieces: tuple[ChangePiece, ...]
    obstacle: Error | None = None


@dataclass(frozen=True)
class ChangedImages:
    """Rows of the table with the same operation in one epoch. `before` and `after` have the same rows, with the columns
    that the binlog has; None if it has no such image.
    """

    epoch: int
    operation: str
    before: pa.RecordBatch | None
    after: pa.RecordBatch | None


class ChangeLog(Protocol):
    """The binlog of one store, which may be open in another process; for one table."""

    def reach(self, since: int, until: int | None, epochs_max: int | None, piece_bytes: int) -> Reach:
        """Return the changes after `since`, up to `until`, at most `epochs_max` epochs, in pieces of `piece_bytes` or
        so.

        Raises: PositionLost if the changes after `since` are no longer available, Damaged.
        """
        ...

    def newest_epoch(self) -> int:
        """Return the last epoch with a change of any table. Raises: Damaged."""
        ...

    def images(self, piece: ChangePiece) -> Iterator[ChangedImages]:
        """Yield the changes of the table in a piece. Raises: PositionLost if its file was purged, Damaged."""
        ...

    def keep(self, since: int | None) -> None:
        """Keep the changes after an epoch from being purged, until the next call (None: no epoch) or the end of this
        process.
        """
        ...

    def close(self) -> None:
        """Close all files; harmless twice."""
        ...


Opener = Callable[[str, TableDefinition], ChangeLog]


@dataclass(frozen=True)
class ChangePlan:
    """A read of the changes of one table: fixed when the DataFrame is created, and pickled with it."""

    place: str
    table: bytes  # its definition, as JSON: the columns stay what they are now
    since: int
    until: int | None
    epochs_max: int | None
    task_bytes: int

    @property
    def definition(self) -> TableDefinition:
        """The table's definition, created anew at each call."""
        return TableDefinition.from_json(self.table)

    def check_epoch(self, epoch: int, newest: int) -> None:
        """Raise EpochGap for an epoch that the store cannot have closed yet: it comes from another history."""
        if epoch <= newest:
            return
        # The sysfile may be one GCI older than the log.
        if gci_of(epoch) > _gci_of_store(self.place) + 1:
            raise EpochGap(
                f"epoch {epoch} is not one of the store in {self.place} yet (newest in its binlog: {newest}); begin at"
                " one it has closed",
                epoch=epoch,
            )


def wants_changes(options: Mapping[str, str]) -> bool:
    """Whether options request row changes. Raises: SchemaInvalid."""
    text = next((value for name, value in options.items() if name.lower() == SWITCH), "false").lower()
    if text not in ("true", "false"):
        raise SchemaInvalid(f"option {SWITCH} is {text!r}; give true or false", option=SWITCH)
    return text == "true"


def _gci_of_store(place: str) -> int:
    """Return the GCI in the sysfile of a store. Raises: FileMissing, Incompatible."""
    with PosixFiles(place) as files:
        files.read_errors_latch = False
        found = read_sysfile(files)
    if found is None:
        raise FileMissing(f"there is no longer a store in {place}; check the path")
    return found.gci


def make_change_plan(options: Mapping[str, str]) -> ChangePlan:
    """Return the plan of a read of changes. Raises: SchemaInvalid, FileMissing if there is no store, NoSuchTable."""
    given = checked_options(options, OPTIONS)
    with PosixFiles(given["path"]) as files:
        definition = find_table(StoreListing(files).tables(), given.get("table"))
        place = files.directory
    return ChangePlan(
        place,
        definition.to_json(),
        _epoch(given, "since") or _epoch(given, "startingEpoch") or 0,
        _epoch(given, "until"),
        whole_number(given, "maxEpochsPerTrigger"),
        whole_number(given, "taskBytes") or TASK_BYTES,
    )


def _epoch(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise SchemaInvalid(f"option {name} is {text!r}; give an epoch, a whole number from 0", option=name)
    return int(text)


# --- batches --------------------------------------------------------------------------------------
def change_arrow_schema(definition: TableDefinition) -> pa.Schema:
    """Return the schema of batches of changes: epoch, operation, and two structs of all columns of the table."""
    import pyarrow as pa

    row = pa.struct(list(arrow_schema(definition.columns)))
    fields = [(EPOCH, pa.int64()), (OPERATION, pa.string()), (BEFORE, row), (AFTER, row)]
    return pa.schema([pa.field(name, kind) for name, kind in fields])


def change_spark_schema(definition: TableDefinition) -> StructType:
    """Return the same schema in Spark's types."""
    from pyspark.sql import types as s

    from tidemark.recovery.spark.types import spark_schema

    row = spark_schema(definition.columns)
    fields = [(EPOCH, s.LongType()), (OPERATION, s.StringType()), (BEFORE, row), (AFTER, row)]
    return s.StructType([s.StructField(name, kind) for name, kind in fields])


def change_batches(found: Iterator[ChangedImages], definition: TableDefinition) -> Iterator[pa.RecordBatch]:
    """Yield changes in the form Spark takes, small ones combined. Raises: TypeMismatch for a value that is invalid for
    the column as it was when the read began; and the errors of reading.
    """
    schema = change_arrow_schema(definition)
    kinds = {column.name: column.type for column in definition.columns}
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for each in found:
        batch = _batch(each, schema, kinds)
        if held and (rows + batch.num_rows > BATCH_ROWS or size_bytes + batch.nbytes > BATCH_BYTES):
            yield _joined(held)
            held, rows, size_bytes = [], 0, 0
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if held:
        yield _joined(held)


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    if len(batches) == 1:
        return batches[0]
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _batch(changed: ChangedImages, schema: pa.Schema, kinds: Mapping[str, ColumnType]) -> pa.RecordBatch:
    import pyarrow as pa

    image = changed.before if changed.after is None else changed.after
    assert image is not None  # the reader refuses an event without columns
    count = image.num_rows
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(changed.epoch, pa.int64()), count),
            pa.repeat(pa.scalar(changed.operation, pa.string()), count),
            _struct(changed.before, schema.field(BEFORE).type, count, changed.epoch, kinds),
            _struct(changed.after, schema.field(AFTER).type, count, changed.epoch, kinds),
        ],
        schema=schema,
    )


def _struct(
    image: pa.RecordBatch | None, kind: pa.StructType, count: int, epoch: int, kinds: Mapping[str, ColumnType]
) -> pa.StructArray:
    """Return an image with the columns of the schema: NULL in columns it lacks, and all NULL if there is no image."""
    import pyarrow as pa

    if image is None:
        return pa.nulls(count, kind)
    arrays = []
    for place in range(kind.num_fields):
        field = kind.field(place)
        position = image.schema.get_field_index(field.name)
        if position < 0:
            arrays.append(pa.nulls(count, field.type))
            continue
        array, now = image.column(position), kinds[field.name]
        if pa.types.is_string(field.type) and array.type == now.arrow_type():
            array = now.text_of(array)
        arrays.append(_cast(array, field, epoch))
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _cast(array: pa.Array, field: pa.Field, epoch: int) -> pa.Array:
    """Return a column in the form Spark takes. Raises: TypeMismatch if its type has changed since, and values do not
    fit.
    """
    import pyarrow as pa

    held = array.type.value_type if pa.types.is_dictionary(array.type) else array.type
    # Text cast to numbers would be values of an earlier column of the same name.
    is_alike = _is_text(held) == _is_text(field.type)
    try:
        if is_alike:
            return array.cast(field.type)
        cause = None
    except pa.ArrowException as error:
        cause = error
    raise TypeMismatch(
        f"column {field.name} has {'a value' if is_alike else f'the type {held}'} in epoch {epoch} that does not fit"
        f" {field.type}, its type now; begin after the change of the column, or select other columns",
        column=field.name,
        epoch=epoch,
    ) from cause


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
