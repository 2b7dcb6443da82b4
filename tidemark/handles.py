"""`db["test.account"]`: the calls of a transaction on one table, each a transaction of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.calls import has_calls_of
from tidemark.derived import described, for_table, own_transaction, passed
from tidemark.display import short
from tidemark.engine.access import row_operations
from tidemark.engine.base.errors import Error, SnapshotTooOld
from tidemark.engine.base.out_of_memory import memory_error, types_memory_errors
from tidemark.engine.index.stored import counters_of, describe
from tidemark.engine.memory.arena_layout import F_ROWS, MODE_DELETE, MODE_INSERT, MODE_UPDATE, MODE_WRITE
from tidemark.engine.point import few
from tidemark.engine.point.changes import DONE, CommittedChanges
from tidemark.engine.point.plan import keep_plan
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.programs.interpreter import Program
from tidemark.engine.queries import conditional_changes, key_columns, unique_calls
from tidemark.engine.queries.missing_rows import DROP, Missing, in_place
from tidemark.engine.queries.program_scans import count_rows
from tidemark.engine.schema.partition import ListPartition, RangePartition
from tidemark.engine.types.base import counted
from tidemark.scans import Scan, ScanAsked
from tidemark.session import Transaction
from tidemark.table_reads import TableReads, Where, WritableTable
from tidemark.typed_rows import TypedWrites

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.base.watch import Watch
    from tidemark.engine.rows.row import Row
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

R = TypeVar("R")


def partitions_of(table: Table) -> list[dict[str, Any]]:
    """See `TableHandle.partitions`. Row counts are read later than the rest, which is of one instant."""
    by_number, partition = table.by_number, table.definition.partition
    bounds: list[dict[str, Any]] = [{} for _ in partition.numbers]
    if isinstance(partition, RangePartition):
        bounds = [{"upper": bound if len(bound) > 1 else bound[0]} for _, bound in partition.partitions]
    elif isinstance(partition, ListPartition):
        bounds = [{"values": [row if len(row) > 1 else row[0] for row in rows]} for _, rows in partition.partitions]
    return [
        {"name": name, "fragment": number, **bound, "rows": table.arena.word(by_number[number], F_ROWS)}
        for name, number, bound in zip(partition.names, partition.numbers, bounds, strict=True)
        if number in by_number
    ]


def table_counters(tables: Iterable[Table]) -> dict[str, Any]:
    """Return the part of `status()` about tables, and about the indexes of those that have any."""
    found = {}
    for table in tables:
        indexes = counters_of(table.listed_indexes())
        found[table.name] = {
            "id": table.table_id,
            "rows": table.count(),
            "memory_bytes": table.memory_bytes(),
            **({"indexes": indexes} if indexes else {}),
        }
    return found


# Calls of one row handle a MemoryError themselves: one more call would take a twentieth of their time.
@has_calls_of("table")
@types_memory_errors("__len__", exclude=("get", "insert", "write", "update", "delete", "upsert"))
class TableHandle(WritableTable):
    """One table of an open store. Every call that writes is a transaction of its own, durable on return with
    `durability="commit"`. A call that reads waits for no disk and may show a commit that is not durable yet; a
    `Transaction` that has committed has read none.

    Rows are mappings, or sequences in column order. A call that raises has changed nothing, except for an
    OutcomeUnknown error of the commit.

    Every call raises StoreFailed after the store was closed or has failed. A call that reads or writes rows raises
    NoSuchTable after the table was dropped. A call that reads a disk column raises PageDamaged for a damaged page. A
    call that writes also raises what `Transaction` and `Transaction.commit` list.

    Examples:
        >>> item = db["item"]
        >>> item[1]
        Row(id=1, name='pen', stock=10)
        >>> 7 in item, len(item)
        (False, 3)
        >>> item[4] = {"id": 4, "name": "ink", "stock": 7}  # write: the row must have this key
        >>> del item[4]
        >>> sorted(row.name for row in item)
        ['bag', 'cup', 'pen']
    """

    __slots__ = ("_begin", "_changes", "_failure", "_owner", "_watch", "table")

    def __init__(self, store: Store, table: Table, owner: Any = None) -> None:
        """owner: the Database, which stays open while the handle is used."""
        self._owner = owner
        self._failure = store.failure
        self.table = table
        self._begin: Callable[..., Transaction] = store.transactions.begin
        # The general path changes tables with disk parts.
        self._changes = CommittedChanges(None if table.format.has_disk else store.resources)
        self._watch: Watch | None = store.resources.watch

    @property
    def definition(self) -> TableDefinition:
        return self.table.newest.definition

    @contextmanager
    def _at_one_epoch(self) -> Iterator[TableReads]:
        if self._owner is None:
            yield self
            return
        with self._owner.snapshot() as snapshot:
            self.table.check()  # another table may have its name since
            yield snapshot.table(self.name)

    def _in_own_transaction(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """Run one call as a transaction. A `with` would leave the transaction open if a signal arrived just before
        `__exit__` (F117).
        """
        try:
            txn = self._begin(kind=Transaction)
        except MemoryError as error:
            raise memory_error(error) from error
        try:
            result = call(txn, self.table.newest, *arguments, **named)
            keep_plan(self.table)
            txn.commit()
        except MemoryError as error:
            raise txn.out_of_memory(error) from error
        except BaseException:
            # A signal before the hand-over rolls the transaction back; after it, the transaction is committed.
            # outcome(txid) tells which.
            txn.rollback()
            raise
        return result

    # --- one row ---------------------------------------------------------------------------------
    @described(Transaction.insert, for_table)
    def insert(self, row: Mapping[str, Any] | Sequence[Any]) -> int | None:
        if not self._changes.make(self.table, MODE_INSERT, row):
            return self._in_own_transaction(row_operations.insert, row)
        return None

    @described(Transaction.write, for_table)
    def write(self, row: Mapping[str, Any] | Sequence[Any]) -> int | None:
        if not self._changes.make(self.table, MODE_WRITE, row):
            return self._in_own_transaction(row_operations.write, row)
        return None

    @described(TableReads.get)
    def get(self, key: Any, *, index: str | None = None) -> Row | None:
        if self._failure.first is not None:
            self._failure.check()
        table = self.table
        plan = table.plan
        row: Any
        if plan is not None and not table.is_dropped:
            row = plan.get(plan.mem, plan.words, key) if index is None else plan.unique(key, index)
            if row is not ...:
                return row  # type: ignore[no-any-return]
        newest = table.newest
        try:
            if index is not None:
                row = unique_calls.get(None, newest, key, index)
            else:
                row = row_operations.get_committed(newest, key)
            keep_plan(table)
        except SnapshotTooOld:
            if newest.newest is newest:  # not for a column that got a wider type
                raise
            return self.get(key, index=index)
        except MemoryError as error:
            raise memory_error(error) from error
        return row  # type: ignore[no-any-return]

    @described(Transaction.update, for_table)
    def update(self, key: Any, changes: Mapping[str, Any], where: Where = None, *, index: str | None = None) -> bool:
        calls = self._changes
        status = calls.make(self.table, MODE_UPDATE, key, changes, index, where) or calls.make_if(
            self.table, MODE_UPDATE, key, changes, where, index
        )
        if status:
            return status == DONE
        if index is not None:
            return self._in_own_transaction(unique_calls.update, key, changes, where, index)
        return self._in_own_transaction(conditional_changes.update, key, changes, where)

    @described(Transaction.delete, for_table)
    def delete(self, key: Any, where: Where = None, *, index: str | None = None) -> bool:
        calls = self._changes
        status = calls.make(self.table, MODE_DELETE, key, None, index, where) or calls.make_if(
            self.table, MODE_DELETE, key, None, where, index
        )
        if status:
            return status == DONE
        if index is not None:
            return self._in_own_transaction(unique_calls.delete, key, where, index)
        return self._in_own_transaction(conditional_changes.delete, key, where)

    @described(Transaction.upsert, for_table)
    def upsert(
        self, row: Mapping[str, Any] | Sequence[Any], set: Mapping[str, Any] | None = None, index: str | None = None
    ) -> bool:
        return self._in_own_transaction(few.upsert, row, set, index)

    # --- many rows -------------------------------------------------------------------------------
    # calls: python -m tools.make_faces
    insert_many = own_transaction(Transaction.insert_many)
    write_many = own_transaction(Transaction.write_many)
    upsert_many = own_transaction(Transaction.upsert_many)
    update_many = own_transaction(Transaction.update_many)
    delete_many = own_transaction(Transaction.delete_many)

    @described(Transaction.update_where, for_table)
    def update_where(self, changes: Mapping[str, Any], where: Where = None) -> int:
        count = few.change_where_committed(self._changes, self.table, MODE_UPDATE, changes, where)
        return self._in_own_transaction(few.update_where, changes, where) if count is None else count

    @described(Transaction.delete_where, for_table)
    def delete_where(self, where: Expression | Program) -> int:
        count = few.change_where_committed(self._changes, self.table, MODE_DELETE, None, where)
        return self._in_own_transaction(few.delete_where, where) if count is None else count

    @described(TableReads.get_many)
    def get_many(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        missing: Missing = DROP,
    ) -> pa.RecordBatch:
        self._failure.check()
        if missing != DROP:
            get = partial(self.get_many, index=index)
            return in_place(get, self.table.newest.definition, keys, columns, index, missing)
        if index is not None:
            return unique_calls.get_many(None, self.table.newest, keys, columns, index)
        return key_columns.get_many(self.table.newest, keys, columns, None)

    def _scan(self, asked: ScanAsked) -> Scan:
        self._failure.check()
        scan = Scan(self.table.newest, asked, None, self._failure, self._watch)
        scan.owner = self._owner
        return scan

    def indexes(self) -> list[dict[str, Any]]:
        """Return the indexes, each with `name`, `columns`, `unique`, `ordered`, `entries`. A row with NULL in the
        columns has an entry only if the index is ordered.

        Examples:
            >>> db.create_index("item", "by_name", "name", unique=True)
            >>> db["item"].indexes()
            [{'name': 'by_name', 'columns': ['name'], 'unique': True, 'ordered': False, 'entries': 3}]
        """
        self._failure.check()
        table = self.table.newest
        counters = counters_of(table.listed_indexes())
        found = [(each, counters[each.name]) for each in table.definition.indexes if each.name in counters]
        return [describe(definition, max(0, counted["entries"])) for definition, counted in found]

    def partitions(self) -> list[dict[str, Any]]:
        """Return the partitions, each with `name`, `fragment` (its number) and `rows`; ranges have `upper`, lists have
        `values`.

        Examples:
            >>> sum(partition["rows"] for partition in db["item"].partitions())
            3
        """
        self._failure.check()
        return partitions_of(self.table.newest)

    def __len__(self) -> int:
        self._failure.check()
        return count_rows(self.table.newest)

    def __repr__(self) -> str:
        name = self.name
        try:
            if self.table.newest.is_dropped:
                return f"<tidemark table {name}, dropped>"
            return f"<tidemark table {name}: {counted(len(self), 'row')} of {short(self.table.newest.format.names)}>"
        except Error:
            return f"<tidemark table {name}>"


@has_calls_of("typed table")
class TypedTable(TypedWrites[R]):
    """A table whose rows are objects of a class, as `db.table` and `db.create_table` return it for a dataclass or a
    `TypedDict`. The class is compared with the table's definition once, when this object is created. `handle` is the
    table's handle without types.

    The calls are those of `TableHandle`, with objects of the class where rows are given or returned one by one. Arrow,
    pandas, polars, NumPy and aggregates have no class. A call also raises TypeMismatch for a row of another class.
    After a column was dropped or renamed, reading raises NoSuchColumn. A write is durable on return with
    `durability="commit"`.

    Examples:
        >>> import dataclasses
        >>> @dataclasses.dataclass
        ... class Item:
        ...     id: int
        ...     name: str
        ...     stock: int
        >>> item = db.table("item", Item)
        >>> item[1], item.get(9), item.get_many([9, 2])
        (Item(id=1, name='pen', stock=10), None, [Item(id=2, name='cup', stock=5)])
        >>> item.insert(Item(4, "ink", 7))
        >>> item[1] = dataclasses.replace(item[1], stock=9)
        >>> item.update(2, {"stock": tm.col("stock") - 1}), item.delete(3)
        (True, True)
        >>> item.write(Item(2, "mug", 4))
        >>> item.insert_many([Item(5, "jar", 1)]), item.write_many([Item(5, "jar", 2)])
        (1, 1)
        >>> item.upsert(Item(5, "jar", 3)), item.upsert_many([Item(6, "lid", 1), Item(5, "jar", 2)])
        (False, 1)
        >>> [each.name for each in item.scan(tm.col("stock") > 5)], len(item), 9 in item
        (['pen', 'ink'], 5, False)
        >>> item.aggregate(total=("sum", "stock"))
        Row(total=23)
    """

    # calls: python -m tools.make_faces
    update = passed(TableHandle.update, "handle")
    delete = passed(TableHandle.delete, "handle")
    update_many = passed(TableHandle.update_many, "handle")
    delete_many = passed(TableHandle.delete_many, "handle")
    update_where = passed(TableHandle.update_where, "handle")
    delete_where = passed(TableHandle.delete_where, "handle")
    indexes = passed(TableHandle.indexes, "handle")
    partitions = passed(TableHandle.partitions, "handle")
