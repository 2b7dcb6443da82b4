"""Delta debugging: the steps of a program that are needed for its fault, and as little in them as can be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
TRIES_MAX = 400


def fewest(parts: Sequence[T], fails: Callable[[list[T]], bool], tries: int = TRIES_MAX) -> list[T]:
    """Return parts, in their order, with which `fails` holds, so that it does not without any one of them (as far as
    `tries` calls show).
    """
    left, size = list(parts), max(1, len(parts) // 2)
    while left and tries > 0:
        begin, has_shrunk = 0, False
        while begin < len(left) and tries > 0:
            fewer = left[:begin] + left[begin + size :]
            tries -= 1
            if fails(fewer):
                left, has_shrunk = fewer, True
            else:
                begin += size
        if not has_shrunk and size == 1:
            break
        if not has_shrunk:
            size = max(1, size // 2)
    return left


def minimised(steps: Sequence[Any], label: str, run: Callable[[list[Any]], str | None]) -> list[tuple[int, Any]]:
    """Return the steps that are needed for a fault with this label, each with its number.

    run: returns the label of the fault that a list of steps ends with, None if there is none.
    """
    numbered = list(enumerate(steps))
    kept = fewest(numbered, lambda some: run([step for _, step in some]) == label)
    return _without_inner(kept, label, run)


def _without_inner(kept: list[tuple[int, Any]], label: str, run: Callable[[list[Any]], str | None]) -> list[Any]:
    """Drop rows of batches and steps of transactions that are not needed."""
    for place, (number, step) in enumerate(kept):
        if step[0] == "create_table":
            continue

        def fails(other: Any, place: int = place) -> bool:
            return run([other if here == place else each for here, (_, each) in enumerate(kept)]) == label

        kept[place] = number, _smaller(step, fails)
    return kept


def _smaller(part: Any, fails: Callable[[Any], bool]) -> Any:
    """Return a step, or a list or tuple in one, with shorter lists in it."""
    if isinstance(part, list) and len(part) > 1:
        part = fewest(part, fails, 60)
    for place, each in enumerate(part):
        if type(each) in (list, tuple):
            part = _put(part, place, _smaller(each, partial(_fails_with, part, place, fails)))
    return part


def _put(part: Any, place: int, other: Any) -> Any:
    return type(part)([*part[:place], other, *part[place + 1 :]])


def _fails_with(part: Any, place: int, fails: Callable[[Any], bool], other: Any) -> bool:
    return fails(_put(part, place, other))
