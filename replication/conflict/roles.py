"""The conflict role of a site, and how it may change."""

from __future__ import annotations

from enum import IntEnum

from tidemark.engine.base.errors import Rejected


class Role(IntEnum):
    """The handling of changes of tables with NDB$EPOCH2 or NDB$EPOCH2_TRANS at a site."""

    NONE = 0  # not decided: the applier stops at the first such change
    SECONDARY = 1  # follows
    PRIMARY = 2  # detects, and its own changes win
    PASS = 3  # applies everything, without detection


# A role changes by way of NONE; only primary and secondary may be exchanged directly.
_CHANGES = {
    Role.NONE: frozenset({Role.SECONDARY, Role.PRIMARY, Role.PASS}),
    Role.SECONDARY: frozenset({Role.NONE, Role.PRIMARY}),
    Role.PRIMARY: frozenset({Role.NONE, Role.SECONDARY}),
    Role.PASS: frozenset({Role.NONE}),
}


def change_role(current: Role, wanted: Role, is_running: bool) -> Role:
    """Return the role after the change; to set the current role again is always allowed. Raises: Rejected."""
    if current == wanted:
        return wanted
    if is_running:
        raise Rejected(
            f"Cannot change conflict role from {current.name} to {wanted.name} while the applier is running; stop it",
            role=current.name,
        )
    if wanted not in _CHANGES[current]:
        raise Rejected(f"Invalid role change from {current.name} to {wanted.name}; go through NONE", role=current.name)
    return wanted
