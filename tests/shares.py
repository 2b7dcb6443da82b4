"""Long enumerations: `make test` takes a share of their points, the same ones in every run; `pytest --whole` takes all,
and so does `make soak`.

The share reaches every line that the whole reaches (docs/tests.md says how that is compared).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")
# Set by `pytest --whole` (tests/conftest.py), also for the processes it starts.
VARIABLE = "TIDEMARK_WHOLE_TESTS"


def is_whole() -> bool:
    """Whether all points are taken."""
    return os.environ.get(VARIABLE) == "1"


def few(count: int, whole: int) -> int:
    """How many of something: `count` in `make test`."""
    return whole if is_whole() else count


def share(part: float) -> float:
    """The part that is taken, 1 for all."""
    return 1.0 if is_whole() else part


def some(points: Iterable[T], part: float) -> list[T]:
    """This part of the points, evenly spread, the first one among them."""
    every = list(points)
    count = max(1, round(len(every) * share(part)))
    return [every[place * len(every) // count] for place in range(count)]
