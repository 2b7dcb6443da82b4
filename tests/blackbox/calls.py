"""The public calls that no program makes: `python -m tests.blackbox calls` runs some programs and lists what they left.

A public call is a function of `tidemark`, or a method of one of its classes, whose docstring has an example.
"""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import tidemark as tm
from tests.blackbox import histories, judge, programs

SEEDS, LENGTH = range(10), 400
HISTORY_TRANSACTIONS = 100
MAPPING = frozenset("__getitem__ __setitem__ __delitem__ __contains__ __iter__ __len__ __arrow_c_stream__".split())


def _classes() -> dict[str, type]:
    import tidemark.aio

    found = {name: getattr(tm, name) for name in dir(tm) if name[0] != "_"}
    classes = {name: each for name, each in found.items() if isinstance(each, type) and not issubclass(each, Exception)}
    asynchronous = {name: each for name, each in vars(tidemark.aio).items() if inspect.isclass(each)}
    own = {name: each for name, each in asynchronous.items() if each.__module__ == "tidemark.aio" and name[0] != "_"}
    return {**classes, **{f"aio.{name}": each for name, each in own.items()}}


def _methods(kind: type) -> list[str]:
    """Return the names of a class's public calls."""
    names = []
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        inner = getattr(found, "__func__", found)
        is_awaited = type(found).__name__ == "Awaited"
        if not (isinstance(inner, FunctionType) or is_awaited):
            continue
        if name in MAPPING or is_awaited or (name[0] != "_" and "Examples:" in _text(kind, name)):
            names.append(name)
    return names


def _text(kind: type, name: str) -> str:
    return next((doc for each in kind.__mro__ if (doc := getattr(vars(each).get(name), "__doc__", None))), "")


class _Noted:
    """A method of `tm.aio` that is noted when it is called."""

    def __init__(self, inner: Any, name: str, made: set[tuple[type, str]]) -> None:
        self._inner, self._name, self._made = inner, name, made

    def __get__(self, owner: Any, kind: type) -> Any:
        self._made.add((kind, self._name))
        return self._inner.__get__(owner, kind)


@contextmanager
def _recorded() -> Iterator[set[tuple[type, str]]]:
    """Within the block, note each public method that is called, with the class of its object."""
    made: set[tuple[type, str]] = set()
    undo: list[tuple[type, str, Any]] = []

    def wrap(owner: type, name: str, function: Any) -> None:
        @functools.wraps(function)
        def noted(self: Any, *arguments: Any, **named: Any) -> Any:
            made.add((type(self), name))
            return function(self, *arguments, **named)

        undo.append((owner, name, function))
        setattr(owner, name, noted)

    classes = _classes()
    seen: set[tuple[type, str]] = set()
    for kind in classes.values():
        for name in _methods(kind):
            owner = next(each for each in kind.__mro__ if name in vars(each))
            found = vars(owner)[name]
            if (owner, name) in seen:
                continue
            seen.add((owner, name))
            if isinstance(found, FunctionType):
                wrap(owner, name, found)
            elif type(found).__name__ == "Awaited":
                undo.append((owner, name, found))
                setattr(owner, name, _Noted(found, name, made))
    try:
        yield made
    finally:
        for owner, name, function in undo:
            setattr(owner, name, function)


def missing() -> dict[str, list[str]]:
    """Return the public calls that programs and a history do not make, by class."""
    with _recorded() as made:
        for seed in SEEDS:
            steps, options = programs.make(seed, LENGTH)
            fault = judge.run(steps, options)
            assert fault is None, f"seed {seed}: {fault}"
        with tempfile.TemporaryDirectory() as folder:
            histories.in_threads(folder, 1, HISTORY_TRANSACTIONS)
    found = {}
    for name, kind in _classes().items():
        called = {method for each, method in made if issubclass(each, kind)}
        if left := [method for method in _methods(kind) if method not in called]:
            found[name] = left
    return found


def report() -> str:
    """Return what is missing, a line for each class."""
    left = missing()
    lines = [f"the oracle calls none of {name}: {', '.join(methods)}" for name, methods in sorted(left.items())]
    return "\n".join([*lines, f"the oracle: {sum(map(len, left.values()))} public calls that no program makes"])
