"""Methods whose calls are sent to another process, which executes them."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidemark.engine.base.errors import Rejected

P = ParamSpec("P")
R = TypeVar("R")


def forwarded(method: Callable[Concatenate[Any, P], R], *without: str) -> Callable[Concatenate[Any, P], R]:
    """Return a method that calls `self._forward(name, arguments, named)` and returns its result.

    It has the docstring and the signature of `method`, except for the arguments named in `without`: they take
    functions, which cannot be sent.
    """
    name = method.__name__
    signature = inspect.signature(method)
    signature = signature.replace(parameters=[each for key, each in signature.parameters.items() if key not in without])

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            result: R = self._forward(name, list(arguments), named)
        except Rejected:
            # Compared with the signature only after a rejection: a comparison would slow every call.
            signature.bind(self, *arguments, **named)  # Raises: TypeError
            raise
        return result

    call.__signature__ = signature  # type: ignore[attr-defined]
    for each in without:
        call.__doc__ = _without(call.__doc__ or "", each)
    return call


def _without(docstring: str, argument: str) -> str:
    """Return a docstring without an argument in its `Args`, and without `Args` if that was the only one."""
    left = re.sub(rf"^( +){argument}: .*\n(?:\1 +.*\n)*", "", docstring, flags=re.MULTILINE)
    return re.sub(r"^ +Args:\n\n", "", left, flags=re.MULTILINE)
