"""All kernels: which there are, which have no code yet, and which are compiled together.

Kernels that a program meets together are compiled in one wait, at the first call of one of them. The table of
`engine/jit/kernel_sets.py` says which. No digest covers this module: nothing here changes the code that is compiled.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import Any

from tidemark.engine.jit.code_cache import COMPILING, FLOORS, KERNELS
from tidemark.engine.jit.kernel_sets import READYING_SECONDS, SETS
from tidemark.engine.jit.shipped_code import SHIPPED

REGISTRY: dict[str, Any] = {}
COMPILERS: dict[str, Callable[[], Any]] = {}
# Re-entrant: compiling a kernel may import a module, which declares others.
LOCK = threading.RLock()
PACKAGE = "tidemark."
# Of a kernel that is not in the table of sets.
SECONDS_OF_A_KERNEL = 0.5


def is_kernels(module: str) -> bool:
    """Whether a module of this name has kernels."""
    return module.endswith(KERNELS) and module.startswith(FLOORS)


def import_all() -> None:
    """Import every module of kernels, so that all kernels are declared."""
    for floor in FLOORS:
        for module in pkgutil.walk_packages(importlib.import_module(floor.rstrip(".")).__path__, floor):
            if is_kernels(module.name):
                importlib.import_module(module.name)


def declared() -> dict[str, Callable[[], Any]]:
    """Return, by name of each kernel declared so far, a function that compiles its code or loads it from the cache."""
    return dict(COMPILERS)


def not_kept(names: Iterable[str] | None = None) -> dict[str, float]:
    """Return those of the declared kernels, or of these, that have no code, neither in this process nor in the cache,
    with the seconds that each took to compile where the table of sets was made.
    """
    found = {}
    for name in REGISTRY.keys() & COMPILERS if names is None else names:
        dispatcher, signature = REGISTRY[name]
        if not dispatcher.signatures and not dispatcher._cache.is_kept(signature, dispatcher.targetctx):
            found[name] = _seconds_of(name)
    return found


def _seconds_of(name: str) -> float:
    of_set = SETS.get(set_of(name), {})
    return of_set.get(name.removeprefix(PACKAGE), SECONDS_OF_A_KERNEL)


def set_of(name: str) -> str:
    """Return what the kernels are for that a program meets with this one; "" if no program of the table meets it."""
    return next((what for what, names in SETS.items() if name.removeprefix(PACKAGE) in names), "")


def _together(name: str) -> list[str]:
    """Return the kernels that are compiled with this one, declared if they were not: those of its set, else those of
    its module that are in no set.
    """
    what = set_of(name)
    if not what:
        module = name.rpartition(".")[0]
        return [each for each in REGISTRY if each.rpartition(".")[0] == module and not set_of(each)]
    names = [PACKAGE + each for each in SETS[what]]
    for module in dict.fromkeys(each.rpartition(".")[0] for each in names):
        importlib.import_module(module)
    return [each for each in names if each in COMPILERS]


def _compile(names: Iterable[str], missing: dict[str, float], what: str = "") -> None:
    """Get the code of these kernels. Those that are missing are compiled in one wait."""
    compilers = declared()
    clock = COMPILING.clock
    why = f"; compiled kernels came with the installation, but {SHIPPED.misfit}" if SHIPPED.misfit else ""
    with COMPILING.wait(what, missing, why=why) if missing else contextlib.nullcontext():
        for name in names:
            began = clock.thread_seconds()
            compilers[name]()
            if name in missing:
                COMPILING.compiled(name, missing[name], clock.thread_seconds() - began)


def compile_set(name: str, dispatcher: Any) -> None:
    """Compile a kernel that has no code, and with it those that a program meets together with it."""
    together = _together(name)  # before the lock: a module that another thread imports may wait for it
    with LOCK:
        if dispatcher.signatures:
            return  # another thread was first
        began = COMPILING.clock.thread_seconds()
        dispatcher.targetctx.refresh()  # what makes the compiler ready is the same work each time
        if (took := COMPILING.clock.thread_seconds() - began) > READYING_SECONDS / 4:  # else it was ready
            COMPILING.slowness = took / READYING_SECONDS
        # In another order in each process: those that start together take each other's code.
        others = not_kept(each for each in together if each != name)
        order = sorted(others, key=lambda each: zlib.crc32(f"{os.getpid()} {each}".encode()))
        _compile([name, *order], {name: _seconds_of(name), **others}, set_of(name) or "further calls")


def compile_declared(first: float = 0.0) -> None:
    """Get the code of all declared kernels, for a process that must not stall for seconds at a later first call.

    first: where to start, as a share of all kernels, from 0 to 1. Processes that start at different places find each
    other's code in the cache.
    """
    names = tuple(declared())
    start = int(first * len(names))
    _compile((*names[start:], *names[:start]), not_kept())
