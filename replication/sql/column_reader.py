"""Reads the columns, keys and constraints of CREATE and ALTER TABLE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tidemark.engine.base.errors import Rejected, Unsupported
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.types import ColumnType
from tidemark.replication.binlog.charsets import BINARY, UTF8MB3, charset_named
from tidemark.replication.sql import statements as s
from tidemark.replication.sql.column_types import value_of
from tidemark.replication.sql.server_types import ALIASES, KNOWN, OCTETS, ServerType, from_sql, in_charset, server_type
from tidemark.replication.sql.server_values import is_zero_date, served_value
from tidemark.replication.sql.session import Session
from tidemark.replication.sql.tokens import END, NAME, NUMBER, PLAIN, WORD, Literal, TokenReader

# Words that begin a character set or a collation, and words that begin a constraint.
CHARSETS = ("CHARACTER", "CHARSET", "COLLATE", "ASCII", "UNICODE")
CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")
_NO_CHARSETS = ("DEFAULT", "UCA1400")  # words after COLLATE and the like that name no character set
DIGITS_MAX = 20  # of a length or a count, because Python refuses to read numbers of thousands of digits


class ReadColumn(NamedTuple):
    """A column as its definition says it. key: PRIMARY or UNIQUE if the definition makes it a key. is_computed: whether
    the server computes its values. is_numbered: AUTO_INCREMENT. is_dated: whether its default is a date of zeros.
    """

    column: Column
    served: ServerType
    key: str | None = None
    is_computed: bool = False
    is_numbered: bool = False
    is_dated: bool = False


class ColumnReader(TokenReader):
    """Reads definitions: a server's, which a session wrote, or without one those of another Tidemark."""

    def __init__(self, sql: str, database: str, session: Session | None = None) -> None:
        super().__init__(sql, database, session or PLAIN)
        self.is_served = session is not None
        self.of_table = ""  # for errors
        self.may_exist = False  # whether the last key was read with IF NOT EXISTS
        self._own: ColumnType

    def constraint(self) -> tuple[str, IndexDefinition] | None:
        """Read a key or another constraint; return None for one that only the source has: CHECK, foreign keys, and
        indexes that are not created here.
        """
        name = None
        self.may_exist = False
        if self.has("CONSTRAINT"):
            self.may_exist = self.existence() is False
            name = self.name() if self.next.word not in CONSTRAINTS else None
        if self.has("PRIMARY", "KEY"):
            self.may_exist |= self.existence() is False
            while self.has("USING"):
                self.take()
            columns, _ = self.key_columns()
            if not columns:
                raise self.wrong()
            return "PRIMARY", IndexDefinition("PRIMARY", columns)
        if self.has("CHECK"):
            self.skip_parentheses()
            self.has("NOT")
            self.has("ENFORCED")
            return None
        if self.has("FOREIGN", "KEY"):
            self.has("IF", "NOT", "EXISTS")
            if self.next.text != "(":
                self.name()
            self.in_parentheses(self.name)
            self.must("REFERENCES")
            self.references()
            return None
        if self.has_one("FULLTEXT", "SPATIAL"):
            self.has_one("KEY", "INDEX")
            self.key_definition(None, False)
            return None
        is_unique = self.has("UNIQUE")
        if not self.has_one("KEY", "INDEX") and not is_unique:
            raise self.wrong()
        found = self.key_definition(name, is_unique)
        return None if found is None else ("UNIQUE" if is_unique else "KEY", found)

    def existence(self) -> bool | None:
        """Take IF EXISTS (True) or IF NOT EXISTS (False) of a server's statement; None if neither comes next."""
        if not self.is_served:
            return None
        if self.has("IF", "NOT", "EXISTS"):
            return False
        return True if self.has("IF", "EXISTS") else None

    def references(self) -> None:
        """Read the text after REFERENCES. Raises: Unsupported for actions, because the server does not log what they
        change.
        """
        self.table()
        if self.next.word == "(":
            self.in_parentheses(self.name)
        while word := self.has_one("ON", "MATCH"):
            if word == "MATCH":
                self.take()
                continue
            when = self.take().text
            if not (self.has("RESTRICT") or self.has("NO", "ACTION")):
                action = self.take().text
                raise Unsupported(
                    f"a foreign key ON {when} {action}…: what the server changes by it is not in its binlog; make it"
                    " RESTRICT at the source, or leave the table out with a filter"
                )

    def key_definition(self, constraint: str | None, is_unique: bool) -> IndexDefinition | None:
        """Read a key after its keyword: its name, `constraint` if it has none, and its columns. Return None if
        `key_columns` returns no columns.
        """
        self.may_exist |= self.existence() is False
        index = constraint if self.next.word in ("(", "USING") else self.name()
        columns, is_ordered = self.key_columns(self.using())
        return IndexDefinition(index or columns[0], columns, is_unique, is_ordered) if columns else None

    def using(self) -> bool:
        """Read the kind of an index, if it is given; whether it is BTREE, which has an order."""
        return self.has("USING") and self.take().word == "BTREE"

    def key_columns(self, is_ordered: bool = False) -> tuple[tuple[str, ...], bool]:
        """Read the columns of a key, and what follows them. Return no columns if the key covers prefixes of values or
        expressions: such indexes are not created here. The second result is whether the key is `is_ordered`, or is
        said to be.
        """
        is_partial = False

        def column() -> str:
            nonlocal is_partial
            found = "" if self.next.word == "(" else self.name()
            if self.next.word == "(":
                self.skip_parentheses()
                is_partial = True
            self.has_one("ASC", "DESC")
            return found

        columns = tuple(self.in_parentheses(column))
        while word := self.has_one("USING", "COMMENT", "KEY_BLOCK_SIZE", "VISIBLE", "INVISIBLE", "IGNORED", "WITH"):
            if word == "WITH":
                self.must("PARSER")
            if word not in ("VISIBLE", "INVISIBLE", "IGNORED"):
                self.has("=")
                value = self.take().word
                is_ordered = value == "BTREE" if word == "USING" else is_ordered
        return () if is_partial else columns, is_ordered

    def column(self) -> ReadColumn:
        """Read a column. Raises: Unsupported, naming it."""
        name = self.name()
        try:
            return self._column(name)
        except Rejected as error:
            shown = f"{self.of_table}.{name}"
            what = error.message if shown in error.message else f"{shown}: {error.message}"
            raise Unsupported(what, table=self.of_table, column=name) from error

    def _column(self, name: str) -> ReadColumn:
        nullable, default, key = True, None, None
        is_null = is_computed = is_numbered = False
        if self.is_served and self.has("SERIAL"):
            served = ServerType("BIGINT", is_unsigned=True)
            nullable, is_numbered, key = False, True, "UNIQUE"
        else:
            served = self.server_type()
            if self.is_served and self.next.word in ("CHARACTER", "CHARSET") and (found := self.charset()) != "?":
                served = in_charset(served, found)
        kind = served.stored() if self.is_served else self._own
        while True:
            if self.has("NOT", "NULL"):
                nullable = False
            elif self.has("NULL"):
                is_null = True
            elif self.has("AUTO_INCREMENT"):
                is_numbered = True
            elif self.is_served and self.has("SERIAL", "DEFAULT", "VALUE"):
                nullable, is_numbered, key = False, True, "UNIQUE"
            elif self.is_served and self.has("BINARY"):
                pass  # the collation of a text
            elif self.has("COMPRESSED"):
                raise Unsupported(
                    "it is COMPRESSED, which row events bring in a form that is not read; MODIFY it without COMPRESSED"
                    " at the source"
                )
            elif self.has_one("VISIBLE", "INVISIBLE"):
                pass
            elif self.has("GENERATED", "ALWAYS") or self.next.word == "AS":
                self.generated(name)
                is_computed = True
            elif self.has("REFERENCES"):
                self.references()
            elif self.next.word in ("CONSTRAINT", "CHECK"):
                self.constraint()
            elif self.has_one("COLUMN_FORMAT", "STORAGE", "SRID", "REF_SYSTEM_ID"):
                self.has("=")
                self.take()
            elif self.has("DEFAULT"):
                default = self.default(served.word in OCTETS)
                is_computed |= default is None
            elif self.has("ON", "UPDATE"):
                self.now()
            elif self.has("PRIMARY", "KEY") or self.has("KEY"):
                key = "PRIMARY"
            elif self.has("UNIQUE"):
                self.has("KEY")
                key = "UNIQUE"
            elif self.has("COMMENT"):
                self.skip_string()
            elif found := self.charset():
                served = replace(served, charset=found if found != "?" else served.charset)
            else:
                break
        nullable = nullable and not (is_numbered and self.is_served)
        is_dated = default is not None and is_zero_date(served, default)
        value: Any = ABSENT
        if default is not None and not is_dated:
            value = served_value(served, default, self.session) if self.is_served else value_of(kind, default)
        elif self.is_served and nullable and not (is_computed or is_dated):
            # Otherwise the first TIMESTAMP of a table is the time of each change, and the next ones are zeros.
            is_plain = served.word != "TIMESTAMP" or is_null or self.session.has_explicit_timestamp
            value = None if is_plain else ABSENT
        if value is None and not nullable:
            value = ABSENT
        return ReadColumn(Column(name, kind, nullable, value), served, key, is_computed, is_numbered, is_dated)

    def generated(self, name: str) -> None:
        """Read a generated column. Its values are in row events only if the server stores them."""
        self.must("AS")
        self.skip_parentheses()
        if not self.has_one("STORED", "PERSISTENT"):
            raise Unsupported(
                "it is VIRTUAL, and row events need not have its values; make it STORED at the source, or leave the"
                " table out with a filter"
            )

    def charset(self) -> str:
        """Take a character set or a collation; return the character set, "?" if it names none, "" if nothing was
        taken.
        """
        found = self.has_one(*CHARSETS)
        if found not in ("CHARACTER", "CHARSET", "COLLATE"):
            return {None: "", "ASCII": "latin1", "UNICODE": "ucs2"}[found]
        self.has("SET")
        self.has("=")
        named = charset_named(self.take().text)
        return "?" if named.upper() in _NO_CHARSETS else named

    def database_charset(self, is_new: bool) -> s.DatabaseCharset:
        """Read CREATE or ALTER DATABASE after these words. A new database has the server's character set if it names
        none.
        """
        self.has("IF", "NOT", "EXISTS")
        database = (
            self.name() if self.next.kind == NAME or self.next.word not in (*CHARSETS, "DEFAULT") else self.database
        )
        charset = self.session.server if is_new else ""
        while self.next.kind != END:
            found = self.charset()
            charset = found if found not in ("", "?") else charset
            if not found:
                self.take()
        return s.DatabaseCharset(database, charset)

    def server_type(self) -> ServerType:
        """Take a type; one of a server with the character set after it."""
        token = self.next
        word, charset = self.type_words() if self.is_served else (self.take().word, "")
        if word not in KNOWN:
            if token.kind == WORD and self.is_served:
                raise Unsupported(f"columns of type {word} are not replicated; give it another type at the source")
            self.at -= 1
            raise self.wrong()
        if self.is_served and self.session.is_foreign:
            raise Unsupported("types have other meanings in the sql_mode of the session (ORACLE or MAXDB)")
        self.has("PRECISION")
        numbers: list[int] = []
        members: list[str] = []
        if self.next.word == "(":
            if word in ("ENUM", "SET"):
                members = self.in_parentheses(self.string)
            else:
                numbers = self.in_parentheses(self.number)
        is_unsigned = False
        while found := self.has_one("UNSIGNED", "SIGNED", "ZEROFILL"):
            is_unsigned |= found in ("UNSIGNED", "ZEROFILL")
        # TINYINT(1) is Bool in a text of Tidemark, and a number at a server.
        self._own = from_sql(word, tuple(numbers), tuple(members), is_unsigned)
        served = server_type(word, tuple(numbers), tuple(members), is_unsigned, self.session)
        if self.is_served and self.has("BYTE"):
            charset = BINARY
        return in_charset(served, charset) if charset else served

    def type_words(self) -> tuple[str, str]:
        """Take the words of a server's type; return the one that it has here, and its character set if they name it."""
        word = self.take().word
        charset = UTF8MB3 if word in ("NATIONAL", "NCHAR", "NVARCHAR") else ""
        if word == "NATIONAL":
            word = self.take().word
        word = {"NCHAR": "CHAR", "NVARCHAR": "VARCHAR"}.get(word, word)
        if word == "LONG":
            if self.has("VARBINARY"):
                return "MEDIUMBLOB", ""
            word = "MEDIUMTEXT" if self.next.word not in ("CHAR", "CHARACTER") else self.take().word
            if self.has_one("VARYING", "VARCHAR", "VARCHARACTER") or word == "MEDIUMTEXT":
                return "MEDIUMTEXT", ""
            raise self.wrong()
        if word in ("CHAR", "CHARACTER") and self.has_one("VARYING", "VARCHAR", "VARCHARACTER"):
            word = "VARCHAR"
        return ALIASES.get(word, word), charset

    def number(self) -> int:
        """Take an unsigned integer."""
        token = self.take()
        if token.kind != NUMBER or not token.text.isdigit() or len(token.text) > DIGITS_MAX:
            self.at -= 1
            raise self.wrong()
        return int(token.text)

    def default(self, is_octets: bool) -> Literal | None:
        """Read a default; None if the server computes it, because then it is in every row that it sends. is_octets: for
        a column of bytes, which a server shows as they are.
        """
        if self.next.word in ("CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP"):
            self.now()
            return None
        is_call = self.next.kind == WORD and self.tokens[self.at + 1].word == "("
        if is_call or self.next.word == "(":
            self.take() if is_call else None
            self.skip_parentheses()
            return None
        return self.literal(is_octets)

    def now(self) -> None:
        """Take an expression for the current time."""
        if not self.has_one("CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP"):
            raise self.wrong()
        if self.next.word == "(":
            self.skip_parentheses()
