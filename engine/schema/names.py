"""Rules for names of tables, columns, partitions and the like."""

from __future__ import annotations

from tidemark.engine.base import limits
from tidemark.engine.base.errors import InvalidName
from tidemark.engine.schema.types_base import shown

DEFAULT_DATABASE = "main"
SYSTEM_DATABASE = "mysql"  # as in MySQL; the replication tables have MySQL's names
EXCEPTIONS_SUFFIX = "$EX"


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
            f"{what} name has control characters, surrogates, leading or trailing blanks or one of {forbidden!r}:"
            f" {shown(name)}",
            name=name,
        )
    return str(name)


def qualified_name(name: object) -> str:
    """Return `database.table`; a plain name is in `main`. Raises: InvalidName if either part is not allowed."""
    if not isinstance(name, str):
        raise InvalidName(f"table name must be a str, got {shown(name)}", name=name)
    database, dot, table = name.partition(".")
    if not dot:
        database, table = DEFAULT_DATABASE, name
    return check_name(database, "database", "./\\") + "." + check_name(table, "table", "./\\")


def is_system_table(name: str) -> bool:
    """Whether a qualified name belongs to a system table: in `mysql`, or an exceptions table."""
    return name.startswith(SYSTEM_DATABASE + ".") or name.endswith(EXCEPTIONS_SUFFIX)
