"""Reads the columns, keys and constraints of CREATE and ALTER TABLE."""

from __future__ import annotations

from typing import Any

from tidemark.engine.base.errors import Unsupported
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.index_definition import IndexDefinition
from tidemark.engine.schema.types_base import ColumnType
from tidemark.replication.sql.column_types import KNOWN, from_sql, value_of
from tidemark.replication.sql.tokens import NUMBER, WORD, TokenReader

# Words that begin a character set or a collation, and words that begin a constraint.
CHARSETS = ("CHARACTER", "CHARSET", "COLLATE", "ASCII", "UNICODE")
CONSTRAINTS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK")
_ZERO_DATE = "0000-00-00"  # not a valid date in the store
DIGITS_MAX = 20  # of a length or a count, because Python refuses to read numbers of thousands of digits


class ColumnReader(TokenReader):
    """Reads definitions. is_computed: whether a definition was read whose values the server computes for each row.
    may_lose_text: whether a character set was read that lacks some characters.
    """

    is_computed = may_lose_text = False

    def constraint(self) -> tuple[str, IndexDefinition] | None:
        """Read a key or another constraint; return None for one that only the source has: CHECK, foreign keys, and
        indexes that are not created here.
        """
        name = None
        if self.has("CONSTRAINT") and self.next.word not in CONSTRAINTS:
            name = self.name()
        if self.has("PRIMARY", "KEY"):
            while self.has("USING"):
                self.take()
            columns = self.key_columns()
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
        index = constraint if self.next.word in ("(", "USING") else self.name()
        if self.has("USING"):
            self.take()
        columns = self.key_columns()
        return IndexDefinition(index or columns[0], columns, is_unique) if columns else None

    def key_columns(self) -> tuple[str, ...]:
        """Read the columns of a key. Return none if the key covers prefixes of values or expressions: such indexes are
        not created here.
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
                self.take()
        return () if is_partial else columns

    def column(self) -> tuple[Column, str | None]:
        """Read a column; return it, and PRIMARY or UNIQUE if its definition makes it a key."""
        name = self.name()
        kind = self.column_type()
        nullable, default, mark = True, ABSENT, None
        while True:
            if self.has("NOT", "NULL"):
                nullable = False
            elif self.has_one("NULL", "AUTO_INCREMENT", "VISIBLE", "INVISIBLE", "COMPRESSED"):
                pass
            elif self.has("GENERATED", "ALWAYS") or self.next.word == "AS":
                self.generated(name)
            elif self.has("REFERENCES"):
                self.references()
            elif self.next.word in ("CONSTRAINT", "CHECK"):
                self.constraint()
            elif self.has_one("COLUMN_FORMAT", "STORAGE", "SRID", "REF_SYSTEM_ID"):
                self.has("=")
                self.take()
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

    def generated(self, name: str) -> None:
        """Read a generated column. Its values are in row events only if the server stores them."""
        self.must("AS")
        self.skip_parentheses()
        self.is_computed = True
        if not self.has_one("STORED", "PERSISTENT"):
            raise Unsupported(
                f"column {name} is VIRTUAL, and row events need not have its values; make it STORED at the source, or"
                " leave the table out with a filter"
            )

    def charset(self) -> bool:
        """Take a character set or a collation; return whether there was one."""
        found = self.has_one(*CHARSETS)
        if found in ("CHARACTER", "CHARSET", "COLLATE"):
            self.has("SET")
            self.has("=")
            text = self.next.text.upper()
            if text == "BINARY":
                raise self.wrong()  # CHARACTER SET binary: the column is text by name, but holds bytes
            self.may_lose_text |= not text.startswith("UTF8MB4")
            self.take()
        return found is not None

    def column_type(self) -> ColumnType:
        """Take a type."""
        token = self.take()
        if token.kind != WORD or token.text not in KNOWN:
            self.at -= 1
            raise self.wrong()
        numbers: list[int] = []
        members: list[str] = []
        if self.next.word == "(":
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
        """Take an unsigned integer."""
        token = self.take()
        if token.kind != NUMBER or not token.text.isdigit() or len(token.text) > DIGITS_MAX:
            self.at -= 1
            raise self.wrong()
        return int(token.text)

    def default(self, kind: ColumnType) -> Any:
        """Read a default; ABSENT for the current time, because the source puts it into every row that it sends."""
        if self.next.word in ("CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP"):
            self.now()
            return ABSENT
        is_call = self.next.kind == WORD and self.tokens[self.at + 1].word == "("
        if is_call or self.next.word == "(":  # an expression: the source computes it for every row that it sends
            self.take() if is_call else None
            self.skip_parentheses()
            self.is_computed = True
            return ABSENT
        literal = self.literal()
        return ABSENT if literal.text.startswith(_ZERO_DATE) else value_of(kind, literal)

    def now(self) -> None:
        """Take an expression for the current time."""
        if not self.has_one("CURRENT_TIMESTAMP", "NOW", "LOCALTIMESTAMP"):
            raise self.wrong()
        if self.next.word == "(":
            self.skip_parentheses()
