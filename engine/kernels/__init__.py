"""The only home of numba: the `kernel` decorator and where compiled code is kept.

Rules of every kernel (D2, D13): flat contiguous arrays and int64 scalars, one explicit signature, compiled at first
call, never raises for data, never trusts a length. Kernels that touch shared rows, indexes or logs hold the GIL;
`nogil=True` is for private memory only.

The cache of compiled code is keyed on a digest of all kernel and layout sources: numba alone notices a change of the
kernel's own file but not of a helper in another file, and would go on running stale code.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

_log = logging.getLogger("tidemark.kernels")


def source_digest() -> str:
    """Hex digest over every source of kernels and layouts."""
    digest = hashlib.sha256(numba.__version__.encode())
    for package in ("engine.kernels", "engine.layout"):
        folder = importlib.resources.files(package)
        for entry in sorted(folder.iterdir(), key=lambda item: item.name):
            if entry.name.endswith(".py"):
                digest.update(entry.name.encode())
                digest.update(entry.read_bytes())
    return digest.hexdigest()[:16]


def _cache_folder() -> str:
    base = os.environ.get("TIDEMARK_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidemark"
    )
    return os.path.join(base, "kernels-" + source_digest())


CACHE_FOLDER = _cache_folder()
REGISTRY: dict[str, Any] = {}
_announced = False
_compiling = threading.Lock()


def _announce() -> None:
    # The first run ever compiles for some seconds; say so once instead of seeming to hang.
    global _announced
    if not _announced:
        _announced = True
        if not os.path.isdir(CACHE_FOLDER):
            _log.warning("compiling kernels for the first run; kept in %s", CACHE_FOLDER)


def _jit(function: F, nogil: bool) -> Any:
    saved = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = CACHE_FOLDER
    try:
        # Kernels allocate nothing. Without the run-time no helper call counts references, which are atomic operations
        # that keep memory accesses from overlapping (ADR 0006).
        return numba.njit(cache=True, error_model="numpy", nogil=nogil, _nrt=False)(function)
    finally:
        numba.config.CACHE_DIR = saved


def kernel(signature: str, *, nogil: bool = False) -> Callable[[F], F]:
    """Declare a kernel called from Python, with its one signature, compiled at its first call."""

    def declare(function: F) -> F:
        dispatcher = _jit(function, nogil)
        REGISTRY[f"{function.__module__}.{function.__name__}"] = (dispatcher, signature)
        if numba.config.DISABLE_JIT:
            return function

        def compile_once(*args: Any, **kws: Any) -> Any:
            # Two restart threads may make the first call at once; numba's own lock does not cover the switch-off.
            with _compiling:
                if not dispatcher.signatures:
                    _announce()
                    dispatcher.compile(signature)
                    dispatcher.disable_compile()
                return dispatcher.overloads[dispatcher.signatures[0]].entry_point

        # numba asks this attribute when no compiled version fits; a second kind of arguments is a TypeError then.
        dispatcher._compile_for_args = compile_once
        return dispatcher  # type: ignore[no-any-return]

    return declare


def helper(function: F) -> F:
    """Declare a function that only kernels call; it is compiled into them."""
    return _jit(function, False)  # type: ignore[no-any-return]


def warm() -> int:
    """Compile (or load from the cache) every kernel; returns how many there are."""
    for dispatcher, signature in REGISTRY.values():
        if not numba.config.DISABLE_JIT and not dispatcher.signatures:
            dispatcher.compile(signature)
            dispatcher.disable_compile()
    return len(REGISTRY)
