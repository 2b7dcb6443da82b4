"""A table as a `pyarrow.dataset.Dataset`, which DuckDB asks for columns and a filter.

DuckDB accepts objects of this class and calls `scanner` on them. The rest of the class is C++ code that does not know
this `scanner`. To that code the dataset is one file that cannot be opened, so a call that bypasses `scanner` fails
instead of showing an empty table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.base.owner import refuse_pickling
from tidemark.pushdown.arrow_filter import condition_of
from tidemark.pushdown.necessary import necessary

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.schema.definition import TableDefinition

_NO_FILE = "no file: read the dataset of a Tidemark table by its own calls, such as to_table()"


class Readable(Protocol):
    """A table that can be scanned."""

    @property
    def definition(self) -> TableDefinition:
        """The table's definition."""
        ...

    def scan(self, columns: Any = None, limit: int | None = None, partitions: Any = None, where: Any = None) -> Any:
        """Return a scan."""
        ...


class Source:
    """The rows of a table; each read is as at one epoch if the store has snapshots. Threads may share it.

    `schema` is that of the table when this object was created; rows keep it after the table is changed.
    """

    def __init__(self, table: Readable, opened: Callable[[], AbstractContextManager[Readable]]) -> None:
        """opened: returns a context manager of the table, as at one epoch if the store has snapshots."""
        self.table = table
        self.schema: pa.Schema = table.scan().schema()
        self._opened = opened

    def necessary(self, condition: Expression) -> Expression | None:
        return necessary(condition, self.table.definition)

    def batches(
        self, columns: Sequence[str], where: Expression | None, limit: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows with these columns (at least one). The snapshot is opened with the first batch, and closed at the
        end, after an error, and when the iterator is dropped.
        """
        wanted = pa.schema([self.schema.field(name) for name in columns])
        with self._opened() as table:
            for batch in table.scan(columns, limit, where=where).batches():
                yield batch if batch.schema.equals(wanted) else batch.cast(wanted)


class TableScanner:
    """A scan of a dataset. Each call that reads rows begins it anew.

    Examples:
        >>> scanner = db["item"].dataset().scanner(columns=["name"])
        >>> scanner.projected_schema.names, scanner.count_rows(), scanner.head(1).num_rows
        (['name'], 3, 1)
    """

    def __init__(
        self,
        source: Source,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None,
        filter: pc.Expression | None,
    ) -> None:
        self._source = source
        self._columns = columns
        self._filter = filter
        self.dataset_schema = source.schema
        # Raises what pyarrow raises for columns that are missing and for a filter of the wrong type.
        empty = ds.Scanner.from_batches([], schema=source.schema, columns=columns, filter=filter)
        self.projected_schema: pa.Schema = empty.projected_schema

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches."""
        schema, columns = self._source.schema, self._columns
        read = schema.names if columns is None or isinstance(columns, Mapping) else list(columns)
        where = None
        if self._filter is not None:
            condition, judged = condition_of(self._filter, schema)
            read = [*read, *(name for name in judged if name not in read)]
            where = self._source.necessary(condition)
        elif read and read is not columns and not isinstance(columns, Mapping):
            yield from self._source.batches(read, None)
            return
        for batch in self._source.batches(read or schema.names[:1], where):
            yield from self._finished(batch)

    def _finished(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Apply the whole filter and the projection, with pyarrow's own rules."""
        how = {"columns": self._columns, "filter": self._filter, "use_threads": False}
        found = ds.Scanner.from_batches([batch], schema=batch.schema, **how).to_table()
        yield from found.to_batches() if found.num_rows else ()

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Return the rows as a table."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """Return the first `num_rows` rows, or all if there are fewer; read no more batches than needed."""
        found, left = [], num_rows
        batches = self.to_batches()
        while left > 0 and (batch := next(batches, None)) is not None:
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
        return pa.Table.from_batches(found, self.projected_schema)

    def count_rows(self) -> int:
        """Return the number of rows."""
        return sum(batch.num_rows for batch in self.to_batches())


class _Refused:
    """A method of pyarrow's class that would bypass `scanner`; it raises Unsupported."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(
            f"the dataset of a table has no {self._name}(); read rows by to_table(columns=..., filter=...), and use"
            " those"
        )


class TableDataset(ds.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
    """A table that DuckDB scans by its Python name, with columns and filters pushed down; see `TableHandle.dataset`.

    Of the calls of a `pyarrow.dataset.Dataset` it has `schema`, `scanner`, `to_table`, `to_batches`, `head` and
    `count_rows`, each with `columns=` and `filter=`. The others raise Unsupported.

    Examples:
        >>> import pyarrow.compute as pc
        >>> item = db["item"].dataset()
        >>> item.to_table(columns=["name"], filter=pc.field("stock") > 5).to_pylist()
        [{'name': 'pen'}]
        >>> item.count_rows(filter=pc.field("stock") > 4)
        2
    """

    __reduce_ex__ = refuse_pickling
    filter = _Refused("filter")
    get_fragments = _Refused("get_fragments")
    join = _Refused("join")
    join_asof = _Refused("join_asof")
    replace_schema = _Refused("replace_schema")
    sort_by = _Refused("sort_by")
    take = _Refused("take")

    def __init__(self, source: Source) -> None:
        form, files = ds.IpcFileFormat(), LocalFileSystem()
        super().__init__([form.make_fragment(_NO_FILE, files)], source.schema, form, files)
        self._source = source

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> TableScanner:
        """Return a scan of some columns of the rows that a filter accepts.

        The scan applies the parts of the filter that it can translate, and pyarrow applies the whole filter to the rows
        found. Other options of pyarrow have no effect.

        Raises: pyarrow's errors for columns and filters.

        Examples:
            >>> sorted(db["item"].dataset().scanner(columns=["stock"]).to_table()["stock"].to_pylist())
            [0, 5, 10]
        """
        return TableScanner(self._source, columns, filter)

    def __repr__(self) -> str:
        return f"<dataset of {self._source.table!r}>"
