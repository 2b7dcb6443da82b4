"""A weak reference to the owner: how a part of a store calls the object that owns it.

A store is a few hundred objects and one arena of up to many gigabytes. If its objects form a cycle, the arena outlives
the last reference to the store until the cyclic garbage collector runs, which counts objects, not bytes. So owners hold
their parts, and a part calls its owner through `call_owner`, which holds no reference.

Two cases are left to the collector: a store dropped with open transactions, and one that failed, because the traceback
of its first failure holds the frames it went through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, ParamSpec, TypeVar
from weakref import WeakMethod

from tidemark.engine.base.errors import StoreClosed, Unsupported

P = ParamSpec("P")
R = TypeVar("R")


def call_owner(method: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls a bound method without keeping the object of the method alive.

    The function raises StoreClosed once that object is gone: a thread of the part may briefly outlive the store.
    """
    reference = WeakMethod(method)

    def call(*args: P.args, **keywords: P.kwargs) -> R:
        found = reference()
        if found is None:
            raise StoreClosed(
                "the Database was garbage-collected without close(); keep a reference to it, and close it"
            )
        return found(*args, **keywords)

    return call


def refuse_pickling(part: object, protocol: object) -> NoReturn:
    """The `__reduce_ex__` of what belongs to an open store."""
    raise Unsupported(f"a {type(part).__name__} of an open store cannot be pickled; send db.locator and open that")
