"""Schema changes out of SQL text: the statements MySQL and MariaDB write into a binlog, as far as they mean something
here; everything else is `Unsupported`, and whoever applies them stops (F95).

A statement of another Tidemark carries its definition in a comment, which is believed before the SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from engine.errors import Rejected, Unsupported
from engine.index_definition import IndexDefinition
from engine.partition import HashPartition, KeyPartition, LinearHash, ListPartition, Partition, RangePartition
from engine.schema import ABSENT, Column, TableDefinition
from engine.types_base import ColumnType
from replication.sql import statements as s
from replication.sql.column_types import KNOWN, from_sql
from replication.sql.literals import MOST, NULL, Literal, value_of
from replication.sql.tokens import END, HEX, NAME, NUMBER, SIGN, STRING, WORD, Token, our_note, tokens

T = TypeVar("T")
# Behind a column's type or definition, with no meaning here.
_CHARSETS = ("CHARACTER", "CHARSET", "COLLATE", "ASCII", "UNICODE")
_TABLE_END = ("PARTITION",)


def parse(sql: str, database: str) -> list[s.Statement]:
    """What a statement changes, in order; `database`: where names without one are. Raises: Unsupported."""
    try:
        return _Parser(sql, database).statement()
    except Unsupported:
        raise
    except (Rejected, RecursionError) as error:
        raise Unsupported(f"{error} (in {sql[:80]!r})", statement=sql[:200]) from error


class _Parser:
    def __init__(self, sql: str, database: str) -> None:
        self.sql = sql
        self.database = database
        self.tokens = list(tokens(sql))
        self.at = 0

    # --- tokens ------------------------------------------------------------------------------------
    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def wrong(self) -> Unsupported:
        rest = self.sql[self.next.at : self.next.at + 60]
        return Unsupported(
            f"a schema change that is not replicated, at {rest!r}: make it at each site", sql=self.sql[:200]
        )

    def take(self) -> Token:
        found = self.next
        self.at += 1 if found.kind != END else 0
        return found

    def has(self, *words: str) -> bool:
        """Take these words or signs if they come next."""
        following = self.tokens[self.at : self.at + len(words)]
        if len(following) == len(words) and all(
            token.text == word and token.kind in (WORD, SIGN) for token, word in zip(following, words, strict=True)
        ):
            self.at += len(words)
            return True
        return False

    def has_one(self, *words: str) -> str | None:
        """Take one of these words if it comes next."""
        return next((word for word in words if self.has(word)), None)

    def must(self, *words: str) -> None:
        if not self.has(*words):
            raise self.wrong()

    def name(self) -> str:
        token = self.take()
        if token.kind == NAME:
            return token.text
        if token.kind == WORD:
            return self.sql[token.at : token.at + len(token.text)]
        self.at -= 1
        raise self.wrong()

    def table(self) -> str:
        first = self.name()
        return f"{first}.{self.name()}" if self.has(".") else f"{self.database}.{first}"

    def string(self) -> str:
        token = self.take()
        if token.kind != STRING:
            self.at -= 1
            raise self.wrong()
        return token.text

    def in_parentheses(self, item: Callable[[], T]) -> list[T]:
        self.must("(")
        items: list[T] = []
        if not self.has(")"):
            items.append(item())
            while self.has(","):
                items.append(item())
            self.must(")")
        return items

    def skip_parentheses(self) -> None:
        depth = 0
        while True:
            token = self.take()
            if token.kind == END:
                raise self.wrong()
            depth += (token.text == "(") - (token.text == ")") if token.kind == SIGN else 0
            if depth == 0:
                return

    def literal(self) -> Literal:
        sign = self.has_one("-", "+")
        token = self.take()
        if token.kind == NUMBER:
            return Literal(NUMBER, ("-" if sign == "-" else "") + token.text)
        if sign is None and token.kind in (STRING, HEX):
            return Literal(token.kind, token.text)
        if sign is None and token.kind == WORD and token.text in ("NULL", "TRUE", "FALSE", "MAXVALUE"):
            kinds = {"NULL": Literal(NULL, ""), "MAXVALUE": Literal(MOST, "")}
            return kinds.get(token.text, Literal(NUMBER, str(int(token.text == "TRUE"))))
        self.at -= 1
        raise self.wrong()

    # --- statements --------------------------------------------------------------------------------
    def statement(self) -> list[s.Statement]:
        if self.has("CREATE", "TABLE"):
            made: list[s.Statement] = [self.create_table()]
        elif self.has("DROP", "TABLE"):
            made = self.drop_tables()
        elif self.has("RENAME", "TABLE"):
            made = self.renames()
        elif self.has("ALTER", "TABLE"):
            made = self.alter_table()
        elif self.has("CREATE", "UNIQUE", "INDEX") or self.has("CREATE", "INDEX"):
            made = [self.create_index(self.tokens[1].text == "UNIQUE")]
        elif self.has("DROP", "INDEX"):
            index = self.name()
            self.must("ON")
            made = [s.DropIndex(self.table(), index)]
        elif self.has_one("CREATE", "DROP", "ALTER") and self.has_one("DATABASE", "SCHEMA", "USER", "VIEW", "TRIGGER"):
            return [s.Nothing(self.sql)]
        else:
            raise self.wrong()
        self.has(";")
        if self.next.kind != END:
            raise self.wrong()
        return made

    def drop_tables(self) -> list[s.Statement]:
        may_be_missing = self.has("IF", "EXISTS")
        made: list[s.Statement] = [s.DropTable(self.table(), may_be_missing)]
        while self.has(","):
            made.append(s.DropTable(self.table(), may_be_missing))
        self.has_one("CASCADE", "RESTRICT")
        return made

    def renames(self) -> list[s.Statement]:
        made: list[s.Statement] = []
        while not made or self.has(","):
            table = self.table()
            self.must("TO")
            made.append(s.RenameTable(table, self.table()))
        return made

    def create_index(self, is_unique: bool) -> s.Statement:
        index = self.name()
        self.must("ON")
        table = self.table()
        return s.CreateIndex(table, IndexDefinition(index, tuple(self.key_columns()), is_unique))

    def key_columns(self) -> list[str]:
        def column() -> str:
            found = self.name()
            if self.next.text == "(":
                raise self.wrong()  # an index over the beginnings of values
            self.has_one("ASC", "DESC")
            return found

        columns = self.in_parentheses(column)
        while self.has("USING"):
            self.take()
        return columns

    # --- create ------------------------------------------------------------------------------------
    def create_table(self) -> s.Statement:
        may_exist = self.has("IF", "NOT", "EXISTS")
        table = self.table()
        note = our_note(self.sql)
        if note is not None:
            self.at = len(self.tokens) - 1
            definition = TableDefinition.from_json(note.encode("utf-8", "surrogateescape"))
            if definition.name != table:
                raise Unsupported(f"the note of CREATE TABLE {table} speaks of {definition.name}; report this")
            return s.CreateTable(definition, may_exist)
        columns: list[Column] = []
        keys: list[tuple[str, IndexDefinition]] = []
        self.in_parentheses(lambda: self.create_item(columns, keys))
        while self.next.kind != END and self.next.text not in (*_TABLE_END, ";"):
            self.take()  # ENGINE=, CHARSET=, COMMENT= and their like
        primary = next((key for kind, key in keys if kind == "PRIMARY"), None)
        if primary is None:
            raise Unsupported(f"table {table} has no primary key; tables without one are not replicated", table=table)
        types = {each.name: each.type for each in columns}
        partition = self.partition(types) if self.has("PARTITION", "BY") else None
        columns = [_not_null(each) if each.name in primary.columns else each for each in columns]
        indexes = tuple(key for kind, key in keys if kind != "PRIMARY")
        definition = TableDefinition(
            0, 1, table, tuple(columns), primary.columns, partition or HashPartition(), indexes=indexes
        )
        return s.CreateTable(definition, may_exist)

    def create_item(self, columns: list[Column], keys: list[tuple[str, IndexDefinition]]) -> None:
        constraint = None
        if self.has("CONSTRAINT") and self.next.text not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
            constraint = self.name()
        if self.has("PRIMARY", "KEY"):
            keys.append(("PRIMARY", IndexDefinition("PRIMARY", tuple(self.key_columns()))))
        elif self.has("UNIQUE"):
            self.has_one("KEY", "INDEX")
            keys.append(("UNIQUE", self.key_definition(constraint, True)))
        elif self.has_one("KEY", "INDEX"):
            keys.append(("KEY", self.key_definition(None, False)))
        else:
            column, mark = self.column()
            columns.append(column)
            if mark is not None:
                keys.append((mark, IndexDefinition(column.name, (column.name,), mark == "UNIQUE")))

    def key_definition(self, constraint: str | None, is_unique: bool) -> IndexDefinition:
        index = constraint if self.next.text == "(" else self.name()
        columns = self.key_columns()
        return IndexDefinition(index or columns[0], tuple(columns), is_unique)

    def column(self) -> tuple[Column, str | None]:
        """A column, and PRIMARY or UNIQUE if it says so of itself."""
        name = self.name()
        kind = self.column_type()
        nullable, default, mark = True, ABSENT, None
        while True:
            if self.has("NOT", "NULL"):
                nullable = False
            elif self.has("NULL") or self.has("AUTO_INCREMENT") or self.has_one("VISIBLE", "INVISIBLE", "STORED"):
                pass
            elif self.has("DEFAULT"):
                default = self.default(kind)
            elif self.has("ON", "UPDATE"):
                self.now()
            elif self.has("PRIMARY", "KEY") or self.has("KEY"):
                mark = "PRIMARY"
            elif self.has("UNIQUE"):
                self.has("KEY")
                mark = "UNIQUE"
            elif self.has("COMMENT"):
                self.string()
            elif not self.charset():
                break
        if default is None and not nullable:
            default = ABSENT
        return Column(name, kind, nullable, default), mark

    def charset(self) -> bool:
        found = self.has_one(*_CHARSETS)
        if found in ("CHARACTER", "CHARSET", "COLLATE"):
            self.has("SET")
            self.has("=")
            self.take()
        return found is not None

    def column_type(self) -> ColumnType:
        token = self.take()
        if token.kind != WORD or token.text not in KNOWN:
            self.at -= 1
            raise self.wrong()
        numbers: list[int] = []
        members: list[str] = []
        if self.next.text == "(":
            if token.text in ("ENUM", "SET"):
                members = self.in_parentheses(self.string)
            else:
                numbers = self.in_parentheses(self.number)
        self.has("PRECISION")
        is_unsigned = False
        while word := self.has_one("UNSIGNED", "SIGNED", "ZEROFILL", "VARYING"):
            is_unsigned |= word in ("UNSIGNED", "ZEROFILL")
        return from_sql(token.text, tuple(numbers), tuple(members), is_unsigned)

    def number(self) -> int:
        token = self.take()
        if token.kind != NUMBER or not token.text.isdigit():
            self.at -= 1
            raise self.wrong()
        return int(token.text)

    def default(self, kind: ColumnType) -> Any:
        """A default; ABSENT for the time of day, which the source has put into every row it sends."""
        if self.next.text in ("CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP"):
            self.now()
            return ABSENT
        return value_of(kind, self.literal())

    def now(self) -> None:
        if not self.has_one("CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP"):
            raise self.wrong()
        if self.next.text == "(":
            self.skip_parentheses()

    # --- partitions --------------------------------------------------------------------------------
    def partition(self, types: dict[str, ColumnType]) -> Partition:
        """Behind PARTITION BY. Raises: Unsupported for what depends on more than columns."""
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
        kinds = [types[each] for each in columns if each in types]
        pairs = [
            (name, _typed(kinds, bound, kind == "RANGE")) for name, bound in self.in_parentheses(self.one_partition)
        ]
        return (RangePartition if kind == "RANGE" else ListPartition)(columns, pairs)

    def partitions(self) -> int:
        return self.number() if self.has("PARTITIONS") else 1

    def one_partition(self) -> tuple[str, list[Any]]:
        """A named partition and its literals: of a range one row, of a list many."""
        self.must("PARTITION")
        name = self.name()
        if self.has("VALUES", "LESS", "THAN"):
            bound: list[Any] = [Literal(MOST, "")] if self.has("MAXVALUE") else self.in_parentheses(self.literal)
        else:
            self.must("VALUES", "IN")
            bound = self.in_parentheses(
                lambda: self.in_parentheses(self.literal) if self.next.text == "(" else [self.literal()]
            )
        while self.next.text not in (",", ")"):
            if self.take().kind == END:  # ENGINE =, COMMENT =
                raise self.wrong()
        return name, bound

    # --- alter -------------------------------------------------------------------------------------
    def alter_table(self) -> list[s.Statement]:
        table = self.table()
        note = our_note(self.sql)
        if note is not None:
            exact = _Parser(note, self.database)
            made = exact.alterations(table)
            if exact.next.kind != END:
                raise exact.wrong()
            self.at = len(self.tokens) - 1
            return made
        return self.alterations(table)

    def alterations(self, table: str) -> list[s.Statement]:
        made: list[s.Statement] = []
        while not made or self.has(","):
            change = self.alteration(table)
            made.append(change)
            if isinstance(change, s.RenameTable):
                table = change.to
        return made

    def alteration(self, table: str) -> s.Statement:
        if self.has("ADD"):
            return self.addition(table)
        if self.has("DROP"):
            return self.removal(table)
        if self.has("RENAME"):
            return self.renaming(table)
        if self.has("CHANGE"):
            self.has("COLUMN")
            before = self.name()
            column, _ = self.column()
            self.placed()
            if column.name != before:
                raise Unsupported(f"CHANGE renames {table}.{before} and gives its type anew; rename and modify apart")
            return s.ChangeColumn(table, column)
        if self.has("MODIFY"):
            self.has("COLUMN")
            column, _ = self.column()
            self.placed()
            return s.ChangeColumn(table, column)
        if self.has("ALTER"):
            self.has("COLUMN")
            name = self.name()
            if self.has("DROP", "DEFAULT"):
                return s.SetDefault(table, name, ABSENT)
            self.must("SET", "DEFAULT")
            return s.SetDefault(table, name, self.literal())
        raise self.wrong()

    def addition(self, table: str) -> s.Statement:
        if self.has("PARTITION"):
            added = self.in_parentheses(self.one_partition)
            if len(added) != 1:
                raise Unsupported(f"ALTER TABLE {table} adds {len(added)} partitions; add one at a time")
            ((name, bound),) = added
            return s.AddPartition(table, name, bound)
        unique = self.has("UNIQUE")
        if self.has_one("INDEX", "KEY") or unique:
            return s.CreateIndex(table, self.key_definition(None, unique))
        self.has("COLUMN")
        column, mark = self.column()
        if mark is not None:
            raise self.wrong()
        self.placed()
        return s.AddColumn(table, column)

    def placed(self) -> None:
        """FIRST and AFTER: columns are found by name, and a new one is the last."""
        if self.has("AFTER"):
            self.name()
        else:
            self.has("FIRST")

    def removal(self, table: str) -> s.Statement:
        if self.has("PARTITION"):
            return s.DropPartition(table, self.name())
        if self.has_one("INDEX", "KEY"):
            return s.DropIndex(table, self.name())
        self.has("COLUMN")
        return s.DropColumn(table, self.name())

    def renaming(self, table: str) -> s.Statement:
        if self.has("COLUMN"):
            before = self.name()
            self.must("TO")
            return s.RenameColumn(table, before, self.name())
        if self.next.text in ("INDEX", "KEY"):
            raise self.wrong()
        self.has_one("TO", "AS", "=")
        return s.RenameTable(table, self.table())


def _not_null(column: Column) -> Column:
    return Column(column.name, column.type, False, ABSENT if column.default is None else column.default)


def _typed(kinds: list[ColumnType], bound: list[Any], is_range: bool) -> Any:
    """Literals of a partition as values of its columns: of a range a row, of a list rows. Raises: Unsupported."""
    if not bound or isinstance(bound[0], Literal) != is_range:
        raise Unsupported(
            "partitions of ranges have VALUES LESS THAN, those of lists VALUES IN, and at least one value"
        )
    if is_range:
        padded = bound * len(kinds) if bound == [Literal(MOST, "")] else bound
        return tuple(value_of(kind, each) for kind, each in zip(kinds, padded, strict=False))
    return [tuple(value_of(kind, each) for kind, each in zip(kinds, row, strict=False)) for row in bound]


def typed_bound(definition: TableDefinition, bound: list[Any]) -> Any:
    """What `AddPartition` out of a text says, as values of the table's partition columns. Raises: Unsupported."""
    partition = definition.partition
    if not isinstance(partition, (RangePartition, ListPartition)):
        raise Unsupported(
            f"table {definition.name} is spread by {partition.describe()} here and gets no partitions; make it as the"
            " source has it",
            table=definition.name,
        )
    kinds = {column.name: column.type for column in definition.columns}
    return _typed([kinds[each] for each in partition.columns], bound, isinstance(partition, RangePartition))
