"""Where turns may change besides locks: kernel calls, words of the arena, calls of the disk; and the clock of a life.

Kernel calls come through the kernel door (`tidemark.engine.jit.kernel.set_door`), which only processes with
TIDEMARK_KERNEL_DOOR=1 have. Python's reads and writes of arena words go through a subclass of the array; kernels take
it for a plain array.

Between two kernel calls no code may read freed memory: it is overwritten now and then.
"""

from __future__ import annotations

import random
import weakref
from importlib.util import find_spec
from types import CodeType, FrameType
from typing import Any

import numpy as np

from tests.simulation.threads import turn_taking
from tests.simulation.threads.turns import Turns
from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import Buffer, File
from tidemark.engine.memory.arena_layout import (
    BLOCK_WORDS,
    P_FREE_BLOCKS,
    P_FREE_PAGES,
    PAGE_SHIFT,
    PAGE_WORDS,
    S_POOL,
)
from tidemark.recovery.crash_harness.disks.wrapper import RawWrapper, WrappedFiles

# How long half a sync may take: as long as one point, or as some hundred.
SYNC_SECONDS = (0.0, 0.000_025, 0.000_25, 0.002)
WALL_US = 1_700_000_000_000_000
# Freed memory is overwritten with this, after so many kernel calls. Taken as an address, it is inside the arena.
OVERWRITTEN = 3
OVERWRITTEN_EVERY = 100


def overwrite_free_memory(mem: Any) -> None:
    """Overwrite free pages and blocks of an arena, except the words that link them."""
    words = np.asarray(mem).view(np.ndarray)
    page = int(words[S_POOL + P_FREE_PAGES])
    while page:
        at = page << PAGE_SHIFT
        words[at + 1 : at + PAGE_WORDS] = OVERWRITTEN
        page = int(words[at])
    block = int(words[S_POOL + P_FREE_BLOCKS])
    while block:
        words[block + 2 : block + BLOCK_WORDS] = OVERWRITTEN
        block = int(words[block])


class KernelDoor:
    """Each kernel call is two points, because a thread may be made to wait at either end of it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._calls = 0
        self._arenas: list[weakref.ref[Any]] = []

    def opened(self, db: Any) -> None:
        """Overwrite the freed memory of this store from now on."""
        self._arenas.append(weakref.ref(db.parts.store.mem))

    def before(self, kernel: str) -> None:
        """See `tidemark.engine.jit.kernel.Door`."""
        self._turns.point(kernel, True)
        self._calls += 1
        if self._calls % OVERWRITTEN_EVERY == 0:
            for arena in self._arenas:
                mem = arena()
                if mem is not None:
                    overwrite_free_memory(mem)

    def after(self, kernel: str) -> None:
        """See `tidemark.engine.jit.kernel.Door`."""
        self._turns.point("done", True)


# Modules of the engine and of recovery whose lines are points: they follow data that other threads remove. Reading rows
# takes many lines and no turns.
_WATCHED = (
    "tidemark.engine.store.store",
    "tidemark.engine.store.schema_log",
    "tidemark.engine.store.index_build",
    "tidemark.engine.store.unique_build",
    "tidemark.engine.table.table",
    "tidemark.engine.txn.resources",
    "tidemark.engine.txn.transaction",
    "tidemark.engine.txn.transactions",
    "tidemark.engine.txn.tables",
    "tidemark.engine.txn.table_users",
    "tidemark.engine.txn.log_room",
    "tidemark.engine.txn.locks",
    "tidemark.engine.txn.epoch",
    "tidemark.engine.access.snapshot",
    "tidemark.engine.access.snapshot_reads",
    "tidemark.engine.access.batch_operations",
    "tidemark.engine.queries.column_scans",
    "tidemark.engine.access.disk_reading",
    "tidemark.engine.queries.program_scans",
    "tidemark.engine.queries.index_choice",
    "tidemark.engine.queries.index_only",
    "tidemark.engine.access.index_scans",
    "tidemark.engine.access.statuses",
    "tidemark.engine.queries.lookups",
    "tidemark.engine.queries.unique_calls",
    "tidemark.engine.access.unique_reads",
    "tidemark.engine.queries.unique_upserts",
    "tidemark.engine.log.spool_files",
    "tidemark.engine.txn.copies",
    "tidemark.engine.memory.arena",
    "tidemark.engine.log.leaders",
    "tidemark.engine.log.redo",
    "tidemark.engine.disk.undo",
    "tidemark.engine.disk.cache",
    "tidemark.engine.disk.columns",
    "tidemark.engine.disk.space",
    "tidemark.engine.index.key_values",
    "tidemark.engine.index.ordered",
    "tidemark.engine.index.stored",
    "tidemark.engine.index.unique",
    "tidemark.engine.index.unique_keys",
    "tidemark.recovery.verification.check",
    "tidemark.recovery.verification.check",
    "tidemark.recovery.local_checkpoint.writer",
    "tidemark.background",
)
_LINES = frozenset(str(find_spec(each).origin) for each in _WATCHED)  # type: ignore[union-attr]


class Lines:
    """A trace function: lines of some modules are points, now and then, because the interpreter may switch at any
    line.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._known: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        """See `sys.settrace`."""
        if event == "call":
            code = frame.f_code
            is_wanted = self._known.get(code)
            if is_wanted is None:
                is_wanted = self._known[code] = code.co_filename in _LINES
            return self if is_wanted else None
        if event == "line":
            self._turns.line()
        return self


class TurnWords(np.ndarray):
    """Words of an arena: Python's reads and writes of them are points, now and then."""

    def __getitem__(self, at: Any) -> Any:
        turn_taking.read()
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        turn_taking.read()
        super().__setitem__(at, value)


class TurnClock:
    """Time and entropy of a life, both drawn from its seed."""

    def __init__(self, turns: Turns, identity: str = "") -> None:
        """identity: stores with different ones have different identities."""
        self._turns = turns
        self._rng = random.Random(f"entropy {turns.seed} {identity}")

    def monotonic(self) -> float:
        """Seconds of virtual time."""
        return self._turns.now

    def wall_us(self) -> int:
        """Microseconds since 1970."""
        return WALL_US + int(self._turns.now * 1e6)

    def sleep(self, seconds: float) -> None:
        """Let other threads run until the time has passed."""
        self._turns.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        """Return bytes drawn from the seed."""
        return self._rng.randbytes(count)


class _TurnRaw(RawWrapper):
    """A disk whose calls are points, and whose syncs take time."""

    def __init__(self, inner: Any, turns: Turns) -> None:
        super().__init__(inner)
        self._turns = turns
        self._rng = random.Random(f"disk {turns.seed}")
        self._sync_seconds = self._rng.choice(SYNC_SECONDS)

    def _take_time(self) -> None:
        self._turns.sleep(self._rng.random() * self._sync_seconds)

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        self._turns.point("read")
        found = self.inner.pread_into(file, view, offset)
        self._turns.point("was read")
        return found

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        self._turns.point("write")
        return self.inner.pwrite(file, buffer, offset)

    def fdatasync(self, file: File) -> None:
        self._take_time()
        self.inner.fdatasync(file)
        self._take_time()

    def sync_directory(self, path: str) -> None:
        self._take_time()
        self.inner.sync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._turns.point("rename")
        self.inner.rename(source, target)

    def unlink(self, name: str) -> None:
        self._turns.point("unlink")
        self.inner.unlink(name)


class TurnFiles(WrappedFiles):
    """`Files` over such a disk."""

    def __init__(self, inner: CheckedFiles, turns: Turns) -> None:
        super().__init__(inner, _TurnRaw(inner.raw, turns))
