"""Calls made from other calls: each has the signature and the docstring of the call that it is made from.

A docstring stands once, at the implementation. What differs in a face is left out or put in its form: an argument that
it does not take, and how the example reaches the call.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar

from tidemark.engine.base.errors import Rejected

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Text = Callable[[str], str]

_EXAMPLES = "\n\nExamples:\n"
_OF_TXN = re.compile(r'\btxn\.(\w+)\("item", ')
_OF_HANDLE = re.compile(r'\bdb\["item"\]\.(\w+)\((\)?)')


# --- docstrings ----------------------------------------------------------------------------------
def for_table(text: str) -> str:
    """Return a docstring of `Transaction` for a table: its example needs no transaction."""
    text, section, examples = text.partition(_EXAMPLES)
    examples = re.sub(r"^ +>>> with db\.transaction\(\) as txn:\n", "", examples, flags=re.MULTILINE)
    examples = re.sub(r"^( +)\.\.\.     (?=txn\.)", r"\1>>> ", examples, flags=re.MULTILINE)
    return text + section + _OF_TXN.sub(r'db["item"].\1(', examples)


def for_table_in_transaction(text: str) -> str:
    """Return a docstring of `Transaction` for a table in a transaction."""
    text, section, examples = text.partition(_EXAMPLES)
    return text + section + _OF_TXN.sub(r'txn.table("item").\1(', examples)


def for_transaction(text: str) -> str:
    """Return a docstring of a table for `Transaction`, whose calls name the table."""
    text, section, examples = text.partition(_EXAMPLES)
    examples = _OF_HANDLE.sub(lambda found: f'txn.{found[1]}("item"' + (found[2] or ", "), examples)
    return f"{text}{section}    >>> txn = db.transaction()\n{examples}"


def of_scan(text: str) -> str:
    """Return a docstring of `Scan` for a table, whose calls take the arguments of `scan`: `.scan(x).sum(y)` in its
    examples becomes `.sum(y, x)`.
    """
    text, section, examples = text.partition(_EXAMPLES)
    text += "\n\nThe other arguments are those of `scan`, and so are their errors."
    done = ""
    while ".scan(" in examples:
        before, _, examples = examples.partition(".scan(")
        given, examples = _inside(examples)
        name, _, examples = examples.partition("(")
        own, examples = _inside(examples)
        done += f"{before}{name}({', '.join(filter(None, (own, given)))})"
    return text + section + done + examples


def _inside(text: str) -> tuple[str, str]:
    """Return what is before the parenthesis that closes the one before the text, and what is after it."""
    depth = 1
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return text[:at], text[at + 1 :]
    return text, ""


def without(text: str, argument: str) -> str:
    """Return a docstring without an argument in its `Args`, and without `Args` if that was the only one."""
    left = re.sub(rf"^( +){argument}: .*\n(?:\1 +.*\n)*", "", text, flags=re.MULTILINE)
    return re.sub(r"^ *Args:\n\n", "", left, flags=re.MULTILINE)


def described(method: Callable[..., Any], text: Text = str) -> Callable[[F], F]:
    """Decorate a call that is written out: it has the docstring of `method`, in the form of its face."""

    def decorate(call: F) -> F:
        call.__doc__ = text(inspect.getdoc(method) or "")
        return call

    return decorate


# --- calls ---------------------------------------------------------------------------------------
def own_transaction(method: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return the call of a table that makes this call of `Transaction` as a transaction of its own."""
    first, _, *others = inspect.signature(method).parameters.values()
    signature = inspect.signature(method).replace(parameters=[first, *others])

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            result: R = self._in_own_transaction(method, *arguments, **named)
        except TypeError:
            signature.bind(self, *arguments, **named)  # Raises: TypeError, which counts no table
            raise
        return result

    call.__signature__ = signature  # type: ignore[attr-defined]
    return described(method, for_table)(call)


def in_transaction(method: Callable[Concatenate[Any, str, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return the call of a table in a transaction that is this call of the transaction."""
    name = method.__name__
    first, _, *others = inspect.signature(method).parameters.values()

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        result: R = getattr(self._txn, name)(self.name, *arguments, **named)
        return result

    call.__signature__ = inspect.signature(method).replace(parameters=[first, *others])  # type: ignore[attr-defined]
    return described(method, for_table_in_transaction)(call)


def of_table(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, str, P], R]:
    """Return the call of a transaction that makes this call of a table, of the rows that the transaction sees."""
    first, *others = inspect.signature(method).parameters.values()
    table = inspect.Parameter("table", inspect.Parameter.POSITIONAL_ONLY, annotation="str")
    positional = first.replace(kind=inspect.Parameter.POSITIONAL_ONLY)

    @functools.wraps(method)
    def call(self: Any, table: str, /, *arguments: P.args, **named: P.kwargs) -> R:
        # All that such a call needs of a table.
        return method(SimpleNamespace(scan=functools.partial(self.scan, table)), *arguments, **named)

    returned = inspect.signature(method).return_annotation
    signature = inspect.Signature([positional, table, *others], return_annotation=returned)
    call.__signature__ = signature  # type: ignore[attr-defined]
    return described(method, for_transaction)(call)


def passed(method: Callable[Concatenate[Any, P], R], to: str) -> Callable[Concatenate[Any, P], R]:
    """Return the call of an object that is this call of a part of it, the attribute `to`."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: Any, /, *arguments: P.args, **named: P.kwargs) -> R:
        result: R = getattr(getattr(self, to), name)(*arguments, **named)
        return result

    return call


def forwarded(method: Callable[Concatenate[Any, P], R], *unsent: str) -> Callable[Concatenate[Any, P], R]:
    """Return a call that another process makes: `self._forward(name, arguments, named)` sends it.

    It does not take the arguments `unsent`, which are functions and cannot be sent.
    """
    name = method.__name__
    signature = inspect.signature(method)
    signature = signature.replace(parameters=[each for key, each in signature.parameters.items() if key not in unsent])

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
    return described(method, lambda text: functools.reduce(without, unsent, text))(call)
