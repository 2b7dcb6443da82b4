"""One life of the stress program whose threads take turns: the program, the threads next to it, and the checks.

Everything that the stress program checks is checked here too: while threads run, after they have ended, and after the
store was opened again. The life runs in the calling process, which should have no other threads: a failure ends the
process from whichever thread finds it.
"""

from __future__ import annotations

import gc
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, get_args

from tests.crash.programs import stress, stress_verify
from tests.crash.programs.stress_rows import INDEX_KEYS, MAIN, ORDERED, UNIQUE_KEYS, WIDTH, row_of
from tests.simulation.threads.actors import others
from tests.simulation.threads.points import KernelDoor, Lines, TurnClock, TurnFiles, TurnWords
from tests.simulation.threads.sites import SITES, Site
from tests.simulation.threads.turn_taking import taking_turns
from tests.simulation.threads.turns import Turns
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.jit.kernel import HAS_DOOR, set_door
from tidemark.engine.memory.arena import Arena
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.program import OPEN_FILES, Ledger, Violation, resolve

Storage = Literal["memory", "disk"]
STORAGES: tuple[Storage, ...] = get_args(Storage)
TRANSACTIONS_MIN = 8
TRANSACTIONS_MAX = 60  # for one writer
DIVIDED = "tidemark.replication.settings.options:split_keywords"
POINTS_OF_A_LIFE = 12_000  # after so many points it is brought to its end
FRAMES_SHOWN = 8  # stack frames shown of an error


@dataclass(frozen=True)
class Plan:
    """What lives have in common; the rest is drawn from the seed."""

    actors: frozenset[str]  # threads that take part next to the writers
    storage: Storage | None = None  # "memory" or "disk"; None: the seed draws it
    read_rate: float = 0.02
    line_rate: float | None = None  # None: the seed draws it
    is_traced: bool = False


@dataclass
class Found:
    """Result of one life."""

    seed: int
    error: str = ""  # what is wrong, empty if nothing is
    points: int = 0
    switches: int = 0
    trace: str = ""
    acknowledged: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # what the threads did, by name


class Life:
    """One life."""

    def __init__(self, seed: int, plan: Plan, end: Callable[[Found], NoReturn], say: Callable[[str], None]) -> None:
        """end: called from any thread with what is wrong when the life cannot continue; it ends the process."""
        self.found = Found(seed)
        self._plan = plan
        self._end = end
        self._rng = random.Random(f"life {seed}")
        self._turns = Turns(seed, self._fail, plan.read_rate, say if plan.is_traced else None)
        self._door = KernelDoor(self._turns)
        if plan.line_rate is not None:
            self._turns.line_rate = plan.line_rate
        self._disk = MemoryFiles()
        self._ledger = Ledger()

    def run(self) -> Found:
        """Run the life to its end and return the result."""
        if not HAS_DOOR:
            raise Violation("kernel calls are no points in this process; set TIDEMARK_KERNEL_DOOR=1 before it starts")
        storage: Storage = self._rng.choice(STORAGES)
        with self._scheduled():
            try:
                self._work(self._plan.storage or storage)
                self._verify_again()
            except BaseException as error:
                reported = traceback.format_exception(error, limit=-FRAMES_SHOWN)
                self._fail(f"{type(error).__name__}: {error}\n{''.join(reported)}")
                raise
        return self._counted()

    def _work(self, storage: Storage) -> None:
        """Run the stress program on a table that already has rows, so that a scan takes several calls."""
        options = stress.DISK_OPTIONS if storage == "disk" else stress.OPTIONS
        name = self._rng.choice((None, None, *SITES))
        kind, given, own = SITES[name] if name in self._plan.actors else (None, {}, {})
        db = self._open(**options, **given)
        site = None
        if kind is not None:
            other = MemoryFiles()
            site = kind(db, lambda: self._open_on(other, kind.identity, **options, **own))
        stress.prepare(db, storage, self._ledger, self._fill)
        transactions = self._rng.randrange(TRANSACTIONS_MIN, TRANSACTIONS_MAX)
        program = stress.Stress(
            db, self.found.seed, self._ledger, transactions, lambda program: self._others(program, site)
        )
        self._turns.on_limit = lambda: self._end_soon(program)
        self._turns.limit = POINTS_OF_A_LIFE
        program.run()
        self.found.counts = dict(sorted(program.changer.counts.items()))
        if site is not None:
            site.await_end()
        db.close()
        if site is not None:
            site.close()

    def _end_soon(self, program: stress.Stress) -> None:
        """Let a life that takes long end with the next transaction."""
        program.transactions = 0
        self._turns.hurry()

    def _fill(self, db: Any) -> None:
        keys = range(0, WIDTH * stress.FIRST_RANGES, self._rng.choice((2, 5, 10)))
        db[MAIN].insert_many([row_of(key, (1, 1)) for key in keys])
        kinds = {**INDEX_KEYS, **UNIQUE_KEYS}
        for name in self._rng.sample(sorted(kinds), self._rng.randrange(len(kinds))):
            db.create_index(MAIN, name, kinds[name], name in UNIQUE_KEYS, ordered=name in ORDERED)

    @contextmanager
    def _scheduled(self) -> Iterator[None]:
        gc.collect()
        gc.disable()  # from here on the collector runs at points only
        Arena.words_kind = TurnWords
        set_door(self._door)
        try:
            with taking_turns(self._turns, Lines(self._turns) if self._turns.line_rate else None):
                yield
        finally:
            set_door(None)
            del Arena.words_kind
            gc.enable()

    def _others(self, program: stress.Stress, site: Site | None) -> Sequence[Any]:
        # Not all of them in each life: with fewer threads each gets further.
        share = self._rng.choice((0.25, 0.5, 1.0))
        wanted = {name for name in sorted(self._plan.actors) if self._rng.random() < share}
        return others(program, wanted, None if site is None else site.db)

    def _open(self, **options: Any) -> Any:
        """Open the store as the program does; with its own threads if they take part."""
        return self._open_on(self._disk, "", **options)

    def _open_on(self, disk: MemoryFiles, identity: str, **options: Any) -> Any:
        files = TurnFiles(OrderMonitor(MemoryFiles(disk.disk)), self._turns)
        parsed, replication = resolve(DIVIDED)({**options, "background": "background" in self._plan.actors})
        db = resolve(OPEN_FILES)(files, parsed, TurnClock(self._turns, identity), None, None, None, replication)
        self._door.opened(db)
        return db

    def _verify_again(self) -> None:
        """Check that an opening finds what was acknowledged. Raises: Violation."""
        db = self._open(data_memory="64 MiB")
        try:
            found = stress_verify.verify(db, self._ledger)
        finally:
            db.close()
        if found:
            raise Violation(f"opened again: {found[0]}")

    def _counted(self) -> Found:
        found = self.found
        found.points, found.switches, found.trace = self._turns.points, self._turns.switches, self._turns.trace
        found.acknowledged = len(self._ledger.acknowledged)
        return found

    @classmethod
    def warm(cls) -> None:
        """Load what every life would load, by a life without threads."""
        for storage, options in zip(STORAGES, (stress.OPTIONS, stress.DISK_OPTIONS), strict=True):
            parsed = Options.from_keywords({**options, "background": False})
            db = resolve(OPEN_FILES)(MemoryFiles(), parsed, ManualClock(), None, None)
            ledger = Ledger()
            stress.prepare(db, storage, ledger)
            db[MAIN].insert_many([row_of(key, (1, 1)) for key in range(10)])
            db.create_index(MAIN, "by_price", INDEX_KEYS["by_price"])
            db.create_index(MAIN, "once_token", UNIQUE_KEYS["once_token"], True)
            if stress_verify.index_problems(db, MAIN) or db.check()["problems"]:
                raise Violation("a life without threads is not sound")
            db.close()

    def _fail(self, text: str) -> NoReturn:
        self.found.error = text
        self._end(self._counted())
