"""A disk that fails by plan.

A plan is only a list of rules: it prints as the code that creates it, and injects the same faults into the same
sequence of calls. A rule counts the calls that match it. Calls are those that reach the raw disk, so one `pwrite` of
the store that is completed in two parts counts twice. Injected errors take the same path as real ones: through retry
loops, translation and latch.
"""

from __future__ import annotations

import errno
import fnmatch
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import Buffer, File, RawFiles, flat
from tidemark.recovery.crash_harness.disks.wrapper import RawWrapper, WrappedFiles

T = TypeVar("T")
OPERATIONS = (
    "create",
    "open",
    "pread",
    "pwrite",
    "truncate",
    "fdatasync",
    "sync_directory",
    "make_directory",
    "rename",
    "unlink",
    "link",
    "remove_tree",
    "list",
    "size",
    "lock",
    "close",
)
# Operations that one rule may name together; one count covers all of them.
GROUPS = {
    "*": frozenset(OPERATIONS),
    "sync": frozenset({"fdatasync", "sync_directory"}),
    "space": frozenset({"create", "pwrite", "truncate", "make_directory", "link"}),
}


@dataclass(frozen=True)
class Rule:
    """Selects calls that fail, and how they fail.

    `operation` is one of `OPERATIONS` or of `GROUPS` (`"*"`, `"sync"`, `"space"`); `name` is a glob over file names (a
    rename counts under its source, a directory under its path); the `nth` match fires, and with `once=False` all after
    it. The effects, in this order: `stall` is called first (it may raise); `error` is the error number raised instead
    of the call; `short` limits the bytes a read or write transfers; `flip` inverts that bit of the bytes read.
    """

    operation: str
    name: str = "*"
    nth: int = 1
    once: bool = True
    error: int | None = None
    short: int | None = None
    stall: Callable[[], None] | None = None
    flip: int | None = None

    def __post_init__(self) -> None:
        known = (*OPERATIONS, *GROUPS)
        if self.operation not in known:
            raise ValueError(f"{self.operation!r} is not an operation of a disk; choose one of {', '.join(known)}")

    def __repr__(self) -> str:
        shown = [repr(self.operation), repr(self.name), f"nth={self.nth}", f"once={self.once}"]
        if self.error is not None:
            shown.append(f"error=errno.{errno.errorcode[self.error]}" if self.error in errno.errorcode else "error=?")
        shown += [f"{field}={getattr(self, field)}" for field in ("short", "flip") if getattr(self, field) is not None]
        if self.stall is not None:
            shown.append(f"stall={getattr(self.stall, '__name__', 'stall')}")
        return f"Rule({', '.join(shown)})"


@dataclass(frozen=True)
class Fired:
    """A rule that fired: the number of the call, counted from 1 over all operations, and the call itself."""

    call: int
    operation: str
    name: str
    rule: Rule


class Plan:
    """Rules and their counts. If several `FaultFiles` use it in turn, the counts continue."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.rules = tuple(rules)
        self.calls = 0
        self.fired: list[Fired] = []
        self.is_over = False
        self._matches = [0] * len(self.rules)
        self._ended: set[int] = set()
        self._mutex = threading.Lock()

    def add(self, rule: Rule) -> Callable[[], None]:
        """Add a rule, which counts from now on; call the returned function to end it."""
        with self._mutex:
            place = len(self.rules)
            self.rules += (rule,)
            self._matches.append(0)
        return lambda: self._ended.add(place)

    def strike(self, operation: str, name: str) -> Rule | None:
        """Count a call; return the rule that fires, after calling its `stall`."""
        struck: Rule | None = None
        with self._mutex:
            self.calls += 1
            for number, rule in enumerate(self.rules if not self.is_over else ()):
                if number in self._ended or operation not in GROUPS.get(rule.operation, (rule.operation,)):
                    continue
                if fnmatch.fnmatchcase(name, rule.name):
                    self._matches[number] += 1
                    matches = self._matches[number]
                    is_due = matches == rule.nth if rule.once else matches >= rule.nth
                    if is_due and struck is None:
                        struck = rule
                        self.fired.append(Fired(self.calls, operation, name, rule))
        if struck is not None and struck.stall is not None:
            struck.stall()
        return struck


class FaultFiles(WrappedFiles):
    """`Files` that follow a plan; without rules they only count."""

    def __init__(self, inner: CheckedFiles, plan: Iterable[Rule] | Plan = ()) -> None:
        self.faults = plan if isinstance(plan, Plan) else Plan(plan)
        self.plan = self.faults.rules
        super().__init__(inner, _FaultRaw(inner.raw, self.faults))

    @property
    def calls(self) -> int:
        """The number of calls that reached the raw disk, failed ones included: the bound of a loop over all of them."""
        return self.faults.calls

    @property
    def fired(self) -> tuple[Fired, ...]:
        return tuple(self.faults.fired)


class _FaultRaw(RawWrapper):
    def __init__(self, inner: RawFiles, plan: Plan) -> None:
        super().__init__(inner)
        self._strike = plan.strike

    def _before(self, operation: str, name: str) -> Rule | None:
        rule = self._strike(operation, name)
        if rule is not None and rule.error is not None:
            raise OSError(rule.error, "injected")
        return rule

    def _call(self, operation: str, name: str, function: Callable[..., T], *arguments: Any) -> T:
        if operation != "unlock":  # an error there would leave the disk locked
            self._before("size" if operation == "exists" else operation, name)
        return function(*arguments)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        rule = self._before("pread", file.name)
        if rule is None:
            return self.inner.pread_into(file, view, offset)
        data = flat(view)
        if rule.short is not None:
            data = data[: rule.short]
        got = self.inner.pread_into(file, data, offset) if data.nbytes else 0
        if rule.flip is not None and got:
            bit = rule.flip % (8 * got)
            data[bit // 8] ^= 1 << bit % 8
        return got

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        rule = self._before("pwrite", file.name)
        if rule is None or rule.short is None:
            return self.inner.pwrite(file, buffer, offset)
        data = flat(buffer)[: rule.short]
        return self.inner.pwrite(file, data, offset) if data.nbytes else 0

    def fdatasync(self, file: File) -> None:
        rule = self._strike("fdatasync", file.name)
        if rule is not None and rule.error is not None:
            self.fail_sync(file, rule.error)
        else:
            self.inner.fdatasync(file)

    def sync_directory(self, path: str) -> None:
        rule = self._strike("sync_directory", path)
        if rule is not None and rule.error is not None:
            self.fail_sync(path, rule.error)
        else:
            self.inner.sync_directory(path)

    def close(self, file: File) -> None:
        try:
            self._before("close", file.name)
        finally:
            # The system closes the descriptor even when it reports an error.
            self.inner.close(file)
