"""Kernels as plain Python: a plugin of pytest, `-p tests.audit.interpreted`, by `make interpreted`.

A compiled kernel silently reads past the end of an array. Here each index past an end is an IndexError, each argument
is compared with the kernel's signature, and each stored word must fit. A lock replaces the GIL that a compiled kernel
holds. Numpy computes the sums of a checksum at once, because a store would take minutes otherwise.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

# Before numba is imported.
os.environ["NUMBA_DISABLE_JIT"] = "1"

import numpy as np
from numba import types
from numba.core import sigutils

from tests.planting import without_the_face

with without_the_face():
    from tidemark.engine.jit import kernel as kernels
    from tidemark.engine.jit import registry

_INTEGERS = {types.int64: np.int64, types.uint64: np.uint64}
_gil = threading.RLock()


def _taken(kernel: str, number: int, kind: Any, given: Any) -> Any:
    """An argument as the kernel gets it. Raises: TypeError where compiled code would not take it."""
    if isinstance(kind, types.Array):
        fits = isinstance(given, np.ndarray) and given.ndim == kind.ndim and given.dtype.name == kind.dtype.name
        if not fits or not given.flags.c_contiguous or (kind.mutable and not given.flags.writeable):
            raise TypeError(f"argument {number} of {kernel} is no {kind}: {given!r:.200}")
        return given
    if kind == types.object_:  # `object_kernel` has wrapped it
        return given
    if kind in _INTEGERS:
        return _INTEGERS[kind](given)  # OverflowError for a value that does not fit
    if kind == types.float64:
        return float(given)
    if kind == types.boolean:
        return bool(given)
    if isinstance(kind, types.UniTuple):
        return tuple(_taken(kernel, number, kind.dtype, each) for each in given)
    raise TypeError(f"argument {number} of {kernel} is a {kind}; teach tests/audit/interpreted.py to check it")


def _given(value: Any) -> Any:
    """What a compiled kernel returns: numbers of Python."""
    if isinstance(value, tuple):
        return tuple(_given(each) for each in value)
    return value.item() if isinstance(value, np.generic) else value


def kernel(signature: str, *, nogil: bool = False) -> Callable[[Any], Any]:
    """In place of `tidemark.engine.jit.kernel.kernel`."""
    argument_types, _ = sigutils.normalize_signature(signature)

    def declare(function: Any) -> Any:
        name = function.__name__
        registry.REGISTRY[f"{function.__module__}.{name}"] = (function, signature)

        @functools.wraps(function)
        def call(*given: Any) -> Any:
            if len(given) != len(argument_types):
                raise TypeError(f"{name} takes {len(argument_types)} arguments, {len(given)} were given")
            arguments = [
                _taken(name, number, kind, each)
                for number, (kind, each) in enumerate(zip(argument_types, given, strict=True))
            ]
            # Words wrap, as they do in the processor; for floats numpy would warn, and numba does not.
            with np.errstate(all="ignore"):
                if nogil:
                    return _given(function(*arguments))
                with _gil:
                    return _given(function(*arguments))

        return call

    return declare


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `helper`: a given constant is a word of 64 bits too, so that it wraps."""

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        return function(*[np.int64(each) if type(each) is int else each for each in given])

    return call


def fill_lanes(words: Any, start: int, count: int, lanes: Any) -> int:
    """In place of the helper of that name: all stripes at once, for their sums do not depend on the lanes."""
    from tidemark.engine.sealed import checksums_kernels as c

    if count < c.WORDS_MIN or start < 0 or start + count > words.size:
        return -1
    rounds = (int(count) - 1) // c.ROUND_WORDS
    stripes = (int(count) - 1) // c.STRIPE_WORDS
    keys = np.array([c.SECRET[each : each + c.STRIPE_WORDS] for each in range(c.STRIPES_PER_ROUND)])
    taken = words[start : start + stripes * c.STRIPE_WORDS].reshape(stripes, c.STRIPE_WORDS)
    last = words[start + count - c.STRIPE_WORDS : start + count].reshape(1, c.STRIPE_WORDS)
    taken, keys = np.concatenate([taken, last]), np.resize(keys, (stripes, c.STRIPE_WORDS))
    mixed = taken ^ np.concatenate([keys, c.SECRET_LAST.reshape(1, c.STRIPE_WORDS)])
    added = (mixed & c.LOW32) * ((mixed >> 32) & c.LOW32) + taken[:, [1, 0, 3, 2, 5, 4, 7, 6]]
    lanes[: c.STRIPE_WORDS] = c.XXH3_START
    for each in range(rounds):
        lanes[:8] += added[each * c.STRIPES_PER_ROUND : (each + 1) * c.STRIPES_PER_ROUND].sum(axis=0)
        lanes[:8] ^= (lanes[:8] >> 47) & 0x1FFFF
        lanes[:8] = (lanes[:8] ^ c.SECRET[16:24]) * 0x9E3779B1
    lanes[:8] += added[rounds * c.STRIPES_PER_ROUND :].sum(axis=0)
    return 0


def replace() -> None:
    """Replace every kernel of this process by plain Python."""
    kernels.kernel, kernels.helper = kernel, helper
    from tidemark.engine.sealed import checksums_kernels as checksums

    checksums.fill_lanes = fill_lanes
    registry.import_all()


replace()
