"""Names of tables, columns, partitions and the like: what is allowed in them."""

from __future__ import annotations

from engine.base import limits
from engine.base.errors import InvalidName
from engine.schema.types_base import shown


def check_name(name: object, what: str, forbidden: str = "/") -> str:
    """The name itself; InvalidName unless it has 1 to 64 printable characters and none of the forbidden ones."""
    if not isinstance(name, str):
        raise InvalidName(f"{what} name must be a str, got {shown(name)}", name=name)
    if not 1 <= len(name) <= limits.NAME_CHARACTERS_MAX:
        raise InvalidName(
            f"{what} name must have 1 to {limits.NAME_CHARACTERS_MAX} characters, got {len(name)}: {shown(name)}",
            name=name,
        )
    # Not printable: control characters, NUL, lone surrogates, line separators; they break logs and file systems.
    if not name.isprintable() or name != name.strip() or any(letter in name for letter in forbidden):
        raise InvalidName(
            f"{what} name has control characters, surrogates, outer blanks or one of {forbidden!r}: {shown(name)}",
            name=name,
        )
    return str(name)
