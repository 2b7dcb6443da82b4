"""Parquet files as the source of a load: their batches, and their row groups cut into tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.recovery.load.commit import FILES_MAX
from tidemark.recovery.places.names import filesystem_of, shown_place, typed_error

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.schema.definition import TableDefinition

READ_ROWS = 65_536
PART_ROWS_MIN = 4_096  # on average, of a task in a fragment: each part is a file, with a page of its own in the table
FOOTERS_AT_ONCE = 16
_HIDDEN = ("_", ".")


@dataclass(frozen=True)
class RowGroups:
    """Some row groups of one file, as plain values. `place`: a canonical path or URI; `path`: of the file, as the
    filesystem of the place names it.
    """

    place: str
    path: str
    groups: list[int]
    rows: int
    size_bytes: int  # not compressed


def open_parquet(
    file: Any, definition: TableDefinition | None, groups: Sequence[int] | None = None, **options: Any
) -> tuple[pa.Schema, int, Iterator[pa.RecordBatch]]:
    """Return schema, rows and batches of a Parquet file, or of some of its row groups. file: as pyarrow takes it.

    definition: of the table. options: of `ParquetFile`. Raises: ArrowException, OSError; so do the batches.
    """
    from pyarrow import parquet

    # Spark writes moments as INT96, of which pyarrow makes nanoseconds: year 9999 would be 1816.
    opened = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us", page_checksum_verification=True, **options)
    schema = _with_instants(opened, definition)
    read = opened.iter_batches(READ_ROWS, groups, use_threads=groups is None)
    return schema, opened.metadata.num_rows, (batch.cast(schema) for batch in validated(read))


def _with_instants(file: Any, definition: TableDefinition | None) -> pa.Schema:
    """Return the schema of a Parquet file. INT96 has no time zone: in a Timestamp it is an instant, as in Spark."""
    import pyarrow as pa

    columns = () if definition is None else definition.columns
    known = {each.name: each.type.arrow_type() for each in columns}
    wanted = {name: kind for name, kind in known.items() if getattr(kind, "tz", None)}
    schema = file.schema_arrow
    for number in range(len(file.schema)):
        about = file.schema.column(number)
        if about.physical_type == "INT96" and about.path in wanted:
            place = schema.get_field_index(about.path)
            schema = schema.set(place, pa.field(about.path, wanted[about.path]))
    return schema


def validated(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Validate each batch. Arrow does not check the offsets and dictionary indexes of a file, which may point anywhere
    in memory.
    """
    for batch in batches:
        batch.validate(full=True)
        yield batch


def batches_in(piece: RowGroups, definition: TableDefinition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups. Raises: FileMissing, Rejected, IoFailed."""
    with _reading(piece.place, piece.path):
        with _filesystem(piece.place)[0].open_input_file(piece.path) as file:
            is_far = not piece.place.startswith("/")
            yield from open_parquet(file, definition, piece.groups, pre_buffer=is_far)[2]


def row_groups(place: str, definition: TableDefinition) -> tuple[list[pa.Schema], list[RowGroups]]:
    """Return the schemas and row groups of a Parquet file, or of the files in a folder, as Spark finds them.

    place: a canonical path or URI. Raises: FileMissing, Rejected, IoFailed.
    """
    from pyarrow import parquet

    system, root = _filesystem(place)

    def read(path: str) -> tuple[pa.Schema, list[RowGroups]]:
        with _reading(place, path), system.open_input_file(path) as file:
            schema = open_parquet(file, definition)[0]
            schema.names  # noqa: B018 pyarrow decodes them on access, and raises then
            metadata = parquet.ParquetFile(file).metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return schema, [
            RowGroups(place, path, [number], group.num_rows, group.total_byte_size)
            for number, group in enumerate(groups)
        ]

    with _reading(place, root):
        paths = _paths(system, root, place)
    with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
        found = list(pool.map(read, paths))
    return [schema for schema, _ in found], [group for _, groups in found for group in groups if group.rows]


def _paths(system: Any, root: str, place: str) -> list[str]:
    from pyarrow import fs as arrow_fs

    if system.get_file_info(root).type.name == "File":
        return [root]
    found = [
        each
        for each in system.get_file_info(arrow_fs.FileSelector(root))
        if not each.base_name.startswith(_HIDDEN) and each.path.rstrip("/") != root.rstrip("/")
    ]
    if folders := sorted(each.base_name for each in found if each.type.name == "Directory"):
        raise Rejected(
            f"{shown_place(place)} has folders, the first {folders[0]!r}, which may stand for columns; load it as a"
            " DataFrame of Spark"
        )
    if not found:
        raise FileMissing(f"there is no Parquet file in {shown_place(place)}; check the path")
    return sorted(each.path for each in found)


def _filesystem(place: str) -> tuple[Any, str]:
    from pyarrow import fs as arrow_fs

    return (arrow_fs.LocalFileSystem(), place) if place.startswith("/") else filesystem_of(place)


@contextmanager
def _reading(place: str, path: str) -> Iterator[None]:
    """Within the block, raise errors of pyarrow about a file as the store's own. Raises: FileMissing, Rejected,
    IoFailed.
    """
    from pyarrow import ArrowException

    name = path if place.startswith("/") else f"{path} of {shown_place(place)}"
    try:
        yield
    except (ArrowException, UnicodeDecodeError) as error:
        said = shown_place(str(error).partition("\n")[0])
        raise Rejected(f"{name} cannot be read: {said}; nothing was loaded", file=name) from None
    except OSError as error:
        raise typed_error(name, error) from None


def cut(groups: Sequence[RowGroups], fragments: int, task_bytes: int) -> list[list[RowGroups]]:
    """Return row groups as tasks, in their order: of about `task_bytes`, but so large that a task has `PART_ROWS_MIN`
    rows for each fragment, and all of them write fewer files than a load may have. A small input is one task.
    """
    tasks_max = max(1, (FILES_MAX - 1) // fragments)
    least_bytes = max(task_bytes, -(-sum(group.size_bytes for group in groups) // tasks_max))
    least_rows = PART_ROWS_MIN * fragments
    tasks: list[list[RowGroups]] = []
    rows = size_bytes = 0
    for group in groups:
        if not tasks or (rows >= least_rows and size_bytes >= least_bytes):
            tasks.append([])
            rows = size_bytes = 0
        tasks[-1].append(group)
        rows += group.rows
        size_bytes += group.size_bytes
    if len(tasks) > 1 and rows < least_rows:
        last = tasks.pop()
        tasks[-1] += last
    return tasks
