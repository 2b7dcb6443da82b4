"""The store's first failure, kept for good.

After the first failed read, write or sync the contents of the disk are unknown. So the store is dead until it is opened
again: every later operation fails with the same class and the first cause, reads too (D12). Reads of disk pages are the
one exception: they end the call that needed the page (ADR 0010), and are not kept here.

Invariants: (F1) the first failure is never replaced; (F2) nothing runs between the moment the system reports a failure
and the moment it is stored. CPython runs signal handlers (which may raise KeyboardInterrupt) and switches threads only
at calls and backward jumps. So the layer that catches the failure stores a plain tuple into `first` with no call before
it; the error object is built afterwards, from that tuple.
"""

from __future__ import annotations

import errno

from tidemark.engine.base.errors import StoreFailed

# (class to raise, operation, file name, error of the system).
First = tuple[type[StoreFailed], str, str, BaseException | None]


class Failure:
    """The first failure of one store, shared by everything that touches its files."""

    # Slots, and no property for `first`: an assignment to it must be a bare attribute store (F2).
    __slots__ = ("_error", "first")

    def __init__(self) -> None:
        self.first: First | None = None
        self._error: StoreFailed | None = None

    @property
    def error(self) -> StoreFailed | None:
        """The first failure as an exception, or None while the store is alive."""
        if self.first is None:
            return None
        if self._error is None:
            kind, operation, name, cause = self.first
            if isinstance(cause, StoreFailed):
                self._error = cause
            else:
                self._error = kind(_message(operation, name, cause), operation=operation, file=name)
                self._error.__cause__ = cause
        return self._error

    def latch(self, error: StoreFailed) -> StoreFailed:
        """Store `error` as the first failure, unless there is one already. Return it, to be raised."""
        if self.first is None:
            self.first = (type(error), "", "", error)
        return error

    def check(self) -> None:
        """Raise the first failure again, as a new exception of the same class, if there is one."""
        if self.first is not None:
            raise self.again() from self.first[3]

    def again(self) -> StoreFailed:
        """Return a new exception with the class, message and evidence of the first failure."""
        error = self.error
        if error is None:
            raise ValueError("nothing has failed")
        # A new object each time: raising one exception in several threads would mix their tracebacks.
        return type(error)(error.message, **error.evidence)


def describe(cause: BaseException | None) -> str:
    """Return the system's error as one phrase with the name of its error number."""
    if isinstance(cause, OSError) and cause.errno is not None:
        return f"{errno.errorcode.get(cause.errno, cause.errno)} ({cause.strerror or 'no text'})"
    return str(cause)


def _message(operation: str, name: str, cause: BaseException | None) -> str:
    if cause is None:
        return f"{operation} while {name or 'the store'} was open; open the store again"
    return (
        f"{operation} of {name or 'the store directory'} failed: {describe(cause)}; close the store and open it again"
    )
