"""Rules for names of tables, columns, partitions and the like."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import lru_cache

from tidemark.engine.base import limits
from tidemark.engine.base.errors import InvalidName, NoSuchColumn, NoSuchTable, SchemaInvalid
from tidemark.engine.types.base import shown

DEFAULT_DATABASE = "main"
SYSTEM_DATABASE = "mysql"  # as in MySQL; the replication tables have MySQL's names
EXCEPTIONS_SUFFIX = "$EX"
LISTED_MAX = 20  # names in a message
NAMES_KEPT_MAX = 1_024


def as_names(names: object, what: str) -> list[str]:
    """Return one name or several as a list. what: the argument's name in the message. Raises: SchemaInvalid."""
    if isinstance(names, str):
        return [names]
    if not isinstance(names, Iterable):
        raise SchemaInvalid(f"{what} must be a name or a list of names, got {shown(names)}")
    return list(names)


def alternatives(name: object, known: Iterable[str]) -> str:
    """Return the hint for a message about an unknown name: the nearest known name, and up to LISTED_MAX known names."""
    from difflib import get_close_matches  # loaded only after a mistake

    names = list(known)
    close = get_close_matches(name, names, 1) if isinstance(name, str) else []
    meant = f"did you mean {close[0]}? " if close else ""
    listed = ", ".join(names[:LISTED_MAX]) or "none"
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return f"{meant}known: {listed}{more}"


def no_such_column(table: str, name: object, known: Iterable[str], row: int | None = None) -> NoSuchColumn:
    """Return the error for a column that a table does not have; `row` is the row of a batch that names it."""
    what = repr(name) if isinstance(name, str) else shown(name)
    text = f"{table} has no column {what}; {alternatives(name, known)}"
    return NoSuchColumn(text, table=table, column=name, row=row)


def no_such_table(name: str, known: Iterable[str], where: str = "") -> NoSuchTable:
    """Return the error for a table that a store, or a snapshot, does not have."""
    what = alternatives(qualified_name(name), (each for each in known if not is_system_table(each)))
    return NoSuchTable(f"table {name!r} does not exist{where}; {what}", table=name)


def check_name(name: object, what: str, forbidden: str = "/") -> str:
    """Return the name. Raises: InvalidName unless it has 1 to 64 printable characters, no blanks at its ends
    and no forbidden ones.
    """
    if not isinstance(name, str):
        raise InvalidName(f"{what} name must be a str, got {shown(name)}", name=name)
    if not 1 <= len(name) <= limits.NAME_CHARACTERS_MAX:
        raise InvalidName(
            f"{what} name must have 1 to {limits.NAME_CHARACTERS_MAX} characters, got {len(name)}: {shown(name)}",
            name=name,
        )
    # Control characters, NUL, lone surrogates and line separators are not printable; they break logs and file systems.
    if not name.isprintable() or name != name.strip() or any(letter in name for letter in forbidden):
        raise InvalidName(
            f"{what} name {name!r} has control characters, surrogates, leading or trailing blanks or one of"
            f" {forbidden!r}; leave them out",
            name=name,
        )
    return str(name)


def qualified_name(name: object) -> str:
    """Return `database.table`; a plain name is in `main`. Raises: InvalidName if either part is not allowed."""
    if not isinstance(name, str):
        raise InvalidName(f"table name must be a str, got {shown(name)}", name=name)
    return _qualified(name)


@lru_cache(maxsize=NAMES_KEPT_MAX)
def _qualified(name: str) -> str:
    database, dot, table = name.partition(".")
    if not dot:
        database, table = DEFAULT_DATABASE, name
    return check_name(database, "database", "./\\") + "." + check_name(table, "table", "./\\")


def names_one_of(name: object, tables: Container[str]) -> bool:
    """Whether a name belongs to one of `tables`, which are qualified names; a plain name is in `main`."""
    try:
        return qualified_name(name) in tables
    except InvalidName:
        return False


def with_short_names(names: Iterable[str]) -> list[str]:
    """Return qualified names, and the plain names of those in `main`: all that a prompt offers for `db["`."""
    held = list(names)
    prefix = DEFAULT_DATABASE + "."
    return held + [name.removeprefix(prefix) for name in held if name.startswith(prefix)]


def is_system_table(name: str) -> bool:
    """Whether a qualified name belongs to a system table: in `mysql`, or an exceptions table."""
    return name.startswith(SYSTEM_DATABASE + ".") or name.endswith(EXCEPTIONS_SUFFIX)
