"""The decision of each conflict function about an incoming change: one table of decisions, and their effect on a batch.

A function consists of an operation, an optional program that examines the stored row, and the cause and handling of
each failure. `decide` returns the line of the table for (function, role, reflected, kind); the applier runs the
operation and looks up the failure. A batch has changes of one table and kind. No key occurs twice in it, so its rows do
not affect each other, and no Python code runs per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Final

import numpy as np

from tidemark.engine.base.errors import Rejected
from tidemark.replication.settings.conflict_function import FunctionDefinition, Role
from tidemark.replication.settings.exceptions_table import Cause

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]
    Codes = NDArray[np.int8]


class Kind(Enum):
    """Kind of an incoming row event."""

    WRITE = "write"
    UPDATE = "update"
    DELETE = "delete"
    READ = "read"  # an update that sets nothing: a tracked read


class Operation(Enum):
    """Natural operation."""

    INSERT = "insert"  # EXISTS if the key exists
    UPSERT = "upsert"
    UPDATE = "update"  # MISSING if the key does not exist
    DELETE = "delete"


class Check(Enum):
    """The program that examines the stored row; the change fails as REFUSED if it does not accept the row."""

    NONE = "none"
    EQUAL = "event's before-value = column"
    GREATER = "event's after-value > column"
    EPOCH = "author is a replica, or row epoch <= max replicated epoch"
    AUTHOR = "author is a replica"
    GREATEST = "event's after-value, then after-image, then site is greater"


class Failure(Enum):
    """The ways in which an operation can fail without stopping the applier."""

    REFUSED = "the program refused the row"
    REFRESHED = "the row was refreshed earlier in the same epoch transaction"
    EXISTS = "the key, or a unique key, exists"
    MISSING = "no row has the key"


@dataclass(frozen=True)
class Handling:
    """The handling of a failure; all False: it is ignored.

    `is_counted`: the function's counter counts it. `is_refreshed`: the row's current state, or its absence, is sent
    back. `is_logged`: an exceptions row is written. `is_delete_delete`, `is_discard`: it is counted as such. `marks`:
    its transaction is rejected.
    """

    cause: Cause | None = None
    is_counted: bool = False
    is_refreshed: bool = False
    is_logged: bool = False
    is_delete_delete: bool = False
    is_discard: bool = False
    marks: bool = False


@dataclass(frozen=True)
class Decision:
    """One line of the table. `reflects`: applied changes are tagged, so that they return to the secondary. `wins_keys`:
    a row that has the change's key in a unique index when the epoch transaction ends is deleted; otherwise the change
    fails.
    """

    operation: Operation
    check: Check
    failures: Mapping[Failure, Handling]
    reflects: bool = False
    wins_keys: bool = False

    @property
    def needs_before(self) -> bool:
        """Whether the resolve column must be in the before-image."""
        return self.check is Check.EQUAL

    @property
    def needs_after(self) -> bool:
        """Whether the resolve column must be in the after-image."""
        return self.check in (Check.GREATER, Check.GREATEST)

    @property
    def sends_back_taken(self) -> bool:
        """Whether this site's row is sent back if another row has a unique key of the change."""
        return Failure.EXISTS in self.failures and self.failures[Failure.EXISTS].is_refreshed

    @property
    def needs_all_after(self) -> bool:
        """Whether all columns must be in the after-image."""
        return self.check is Check.GREATEST


IGNORED: Final = Handling()
DISCARDED: Final = Handling(is_discard=True)
CAUSES: Final = {
    Failure.REFUSED: Cause.DATA_IN_CONFLICT,
    Failure.REFRESHED: Cause.DATA_IN_CONFLICT,
    Failure.EXISTS: Cause.ROW_ALREADY_EXISTS,
    Failure.MISSING: Cause.ROW_DOES_NOT_EXIST,
}
NATURAL: Final = {
    Kind.WRITE: Operation.INSERT,
    Kind.UPDATE: Operation.UPDATE,
    Kind.DELETE: Operation.DELETE,
    Kind.READ: Operation.UPDATE,
}

# The checks of a write, an update and a delete. A write with a check replaces the row that it wins over.
_VALUE_CHECKS: Final = {
    "NDB$OLD": (Check.NONE, Check.EQUAL, Check.EQUAL),
    "NDB$MAX": (Check.NONE, Check.GREATER, Check.EQUAL),
    "NDB$MAX_DELETE_WIN": (Check.NONE, Check.GREATER, Check.NONE),
    "NDB$MAX_INS": (Check.GREATER, Check.GREATER, Check.EQUAL),
    "NDB$MAX_DEL_WIN_INS": (Check.GREATER, Check.GREATER, Check.NONE),
    "TM$GREATEST": (Check.GREATEST, Check.GREATEST, Check.NONE),
}


def _failures(operation: Operation, check: Check, handling: Handling) -> dict[Failure, Handling]:
    """Return the failures that an operation with a program can have, each with its cause."""
    possible = {
        Failure.REFUSED: check is not Check.NONE,
        Failure.REFRESHED: True,
        Failure.EXISTS: True,  # also of an update or delete, by a unique key
        Failure.MISSING: operation in (Operation.UPDATE, Operation.DELETE),
    }
    return {each: replace(handling, cause=CAUSES[each]) for each, can_be in possible.items() if can_be}


def _by_value(definition: FunctionDefinition, kind: Kind) -> Decision:
    # A tracked read changes no column, so there is no value to compare; it is applied as without a function.
    if kind is Kind.READ:
        return plain(kind)
    check = _VALUE_CHECKS[definition.name][(Kind.WRITE, Kind.UPDATE, Kind.DELETE).index(kind)]
    operation = Operation.UPSERT if kind is Kind.WRITE and check is not Check.NONE else NATURAL[kind]
    return Decision(operation, check, _failures(operation, check, Handling(is_counted=True, is_logged=True)))


def _by_epoch(definition: FunctionDefinition, kind: Kind) -> Decision:
    operation = NATURAL[kind]
    check = Check.NONE if kind is Kind.WRITE else Check.EPOCH
    handling = Handling(is_counted=True, is_refreshed=True, is_logged=True, marks=definition.is_transactional)
    failures = _failures(operation, check, handling)
    failures[Failure.REFRESHED] = replace(failures[Failure.REFRESHED], is_refreshed=False)
    if kind is Kind.DELETE:
        failures[Failure.MISSING] = replace(
            failures[Failure.MISSING],
            is_refreshed=False,
            is_delete_delete=True,
            marks=definition.is_transactional and definition.is_delete_delete_conflict,
        )
    return Decision(operation, check, failures, reflects=definition.has_roles)


def _on_secondary(kind: Kind, is_reflected: bool) -> Decision:
    if not is_reflected:
        operation = Operation.DELETE if kind is Kind.DELETE else Operation.UPSERT
        failures = {Failure.MISSING: IGNORED} if kind is Kind.DELETE else {}
        return Decision(operation, Check.NONE, failures, wins_keys=True)
    operation = NATURAL[kind]
    check = Check.NONE if kind is Kind.WRITE else Check.AUTHOR
    return Decision(operation, check, dict.fromkeys(Failure, DISCARDED), wins_keys=True)


@cache
def plain(kind: Kind) -> Decision:
    """Return the decision without a function: writes replace, and a missing row is ignored."""
    if kind is Kind.WRITE:
        return Decision(Operation.UPSERT, Check.NONE, {}, wins_keys=True)
    return Decision(NATURAL[kind], Check.NONE, {Failure.MISSING: IGNORED}, wins_keys=True)


@cache
def decide(definition: FunctionDefinition | None, role: Role, is_reflected: bool, kind: Kind) -> Decision:
    """Return the decision for a change. Raises: Rejected if the function needs a role and the site has none."""
    if definition is None:
        return plain(kind)
    if not definition.is_epoch:
        return _by_value(definition, kind)
    if not definition.has_roles:
        return _by_epoch(definition, kind)
    if role == Role.NONE:
        raise Rejected(
            f"{definition.name} needs a conflict role and the role of this site is NONE; set PRIMARY or SECONDARY"
        )
    if role == Role.PASS:
        return plain(kind)
    return _by_epoch(definition, kind) if role == Role.PRIMARY else _on_secondary(kind, is_reflected)


APPLIED: Final = 0
CODES: Final = {failure: code for code, failure in enumerate(Failure, 1)}
FAILURES: Final = {code: failure for failure, code in CODES.items()}


def rows_with(decision: Decision, codes: Codes, what: str) -> Mask:
    """Return the rows whose failure is handled with the flag `what`, such as `is_refreshed`."""
    wanted = [CODES[failure] for failure, handling in decision.failures.items() if getattr(handling, what)]
    return np.isin(codes, np.array(wanted, dtype=np.int8))


def unhandled(decision: Decision, codes: Codes) -> Mask:
    """Return the rows that fail in a way that the decision does not handle: the applier stops."""
    known = [APPLIED, *(CODES[failure] for failure in decision.failures)]
    return ~np.isin(codes, np.array(known, dtype=np.int8))
