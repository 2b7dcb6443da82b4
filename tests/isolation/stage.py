"""A stage for transactions that run at once: each has a thread of its own, and does the steps it is given in order.

A step ends, or waits for a lock. Which of the two is read from the published status, never from a clock. So the steps
of a play are carried out in the order in which they are written, but for those of a transaction that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tidemark as tm
from tests.isolation.levels import Outcome, begun
from tests.isolation.ways import BY_KEY, NAMES, Way
from tests.shares import some

POLLS = 60_000
POLL_SECONDS = 0.001
FIRST = {1: 10, 2: 20}  # the rows at the begin of each play: n by id


def row(key: int, n: int) -> tuple[int, str, int, int]:
    """A row of the table: `g` is `n` in memory, also where `n` is on disk."""
    return key, NAMES[key], n, n


@dataclass
class Face:
    """What a play uses to reach a store. db: a Database or a RemoteDatabase. part: of the ways of a play that `make
    test` takes, where a step takes longer.
    """

    db: Any
    status: Callable[[], dict[str, Any]]
    is_remote: bool = False
    part: float = 1.0

    def ways_of(self, ways: Iterable[Way]) -> list[Way]:
        """The ways by which a test plays over this face."""
        return some(ways, self.part)

    def fill(self) -> None:
        """Leave the rows of `FIRST` in the table, each where it was before."""
        table = self.db["t"]
        table.delete_where(tm.col("id") > max(FIRST))
        table.write_many([row(*each) for each in FIRST.items()])

    def rows(self) -> dict[int, int]:
        """The committed rows: n by id."""
        return {each.id: each.n for each in self.db["t"].scan()}

    def waiting(self) -> list[Any]:
        """What identifies the transactions that wait for a lock."""
        holders = self.status()["transactions"]["holders"]
        return [each["txid" if self.is_remote else "thread"] for each in holders if each["waits"]]


@dataclass(eq=False)
class Step:
    """A call of a transaction, and what came of it."""

    value: Any = None
    error: tm.Error | None = None
    has_waited: bool = False
    ran: Future[None] = field(default_factory=Future)  # raises what no play expects
    is_known: bool = False  # whether it has raised that


class Session:
    """One transaction, in a thread of its own."""

    def __init__(self, stage: Stage, begin: Callable[[], Any], name: str) -> None:
        self.stage = stage
        self.steps: list[Step] = []
        self.has_committed = False
        self.is_over = False
        self.txn: Any = None
        self.name = f"{name}_0"  # of its thread
        self._begin = begin
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def _run(self, step: Step, call: Callable[[Any], Any]) -> None:
        if self.is_over:
            return
        try:
            step.value = call(self.txn)
        except tm.Retryable as error:  # has rolled it back
            step.error, self.is_over = error, True
        except tm.Rejected as error:
            step.error = error

    # --- steps -----------------------------------------------------------------------------------
    def do(self, call: Callable[[Any], Any]) -> Step:
        """Have the thread make a call, and return when it has ended or waits for a lock. It does nothing once the
        transaction has been rolled back.
        """
        step = Step()
        self.steps.append(step)
        step.ran = self._thread.submit(self._run, step, call)
        self.stage.settle()
        return step

    def begin(self) -> None:
        """Begin the transaction."""

        def begin(_: Any) -> None:
            self.txn = self._begin()

        self.do(begin)

    def read(self, *keys: int) -> Step:
        """Read rows by their keys: n by id."""
        return self.do(lambda txn: self.stage.way.read(txn, keys))

    def find(self) -> Step:
        """Find the rows whose n is a multiple of 3: how many."""
        return self.do(lambda txn: self.stage.way.find(txn))

    def write(self, key: int, n: int | Callable[[], int]) -> Step:
        """Set n of a row that there is."""
        return self.do(lambda txn: self.stage.way.write(txn, key, n if isinstance(n, int) else n()))

    def insert(self, key: int, n: int) -> Step:
        """Insert a row."""
        return self.do(lambda txn: txn.insert("t", row(key, n)))

    def commit(self) -> Step:
        """Commit."""

        def commit(txn: Any) -> None:
            txn.commit()
            self.is_over = self.has_committed = True

        return self.do(commit)

    def rollback(self) -> Step:
        """Roll back."""

        def rollback(txn: Any) -> None:
            self.is_over = True
            if txn is not None:
                txn.rollback()

        return self.do(rollback)

    def end(self) -> None:
        """End the thread, after its steps."""
        assert wait([step.ran for step in self.steps], 60).not_done == set()
        self._thread.shutdown()

    @property
    def current(self) -> Step | None:
        """The step that has not ended; those after it have not begun. Raises: what a step has raised, once."""
        for step in self.steps:
            if not step.ran.done():
                return step
            error, step.is_known = None if step.is_known else step.ran.exception(), True
            if error is not None:
                raise error
        return None


class Stage:
    """The sessions of one play.

    reader: begins what stands for a transaction that only reads; None: a transaction. first: what each transaction
    does first.
    """

    def __init__(
        self,
        face: Face,
        level: str,
        way: Way = BY_KEY,
        reader: Callable[[], Any] | None = None,
        first: Callable[[Any], Any] | None = None,
    ) -> None:
        self.face, self.level, self.way = face, level, way
        self._reader, self._first = reader, first
        self.sessions: list[Session] = []

    def begin(self) -> Session:
        """Begin a transaction."""
        session = self._session(lambda: begun(self.face.db, self.level))
        if self._first is not None:
            session.do(self._first)
        return session

    def reader(self) -> Session:
        """Begin a transaction that only reads."""
        return self.begin() if self._reader is None else self._session(self._reader)

    @property
    def is_of_snapshots(self) -> bool:
        """Whether snapshots stand for the transactions that only read."""
        return self._reader is not None

    def _session(self, begin: Callable[[], Any]) -> Session:
        session = Session(self, begin, f"play {id(self):x} {len(self.sessions)}")
        self.sessions.append(session)
        session.begin()
        return session

    def settle(self) -> None:
        """Return when each step that has not ended waits for a lock.

        The status is not of one instant: the victim of a deadlock may be in it beside the waiter that closed the
        cycle. It no longer is the second time.
        """
        seen: list[Step] = []
        for _ in range(POLLS):
            for session in self.sessions:
                if (step := session.current) is not None:
                    wait([step.ran], POLL_SECONDS)
            current = {session: step for session in self.sessions if (step := session.current) is not None}
            if not current:
                return
            waiting = self.face.waiting()
            steps = list(current.values()) if all(self._name_of(each) in waiting for each in current) else []
            if steps and steps == seen:
                for step in steps:
                    step.has_waited = True
                return
            seen = steps
        raise AssertionError(f"for a minute a step neither ended nor waited for a lock: {self.face.status()}")

    def _name_of(self, session: Session) -> Any:
        return session.txn.txid if self.face.is_remote and session.txn is not None else session.name

    def end(self) -> None:
        """Roll back the transactions that are open, and end their threads."""
        for session in self.sessions:
            session.rollback()
        for session in self.sessions:
            session.end()

    def outcome(self, has_happened: bool) -> Outcome:
        """What came of the play."""
        steps = [step for session in self.sessions for step in session.steps]
        if has_happened:
            return Outcome.HAPPENS
        if any(isinstance(step.error, tm.Retryable) for step in steps):
            return Outcome.REFUSED
        return Outcome.WAITS if any(step.has_waited for step in steps) else Outcome.READS


Play = Callable[[Stage], Callable[[], bool]]  # the function returned says afterwards whether the anomaly has happened


@contextmanager
def staged(face: Face, level: str, way: Way = BY_KEY, **more: Any) -> Iterator[Stage]:
    """Return a stage over new rows. All its transactions have ended after the block. more: as for `Stage`."""
    face.fill()
    stage = Stage(face, level, way, **more)
    try:
        yield stage
    finally:
        stage.end()


def perform(face: Face, level: str, play: Play, way: Way = BY_KEY, **more: Any) -> Outcome:
    """Run a play over new rows; return what came of it. more: as for `Stage`."""
    with staged(face, level, way, **more) as stage:
        has_happened = play(stage)
    return stage.outcome(has_happened())


def outcomes(face: Face, level: str, play: Play, ways: Iterable[Way], **more: Any) -> dict[str, Outcome]:
    """Return what came of a play, by way of reading and writing."""
    return {way.name: perform(face, level, play, way, **more) for way in ways}
