"""Any-values: the 32-bit tags that operations carry to the binlog, and their meaning there.

Bit 31 marks a reserved code. Otherwise the value is the id of the server from which the change was applied, 0 for a
change made here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tidemark.engine.log.redo_layout import ANY_VALUE_READ

RESERVED = 0x8000_0000
NO_LOGGING = 0x8000_007F
REFRESH = 0x8000_007E
REFLECT = 0x8000_007D
READ = ANY_VALUE_READ

FLAG_REFLECT = 1
FLAG_REFRESH = 2
FLAG_READ = 4

_CODES: Final = {
    NO_LOGGING: ("no logging", 0),
    REFRESH: ("refresh", FLAG_REFRESH),
    REFLECT: ("reflect", FLAG_REFLECT),
    READ: ("read", FLAG_READ),
}


class Meaning(NamedTuple):
    """The meaning of an any-value. server_id: the one to log the change with. is_replicated: the change was applied
    from another site.
    """

    name: str
    server_id: int
    conflict_flag: int
    is_logged: bool
    is_replicated: bool


def meaning_of(any_value: int, own_id: int, log_replica_updates: bool = False) -> Meaning:
    """Return the meaning of an any-value at the site `own_id`. An unknown reserved code is not logged, as in
    MySQL's server.
    """
    if any_value & RESERVED:
        name, flag = _CODES.get(any_value, ("unknown", 0))
        return Meaning(name, own_id, flag, bool(flag), False)
    if any_value == 0:
        return Meaning("local", own_id, 0, True, False)
    return Meaning("replicated", any_value, 0, log_replica_updates, True)
