"""Turn a MemoryError of Python, NumPy or Arrow inside a call into a typed error, with nothing half done (F103).

In a call of a transaction, a MemoryError ends the transaction (`Transaction.out_of_memory`). Any other call has changed
nothing, or continues where it stopped when it is repeated. A MemoryError in the user's own code is passed on unchanged.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tidemark.engine.base.errors import Error, MemoryExhausted, OutcomeUnknown

K = TypeVar("K")
F = TypeVar("F", bound=Callable[..., Any])
Meaning = Callable[[Any, MemoryError], Error]


def memory_error(error: MemoryError, what: str = "nothing was changed") -> MemoryExhausted:
    """Return the error for a call that ended with a MemoryError. what: what the call has changed, for the message."""
    said = f" ({error})" if str(error) else ""
    return MemoryExhausted(
        f"the process has no memory left for this call{said}; {what}; ask for less at once, or raise the memory limit"
        " of the process"
    )


def _unknown(_subject: Any, error: MemoryError) -> Error:
    return OutcomeUnknown(
        f"the process had no memory left for the rest of the call ({error!r}); the change was made completely or not"
        " at all; check which, and repeat the call if it was not made"
    )


def _meaning(subject: Any, error: MemoryError) -> Error:
    of_subject = getattr(subject, "out_of_memory", None)
    return memory_error(error) if of_subject is None else of_subject(error)


def _of_iterator(call: Callable[..., Iterator[Any]], meaning: Meaning) -> Callable[..., Iterator[Any]]:
    @functools.wraps(call)
    def typed(subject: Any, *arguments: Any, **options: Any) -> Iterator[Any]:
        try:
            yield from call(subject, *arguments, **options)
        except MemoryError as error:
            raise meaning(subject, error) from error

    return typed


def _of_call(call: Callable[..., Any], meaning: Meaning) -> Callable[..., Any]:
    @functools.wraps(call)
    def typed(subject: Any, *arguments: Any, **options: Any) -> Any:
        try:
            if options:
                return call(subject, *arguments, **options)
            return call(subject, *arguments)  # an empty dict to unpack costs as much as the rest of this function
        except MemoryError as error:
            raise meaning(subject, error) from error

    return typed


def types_memory_error(effect: str = "nothing was changed") -> Callable[[F], F]:
    """Decorate a function that users call: a MemoryError in it becomes MemoryExhausted. effect: see `memory_error`."""

    def decorate(call: F) -> F:
        @functools.wraps(call)
        def typed(*arguments: Any, **options: Any) -> Any:
            try:
                return call(*arguments, **options)
            except MemoryError as error:
                raise memory_error(error, effect) from error

        return typed  # type: ignore[return-value]  # of the same signature

    return decorate


def types_memory_errors(
    *also: str, exclude: tuple[str, ...] = (), read_only: tuple[str, ...] | None = None
) -> Callable[[type[K]], type[K]]:
    """Decorate a class that users call: a MemoryError in a public method is raised as the error that the instance's
    `out_of_memory` returns for it, or as MemoryExhausted if there is none.

    also: further methods to decorate, whose names begin with an underscore.
    exclude: methods to leave out, because they run code of users or handle a MemoryError themselves.
    read_only: for a class that changes data without a transaction, the methods that change nothing; in its other
        methods a MemoryError becomes OutcomeUnknown.
    """

    def decorate(kind: type[K]) -> type[K]:
        for name, member in list(vars(kind).items()):
            is_meant = name in also or (not name.startswith("_") and name not in (*exclude, "out_of_memory"))
            if is_meant and inspect.isfunction(member):
                wrap = _of_iterator if inspect.isgeneratorfunction(member) else _of_call
                setattr(kind, name, wrap(member, _meaning if read_only is None or name in read_only else _unknown))
        return kind

    return decorate
