"""Schema changes from SQL text: the statements that MySQL and MariaDB write into a binlog, as far as they have a
meaning here. Those known to have no effect here become `NoEffect`. All others raise `Unsupported`, and the applier
stops (F95).

A statement of another Tidemark has the exact change in a comment, which takes precedence over the SQL (`emit.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tidemark.engine.base.errors import Incompatible, Rejected, Unsupported
from tidemark.engine.schema.check_definition import check_from_json
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.computed import KINDS, Computed
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.partition import (
    HashPartition,
    KeyPartition,
    LinearHash,
    ListPartition,
    Partition,
    RangePartition,
)
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog.charsets import UTF8MB4
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.column_reader import CHARSETS, CONSTRAINTS, ColumnReader, ReadColumn
from tidemark.replication.sql.column_types import value_of
from tidemark.replication.sql.server_types import check_charset
from tidemark.replication.sql.server_values import served_value, value_in_store
from tidemark.replication.sql.session import Session
from tidemark.replication.sql.tokens import END, MAXVALUE_KIND, NAME, NULL, WORD, Literal, our_note

_OPTIONS_END = frozenset(("PARTITION", ";"))  # of CREATE TABLE
# Options of ALTER TABLE, each with a value, that change no row and no column.
_OPTIONS = (
    *("ALGORITHM", "LOCK", "ENGINE", "AUTO_INCREMENT", "COMMENT", "ROW_FORMAT", "KEY_BLOCK_SIZE", "CHECKSUM"),
    *("STATS_PERSISTENT", "STATS_AUTO_RECALC", "STATS_SAMPLE_PAGES", "AVG_ROW_LENGTH", "MAX_ROWS", "MIN_ROWS"),
)
# Clauses of ALTER TABLE about partitions that change no row.
_UPKEEP = ("ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR")


def parse(sql: str, database: str, session: Session | None = None) -> list[s.Statement]:
    """Return the changes of a statement, in order. database: that of table names without one. session: that of the
    server whose statement this is, None for a text of Tidemark. Raises: Unsupported.
    """
    try:
        return _Parser(sql, database, session).statement()
    except Unsupported:
        raise
    except (Rejected, Incompatible, RecursionError, json.JSONDecodeError) as error:
        raise Unsupported(f"{error} (in {sql[:80]!r})", statement=sql[:200]) from error


class _Parser(ColumnReader):
    # --- statements --------------------------------------------------------------------------------
    def statement(self) -> list[s.Statement]:
        if self.has("CREATE", "TABLE"):
            made: list[s.Statement] = [self.create_table()]
        elif self.has("CREATE", "OR", "REPLACE", "TABLE"):
            created = self.create_table()
            made = [s.DropTable(s.table_of(created), may_be_missing=True), created]
        elif self.has("DROP", "TABLE"):
            made = self.drop_tables()
        elif self.has("RENAME", "TABLE"):
            exists = self.existence()
            made = [each for renamed in self.listed(self.rename) for each in self.provided("table", exists, renamed)]
        elif self.has("ALTER", "TABLE"):
            made = self.alter_table()
        elif self.has("CREATE", "UNIQUE", "INDEX") or self.has("CREATE", "INDEX"):
            made = self.create_index(self.tokens[1].text == "UNIQUE")
        elif self.has("DROP", "INDEX"):
            self.existence()  # a missing index is one that was not created here
            index = self.name()
            self.must("ON")
            made = [s.DropIndex(self.table(), index)]
        elif self.has_one("CREATE", "DROP", "ALTER") and self.has_one("DATABASE", "SCHEMA", "USER", "VIEW", "TRIGGER"):
            return [s.NoEffect(self.sql)]
        else:
            raise self.wrong()
        self.must_end()
        return made

    def drop_tables(self) -> list[s.Statement]:
        may_be_missing = self.has("IF", "EXISTS")
        tables = self.listed(self.table)
        self.has_one("CASCADE", "RESTRICT")
        return [s.DropTable(table, may_be_missing) for table in tables]

    def provided(
        self, kind: str, exists: bool | None, *changes: s.Statement, name: str | None = None
    ) -> list[s.Statement]:
        """Return changes of one table, on condition of what `existence` has taken. name: of the `kind`, if it is not
        the table.
        """
        if exists is None or not changes:
            return list(changes)
        table = s.table_of(changes[0])
        return [s.Provided(table, kind, table if name is None else name, exists, changes)]

    def rename(self) -> s.TableChange:
        table = self.table()
        self.must("TO")
        return s.RenameTable(table, self.table())

    def create_index(self, is_unique: bool) -> list[s.Statement]:
        exists = self.existence()
        index = self.name()
        is_ordered = self.using()
        self.must("ON")
        table = self.table()
        columns, is_ordered = self.key_columns(is_ordered)
        while self.next.word in ("ALGORITHM", "LOCK"):
            self.option(table)
        if not columns:
            return [s.NoEffect(self.sql)]
        made = s.CreateIndex(table, IndexDefinition(index, columns, is_unique, is_ordered))
        return self.provided("index", exists, made, name=index)

    # --- create ------------------------------------------------------------------------------------
    def create_table(self) -> s.Statement:
        may_exist = self.has("IF", "NOT", "EXISTS")
        table = self.table()
        if self.has("LIKE") or self.has("(", "LIKE"):
            like = s.CreateLike(table, self.table(), may_exist)
            self.has(")")
            return like
        note = our_note(self.sql)
        if note is not None:
            self.at = len(self.tokens) - 1
            definition = TableDefinition.from_json(note.encode("utf-8", "surrogateescape"))
            if definition.name != table:
                raise Unsupported(f"the note of CREATE TABLE {table} names {definition.name}; report this")
            return s.CreateTable(definition, may_exist)
        self.of_table = table
        read: list[ReadColumn] = []
        keys: list[tuple[str, IndexDefinition]] = []
        self.in_parentheses(lambda: self.create_item(read, keys))
        charset = ""
        while (token := self.next).kind != END and token.word not in _OPTIONS_END:
            if token.word == "SELECT":
                raise self.wrong()
            if token.word == "WITH" and self.has("WITH", "SYSTEM", "VERSIONING"):
                raise Unsupported(
                    f"table {table} is WITH SYSTEM VERSIONING: its history is not replicated", table=table
                )
            found = self.charset()
            charset = found if found not in ("", "?") else charset
            if not found:
                self.take()  # ENGINE=, COMMENT= and the like
        self.check_charsets(read, charset)
        primary = next((key for kind, key in keys if kind == "PRIMARY"), None)
        if primary is None:
            raise Unsupported(f"table {table} has no primary key; tables without one are not replicated", table=table)
        types = {each.column.name: each for each in read}
        partition = self.partition(types) if self.has("PARTITION", "BY") else None
        columns = [_not_null(each) if each.name in primary.columns else each for each, *_ in read]
        indexes = _named([key for kind, key in keys if kind != "PRIMARY"])
        definition = TableDefinition(
            0, 1, table, tuple(columns), primary.columns, partition or HashPartition(), indexes=indexes
        )
        served = tuple(each.served for each in read) if self.is_served else ()
        return s.CreateTable(definition, may_exist, served, charset)

    def check_charsets(self, read: list[ReadColumn], charset: str) -> None:
        """Check that row events bring the text of the columns. charset: of the table, "" if it is not known."""
        for each in read:
            served = each.served
            try:
                check_charset(served if served.charset or not self.is_served else replace(served, charset=charset))
            except Unsupported as error:
                raise Unsupported(f"{self.of_table}.{each.column.name}: {error.message}") from error

    def create_item(self, columns: list[ReadColumn], keys: list[tuple[str, IndexDefinition]]) -> None:
        if self.next.word in CONSTRAINTS:
            found = self.constraint()
            if found is not None:
                keys.append(found)
            return
        read = self.column()
        columns.append(read)
        name = read.column.name
        if read.key is not None:
            keys.append((read.key, IndexDefinition(name, (name,), read.key == "UNIQUE")))

    # --- partitions --------------------------------------------------------------------------------
    def partition(self, types: dict[str, ReadColumn]) -> Partition:
        """Read the text after PARTITION BY. Raises: Unsupported for partitions that depend on more than columns."""
        linear = self.has("LINEAR")
        if self.has("KEY"):
            if self.has("ALGORITHM", "="):
                self.take()
            columns = tuple(self.in_parentheses(self.name)) or None
            return KeyPartition(self.partitions(), columns, linear=linear)
        if self.has("HASH"):
            columns = tuple(self.in_parentheses(self.name))
            if len(columns) != 1:
                raise self.wrong()
            return (LinearHash if linear else HashPartition)(self.partitions(), modulo=columns[0])
        kind = self.has_one("RANGE", "LIST")
        if kind is None:
            raise self.wrong()
        self.has("COLUMNS")
        columns = tuple(self.in_parentheses(self.name))
        readers = [self.reader_of(types[each]) for each in columns if each in types]
        pairs = [
            (name, _typed(readers, bound, kind == "RANGE")) for name, bound in self.in_parentheses(self.one_partition)
        ]
        return (RangePartition if kind == "RANGE" else ListPartition)(columns, pairs)

    def reader_of(self, read: ReadColumn) -> Callable[[Literal], Any]:
        """Return what makes values of a column of literals."""
        if self.is_served:
            return lambda literal: served_value(read.served, literal, self.session)
        return lambda literal: value_of(read.column.type, literal)

    def partitions(self) -> int:
        return self.number() if self.has("PARTITIONS") else 1

    def one_partition(self) -> tuple[str, list[Any]]:
        """Read a named partition and its literals: one row for a range, many for a list."""
        self.must("PARTITION")
        name = self.name()
        if self.has("VALUES", "LESS", "THAN"):
            bound: list[Any] = (
                [Literal(MAXVALUE_KIND, "")] if self.has("MAXVALUE") else self.in_parentheses(self.literal)
            )
        else:
            self.must("VALUES", "IN")
            bound = self.in_parentheses(
                lambda: self.in_parentheses(self.literal) if self.next.word == "(" else [self.literal()]
            )
        while self.next.word not in (",", ")"):
            if self.take().kind == END:  # ENGINE =, COMMENT =
                raise self.wrong()
        return name, bound

    # --- alter -------------------------------------------------------------------------------------
    def alter_table(self) -> list[s.Statement]:
        exists = self.existence()
        table = self.of_table = self.table()
        note = our_note(self.sql)
        if note is not None:
            exact = _Parser(note, self.database)
            made = exact.alterations(table)
            if exact.next.kind != END:
                raise exact.wrong()
            self.at = len(self.tokens) - 1
            return made
        found = self.alterations(table)
        return found if exists is None else [s.Provided(table, "table", table, exists, tuple(found))]

    def alterations(self, table: str) -> list[s.Statement]:
        made: list[s.Statement] = []
        first = table
        self.has_one("NOWAIT")
        while not made or self.has(",") or self.next.word in (*_OPTIONS, *CHARSETS, "DEFAULT"):
            made += self.alteration(table)
            if isinstance(made[-1], s.RenameTable):
                table = made[-1].to
        # Which of the two character sets the columns of the same statement get is not known here.
        return [s.SetCharset(first, "", False), *made] if any(isinstance(each, s.SetCharset) for each in made) else made

    def option(self, table: str) -> s.Statement:
        """Read an option that changes no row and no column."""
        is_conversion = self.has("CONVERT", "TO")
        if is_conversion or self.has("DEFAULT") or self.next.word in CHARSETS:
            found: set[str] = set()
            while charset := self.charset():
                found.add(charset)
            if is_conversion and not found <= {UTF8MB4}:
                raise Unsupported("how CONVERT TO a character set other than utf8mb4 changes text is not known here")
            if self.is_served:
                named = found.pop() if len(found) == 1 else "?"
                return s.SetCharset(table, "" if named == "?" else named, is_conversion)
        elif not self.has("FORCE") and not (self.has_one("ENABLE", "DISABLE") and self.has("KEYS")):
            self.take()
            self.has("=")
            self.take()
        return s.NoEffect(self.sql)

    def alteration(self, table: str) -> list[s.Statement]:
        if self.is_served and (found := self.repartition(table)) is not None:
            return [found]
        if self.next.word in (*_OPTIONS, *CHARSETS, "CONVERT", "DEFAULT", "FORCE", "ENABLE", "DISABLE"):
            return [self.option(table)]
        if self.has("ADD"):
            return self.addition(table)
        if self.has("DROP"):
            return self.removal(table)
        if self.has("RENAME"):
            return self.renaming(table)
        if self.has("CHANGE"):
            self.has("COLUMN")
            exists = self.existence()
            before = self.name()
            change = self.changed_column(table)
            if change.column.name == before:
                return self.provided("column", exists, change, name=before)
            if self.is_served:
                renamed = s.RenameColumn(table, before, change.column.name)
                return self.provided("column", exists, renamed, change, name=before)
            raise Unsupported(
                f"CHANGE renames {table}.{before} and may change its type; rename and modify in two statements"
            )
        if self.has("MODIFY"):
            self.has("COLUMN")
            exists = self.existence()
            change = self.changed_column(table)
            return self.provided("column", exists, change, name=change.column.name)
        if self.has("ALTER"):
            self.has("COLUMN")
            exists = self.existence()
            name = self.name()
            if self.has("DROP", "DEFAULT"):
                default: Any = ABSENT
            else:
                self.must("SET", "DEFAULT")
                default = self.computed() or self.literal()
            return self.provided("column", exists, s.SetDefault(table, name, default), name=name)
        if not self.is_served and self.has("EXPIRES"):
            literal = self.literal()
            return [s.SetExpiry(table, None if literal.kind == NULL else literal.text)]
        raise self.wrong()

    def repartition(self, table: str) -> s.Statement | None:
        """Read a change of partitions other than ADD, DROP and TRUNCATE; None if another clause comes. Raises:
        Unsupported, naming it, for one that moves rows between partitions with names, or between tables.
        """
        first, second = self.next.word, self.tokens[min(self.at + 1, len(self.tokens) - 1)].word
        if first in _UPKEEP and second == "PARTITION":
            self.at = len(self.tokens) - 1
            return s.NoEffect(self.sql)
        if self.has("REMOVE", "PARTITIONING") or (first == "ADD" and self.has("ADD", "PARTITION", "PARTITIONS")):
            what = "REMOVE PARTITIONING" if first == "REMOVE" else "ADD PARTITION PARTITIONS"
            if first == "ADD":
                self.number()
            return s.Repartition(table, what)
        if self.has("COALESCE", "PARTITION"):
            self.number()
            return s.Repartition(table, "COALESCE PARTITION")
        if self.has("PARTITION", "BY"):
            linear = self.has("LINEAR")
            if self.has_one("HASH", "KEY"):
                self.at = len(self.tokens) - 1
                return s.Repartition(table, f"PARTITION BY {'LINEAR ' * linear}HASH or KEY")
            raise self.moves(table, f"PARTITION BY {self.next.text}")
        if self.has("REORGANIZE", "PARTITION"):
            if self.next.kind == END or self.next.word == ";":
                return s.Repartition(table, "REORGANIZE PARTITION")
            raise self.moves(table, "REORGANIZE PARTITION")
        if first in ("EXCHANGE", "DISCARD", "IMPORT", "CONVERT") and second in ("PARTITION", "TABLE"):
            raise self.moves(table, f"{first} {second}")
        return None

    def moves(self, table: str, what: str) -> Unsupported:
        """Return the error for a change of partitions that moves rows."""
        return Unsupported(
            f"{what} of {table} moves rows between partitions or tables, and no event says which; copy the table anew",
            table=table,
        )

    def computed(self) -> Computed | None:
        """Take a computed default of Tidemark, if there is one."""
        found = KINDS.get(self.next.text.lower()) if self.next.kind == WORD and not self.is_served else None
        if found is not None:
            self.take()
            self.skip_parentheses()
        return found

    def changed_column(self, table: str) -> s.ChangeColumn:
        read = self.column()
        has_other_text = not self.is_served and read.served.charset not in ("", UTF8MB4)
        if read.is_computed or has_other_text:
            raise Unsupported(f"what the server has made of the values of {table}.{read.column.name} is not known here")
        if read.key is not None:
            raise Unsupported(f"{table}.{read.column.name} becomes a key by MODIFY or CHANGE; add the key by itself")
        self.skip_position()
        return s.ChangeColumn(table, read.column, read.served, read.is_numbered)

    def addition(self, table: str) -> list[s.Statement]:
        if self.has("PARTITION"):
            exists = self.existence()
            added = self.in_parentheses(self.one_partition)
            if not added:
                raise self.wrong()
            made: list[s.Statement] = [s.AddPartition(table, name, bound) for name, bound in added]
            for name, _ in added:  # the server adds all of them, or none if it has one
                made = self.provided("partition", exists, *made, name=name)
            return made
        if not self.is_served and self.next.word == "CHECK" and self.tokens[self.at + 1].kind == NAME:
            self.take()
            name, nodes = self.name(), self.literal().text
            return [s.AddCheck(table, check_from_json({"name": name, "nodes": json.loads(nodes)}))]
        if self.next.word in CONSTRAINTS:
            found = self.constraint()
            exists = False if self.may_exist else None
            if found is not None and found[0] == "PRIMARY" and exists is None:
                raise Unsupported(f"the primary key of {table} is changed; copy the table anew")
            if found is None or found[0] == "PRIMARY":  # every table here has a primary key already
                return [s.NoEffect(self.sql)]
            return self.provided("index", exists, s.CreateIndex(table, found[1]), name=found[1].name)
        self.has("COLUMN")
        exists = self.existence()
        read = self.column()
        if read.key is not None:
            raise self.wrong()
        if read.is_computed or read.is_numbered:
            raise Unsupported(
                f"the values that the server has computed for {table}.{read.column.name} are not known here"
            )
        if read.is_dated:
            raise Unsupported(f"the server fills {table}.{read.column.name} with a date of zeros, which is not a date")
        self.check_charsets([read], "")
        self.skip_position()
        return self.provided("column", exists, s.AddColumn(table, read.column, read.served), name=read.column.name)

    def skip_position(self) -> None:
        """Skip FIRST and AFTER: columns are found by name, and a new column becomes the last."""
        if self.has("AFTER"):
            self.name()
        else:
            self.has("FIRST")

    def removal(self, table: str) -> list[s.Statement]:
        if self.has("PARTITION"):
            exists = self.existence()
            names = [self.name()]
            while self.is_one_more():
                self.must(",")
                names.append(self.name())
            dropped = (s.DropPartition(table, name) for name in names)
            return [each for one in dropped for each in self.provided("partition", exists, one, name=one.partition)]
        if not self.is_served and self.has("CHECK"):
            return [s.DropCheck(table, self.name())]
        if self.has("FOREIGN", "KEY") or self.has("CHECK"):
            self.existence()
            self.name()
            return [s.NoEffect(self.sql)]
        if self.has_one("INDEX", "KEY", "CONSTRAINT"):
            self.existence()  # a missing index is one that was not created here
            return [s.DropIndex(table, self.name())]
        self.has("COLUMN")
        exists = self.existence()
        name = self.name()
        return self.provided("column", exists, s.DropColumn(table, name), name=name)

    def is_one_more(self) -> bool:
        """Whether a comma and a name come next, and not another clause."""
        after = self.tokens[min(self.at + 2, len(self.tokens) - 1)]
        return self.next.word == "," and (after.kind == END or after.word in (",", ";"))

    def renaming(self, table: str) -> list[s.Statement]:
        if self.has("COLUMN"):
            exists = self.existence()
            before = self.name()
            self.must("TO")
            return self.provided("column", exists, s.RenameColumn(table, before, self.name()), name=before)
        if self.next.word in ("INDEX", "KEY"):
            if not self.is_served:
                raise self.wrong()
            self.take()
            self.existence()
            before = self.name()
            self.must("TO")
            return [s.RenameIndex(table, before, self.name())]
        self.has_one("TO", "AS", "=")
        return [s.RenameTable(table, self.table())]


def _named(indexes: list[IndexDefinition]) -> tuple[IndexDefinition, ...]:
    """Return the indexes, with numbers added to names that occur twice, as a server does."""
    made: dict[str, IndexDefinition] = {}
    for index in indexes:
        name, number = index.name, 2
        while name in made:
            name, number = f"{index.name}_{number}", number + 1
        made[name] = replace(index, name=name)
    return tuple(made.values())


def _not_null(column: Column) -> Column:
    return Column(column.name, column.type, False, ABSENT if column.default is None else column.default)


_Read = Callable[[Literal], Any]


def _typed(readers: Sequence[_Read], bound: list[Any], is_range: bool) -> Any:
    """Return the literals of a partition as values of its columns: one row for a range, a list of rows for a list.

    Raises: Unsupported.
    """
    if not bound or isinstance(bound[0], Literal) != is_range:
        raise Unsupported(
            "a range partition needs VALUES LESS THAN, a list partition VALUES IN, and either needs at least one value"
        )
    if is_range:
        padded = bound * len(readers) if bound == [Literal(MAXVALUE_KIND, "")] else bound
        return tuple(read(each) for read, each in zip(readers, padded, strict=False))
    return [tuple(read(each) for read, each in zip(readers, row, strict=False)) for row in bound]


def typed_bound(definition: TableDefinition, bound: list[Any], session: Session | None = None) -> Any:
    """Return the bound of a parsed `AddPartition` as values of the table's partition columns. session: as of `parse`.
    Raises: Unsupported.
    """
    partition = definition.partition
    if not isinstance(partition, (RangePartition, ListPartition)):
        raise Unsupported(
            f"table {definition.name} is partitioned by {partition.describe()} here, so no partition can be added;"
            " create it with the partitions of the source",
            table=definition.name,
        )
    kinds = {column.name: column.type for column in definition.columns}
    readers = [partial(literal_value, kinds[each], session) for each in partition.columns]
    return _typed(readers, bound, isinstance(partition, RangePartition))


def literal_value(kind: ColumnType, session: Session | None, literal: Literal) -> Any:
    """Return the value of a literal in a column of this type. session: as of `parse`. Raises: Unsupported."""
    return value_of(kind, literal) if session is None else value_in_store(kind, literal, session)
