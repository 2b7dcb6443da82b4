"""Kernels as plain Python, with every index checked: `make interpreted`, a plugin of pytest.

Compiled code reads and writes out of bounds in silence, counts a negative index from the end, and cuts what does not
fit into a narrow word. Here each is an error, and coverage sees which lines of the kernels the tests run. Numbers are
64-bit words that wrap, as they are compiled.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

os.environ["NUMBA_DISABLE_JIT"] = "1"  # before numba is imported, by the floor below

import numpy as np

import engine.kernels

Function = Callable[..., Any]


class Checked(np.ndarray[Any, Any]):
    """An array of a kernel."""

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(self._inside(at))

    def __setitem__(self, at: Any, value: Any) -> None:
        if self.itemsize < 8 and not isinstance(value, np.ndarray):
            limits = np.iinfo(self.dtype)
            if not limits.min <= value <= limits.max:
                raise OverflowError(f"{value} is stored into {self.dtype}")
        super().__setitem__(self._inside(at), value)

    def _inside(self, at: Any) -> Any:
        """The index, if it is in bounds."""
        count = self.shape[0]
        if isinstance(at, slice):
            start = 0 if at.start is None else at.start
            stop = count if at.stop is None else at.stop
            if not (0 <= start <= count and 0 <= stop <= count):
                raise IndexError(f"slice {start}:{stop} of {count} words")
            return at
        if not 0 <= at < count:
            raise IndexError(f"index {at} of {count} words")
        return int(at)


def _argument(value: Any) -> Any:
    return value.view(Checked) if isinstance(value, np.ndarray) else np.int64(value)


def kernel(signature: str, *, nogil: bool = False) -> Callable[[Function], Function]:
    """In place of `engine.kernels.kernel`."""
    declare = _declare(signature, nogil=nogil)

    def interpreted(function: Function) -> Function:
        declare(function)

        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            with np.errstate(all="ignore"):  # words wrap
                found = function(*map(_argument, arguments))
            return int(found) if isinstance(found, np.integer) else found

        return call

    return interpreted


def helper(function: Function) -> Function:
    """In place of `engine.kernels.helper`: a number written in the program is a word as well."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return function(*[np.int64(each) if type(each) is int else each for each in arguments])

    return call


_declare = engine.kernels.kernel
engine.kernels.kernel = kernel
engine.kernels.helper = helper  # type: ignore[assignment]
