"""Options of the data source and settings of Spark, which are all text, and the table that one names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import NoSuchTable, SchemaInvalid
from tidemark.engine.schema.names import is_system_table, qualified_name

if TYPE_CHECKING:
    from tidemark.engine.schema.definition import TableDefinition

# A task costs Spark about 30 ms; reading and decoding this much of a file takes about 150 ms.
TASK_BYTES = 32 << 20
NAMES_SHOWN = 10


def checked_options(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    """Return a user's options under the spelling in `known`, as Spark ignores case. Raises: SchemaInvalid."""
    names = {name.lower(): name for name in known}
    found = {}
    for name, value in options.items():
        if name.lower() not in names:
            raise SchemaInvalid(f"there is no option {name!r}; known: {', '.join(known)}", option=name)
        found[names[name.lower()]] = value
    if not found.get("path"):
        raise SchemaInvalid("say where to read: .load(path), with the directory of a store")
    return found


def whole_number(options: Mapping[str, str], name: str) -> int | None:
    """Return an option as a number from 1, None if it is not given. Raises: SchemaInvalid."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise SchemaInvalid(f"option {name} is {text!r}; give a whole number from 1", option=name)
    return int(text)


def find_table(tables: Sequence[TableDefinition], name: str | None) -> TableDefinition:
    """Return the table of this name; without a name, the only table that is not a system table. Raises: NoSuchTable,
    SchemaInvalid.
    """
    users = sorted(each.name for each in tables if not is_system_table(each.name))
    shown = ", ".join(users[:NAMES_SHOWN]) + (f" and {len(users) - NAMES_SHOWN} more" if users[NAMES_SHOWN:] else "")
    if name is None:
        if len(users) != 1:
            raise SchemaInvalid(f"say which table; known: {shown or 'none'}")
        name = users[0]
    qualified = qualified_name(name)
    for each in tables:
        if each.name == qualified:
            return each
    raise NoSuchTable(f"there is no table {qualified} here; known: {shown or 'none'}", table=qualified)


def option_map(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options in the form Spark takes: text."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
