"""A call of a class of this process as a call that another process executes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidemark.engine.base.errors import Rejected

P = ParamSpec("P")
R = TypeVar("R")


def forwarded(method: Callable[Concatenate[Any, P], R], *without: str) -> Callable[Concatenate[Any, P], R]:
    """Return a method with the docstring of `method`, and its signature without some arguments: a function cannot be
    sent. It returns `self._forward(name, arguments, named)`.
    """
    name = method.__name__
    signature = inspect.signature(method)
    signature = signature.replace(parameters=[each for key, each in signature.parameters.items() if key not in without])

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            result: R = self._forward(name, list(arguments), named)
        except Rejected:
            # Only now: to compare each call with the signature would take a part of its time.
            signature.bind(self, *arguments, **named)  # Raises: TypeError
            raise
        return result

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
