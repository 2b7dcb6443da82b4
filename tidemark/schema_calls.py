"""The schema calls of an open store, and the LMDB catalog that follows them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    CatalogDamaged,
    IndexExists,
    NoSuchIndex,
    NoSuchTable,
    Rejected,
    StorageFull,
    TooManyFiles,
)
from tidemark.engine.base.options import Size, parse_size
from tidemark.engine.base.out_of_memory import types_memory_errors
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.programs.checks import check_definition
from tidemark.engine.queries.conditional_changes import delete_all
from tidemark.engine.schema.catalog import Catalog
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.computed import Computed
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.names import EXCEPTIONS_SUFFIX, as_names
from tidemark.engine.store.check_build import add_check
from tidemark.engine.store.column_move import widen_column
from tidemark.engine.store.schema_changes import (
    change_columns,
    with_column,
    with_default,
    with_expiry,
    with_name,
    with_renamed_column,
    without_check,
    without_column,
)
from tidemark.engine.store.sequences import SEQUENCES
from tidemark.recovery.local_checkpoint.writer import Progress
from tidemark.replication.settings import system_tables
from tidemark.replication.settings.any_value import NO_LOGGING

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.types import ColumnType

_log = logging.getLogger("tidemark")
_BUILDING_SECONDS = 0.01  # between two looks at an index that another thread builds


@types_memory_errors(read_only=("tablespaces",))
class SchemaCalls:
    """The schema calls of an open store, and its catalog."""

    def __init__(self, store: Store, files: Files, directory: str | None, identity: tuple[bytes, int]) -> None:
        """directory: of the catalog; None: the store has none."""
        self._store = store
        self._files = files
        self.catalog = None if directory is None else Catalog(files, directory, *identity)
        self._turn = threading.Lock()

    def create(self, definition: TableDefinition) -> Table:
        """Create a table. Raises: as `Database.create_table`."""
        system_tables.refuse_wrong(definition)
        if any(column.computed and column.computed.is_numbered for column in definition.columns):
            self._store.tables.named(SEQUENCES)  # no transaction need make it
        table = self._store.create_table(definition)
        self._refresh_catalog()
        if definition.name.endswith(EXCEPTIONS_SUFFIX):
            self._warn_of_exceptions(definition)
        return table

    def make_named(self, name: str) -> Table | None:
        """Create a system table when it is first named."""
        table = system_tables.make(self._store, name)
        if table is not None:
            self._refresh_catalog()
        return table

    def _warn_of_exceptions(self, definition: TableDefinition) -> None:
        """Log what is wrong with an exceptions table at its creation, before the first conflict needs it."""
        from tidemark.replication.settings.setup import check_exceptions

        main = self._store.tables.by_name.get(definition.name.removesuffix(EXCEPTIONS_SUFFIX))
        for finding in check_exceptions(definition, None if main is None else main.definition):
            _log.warning("%s", finding.text)

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        """Drop a table.

        Its memory is freed when no transaction uses it any more.

        Args:
            missing_ok: Do nothing if there is no such table.

        Durable on return: the drop.

        Raises: NoSuchTable; SchemaInvalid for a table that belongs to every store.

        Examples:
            >>> db.drop_table("item")
            >>> db.tables()
            []
            >>> db.drop_table("item", missing_ok=True)
        """
        system_tables.refuse_change(name)
        with suppress(*([NoSuchTable] if missing_ok else [])):
            self._store.drop_table(name)
            self._refresh_catalog()

    def truncate(self, table: str) -> None:
        """Delete all rows of a table, in one transaction. Definition and indexes stay.

        It is `delete_where` of every row: a crash leaves all rows or none, snapshots keep showing them, and replicas
        and readers of `changes` get a deletion for each. It waits for transactions that hold locks of rows, up to
        `lock_timeout_ms`; a row that another transaction inserts meanwhile may stay. To drop the table and create it
        again takes less time, but is two changes, and they are not rows of the binlog.

        Durable on return: the change, with `durability="commit"`.

        Raises: NoSuchTable; LockTimeout and the other errors of `Transaction.delete_where` and of a commit;
        TransactionTooLarge past `transaction_limit`: delete a part at a time with `delete_where`, or drop the table.

        Examples:
            >>> db.truncate("item")
            >>> len(db["item"])
            0
        """
        self._store.failure.check()
        found = self._store.tables.named(table)
        waits = self._store.resources.waits_for_disk
        with system_tables.one_transaction(self._store, waits_for_disk=waits) as txn:
            delete_all(txn, found)

    # --- columns and names -----------------------------------------------------------------------
    def _alter(self, table: str, change: Callable[[TableDefinition], TableDefinition], column: str | None) -> None:
        self._store.failure.check()
        system_tables.refuse_change(table)
        change_columns(self._store, table, change, column)
        self._refresh_catalog()

    def add_column(self, table: str, column: Column) -> None:
        """Add a column at the end of a table in use. No row is rewritten.

        Existing rows have the column's default, or NULL, and keep that when the default changes later. The column is
        stored in memory and may be indexed.

        Durable on return: the column.

        Raises:
            NoSuchTable: There is no such table.
            SchemaInvalid: The name is taken, the column has neither default nor NULL, or rows may become too long.
            Unsupported: The column has storage="disk", or a computed default.

        Examples:
            >>> db.add_column("item", tm.Column("colour", tm.VarChar(10), default="blue"))
            >>> db["item"][1]
            Row(id=1, name='pen', stock=10, colour='blue')
        """
        self._alter(table, lambda before: with_column(before, column), None)

    def drop_column(self, table: str, name: str) -> None:
        """Drop a column of a table in use. No row is rewritten, and the name may be used again.

        Durable on return: the drop.

        Raises: NoSuchTable, NoSuchColumn; SchemaInvalid for columns of the primary key, an index, a check or an expiry.

        Examples:
            >>> db.drop_column("item", "stock")
            >>> db["item"][1]
            Row(id=1, name='pen')
        """
        self._alter(table, lambda before: without_column(before, name), name)

    def rename(self, table: str, to: str) -> None:
        """Give a table another name; "database.table" moves it to another database.

        Durable on return: the name.

        Raises: NoSuchTable, TableExists, InvalidName; SchemaInvalid for the name of a table that belongs to every
        store.

        Examples:
            >>> db.rename("item", "shop.article")
            >>> db.tables()
            ['shop.article']
        """
        system_tables.refuse_change(to)
        self._alter(table, lambda before: with_name(before, to), None)

    def rename_column(self, table: str, old: str, new: str) -> None:
        """Give a column another name; keys, partitions, indexes, checks and expiry follow.

        Durable on return: the name.

        Raises: NoSuchTable, NoSuchColumn, InvalidName; SchemaInvalid if the table has a column of that name.

        Examples:
            >>> db.rename_column("item", "stock", "pieces")
            >>> db["item"][1]
            Row(id=1, name='pen', pieces=10)
        """
        self._alter(table, lambda before: with_renamed_column(before, old, new), old)

    def set_default(self, table: str, column: str, default: Any = ABSENT) -> None:
        """Set the value that a column has in later rows that leave it out. Existing rows keep their values.

        Without `default` the column has none. A row that leaves the column out then gets NULL, or is rejected if the
        column is not nullable. The default may be computed, as `Column` says; with `tm.autoincrement` numbers continue
        after the greatest one in the column.

        Durable on return: the default.

        Raises: NoSuchTable, NoSuchColumn; SchemaInvalid for a value that the column cannot hold.

        Examples:
            >>> db.set_default("item", "stock", 0)
            >>> db["item"].insert({"id": 4, "name": "ink"})
            >>> db["item"][4].stock
            0
        """
        if isinstance(default, Computed) and default.is_numbered:
            self._store.failure.check()
            self._store.tables.named(SEQUENCES)
        self._alter(table, lambda before: with_default(before, column, default), None)

    def widen_column(self, table: str, column: str, type: ColumnType, *, nullable: bool = False) -> None:
        """Let a column take more values; `nullable`: NULL too.

        An integer may become a longer one that holds all its values, a Float32 a Float64, a Decimal may get more digits
        before the point and not fewer after it, a Char may become a longer Char, a VarChar or Text. A VarChar or
        VarBinary may become longer, or Text or Blob; an Enum may get more members. Where stored bytes stay the same no
        row is rewritten: VarChar, VarBinary, Enum, a Decimal of the same size, and integers of the primary key. Else
        rows are rewritten in short transactions while others write; at the end writers of the table wait for one pass
        over its rows, and one more for each unique index over the column. Indexes over the column are built anew beside
        those in force: they need memory for both. A snapshot from before reads the table, but not by these indexes. The
        call waits for transactions that are open at each of its steps, up to `lock_timeout_ms`.

        Durable on return: the type. After any error, Ctrl-C included, the column and its indexes are what they were.

        Raises: NoSuchTable, NoSuchColumn; SchemaInvalid for other types, and if an index over the column could not have
        the new one, is being built, or is changed meanwhile; Unsupported for disk columns, and columns of the primary
        key whose keys would change or that decide about partitions; LockTimeout, MemoryExhausted.

        Examples:
            >>> db.widen_column("item", "name", tm.VarChar(80))
            >>> db.widen_column("item", "stock", tm.Int64, nullable=True)
            >>> db["item"].update(1, {"stock": None})
            True
        """
        self._store.failure.check()
        system_tables.refuse_change(table)
        try:
            widen_column(self._store, table, column, type, nullable, NO_LOGGING)
        finally:
            self._refresh_catalog()

    def add_partition(self, table: str, name: str, bound: Any) -> None:
        """Add a partition to a table that is partitioned by ranges or lists.

        bound: for ranges, the upper bound of the new partition, which is past the last one; for lists, its values.

        Durable on return: the partition.

        Raises: SchemaInvalid, NoSuchTable, LimitExceeded, MemoryExhausted; InvalidName for the partition.

        Examples:
            >>> columns = [tm.Column("year", tm.Int16), tm.Column("sold", tm.Int64)]
            >>> by_year = tm.RangePartition("year", [("old", 2025), ("now", 2026)])
            >>> sale = db.create_table("sale", columns, "year", by_year)
            >>> db.add_partition("sale", "next", 2027)
            >>> [partition["name"] for partition in sale.partitions()]
            ['old', 'now', 'next']
        """
        system_tables.refuse_change(table)
        self._store.add_partition(table, name, bound)
        self._refresh_catalog()

    def drop_partition(self, table: str, name: str) -> None:
        """Drop a partition of ranges or lists with its rows.

        Rows of a dropped range go to the next range from then on. The memory is freed when no transaction uses it
        any more.

        Durable on return: the drop.

        Raises: NoSuchPartition, NoSuchTable; SchemaInvalid for the only partition, or partitions by hash.

        Examples:
            >>> columns = [tm.Column("year", tm.Int16), tm.Column("sold", tm.Int64)]
            >>> by_year = tm.RangePartition("year", [("old", 2025), ("now", 2026)])
            >>> sale = db.create_table("sale", columns, "year", by_year)
            >>> db.drop_partition("sale", "old")
            >>> [partition["name"] for partition in sale.partitions()]
            ['now']
        """
        system_tables.refuse_change(table)
        self._store.drop_partition(table, name)
        self._refresh_catalog()

    def create_index(
        self,
        table: str,
        name: str,
        columns: str | Sequence[str],
        unique: bool = False,
        progress: Progress | None = None,
        *,
        ordered: bool = False,
        exist_ok: bool = False,
    ) -> None:
        """Build an index over memory columns of a table while transactions continue.

        An ordered index is scanned by its name. A unique index finds rows by whole keys, and rejects later changes that
        would give two rows the same key; rows with a NULL in its columns have no key, so many may be equal. A unique
        index can be ordered too: then one index does both. The call waits for transactions that are open at its
        beginning, up to `lock_timeout_ms`.

        Durable on return: the index. Any error before that, Ctrl-C included, leaves no index.

        Args:
            columns: Names of memory columns.
            unique: Whether the index is unique.
            progress: Called with (rows done, rows in all, "rows"). An index that is unique and ordered takes each row
                twice.
            ordered: Whether a unique index is ordered too. Scans by it see rows with NULL, first. It takes the memory
                of both kinds. Other indexes always are ordered.
            exist_ok: Do nothing if the table has this index, of these columns and of this kind. If another thread is
                building it, the call waits for that.

        Raises: IndexExists, with `exist_ok` if the index of this name is another one; NoSuchTable, NoSuchColumn,
        SchemaInvalid, InvalidName, LockTimeout, MemoryExhausted; with `unique` DuplicateKey, if two rows have the same
        key.

        Examples:
            >>> db.create_index("item", "by_stock", ["stock", "id"])
            >>> [row.name for row in db["item"].scan(index="by_stock", reverse=True)]
            ['pen', 'cup', 'bag']
            >>> db.create_index("item", "by_name", "name", unique=True)
            >>> db["item"].get("cup", index="by_name").id
            2
            >>> db.create_index("item", "names", "name", unique=True, ordered=True)
            >>> [row.name for row in db["item"].scan(index="names", lower="c")]
            ['cup', 'pen']
            >>> db["item"].get("cup", index="names").id
            2
        """
        system_tables.refuse_change(table)
        names = tuple(as_names(columns, "columns"))
        definition = IndexDefinition(name, names, unique, ordered)
        while True:
            try:
                self._store.create_index(table, definition, progress)
                break
            except IndexExists:
                if not exist_ok:
                    raise
            made = self._store.tables.named(table).definition
            found = next((each for each in made.indexes if each.name == name), None)
            if found == definition:
                return
            if found is not None:
                raise IndexExists(
                    f"table {made.name} has another index {name}, {found.kind} and not {definition.kind}; choose"
                    " another name, or drop that index first",
                    table=made.name,
                    index=name,
                )
            self._store.clock.sleep(_BUILDING_SECONDS)  # another thread builds it, or has just dropped it
        self._refresh_catalog()

    def drop_index(self, table: str, name: str, *, missing_ok: bool = False) -> None:
        """Drop an index. Scans by it end with NoSuchIndex.

        Durable on return: the drop.

        Args:
            missing_ok: Do nothing if the table has no such index.

        Raises: NoSuchTable, NoSuchIndex.

        Examples:
            >>> db.create_index("item", "by_stock", "stock")
            >>> db.drop_index("item", "by_stock")
        """
        system_tables.refuse_change(table)
        with suppress(*([NoSuchIndex] if missing_ok else [])):
            self._store.drop_index(table, name)
            self._refresh_catalog()

    def add_check(self, table: str, name: str, condition: Expression) -> None:
        """Refuse rows for which a condition is false from now on, while transactions continue.

        A row for which the condition is NULL is accepted, as in SQL. It is evaluated for every row that is inserted,
        written, updated or loaded, one or many; not for rows that another site or a backup brings. The call reads all
        rows, and waits for transactions that are open at its beginning, up to `lock_timeout_ms`.

        Durable on return: the check. Any error before that, Ctrl-C included, leaves no check.

        Args:
            condition: An expression of `tm.col` over memory columns of the table.

        Raises:
            CheckFailed: The condition is false for a row; the error has its `key` and `values`.
            SchemaInvalid: The table has a check of that name, the condition is no expression, or reads a disk column.
            ProgramInvalid: The expression is not a condition over these columns.
            NoSuchTable: There is no such table.
            NoSuchColumn: The table lacks a column of the condition.
            InvalidName: The name is not allowed.
            TypeMismatch: A constant cannot be compared with its column.
            LockTimeout: A transaction that was open did not end in time.

        Examples:
            >>> db.add_check("item", "in stock", tm.col("stock") >= 0)
            >>> try:
            ...     db["item"].update(1, {"stock": tm.col("stock") - 100})
            ... except tm.CheckFailed as error:
            ...     error.check, error.key, error.values
            ('in stock', 1, {'stock': -90})
        """
        system_tables.refuse_change(table)
        add_check(self._store.schema, table, check_definition(name, condition))
        self._refresh_catalog()

    def drop_check(self, table: str, name: str) -> None:
        """Drop a check.

        Durable on return: the drop.

        Raises: NoSuchTable; SchemaInvalid if the table has no check of that name.

        Examples:
            >>> db.add_check("item", "in stock", tm.col("stock") >= 0)
            >>> db.drop_check("item", "in stock")
            >>> db["item"].insert((4, "ink", -1))
        """
        self._alter(table, lambda before: without_check(before, name), None)

    def set_expiry(self, table: str, expires: str | None) -> None:
        """Say when rows of a table expire: from then on they are deleted from time to time, and by `expire`.

        A row expires a span after the moment in one of its columns; with NULL there it never does. It is still read and
        may be changed until it is deleted. If its moment has been moved meanwhile, it stays. With an ordered index over
        the column, a run reads only the rows that it deletes, otherwise all rows of the table. How often a run comes,
        and in which stores by default, says the option `expiry_interval_ms`.

        Durable on return: the expiry.

        Args:
            expires: A Timestamp, DateTime or Date column in memory, and a whole number of s, min, h or d, such as
                "seen + 30 min"; "seen" alone is that moment itself. DateTime is taken as UTC, a Date as the beginning
                of its day in UTC. None: rows do not expire any more; up to 1,000 that are being deleted still are.

        Raises: NoSuchTable, NoSuchColumn; SchemaInvalid for another text or column.

        Examples:
            >>> db.add_column("item", tm.Column("sold_out", tm.Timestamp, nullable=True))
            >>> db.set_expiry("item", "sold_out + 30 d")
            >>> db["item"].definition.expires
            'sold_out + 30 d'
        """
        self._alter(table, lambda before: with_expiry(before, expires), None)

    def create_tablespace(
        self,
        name: str,
        size: Size = "64 MiB",
        *,
        page_size: Size = "8 KiB",
        extent: Size = "1 MiB",
        autoextend: bool = True,
        limit: Size | None = None,
    ) -> None:
        """Create a tablespace, which holds disk columns, with one data file.

        Durable on return: the tablespace.

        Args:
            size: Of the file, in bytes or as text such as "64 MiB".
            page_size: 4, 8, 16 or 32 KiB.
            extent: The unit in which tables take space: a whole number of pages.
            autoextend: Whether the tablespace grows when it is full.
            limit: The most that it may take in all, in bytes or as text; None: no limit.

        Raises: TablespaceExists, SchemaInvalid, InvalidName, LimitExceeded, StorageFull, MemoryExhausted.

        Examples:
            >>> db.create_tablespace("archive", "4 MiB", limit="1 GiB")
            >>> columns = [tm.Column("id", tm.Int64), tm.Column("scan", tm.Blob, storage="disk")]
            >>> db.create_table("letter", columns, "id", tablespace="archive")
            <tidemark table main.letter: 0 rows of id, scan>
        """
        limit_bytes = None if limit is None else parse_size("limit", limit)
        page_bytes, extent_bytes = parse_size("page_size", page_size), parse_size("extent", extent)
        definition = TablespaceDefinition(0, name, page_bytes, extent_bytes, autoextend, limit_bytes)
        self._store.create_tablespace(definition, parse_size("size", size))

    def add_datafile(self, name: str, size: Size) -> None:
        """Give a tablespace another data file of `size`.

        Durable on return: the file.

        Raises: NoSuchTablespace, SchemaInvalid, LimitExceeded, StorageFull, MemoryExhausted.

        Examples:
            >>> db.create_tablespace("archive", "4 MiB")
            >>> db.add_datafile("archive", "2 MiB")
        """
        self._store.add_datafile(name, parse_size("size", size))

    def drop_tablespace(self, name: str) -> None:
        """Drop a tablespace that holds no table.

        Its files are removed when no kept local checkpoint names it.

        Durable on return: the drop.

        Raises: NoSuchTablespace, TablespaceInUse, StorageFull, MemoryExhausted.

        Examples:
            >>> db.create_tablespace("archive", "4 MiB")
            >>> db.drop_tablespace("archive")
        """
        self._store.drop_tablespace(name)

    def tablespaces(self) -> list[str]:
        """Return the names of the tablespaces, sorted.

        Examples:
            >>> db.create_tablespace("archive", "4 MiB")
            >>> db.tablespaces()
            ['archive']
        """
        self._store.failure.check()
        return sorted(self._store.space.by_name)

    def _definitions(self) -> list[TableDefinition]:
        definitions = [table.definition for table in list(self._store.tables.by_name.values())]
        return sorted(definitions, key=lambda each: each.table_id)

    def open_catalog(self) -> None:
        """Rebuild the catalog unless it agrees with what the restart found. It is a cache: if it cannot be read, the
        store opens anyway.
        """
        if self.catalog is None:
            return
        self._files.read_errors_latch = False
        try:
            if self.catalog.read()[1] == self._definitions():
                return
        except CatalogDamaged as error:
            _log.info("catalog rebuilt: %s", error)
        finally:
            self._files.read_errors_latch = True
        self._refresh_catalog()

    def _refresh_catalog(self) -> None:
        """Update the LMDB catalog. It is a cache, so a failure is only logged (D15)."""
        if self.catalog is None:
            return
        with self._turn:
            # LMDB takes a path, which must still lead to this store (F80).
            self._files.check_place()
            try:
                self.catalog.rewrite(self._store.log.durable_lsn, self._definitions())
            except (CatalogDamaged, StorageFull, TooManyFiles, Rejected) as error:
                _log.warning("catalog not written, it will be rebuilt: %s", error)
