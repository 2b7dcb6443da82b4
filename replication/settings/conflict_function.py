"""Conflict functions: the grammar of `conflict_fn`, the properties of each function, extra GCI bits, and roles.

The grammar is `NAME ( argument )` with blanks anywhere between tokens. Names are compared case-sensitively, as
prefixes, in the order of `FUNCTIONS`. Error texts are the server's.

`NDB$EPOCH(n)` compares row epochs of which NDB stores the high word and n low bits: `low = min(low, 2**n - 1)`, and the
largest value reads as all ones. Rows here store the whole epoch. Reading it as NDB would gives the results of NDB.
Saturation errs towards "newer", and so towards a conflict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal

from tidemark.engine.base.errors import Rejected, SchemaInvalid, ValueOutOfRange
from tidemark.replication.settings.finding import ER_CONFLICT_FN_PARSE, Finding

BITS_DEFAULT = 6
BITS_MAX = 31
LOW_MASK = 0xFFFF_FFFF


def saturated_from(bits: int) -> int:
    """Return the smallest low word that reads as all ones."""
    if not 0 <= bits <= BITS_MAX:
        raise ValueOutOfRange(f"the number of extra GCI bits must be 0 to {BITS_MAX}, got {bits}")
    return (1 << bits) - 1


def bits_needed(gcp_interval_ms: int, epoch_interval_ms: int) -> int:
    """Return ceil(log2(epochs in an interval of global checkpoints)): 2000 ms and 100 ms need 5 bits."""
    epochs = -(-gcp_interval_ms // epoch_interval_ms)
    return max(epochs - 1, 0).bit_length()


def sizing_warning(bits: int, gcp_interval_ms: int, epoch_interval_ms: int) -> Finding | None:
    """Return a warning if there are too few bits; None if there are enough."""
    needed = bits_needed(gcp_interval_ms, epoch_interval_ms)
    if bits >= needed:
        return None
    if bits == 0:
        text = "low epoch resolution: with 0 extra Gci bits a row is in conflict until the next GCI is confirmed"
        return Finding("low epoch resolution", f"{text}; give {needed} or more")
    text = (
        f"{bits} extra Gci bits tell {(1 << bits) - 1} epochs of a GCI apart, but {gcp_interval_ms} ms at"
        f" {epoch_interval_ms} ms make more: expect false conflicts, or give {needed} or more"
    )
    return Finding("too few extra Gci bits", text)


COLUMN: Final = "column"
BITS: Final = "bits"


@dataclass(frozen=True)
class FunctionDefinition:
    """The properties of a conflict function.

    `argument`: a column name, or a number of extra GCI bits, which may be omitted. `counter`: the status variable that
    counts its row conflicts. `is_epoch`: it compares epochs, and realigns the source by refreshing rejected rows.
    `is_transactional`: it rejects whole transactions. `has_roles`: it depends on the conflict role of the site.
    `is_delete_delete_conflict`: if it is transactional, deleting a missing row rejects the transaction.
    `wants_exceptions_table`: set-up warns if no usable exceptions table exists. `decides_inserts`: an insert of a row
    that exists is compared, not refused. `ignores_old_value`: a delete does not depend on the column's value before it.
    """

    name: str
    argument: Literal["column", "bits"]
    counter: str
    is_epoch: bool = False
    is_transactional: bool = False
    has_roles: bool = False
    is_delete_delete_conflict: bool = False
    wants_exceptions_table: bool = False
    decides_inserts: bool = False
    ignores_old_value: bool = False


# In the order in which names are tried: a name comes before each of its own prefixes.
FUNCTIONS: Final = (
    FunctionDefinition("NDB$MAX_INS", COLUMN, "conflict_fn_max_ins", decides_inserts=True),
    FunctionDefinition(
        "NDB$MAX_DEL_WIN_INS", COLUMN, "conflict_fn_max_del_win_ins", decides_inserts=True, ignores_old_value=True
    ),
    FunctionDefinition("NDB$MAX_DELETE_WIN", COLUMN, "conflict_fn_max_del_win", ignores_old_value=True),
    FunctionDefinition("NDB$MAX", COLUMN, "conflict_fn_max"),
    FunctionDefinition("NDB$OLD", COLUMN, "conflict_fn_old", wants_exceptions_table=True),
    FunctionDefinition("NDB$EPOCH2_TRANS", BITS, "conflict_fn_epoch2_trans", True, True, True, True, True),
    FunctionDefinition("NDB$EPOCH2", BITS, "conflict_fn_epoch2", True, False, True, False, True),
    FunctionDefinition("NDB$EPOCH_TRANS", BITS, "conflict_fn_epoch_trans", True, True, False, False, True),
    FunctionDefinition("NDB$EPOCH", BITS, "conflict_fn_epoch", True, False, False, False, True),
    FunctionDefinition("TM$GREATEST", COLUMN, "conflict_fn_greatest", decides_inserts=True, ignores_old_value=True),
)
BY_NAME: Final = {function.name: function for function in FUNCTIONS}

UNKNOWN = "unknown conflict resolution function"
NO_OPENING = "missing '('"
NO_ARGUMENT = "missing function argument"
NO_CLOSING = "missing ')'"
TOO_MANY_BITS = "Too many extra Gci bits"
NO_NUMBER = "extra Gci bits are no number"  # not a text of the server, which reads an invalid number as 0
GARBAGE = "garbage in the end"

_NUMBER = re.compile(r"([+-]?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|(?P<octal>0[0-7]*)|(?P<decimal>[1-9][0-9]*))")
_DIGITS_MAX = 20  # Python refuses to read numbers of thousands of digits


@dataclass(frozen=True)
class ConflictFunction:
    """A parsed `conflict_fn`; `argument` is a column name, a number of bits, or None if it was omitted."""

    definition: FunctionDefinition
    argument: str | int | None

    @property
    def name(self) -> str:
        """The name, such as NDB$MAX."""
        return self.definition.name

    @property
    def column(self) -> str:
        """The resolve column. Raises: SchemaInvalid for a function of epochs."""
        if not isinstance(self.argument, str):
            raise SchemaInvalid(f"{self.name} has no resolve column")
        return self.argument

    @property
    def bits(self) -> int:
        """Extra GCI bits, the default if none were given. Raises: SchemaInvalid for a function of a column."""
        if isinstance(self.argument, str):
            raise SchemaInvalid(f"{self.name} compares a column and has no extra GCI bits")
        return BITS_DEFAULT if self.argument is None else self.argument


def _refuse(spec: str, reason: str, rest: str) -> SchemaInvalid:
    return SchemaInvalid(f"{spec}, {reason} at '{rest}'", reason=reason, at=rest, errno=ER_CONFLICT_FN_PARSE)


def _number(spec: str, argument: str, rest: str) -> int:
    """Return the argument, read as C does: 0x is hexadecimal, 0 octal. A negative number wraps, and so is too large."""
    matched = _NUMBER.fullmatch(argument)
    if matched is None:
        raise _refuse(spec, NO_NUMBER, rest)
    base = {"hex": 16, "octal": 8, "decimal": 10}.get(matched.lastgroup or "", 10)
    digits = matched[matched.lastgroup or 0].lstrip("0")
    value = int(digits or "0", base) if len(digits) <= _DIGITS_MAX else BITS_MAX + 1
    if value > BITS_MAX or (matched[1] == "-" and value):
        raise _refuse(spec, TOO_MANY_BITS, rest)
    return value


def parse(spec: str) -> ConflictFunction:
    """Return the function that a `conflict_fn` names. Raises: SchemaInvalid with `reason`, `at` and `errno` 1626."""
    rest = spec.lstrip(" ")
    definition = next((each for each in FUNCTIONS if rest.startswith(each.name)), None)
    if definition is None:
        raise _refuse(spec, UNKNOWN, rest)
    rest = rest[len(definition.name) :].lstrip(" ")
    if not rest.startswith("("):
        raise _refuse(spec, NO_OPENING, rest)
    rest = rest[1:].lstrip(" ")
    end = min(at for at in (rest.find(")"), rest.find(" "), len(rest)) if at >= 0)
    text, rest = rest[:end], rest[end:]
    argument: str | int | None = None
    if text:
        argument = text if definition.argument == COLUMN else _number(spec, text, rest)
    elif definition.argument == COLUMN:
        raise _refuse(spec, NO_ARGUMENT, rest)
    rest = rest.lstrip(" ")
    if not rest.startswith(")"):
        raise _refuse(spec, NO_CLOSING, rest)
    rest = rest[1:].lstrip(" ")
    if rest:
        raise _refuse(spec, GARBAGE, rest)
    return ConflictFunction(definition, argument)


def compares_epochs(spec: str | None) -> bool:
    """Return whether a `conflict_fn` names a function that compares epochs and authors of rows."""
    try:
        return spec is not None and parse(spec).definition.is_epoch
    except SchemaInvalid:
        return False


class Role(IntEnum):
    """How a site handles changes to tables with NDB$EPOCH2 or NDB$EPOCH2_TRANS."""

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
    """Return the role after the change; setting the current role again is always allowed. Raises: Rejected."""
    if current == wanted:
        return wanted
    if wanted not in _CHANGES[current]:  # before the other check: stopping the applier would not help
        raise Rejected(f"Invalid role change from {current.name} to {wanted.name}; go through NONE", role=current.name)
    if is_running:
        raise Rejected(
            f"Cannot change conflict role from {current.name} to {wanted.name} while the applier is running; stop it",
            role=current.name,
        )
    return wanted
