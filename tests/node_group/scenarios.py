"""What the scenarios of NDB's test programs share: a group with known rows that is stopped, crashed and checked."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.pair import contents, slots_of
from tests.node_group.site import PATIENCE_MS, SECRET, Site
from tests.node_group.slots import different_slots
from tests.ports import free_ports
from tests.waiting import wait_until

NAME = "test.t"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("n", tm.Int64),
    tm.Column("note", tm.Text, nullable=True),
    tm.Column("far", tm.VarChar(300), nullable=True, storage="disk"),
]
RETRIES = 11  # of a transaction: their pauses add up to a hundred seconds
BATCH_ROWS = 500  # as many as fit into the UNDO log
DEATH = "this process is to die"


def row(key: int, mark: int) -> tuple[Any, ...]:
    """Return a row whose parts in memory and on disk change length with its mark."""
    return (key, mark, "n" * ((key * 7 + mark * 13) % 120), f"far {mark} " + "f" * ((key + mark * 31) % 200))


def soaked(*values: Any) -> list[Any]:
    """Return parameters that only `make soak` tries."""
    return [pytest.param(*(each if isinstance(each, tuple) else (each,)), marks=pytest.mark.soak) for each in values]


class Group(Site):
    """A site with nodes that serve clients at fixed addresses, and a table of known rows."""

    def __init__(self, root: Path, count: int, with_arbitrator: bool = False, **options: Any) -> None:
        super().__init__(root, count, with_arbitrator, **options)
        self.numbers = list(range(1, count + 1))
        self.calls = dict(zip(self.numbers, free_ports(count), strict=True))
        self.rows: dict[int, tuple[Any, ...]] = {}
        self._client: Any = None
        self.is_made = False
        self.seed = 0
        self.rng = random.Random(0)

    def begin(self, number: int, **options: Any) -> Any:
        """See `Site`."""
        founds = number == 1 and not self.is_made
        return super().begin(number, **{"calls": f"127.0.0.1:{self.calls[number]}", "found": founds, **options})

    def connect(self, *numbers: int) -> Any:
        """Connect a client that knows these nodes; all nodes if none are given."""
        addresses = [f"127.0.0.1:{self.calls[number]}" for number in numbers or self.numbers]
        return tm.connect(addresses, SECRET, timeout_ms=PATIENCE_MS)

    @property
    def client(self) -> Any:
        """The one client of the whole group; it stays the same across all crashes."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def end(self) -> None:
        """See `Site`."""
        if self._client is not None:
            self._client.close()
        super().end()

    # --- nodes ----------------------------------------------------------------------------------------
    def lose_disk(self, number: int) -> None:
        """Remove the directory of a node that does not run."""
        shutil.rmtree(self.root / str(number))

    def crash(self, *numbers: int) -> None:
        """Crash these nodes, in this order."""
        for number in numbers:
            self.drop(number)

    def crash_all(self) -> None:
        """Crash every running node, in random order."""
        self.crash(*self.rng.sample(sorted(self.nodes), len(self.nodes)))

    def stop_all(self) -> None:
        """Close every node, members first."""
        for number in sorted(self.nodes, reverse=True):
            self.close(number)

    def start_all(self, *order: int) -> None:
        """Start all nodes, and return when they are members of one open view."""
        for number in order or self.rng.sample(self.numbers, len(self.numbers)):
            if number not in self.nodes:
                self.begin(number)
        self.wait_whole()

    def wait_whole(self) -> None:
        """Wait until all nodes are members of one open view."""
        self.wait_view(*self.numbers)

    # --- rows -----------------------------------------------------------------------------------------
    def create(self) -> None:
        """Create the table: one column on disk, an ordered index."""
        self.is_made = True
        self.client.create_tablespace("main", "2 MiB")
        self.client.create_table(NAME, COLUMNS, "id", tm.HashPartition(2), tablespace="main")
        self.client.create_index(NAME, "by_n", "n")

    def run(self, work: Callable[[Any], Any]) -> None:
        """Run one transaction; retry it if the primary was lost meanwhile."""
        self.client.run(work, RETRIES)

    def load(self, keys: Iterable[int], mark: int = 0) -> None:
        """Insert or replace rows, a few hundred in each transaction."""
        made = [row(key, mark) for key in keys]
        for first in range(0, len(made), BATCH_ROWS):
            some = made[first : first + BATCH_ROWS]
            self.run(lambda txn, some=some: txn.write_many(NAME, some))
        self.rows.update({each[0]: each for each in made})

    def delete(self, keys: Iterable[int]) -> None:
        """Delete existing rows, a few hundred in each transaction."""
        gone = list(keys)
        for first in range(0, len(gone), BATCH_ROWS):
            some = gone[first : first + BATCH_ROWS]
            self.run(lambda txn, some=some: txn.delete_many(NAME, some))
        for key in gone:
            del self.rows[key]

    def scan_update(self) -> None:
        """Update every row, in one transaction."""
        self.run(lambda txn: txn.update_where(NAME, {"n": tm.col("n") + 1}))
        self.rows = {key: (key, each[1] + 1, *each[2:]) for key, each in self.rows.items()}

    # --- judgement ------------------------------------------------------------------------------------
    def shown(self, number: int) -> dict[int, tuple[Any, ...]]:
        """Return the rows that a node shows."""
        while True:
            try:
                with self.nodes[number].reading() as db:
                    return {each[0]: tuple(each) for each in db[NAME].scan()}
            except tm.NotPrimary:  # the view has changed meanwhile
                self.nodes[number].wait_member(PATIENCE_MS)

    def verify(self) -> None:
        """Check that every node shows the known rows, that all nodes have the same slots, and that each is sound."""
        said = f"seed {self.seed}"
        for number in self.nodes:
            found = self.shown(number)
            different = {key for key in found.keys() | self.rows.keys() if found.get(key) != self.rows.get(key)}
            assert not different, f"{said}, node {number}: {[(k, found.get(k)) for k in sorted(different)[:3]]}"
        self.verify_equal()

    def verify_equal(self) -> None:
        """Check that all nodes have the same slots, and that each is sound."""
        first, *others = sorted(self.nodes)
        for number in others:
            one, other = self.db(first), self.db(number)
            said = f"seed {self.seed}, nodes {first} and {number}"
            # Empty slots are not compared: those of a copy have the epoch of their slice, which may be higher.
            assert not different_slots(one.parts.store, other.parts.store), said
            assert [contents(one, name) for name in one.tables()] == [
                contents(other, name) for name in other.tables()
            ], said
        for number in self.nodes:
            assert self.db(number).check()["problems"] == [], f"seed {self.seed}, node {number}"

    def epochs(self, number: int) -> dict[Any, int]:
        """Return the epoch of each row of a node, by table, fragment and ROWID."""
        rows, _ = slots_of(self.db(number))
        return {place: each[0] for place, each in rows.items()}


@contextmanager
def group_of(root: Path, count: int, seed: int = 0, started: int | None = None, **options: Any) -> Iterator[Group]:
    """Make a group with the table. Its first `started` nodes, all if None, are members; all are closed at the end."""
    group = Group(root, count, **options)
    group.seed, group.rng = seed, random.Random(seed)
    try:
        for number in group.numbers[:started]:
            group.start(number)
        group.create()
        yield group
    finally:
        group.end()


class Writers:
    """Threads that write and read through the group until the block ends; each has keys of its own.

    kinds: "write" inserts and replaces, "hot" deletes and inserts a few keys again and again, "mixed" does several
    operations on one key in one transaction. Acknowledged rows go into `group.rows`.
    """

    def __init__(self, group: Group, *kinds: str, first: int = 100_000) -> None:
        self._group = group
        self._is_over = threading.Event()
        self.failures: list[BaseException] = []
        self.done = [0] * len(kinds)
        self._threads = [
            threading.Thread(target=self._run, args=(number, kind, first + 1_000 * number), daemon=True)
            for number, kind in enumerate(kinds)
        ]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        self.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(PATIENCE_MS / 1_000)
        assert not any(thread.is_alive() for thread in self._threads), "a writer waits for ever"
        if self.failures:
            raise self.failures[0]

    def wait(self, transactions: int = 3) -> None:
        """Wait until each thread has done this many more transactions."""
        before = list(self.done)

        def is_so() -> bool:
            return all(now >= was + transactions for now, was in zip(self.done, before, strict=True))

        wait_until(lambda: is_so() or bool(self.failures))

    def _run(self, number: int, kind: str, first: int) -> None:
        rng = random.Random(f"{self._group.seed} {number}")
        try:
            with self._group.connect() as db:
                while not self._is_over.is_set():
                    getattr(self, f"_{kind}")(db, rng, first)
                    self.done[number] += 1
        except (tm.Error, AssertionError) as error:
            self.failures.append(error)

    def _write(self, db: Any, rng: random.Random, first: int) -> None:
        made = row(first + rng.randrange(200), rng.randrange(50))
        db.run(lambda txn: txn.write(NAME, made), RETRIES)
        self._group.rows[made[0]] = made
        assert tuple(db[NAME].get(made[0])) == made, "what was acknowledged does not show"

    def _hot(self, db: Any, rng: random.Random, first: int) -> None:
        made = row(first + rng.randrange(3), rng.randrange(50))
        if made[0] in self._group.rows:
            db.run(lambda txn: txn.delete(NAME, made[0]), RETRIES)
            del self._group.rows[made[0]]
        else:
            db.run(lambda txn: txn.insert(NAME, made), RETRIES)
            self._group.rows[made[0]] = made

    def _mixed(self, db: Any, rng: random.Random, first: int) -> None:
        made = row(first + rng.randrange(40), rng.randrange(50))
        is_there = made[0] in self._group.rows
        ends_there = rng.random() < 0.6

        def work(txn: Any) -> None:
            if is_there:
                txn.delete(NAME, made[0])
            txn.insert(NAME, row(made[0], 99))
            txn.update(NAME, made[0], dict(zip(("n", "note", "far"), made[1:], strict=True)))
            if not ends_there:
                txn.delete(NAME, made[0])

        db.run(work, RETRIES)
        if ends_there:
            self._group.rows[made[0]] = made
        else:
            self._group.rows.pop(made[0], None)


class Stop:
    """Stops the thread that is the n-th to reach a place of the program, until the test lets it continue or die."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._released = threading.Event()
        self.error: BaseException | None = None

    def wait(self) -> None:
        """Wait until a thread has stopped at the place."""
        assert self.reached.wait(PATIENCE_MS / 1_000), "no thread came by"

    def go(self, error: BaseException | None = None) -> None:
        """Let the thread continue, or raise the error in it."""
        self.error = error
        self._released.set()

    def stand(self) -> None:
        """Stop at the place until `go`."""
        self.reached.set()
        self._released.wait(PATIENCE_MS / 1_000)
        if self.error is not None:
            raise self.error


@contextmanager
def stopped_at(
    monkeypatch: Any, owner: Any, name: str, nth: int = 1, whose: Callable[[Any], bool] = lambda _: True
) -> Iterator[Stop]:
    """Put a `Stop` before a method; it ends with the block. whose: whether to count a call, given its first
    argument.
    """
    real = getattr(owner, name)
    stop = Stop()
    left = [nth]

    def held(*arguments: Any, **named: Any) -> Any:
        if whose(arguments[0]) and left[0] > 0:
            left[0] -= 1
            if left[0] == 0:
                stop.stand()
        return real(*arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, held)
        try:
            yield stop
        finally:
            left[0] = 0
            stop.go(stop.error)
