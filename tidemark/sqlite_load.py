"""`db.load_sqlite`: the tables of an SQLite database as tables of a store.

A column gets the type that its declared type names, if half of its values fit, else the type of its values.
SQLite checks the values itself, before a table is made: an expression for each column says which rows do not fit.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal as PythonDecimal
from functools import reduce
from itertools import chain
from os.path import abspath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from tidemark.engine import types as t
from tidemark.engine.base.errors import (
    FileMissing,
    NoSuchTable,
    Rejected,
    SchemaInvalid,
    TableExists,
    TypeMismatch,
    ValueOutOfRange,
)
from tidemark.engine.base.limits import KEY_BYTES_MAX
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.computed import autoincrement, now
from tidemark.engine.schema.names import alternatives, as_names, check_name, qualified_name
from tidemark.engine.types.base import shown
from tidemark.engine.types.decimals import decimals_of_text

if TYPE_CHECKING:
    import os

    import pyarrow as pa

    from tidemark.engine.types import ColumnType

Progress = Callable[[int, int, str], None]
BATCH_ROWS = 20_000
ERRORS_MAX = 1_000  # rows that the report names
RAISE, REPORT = "raise", "report"
_KEY_CHARACTERS = 255
_INLINE_CHARACTERS = 2_000  # of a VarChar that is no key; a longer text is a Text
_INLINE_BYTES = 16_000  # of all VarChars of a row that are no keys
_COLUMNS_COUNTED = 200  # by one query
_ROWIDS = ("rowid", "_rowid_", "oid")
# Defaults that `tm.now` stands for, in a column of this type.
_MOMENTS = {"CURRENT_TIMESTAMP": t.DateTime, "CURRENT_DATE": t.Date, "CURRENT_TIME": t.Time}
# `+0 days` has SQLite normalize a date: the 31st of February is none.
_DIGITS = "not {} glob '*[^0-9]*'"


# --- types ----------------------------------------------------------------------------------------
class _Family(NamedTuple):
    """How values of a kind are recognized and read; {c} is the column."""

    fits: str  # an expression: whether a value that is not NULL is of the kind
    read: str
    array: Callable[[Sequence[Any]], pa.Array]


def _arrays(*kinds: str) -> Callable[[Sequence[Any]], pa.Array]:
    """Return a function that makes an array of values, cast from one of these types of Arrow to the next."""

    def made(values: Sequence[Any]) -> pa.Array:
        import pyarrow as pa

        return reduce(pa.Array.cast, kinds[1:], pa.array(values, kinds[0]))

    return made


_TEXTS = ("large_binary", "large_string")
_texts = _arrays(*_TEXTS)


def _clock(part: str) -> str:
    """Return the expression whether a text is a time of day, with seconds and up to six digits after them."""
    digits = _DIGITS.format(f"substr({part}, 10)")
    return (
        f"substr({part}, 1, 8) = time(substr({part}, 1, 8)) and (length({part}) = 8 or"
        f" substr({part}, 9, 1) = '.' and length({part}) between 10 and 15 and {digits})"
    )


_INTEGER = _Family("typeof({c}) = 'integer'", "{c}", _arrays("int64"))
_BOOLEAN = _Family("typeof({c}) = 'integer' and {c} in (0, 1)", "{c}", _arrays("int64", "bool"))
_REAL = _Family(
    "typeof({c}) = 'real' or typeof({c}) = 'integer' and cast(cast({c} as real) as integer) = {c}",
    "cast({c} as real)",
    _arrays("float64"),
)
_TEXT = _Family("typeof({c}) = 'text'", "{c}", _texts)
_BLOB = _Family("typeof({c}) = 'blob'", "{c}", _arrays("large_binary"))
_DATE = _Family("typeof({c}) = 'text' and {c} = date({c}, '+0 days')", "{c}", _arrays(*_TEXTS, "date32"))
_TIME = _Family(
    f"typeof({{c}}) = 'text' and {_clock('{c}')}",
    "'1970-01-01 ' || {c}",
    _arrays(*_TEXTS, "timestamp[us]", "time64[us]"),
)
_MOMENT = _Family(
    "typeof({c}) = 'text' and substr({c}, 1, 10) = date(substr({c}, 1, 10), '+0 days')"
    f" and substr({{c}}, 11, 1) in (' ', 'T') and {_clock('substr({c}, 12)')}",
    "{c}",
    _arrays(*_TEXTS, "timestamp[us]"),
)


def _decimal(kind: Any) -> _Family:
    whole = f"abs({{c}}) < 1e{kind.precision - kind.scale}"
    text = f"printf('%.{kind.scale}f', {{c}})"
    return _Family(
        f"case typeof({{c}}) when 'integer' then {whole} when 'real' then {whole} and cast({text} as real) = {{c}}"
        " when 'text' then length({c}) > 0 and not {c} glob '*[^0-9.+-]*' else 0 end",
        f"case typeof({{c}}) when 'real' then {text} else cast({{c}} as text) end",
        lambda values: decimals_of_text(_texts(values), kind),
    )


def _declared(declared: str) -> tuple[_Family | None, ColumnType | None]:
    """Return the family that a declared type names, and its type if that needs no look at the values."""
    name = declared.upper()
    sizes = [int(each) for each in re.findall(r"\d{1,9}", name.partition("(")[2])]
    if "BOOL" in name:
        return _BOOLEAN, t.Bool
    if "DATETIME" in name or "TIMESTAMP" in name:
        return _MOMENT, t.DateTime
    if "DATE" in name:
        return _DATE, t.Date
    if name.startswith("TIME"):
        return _TIME, t.Time
    if name.startswith(("DEC", "NUMERIC")) and sizes:
        try:
            kind = t.Decimal(sizes[0], sizes[1] if len(sizes) > 1 else 0)
        except SchemaInvalid:
            return None, None
        return _decimal(kind), kind
    if "INT" in name:
        return _INTEGER, t.Int64
    if "CHAR" in name or "CLOB" in name or "TEXT" in name:
        return _TEXT, None
    if "BLOB" in name:
        return _BLOB, None
    if "REAL" in name or "FLOA" in name or "DOUB" in name:
        return _REAL, t.Float64
    return None, None


# --- what SQLite has ------------------------------------------------------------------------------
def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass
class _Found:
    """A column in SQLite, and what its values are."""

    name: str
    declared: str
    is_nullable: bool
    default: str | None
    is_keyed: bool = False
    family: _Family = _TEXT
    kind: ColumnType = t.Text
    longest: int = 0
    size: int | None = None  # of a declared VARCHAR(n)

    def sql(self, template: str) -> str:
        # Not `format`: the name may have braces.
        return template.replace("{c}", _name(self.name))

    @property
    def bad(self) -> str:
        """The expression whether a value has no place in the column."""
        unfit = self.sql(f"({{c}} is not null and not coalesce({self.family.fits}, 0))")
        return unfit if self.is_nullable else self.sql(f"({{c}} is null or {unfit})")


class _Index(NamedTuple):
    name: str
    columns: tuple[str, ...]
    is_unique: bool


@dataclass
class _Table:
    """A table to load."""

    source: str
    target: str
    columns: list[_Found]
    key: list[str]
    rowid: str  # an expression that names a row to people
    rows: int = 0
    indexes: list[_Index] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bad_rows: int = 0
    # The last number that AUTOINCREMENT has given, 0 for other keys that are the rowid; None: SQLite gives no numbers.
    numbered_to: int | None = None

    @property
    def bad(self) -> str:
        return " or ".join(each.bad for each in self.columns)

    def definition(self) -> list[Column]:
        """Return the columns of the table to make; a default that does not fit is left out, with a note."""
        made = []
        for each in self.columns:
            default: Any = ABSENT
            if self.numbered_to is not None and each.name == self.key[0]:
                default = autoincrement
            elif each.default is not None:
                default = _constant(each.default, each.kind)
                if default is ABSENT:
                    self.notes.append(f"column {each.name}: the default {each.default} was left out")
            if default is None and not each.is_nullable:
                default = ABSENT
            made.append(Column(each.name, each.kind, each.is_nullable, default))
        return made

    def report(self) -> dict[str, Any]:
        return {
            "table": self.target,
            "source": self.source,
            "rows": self.rows,
            "columns": [
                {"name": each.name, "declared": each.declared, "type": repr(each.kind), "nullable": each.is_nullable}
                for each in self.columns
            ],
            "primary_key": self.key,
            "indexes": [
                {"name": each.name, "columns": list(each.columns), "unique": each.is_unique} for each in self.indexes
            ],
            "bad_rows": self.bad_rows,
            "notes": self.notes,
        }


def _constant(text: str, kind: ColumnType) -> Any:
    """Return the value of a default that is a literal and fits, or `now`; else ABSENT."""
    text = text.strip().strip("()")
    value: Any
    if text.upper() == "NULL":
        return None
    if _MOMENTS.get(text.upper()) == kind:
        return now
    if re.fullmatch(r"[+-]?\d+", text):
        value = int(text)
    elif re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?", text):
        value = float(text)
    elif re.fullmatch(r"'(?:[^']|'')*'", text):
        value = text[1:-1].replace("''", "'")
    elif text.upper() in ("TRUE", "FALSE"):
        value = text.upper() == "TRUE"
    else:
        return ABSENT
    try:
        if kind.python is bool and value in (0, 1):
            value = bool(value)
        elif kind.python is float and isinstance(value, int):
            value = float(value)
        elif kind.python is PythonDecimal:
            value = PythonDecimal(text.strip("'"))
        elif isinstance(value, str) and hasattr(kind.python, "fromisoformat"):
            value = kind.python.fromisoformat(value)
        kind.stored(value)
    except (Rejected, ValueError, ArithmeticError):
        return ABSENT
    return value


class _Reader:
    """Reads one SQLite database, all of it as at one time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises: FileMissing; Rejected if it is no SQLite database."""
        place = abspath(path)
        if isinstance(place, bytes):
            place = place.decode()
        self.place = place
        try:
            self._connection = sqlite3.connect(
                f"file:{quote(place)}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise FileMissing(f"{place} cannot be opened: {error}; check the path", file=place) from error
        self._connection.text_factory = bytes  # Arrow checks whether it is UTF-8
        try:
            self.run("begin")
            self.run("select count(*) from sqlite_master").fetchone()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def run(self, query: str) -> sqlite3.Cursor:
        """Run a query. Raises: Rejected with SQLite's error."""
        try:
            return self._connection.execute(query)
        except sqlite3.Error as error:
            raise self.failed(error) from error

    def failed(self, error: sqlite3.Error) -> Rejected:
        return Rejected(f"{self.place} cannot be read: SQLite says {error}; nothing more was loaded", file=self.place)

    def rows(self, query: str) -> list[dict[str, Any]]:
        """Return a short result, with texts as str."""
        cursor = self.run(query)
        names = [each[0] for each in cursor.description or ()]
        return [{name: _text(value) for name, value in zip(names, row, strict=True)} for row in cursor]

    def pieces(self, query: str) -> Iterator[list[Any]]:
        cursor = self.run(query)
        try:
            while rows := cursor.fetchmany(BATCH_ROWS):
                yield rows
        except sqlite3.Error as error:
            raise self.failed(error) from error

    # --- tables ----------------------------------------------------------------------------------
    def tables(self) -> tuple[list[str], dict[str, str]]:
        """Return the names of the tables, and of what else has rows, with the reason why it is no table to load."""
        found, skipped = [], {}
        shadows = {each["name"] for each in self.rows("pragma table_list") if each["type"] == "shadow"}
        for each in self.rows(
            "select name, type, sql from sqlite_master where type in ('table', 'view') order by name"
        ):
            name = each["name"]
            if name.startswith("sqlite_"):
                continue
            if each["type"] == "view":
                skipped[name] = "it is a view"
            elif re.match(r"\s*create\s+virtual\b", each["sql"] or "", re.IGNORECASE):
                skipped[name] = "it is a virtual table"
            elif name in shadows:
                skipped[name] = "it belongs to a virtual table"
            else:
                found.append(name)
        return found, skipped

    def table(self, source: str, target: str) -> _Table:
        """Return a table with the types of its columns. Raises: Rejected with why it cannot be loaded."""
        columns, key = [], {}
        for each in self.rows(f"pragma table_xinfo({_name(source)})"):
            if each["hidden"] == 1:
                continue
            check_name(each["name"], "column")
            declared = str(each["type"])
            is_key = each["pk"] > 0
            columns.append(_Found(each["name"], declared, not (each["notnull"] or is_key), each["dflt_value"], is_key))
            if is_key:
                key[each["pk"]] = each["name"]
        names = {each.name.lower() for each in columns}
        free = next((each for each in _ROWIDS if each not in names), None)
        (found,) = self.rows(f"select sql from sqlite_master where type = 'table' and name = {_literal(source)}")
        has_rowid = re.search(r"\bwithout\s+rowid\b[^)]*$", found["sql"] or "", re.IGNORECASE) is None
        made = _Table(source, target, columns, [key[number] for number in sorted(key)], "")
        has_key_index = any(each["origin"] == "pk" for each in self.rows(f"pragma index_list({_name(source)})"))
        if has_rowid and not has_key_index:  # the key is the rowid, which SQLite gives
            made.numbered_to = 0
        if re.search(r"\bprimary\s+key\b[^,]*\bautoincrement\b", found["sql"] or "", re.IGNORECASE):
            given = self.rows(f"select seq from sqlite_sequence where name = {_literal(source)}")
            made.numbered_to = int(given[0]["seq"]) if given else 0
        if not key:
            if free is None:
                raise SchemaInvalid(f"table {source} has no primary key, and its columns hide its rowid")
            columns.insert(0, _Found(free, "INTEGER", False, None, True))
            made.key = [free]
            made.notes.append(f"it has no primary key: the column {free} has SQLite's rowid")
        made.rowid = free if has_rowid and free else " || ', ' || ".join(f"quote({_name(each)})" for each in made.key)
        self._find_indexes(made)
        self._find_types(made)
        return made

    def _find_indexes(self, table: _Table) -> None:
        known = {each.name: each for each in table.columns}
        for each in self.rows(f"pragma index_list({_name(table.source)})"):
            if each["origin"] == "pk":
                continue
            parts = [part for part in self.rows(f"pragma index_xinfo({_name(each['name'])})") if part["key"]]
            columns = tuple(part["name"] for part in parts)
            name = each["name"]
            if name.startswith("sqlite_autoindex_"):
                name = "unique_" + "_".join(str(column) for column in columns)
            if each["partial"] or not all(column in known for column in columns):
                why = "is partial" if each["partial"] else "is over an expression"
                table.notes.append(f"index {name} {why} and was left out")
                continue
            if any(part["coll"] != "BINARY" for part in parts):
                table.notes.append(f"index {name} compares by a collation, here by bytes")
            for column in columns:
                known[column].is_keyed = True
            table.indexes.append(_Index(name[:64], columns, bool(each["unique"])))

    def _find_types(self, table: _Table) -> None:
        """Look at all values once, and decide the types of the columns."""
        for begin in range(0, len(table.columns), _COLUMNS_COUNTED):
            part = table.columns[begin : begin + _COLUMNS_COUNTED]
            asked = ["count(*)"]
            for each in part:
                family = _declared(each.declared)[0]
                asked += [
                    each.sql("count({c})"),
                    each.sql(f"total(coalesce({family.fits}, 0))") if family is not None else "0",
                    *(each.sql(f"total(typeof({{c}}) = '{kind}')") for kind in ("integer", "real", "text", "blob")),
                    each.sql("max(length({c}))"),
                ]
            rows, *counts = self.run(f"select {', '.join(asked)} from {_name(table.source)}").fetchone()
            table.rows = rows
            for place, each in enumerate(part):
                _decide(each, *(int(count or 0) for count in counts[7 * place : 7 * place + 7]))
        _choose_texts(table)

    def first_bad(self, table: _Table, limit: int) -> Iterator[dict[str, Any]]:
        """Yield rows that do not fit: rowid, column, value and why."""
        which = " ".join(f"when {each.bad} then {place}" for place, each in enumerate(table.columns))
        value = " ".join(f"when {each.bad} then {_name(each.name)}" for each in table.columns)
        kind = " ".join(f"when {each.bad} then typeof({_name(each.name)})" for each in table.columns)
        query = f"select {table.rowid}, case {which} end, case {value} end, case {kind} end from {_name(table.source)}"
        for rowid, place, found, kind in self.run(f"{query} where {table.bad} limit {limit}"):
            shown_value = found if kind == b"blob" else _text(found)
            yield _bad_row(table, _text(rowid), table.columns[place], shown_value)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _text(value: Any) -> Any:
    """Return bytes of a text as str, if they are; of SQLite's own answers they always are."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _bad_row(table: _Table, rowid: Any, column: _Found, value: Any, why: str = "") -> dict[str, Any]:
    if not why:
        where = "the primary key" if column.name in table.key else "a column that is not nullable"
        why = f"is in {where}" if value is None else f"is no {column.kind!r}"
    return {"table": table.source, "rowid": rowid, "column": column.name, "value": value, "why": why}


def _decide(
    column: _Found, count: int, fits: int, integers: int, reals: int, texts: int, blobs: int, longest: int
) -> None:
    """Decide the family of a column, by its declared type and the classes of its values."""
    family, kind = _declared(column.declared)
    if family is None or fits * 2 < count:
        if blobs > max(integers + reals, texts):
            family, kind = _BLOB, None
        elif integers + reals > texts:
            family, kind = (_REAL, t.Float64) if reals else (_INTEGER, t.Int64)
        else:
            family, kind = _TEXT, None
    column.family, column.longest = family, longest
    if kind is not None:
        column.kind = kind
    sizes = re.findall(r"\(\s*(\d{1,6})\s*\)", column.declared)
    column.size = int(sizes[0]) if sizes and family is _TEXT else None


def _choose_texts(table: _Table) -> None:
    """Choose the types of texts and bytes: keys are VarChar or VarBinary, and so are texts with a declared length."""
    keyed = {each.name for each in table.columns if each.family in (_TEXT, _BLOB) and each.name in table.key}
    share = (KEY_BYTES_MAX - 16 * len(table.key)) // max(1, len(keyed))
    inline = 0
    for each in table.columns:
        if each.family not in (_TEXT, _BLOB):
            continue
        unit, inner, outer = (4, t.VarChar, t.Text) if each.family is _TEXT else (1, t.VarBinary, t.Blob)
        if each.is_keyed:
            most = share // unit - 2 if each.name in keyed else _INLINE_CHARACTERS
            usual = min(each.size or _KEY_CHARACTERS, most)
            each.kind = inner(max(1, each.longest, usual)) if each.longest <= most else outer
        else:
            size = max(each.size or 0, each.longest)
            is_inline = each.size is not None and 0 < size <= _INLINE_CHARACTERS
            is_inline = is_inline and inline + unit * size <= _INLINE_BYTES
            inline += unit * size if is_inline else 0
            each.kind = inner(size) if is_inline else outer
        if each.size is not None and each.longest > each.size:
            table.notes.append(
                f"column {each.name} is declared {each.declared}, and its longest text has {each.longest:,} characters"
            )
    known = {each.name: each for each in table.columns}
    for index in list(table.indexes):
        if not all(known[column].kind.keyable for column in index.columns):
            table.indexes.remove(index)
            table.notes.append(f"index {index.name} is over texts that are too long for a key, and was left out")


# --- loading --------------------------------------------------------------------------------------
class _Loading:
    """Loads tables one after the other into a store."""

    def __init__(self, db: Any, reader: _Reader, on_error: str, progress: Progress | None) -> None:
        self._db = db
        self._reader = reader
        self._is_reporting = on_error == REPORT
        self._progress = progress
        self.bad: list[dict[str, Any]] = []

    def check(self, table: _Table) -> None:
        """Look for rows that do not fit. Raises: TypeMismatch for the first one, unless they are reported."""
        source = _name(table.source)
        (table.bad_rows,) = self._reader.run(f"select count(*) from {source} where {table.bad}").fetchone()
        if table.bad_rows:
            self._note(table, list(self._reader.first_bad(table, ERRORS_MAX if self._is_reporting else 1)))

    def _note(self, table: _Table, bad: list[dict[str, Any]]) -> None:
        if not self._is_reporting:
            first = bad[0]
            raise TypeMismatch(
                f"{first['table']}, rowid {first['rowid']}, column {first['column']}: {shown(first['value'])}"
                f" {first['why']}; change it in SQLite, or load with on_error='report', which leaves such rows out",
                **{name: first[name] for name in ("table", "rowid", "column", "value")},
            )
        self.bad += bad[: ERRORS_MAX - len(self.bad)]

    def load(self, table: _Table) -> None:
        import pyarrow as pa

        self._db.create_table(table.target, table.definition(), table.key)
        try:
            batches = self._batches(table)
            first = next(batches, None)
            table.rows = 0
            if first is not None:
                rows = self._reported(table, chain([first], batches))
                table.rows = self._db.load(table.target, pa.RecordBatchReader.from_batches(first.schema, rows))
        except BaseException:
            if self._db.parts.store.failure.first is None:
                self._db.drop_table(table.target)
            raise
        if table.numbered_to is not None:  # rows with greater numbers may have been deleted there
            store = self._db.parts.store
            store.sequences.saw(store.resources, store.tables.named(table.target), table.numbered_to)
        for index in table.indexes:
            self._db.create_index(
                table.target, index.name, index.columns, unique=index.is_unique, ordered=index.is_unique
            )

    def _reported(self, table: _Table, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = 0
        for batch in batches:
            yield batch
            done += batch.num_rows
            if self._progress is not None:
                self._progress(done, -1, f"rows of {table.source}")

    def _batches(self, table: _Table) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        read = ", ".join(each.sql(each.family.read) for each in table.columns)
        query = f"select {read}, {table.rowid} from {_name(table.source)} where not ({table.bad})"
        for rows in self._reader.pieces(query):
            arrays: list[pa.Array] = []
            while len(arrays) < len(table.columns):
                if not rows:
                    break
                column = table.columns[len(arrays)]
                values = [row[len(arrays)] for row in rows]
                try:
                    arrays.append(column.family.array(values))
                except (pa.ArrowInvalid, ValueOutOfRange) as error:
                    place = _first_unfit(column.family, values)
                    why = f"does not become {column.kind!r} ({' '.join(str(error).split())})"
                    self._note(table, [_bad_row(table, _text(rows[place][-1]), column, _text(values[place]), why)])
                    table.bad_rows += 1
                    del rows[place]
                    arrays = []
            if rows:
                yield pa.RecordBatch.from_arrays(arrays, names=[each.name for each in table.columns])


def _first_unfit(family: _Family, values: Sequence[Any]) -> int:
    import pyarrow as pa

    for place, value in enumerate(values):
        try:
            family.array([value])
        except (pa.ArrowInvalid, ValueOutOfRange):
            return place
    return 0


def load_sqlite(
    db: Any,
    path: str | os.PathLike[str],
    tables: str | Sequence[str] | None,
    on_error: str,
    database: str,
    progress: Progress | None,
) -> dict[str, Any]:
    """See `Database.load_sqlite`."""
    if on_error not in (RAISE, REPORT):
        raise SchemaInvalid(f"on_error is 'raise' or 'report', got {shown(on_error)}")
    reader = _Reader(path)
    try:
        known, skipped = reader.tables()
        wanted = known if tables is None else as_names(tables, "tables")
        for name in wanted:
            if name not in known:
                why = f"{skipped[name]}; load it by its rows" if name in skipped else alternatives(name, known)
                raise NoSuchTable(f"{reader.place} has no table {name!r} to load: {why}", table=name)
        loading = _Loading(db, reader, on_error, progress)
        found = []
        for name in wanted:
            try:
                found.append(reader.table(name, qualified_name(f"{database}.{name}")))
            except (SchemaInvalid, Rejected) as error:
                if tables is not None:
                    raise
                skipped[name] = error.message
        for table in found:
            if table.target in db:
                raise TableExists(f"table {table.target} exists; drop it first, or leave it out with tables=")
            loading.check(table)
        for table in found:
            loading.load(table)
    finally:
        reader.close()
    return {
        "tables": [each.report() for each in found],
        "skipped": {} if tables is not None else skipped,
        "bad": loading.bad,
    }
