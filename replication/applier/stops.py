"""Errors that stop an applier, with the position of the event. Their class is in the evidence as `stop`, in addition to
the type of the error.
"""

from __future__ import annotations

from enum import Enum

from tidemark.engine.base.errors import PeerError, Rejected, Unsupported
from tidemark.replication.binlog.position import Position


class Stop(Enum):
    """Classes of errors; the names are those in MySQL's tests."""

    CORRUPT_EVENT = "REPLICA_CORRUPT_EVENT"
    CONFIGURATION = "REPLICA_CONFIGURATION"
    EXCEPTIONS_WRITE = "EXCEPTIONS_WRITE_ERROR"
    OUT_OF_ORDER = "EPOCH_OUT_OF_ORDER"
    OTHER = "OTHER"


def corrupt_event(origin: Position, what: str, stop: Stop = Stop.CORRUPT_EVENT) -> PeerError:
    """Return the error for an event of the source that cannot be applied."""
    text = f"{origin.text}: {what}; the applier stops, check the source"
    return PeerError(text, **origin._asdict(), stop=stop)


def misconfigured(origin: Position, what: str) -> Rejected:
    """Return the error for an event that cannot be applied with the settings of this site."""
    return Rejected(f"{origin.text}: {what}", **origin._asdict(), stop=Stop.CONFIGURATION)


def cannot_refresh(table: str, column: str) -> Unsupported:
    """Return the error for a rejected transaction with rows that cannot be refreshed."""
    return Unsupported(
        f"a rejected transaction has changed rows of {table}, which cannot be refreshed because of its column {column};"
        " the applier stops, keep such tables out of transactions with tables that have transactional functions",
        table=table,
        column=column,
        stop=Stop.EXCEPTIONS_WRITE,
    )


def located(error: Rejected, origin: Position) -> Rejected:
    """Return the error with the position of the event that caused it."""
    if "file" in error.evidence:
        return error
    return type(error)(f"{origin.text}: {error.message}", **{**error.evidence, **origin._asdict()})
