"""Mutants in processes of their own.

Each is forked from a process that has loaded everything. It replaces a function's code by the mutant's, and runs the
cases that reach the changed line.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from tests import waiting
from tests.audit.changes import Change

OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:benchmark", "--no-header", "--tb=line")
# How long a case may take beyond its time in the unchanged program: a mutant that hangs is noticed.
PATIENCE_SECONDS = 20.0
POLLS = 100  # of a wait that must end: five seconds
UNPLANTABLE = 86
FORKING = multiprocessing.get_context("fork")


def module_of(file: str) -> str:
    """engine/log/redo.py: tidemark.engine.log.redo."""
    name = file.removesuffix(".py").replace("/", ".")
    return name if name.startswith("tidemark.") else f"tidemark.{name}"


def _codes(code: CodeType) -> dict[str, list[CodeType]]:
    """Codes of a module's outermost functions, by qualified name; several where a property has a setter."""
    found: dict[str, list[CodeType]] = {}
    for each in code.co_consts:
        if not isinstance(each, CodeType):
            continue
        if each.co_flags & inspect.CO_NEWLOCALS and each.co_flags & inspect.CO_OPTIMIZED:
            found.setdefault(each.co_qualname, []).append(each)
        else:  # the body of a class
            for name, codes in _codes(each).items():
                found.setdefault(name, []).extend(codes)
    return found


def _functions_at(module: Any, name: str) -> list[Any]:
    """The functions at a qualified name, without their wrappers."""
    holder = module
    *classes, last = name.split(".")
    for each in classes:
        holder = vars(holder)[each]
    ahead, found = [vars(holder)[last]], []
    while ahead:
        each = ahead.pop()
        if isinstance(each, property):
            ahead += [one for one in (each.fget, each.fset, each.fdel) if one is not None]
        elif isinstance(each, (staticmethod, classmethod)):
            ahead.append(each.__func__)
        elif isinstance(each, functools.cached_property):
            ahead.append(each.func)
        elif hasattr(each, "__wrapped__"):
            ahead.append(each.__wrapped__)
        elif inspect.isfunction(each):
            found.append(each)
    return found


def plant(file: str, change: Change) -> bool:
    """Give a function of this process the code of the mutant; False where none can be given."""
    path = Path(file)
    module = importlib.import_module(module_of(file))
    try:
        mutant = _codes(compile(change.apply(path.read_bytes()), str(path.resolve()), "exec"))
        functions = _functions_at(module, change.function)
        planted = False
        for function in functions:
            for code in mutant.get(change.function, []):
                if code.co_firstlineno == function.__code__.co_firstlineno:
                    function.__code__ = code
                    planted = True
    except (KeyError, SyntaxError, ValueError):
        return False
    return planted


class Mutant:
    """One child process that runs cases on a mutant."""

    def __init__(self, file: str, change: Change, cases: list[str], seconds: float, folder: Path) -> None:
        self.file = file
        self.change = change
        self.folder = folder
        self.process = FORKING.Process(target=self._run, args=(cases, seconds * 10 + PATIENCE_SECONDS))
        self.process.start()

    def _run(self, cases: list[str], limit_seconds: float) -> None:
        os.setsid()
        self.folder.mkdir()
        output = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        waiting.POLLS = POLLS
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, limit_seconds)
        if not plant(self.file, self.change):
            sys.exit(UNPLANTABLE)
        # No limit for one case: the limit above ends the process.
        sys.exit(int(pytest.main([*OPTIONS, "-o", "timeout=0", f"--basetemp={self.folder / 'tmp'}", *cases])))

    def end(self) -> str:
        """After its process has ended: seen, survived, unplantable, or what else was to be said."""
        self.process.join()
        try:
            os.killpg(self.process.pid, signal.SIGKILL)  # processes that its cases have started
        except ProcessLookupError:
            pass
        code = self.process.exitcode
        if code == -signal.SIGALRM:
            return "seen, stands still"
        if code < 0:
            return f"seen, signal {-code}"
        return {0: "survived", 1: "seen", 2: "seen", 3: "seen", UNPLANTABLE: "unplantable"}.get(code, f"code {code}")
