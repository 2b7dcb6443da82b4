"""Statements and their answers: one table by first words; that of SHOW is in `show_answers`. What has no answer here is
an error (1235), and nothing is said to be done that was not.

Invariant: (A1) An answer about the binlog's end and one about rows in a snapshot are of the same moment: both come from
the snapshot while there is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from tidemark.engine.access.scan_batch import ALL_ROWS
from tidemark.engine.base.errors import Error, Unsupported
from tidemark.replication.mysql_source import catalog_answers as catalog
from tidemark.replication.mysql_source import protocol_layout as p
from tidemark.replication.mysql_source.flavors import MARIADB
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.reader import SCOPES, StatementReader, refusal_of
from tidemark.replication.mysql_source.row_texts import field_type
from tidemark.replication.mysql_source.session import (
    INFORMATION_SCHEMA,
    LOCK,
    TRANSACTION,
    Done,
    Session,
    Shown,
    Warned,
    shown,
    size_of,
    type_of,
)
from tidemark.replication.mysql_source.show_answers import show
from tidemark.replication.mysql_source.variables import (
    STATEMENT_BYTES_MAX,
    charset_taken,
    reset_variable,
    set_variable,
)
from tidemark.replication.sql.tokens import NAME, STRING, WORD

if TYPE_CHECKING:
    from tidemark.replication.mysql_source.packets import Buffer
    from tidemark.replication.mysql_source.session import Value

__all__ = ["Done", "Session", "Shown", "Warned", "answer"]

COLUMNS_MAX = 4_096  # of an answer, as at a server
COLUMNS_AGAIN_MAX = 16  # how often a SELECT may name columns of a table that it has already
_AFTER_ALIAS = ("FROM", "WHERE", "ORDER", "LIMIT")
_MESSAGE_CHARACTERS_MAX = 512  # MySQL's limit
_NO_ROWS: Final[Iterable[Sequence[Value]]] = ()


def answer(session: Session, statement: Buffer) -> Shown | Done:
    """Return the answer to a statement. The rows of a `Shown` may come from the store while they are read: then they
    raise what `Served.rows` raises.

    Raises: Refused, with MySQL's number.
    """
    reader: StatementReader | None = None
    try:
        reader = StatementReader(statement, session)
        before = len(session.warnings)
        for each in _STATEMENTS:
            if reader.has(*each.words):
                found = each.answer(reader)
                if reader.tokens[1].word != "WARNINGS":
                    del session.warnings[:before]
                return found
        raise reader.refusal()
    except Refused as error:
        code, message = error.code, error.message
    except Unsupported:
        refused = refusal_of(session, statement, None) if reader is None else reader.refusal()
        code, message = refused.code, refused.message
    except Error as error:
        code, message = p.ER_UNKNOWN_ERROR, error.message
    # A message repeats words of the statement, whose bytes need not be UTF-8. The error that was caught is kept by no
    # name here: its traceback has this frame, and the statement would stay in memory with it.
    message = message[:_MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace").decode()
    session.warnings[:] = [Warned("Error", code[0], message)]
    raise Refused(code, message)


class _Statement(NamedTuple):
    """A statement by its first words. answer: reads the rest; raises Refused, Unsupported."""

    words: tuple[str, ...]
    answer: Callable[[StatementReader], Shown | Done]


# --- SELECT ---------------------------------------------------------------------------------------
def _select(reader: StatementReader) -> Shown:
    while reader.has_one("ALL", "SQL_NO_CACHE", "SQL_CACHE"):
        pass
    if _has_table(reader):
        return _select_from(reader)
    names: list[str | bytes] = []
    values: list[Value] = []
    size = 0
    while True:
        start = reader.at
        values.append(reader.value())
        size += size_of(values[-1])
        if size > STATEMENT_BYTES_MAX:
            raise Refused(p.ER_OUT_OF_MEMORY, f"A row of values takes at most {STATEMENT_BYTES_MAX} bytes")
        end = reader.at
        alias = _alias(reader)
        names.append(reader.source(start, end) if alias is None else alias)
        if not reader.has(","):
            break
        _check_columns(len(names))
    reader.has("FROM", "DUAL")
    limit = _limit(reader)
    reader.must_end()
    return shown(names, [values] if limit != 0 else _NO_ROWS, [type_of(each) for each in values])


def _check_columns(count: int) -> None:
    """Check that an answer may have one more column. Raises: Refused."""
    if count >= COLUMNS_MAX:
        raise Refused(p.ER_TOO_MANY_COLUMNS, f"Too many columns; an answer has at most {COLUMNS_MAX}")


def _has_table(reader: StatementReader) -> bool:
    """Whether a SELECT reads a table: FROM is outside parentheses."""
    depth = 0
    for place in range(reader.at, len(reader.tokens)):
        token = reader.tokens[place]
        depth += (token.word == "(") - (token.word == ")")
        if token.word == "FROM" and depth == 0:
            return reader.tokens[place + 1].word != "DUAL"
    return False


def _alias(reader: StatementReader) -> str | None:
    if reader.has("AS"):
        return reader.string() if reader.next.kind == STRING else reader.name()
    if reader.next.kind == STRING:
        return reader.string()
    is_alias = reader.next.kind == NAME or (reader.next.kind == WORD and reader.next.text not in _AFTER_ALIAS)
    return reader.name() if is_alias else None


def _limit(reader: StatementReader) -> int | None:
    if not reader.has("LIMIT"):
        return None
    count = reader.value()
    if not isinstance(count, int) or count < 0:
        raise reader.wrong()
    return min(count, ALL_ROWS)


def _select_from(reader: StatementReader) -> Shown:
    asked: list[tuple[list[str], str | None]] = []
    while True:
        if reader.has("*"):
            asked.append((["*"], None))
        else:
            asked.append((reader.qualified(), _alias(reader)))
        if not reader.has(","):
            break
        _check_columns(len(asked))
    reader.must("FROM")
    names = reader.qualified()
    other = _alias(reader)
    session = reader.connection
    database = session.named_database(names[-2] if len(names) > 1 else None)
    qualifiers = [names[-1:], [database, names[-1]]] if other is None else [[other]]
    for column, _ in asked:
        if column[:-1] and column[:-1] not in qualifiers:
            raise Refused(p.ER_UNKNOWN_COLUMN, f"Unknown column '{'.'.join(column)}' in 'field list'")
    chosen = [(column[-1], alias) for column, alias in asked]
    if database == INFORMATION_SCHEMA:
        return _from_schema(reader, names[-1], chosen)
    if not session.user.may_read:
        raise Refused(
            p.ER_SELECT_DENIED,
            f"SELECT command denied to user '{session.user.name}'@'{session.host}' for table '{names[-1]}'",
        )
    session.hold_for_read()
    definition = catalog.table_named(session, names)
    known = {column.name: column for column in definition.columns}
    folded = {name.lower(): name for name in known}
    columns: list[str] = []
    labels: list[str] = []
    for name, alias in chosen:
        if name == "*":
            _check_columns(len(columns) + len(known) - 1)
            columns += known
            labels += known
            continue
        found = name if name in known else folded.get(name.lower())
        if found is None:
            raise Refused(p.ER_UNKNOWN_COLUMN, f"Unknown column '{name}' in 'field list'")
        columns.append(found)
        labels.append(alias or name)
    limit = _limit(reader)
    reader.must_end()
    again = [name for name, times in Counter(columns).items() if times > 1]
    if len(columns) - len(set(columns)) > COLUMNS_AGAIN_MAX or any(known[name].type.is_lob for name in again):
        raise Refused(  # a row would take many times the memory that it has in the store
            p.ER_TOO_MANY_COLUMNS,
            f"Too many columns; a SELECT names columns again at most {COLUMNS_AGAIN_MAX} times, and TEXT or BLOB never",
        )
    types = [field_type(known[name], name in definition.primary_key) for name in columns]
    return Shown(labels, types, session.served.rows(definition.name, columns, session.snapshot, limit))


def _from_schema(reader: StatementReader, table: str, chosen: list[tuple[str, str | None]]) -> Shown:
    session = reader.connection
    listing = catalog.schema_table(session, table).filtered(reader)
    places = {name: place for place, name in enumerate(listing.names)}
    rows = listing.rows
    if reader.has("ORDER", "BY"):
        orders: dict[int, bool] = {}  # of a column that is named again, the first one decides
        for place, is_descending in reader.listed(lambda: _ordered(reader, places)):
            orders.setdefault(place, is_descending)
        rows = list(rows)
        for place, is_descending in reversed(orders.items()):
            rows.sort(key=partial(_sort_key, place), reverse=is_descending)
    limit = _limit(reader)
    reader.must_end()
    labels: list[str] = []
    columns: list[int] = []
    for name, alias in chosen:
        if name == "*":
            _check_columns(len(columns) + len(listing.names) - 1)
            labels += listing.names
            columns += range(len(listing.names))
            continue
        if name.upper() not in places:
            raise Refused(p.ER_UNKNOWN_COLUMN, f"Unknown column '{name}' in 'field list'")
        labels.append(alias or (name if session.flavor is MARIADB else name.upper()))
        columns.append(places[name.upper()])
    types = listing.types()
    found = ([row[place] for place in columns] for row in islice(rows, limit))
    return shown(labels, found, [types[place] for place in columns])


def _ordered(reader: StatementReader, places: dict[str, int]) -> tuple[int, bool]:
    name = reader.qualified()[-1].upper()
    if name not in places:
        raise Refused(p.ER_UNKNOWN_COLUMN, f"Unknown column '{name}' in 'order clause'")
    return places[name], reader.has_one("ASC", "DESC") == "DESC"


def _sort_key(place: int, row: Sequence[Value]) -> tuple[bool, int, str, str]:
    """NULL comes first, and texts without their case."""
    value = row[place]
    number, text = (value, "") if isinstance(value, int) else (0, str(value))
    return value is not None, number, text.casefold(), text


# --- SET ------------------------------------------------------------------------------------------
def _set(reader: StatementReader) -> Done:
    session = reader.connection
    before = dict(session.variables)
    try:
        reader.listed(lambda: _assignment(reader))
        reader.must_end()
    except BaseException:  # all of its assignments or none
        session.restore(before)
        raise
    if not before.get("autocommit", True) and session.variables.get("autocommit", True):
        session.release(TRANSACTION)  # it commits one that is open
    return Done()


def _assignment(reader: StatementReader) -> None:
    session = reader.connection
    if reader.has("NAMES") or reader.has("CHARSET") or reader.has("CHARACTER", "SET"):
        _set_names(reader)
        return
    if reader.next.word == "@" and reader.tokens[reader.at + 1].word != "@":
        reader.take()
        name = reader.user_variable()
        reader.has(":")
        reader.must("=")
        session.set("@" + name, reader.value())
        return
    if reader.has("@", "@"):
        scope = reader.has_one(*SCOPES, "PERSIST", "PERSIST_ONLY")
        if scope is not None:
            reader.must(".")
    else:
        scope = reader.has_one(*SCOPES, "PERSIST", "PERSIST_ONLY")
    if scope is not None and scope not in ("SESSION", "LOCAL"):
        raise Refused(
            p.ER_SPECIFIC_ACCESS_DENIED,
            "Access denied; you need (at least one of) the SYSTEM_VARIABLES_ADMIN privilege(s) for this operation",
        )
    if reader.has("TRANSACTION"):
        reader.listed(lambda: _characteristic(reader))
        return
    name = reader.name()
    reader.has(":")
    reader.must("=")
    if reader.has("DEFAULT"):
        reset_variable(session, name)
        return
    set_variable(session, name, _setting(reader))


def _setting(reader: StatementReader) -> Value:
    """Take a value; a word that is no function is text, as in SET x = ON."""
    token, following = reader.next, reader.tokens[min(reader.at + 1, len(reader.tokens) - 1)]
    if token.kind == WORD and token.text not in ("NULL", "TRUE", "FALSE") and following.word in ("", ",", ";"):
        reader.take()
        return token.text
    return reader.value()


def _set_names(reader: StatementReader) -> None:
    session = reader.connection
    if reader.has("DEFAULT"):
        charset = catalog.CHARSET
    else:
        charset = reader.string() if reader.next.kind == STRING else reader.name()
    session.name_charset(charset_taken("character_set_client", charset))
    if reader.has("COLLATE"):
        set_variable(session, "collation_connection", reader.string() if reader.next.kind == STRING else reader.name())


def _characteristic(reader: StatementReader) -> None:
    session = reader.connection
    if reader.has("READ", "ONLY"):
        return
    reader.must("ISOLATION", "LEVEL")
    for words in (("READ", "UNCOMMITTED"), ("READ", "COMMITTED"), ("REPEATABLE", "READ"), ("SERIALIZABLE",)):
        if reader.has(*words):
            set_variable(session, "transaction_isolation", "-".join(words))
            return
    raise reader.wrong()


# --- snapshots ------------------------------------------------------------------------------------
def _check_may_read(session: Session, privilege: str) -> None:
    if not session.user.may_read:
        raise Refused(
            p.ER_SPECIFIC_ACCESS_DENIED,
            f"Access denied; you need (at least one of) the {privilege} privilege(s) for this operation",
        )


def _flush(reader: StatementReader) -> Done:
    reader.must("TABLES", "WITH", "READ", "LOCK")
    reader.must_end()
    session = reader.connection
    _check_may_read(session, "RELOAD")
    session.hold(LOCK)
    return Done()


def _start(reader: StatementReader) -> Done:
    reader.must("TRANSACTION", "WITH", "CONSISTENT", "SNAPSHOT")
    if reader.has(","):
        reader.must("READ", "ONLY")
    reader.must_end()
    session = reader.connection
    _check_may_read(session, "SELECT")
    session.release(TRANSACTION)  # it commits one that is open
    session.hold(TRANSACTION)
    return Done()


def _end(reader: StatementReader) -> Done:
    reader.has("WORK")
    reader.must_end()
    reader.connection.release(TRANSACTION)
    return Done()


def _unlock(reader: StatementReader) -> Done:
    reader.must_end()
    reader.connection.release(LOCK)
    return Done()


# --- others ---------------------------------------------------------------------------------------
def _use(reader: StatementReader) -> Done:
    name = reader.name()
    reader.must_end()
    reader.connection.use(name)
    return Done()


def _kill(reader: StatementReader) -> Done:
    reader.has("CONNECTION")
    number = reader.value()
    reader.must_end()
    if not isinstance(number, int) or not reader.connection.kill(number):
        shown_number = number if isinstance(number, int) else 0
        raise Refused(p.ER_UNKNOWN_THREAD, f"Unknown thread id: {shown_number}")
    return Done()


# --- the table ----------------------------------------------------------------------------------
_STATEMENTS: Final = [
    _Statement(("SELECT",), _select),
    _Statement(("SHOW",), show),
    _Statement(("SET",), _set),
    _Statement(("USE",), _use),
    _Statement(("KILL",), _kill),
    _Statement(("FLUSH",), _flush),
    _Statement(("START",), _start),
    _Statement(("COMMIT",), _end),
    _Statement(("ROLLBACK",), _end),
    _Statement(("UNLOCK", "TABLES"), _unlock),
]
