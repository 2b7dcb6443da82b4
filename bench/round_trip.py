"""A commit's round trip: one-row updates in groups of one, two and three nodes, next to one store. Each commit is
durable or, with `durability="epoch"`, in the memory of every member but not yet on disk.

All stores are in one folder. The primaries run in this process, members in processes of their own; each round runs
every group once. Two parts of a group's commit are counted separately: its own write and sync, and how much longer it
waits for the members, which were sent the log group before the write.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tidemark as tm
from bench.context import together
from bench.goals.p06_durable_update import RAW, raw_file
from bench.node_processes import HOST, MEMORY, SECRET, Group, free_ports, running
from bench.rounds import Work, interleave, timed
from bench.rows import COLUMNS, make_table
from tidemark.engine.base.options import Durability
from tidemark.engine.log.group import Group as LogGroup
from tidemark.engine.log.partner import CommitPartner
from tidemark.nodes.node_group import NodeGroup

NAME = "test.t"
ROWS = 16_000
THREADS = 16
SIZES = (1, 2, 3)
DURABLE: Durability = "commit"
SHARED: Durability = "epoch"
ALONE = "one store, no group"


class TimedPartner:
    """Forwards the calls to a partner, and records when each group was sent, synced here, and acknowledged."""

    def __init__(self, partner: CommitPartner) -> None:
        self.partner = partner
        self.offer = partner.offer
        self.share = partner.share
        self.epoch_closed = partner.epoch_closed
        self._sent = 0.0
        self.own_s: list[float] = []
        self.members_s: list[float] = []

    def send(self, group: LogGroup) -> None:
        """Send a group; after this call the store writes and syncs the group."""
        self.partner.send(group)
        self._sent = time.perf_counter()

    def wait(self, sequence: int) -> None:
        """Wait for the members; the store has synced the group before this call."""
        synced = time.perf_counter()
        self.partner.wait(sequence)
        self.own_s.append(synced - self._sent)
        self.members_s.append(time.perf_counter() - synced)

    def parts_us(self) -> tuple[float, float]:
        """Medians of both parts so far."""
        return statistics.median(self.own_s) * 1e6, statistics.median(self.members_s) * 1e6


def _name(size: int) -> str:
    return f"group of {size} node{'s' if size > 1 else ''}"


def _single(folder: Path, stack: ExitStack, durability: Durability) -> Any:
    return stack.enter_context(tm.open(folder / "alone", data_memory=MEMORY, durability=durability))


def _leading(folder: Path, size: int, stack: ExitStack, durability: Durability) -> Any:
    """Return the store of a primary in this process, after all members have joined."""
    group = Group(folder / f"group-{size}", size, own=(1,), options=(f"durability={durability}",))
    stack.enter_context(running(group))
    place = f"{HOST}:{free_ports(1)[0]}"
    options: Any = {"found": True, "data_memory": MEMORY, "durability": durability}
    own = NodeGroup(group.folder / "1", 1, group.text, SECRET, place, **options)
    stack.callback(own.close)
    own.wait_member()
    if group.nodes:
        group.wait_whole()
    return stack.enter_context(own.reading())


def _fill(db: Any) -> None:
    db.create_table(NAME, COLUMNS, "id").insert_many(make_table(0, ROWS))
    db.checkpoint()


def _updates(update: Callable[[int, dict[str, float]], Any], first: int, count: int, values: Iterator[float]) -> None:
    for key in range(first, first + count):
        update(key, {"b": next(values)})


def _many(update: Callable[[int, dict[str, float]], Any], each: int, values: Iterator[float]) -> float:
    return together(THREADS, lambda number: _updates(update, number * each, each, values))


def measure(folder: Path, count: int, rounds: int, durability: Durability) -> dict[str, dict[str, float | None]]:
    """By name: µs of a commit with one thread, its two parts in a group, and commits a second with many threads."""
    folder.mkdir()
    values = map(float, itertools.count(1))
    found: dict[str, dict[str, float | None]] = {}
    with ExitStack() as stack:
        stores = {ALONE: _single(folder, stack, durability)}
        stores |= {_name(size): _leading(folder, size, stack, durability) for size in SIZES}
        parts: dict[str, TimedPartner] = {}
        for name, db in stores.items():
            _fill(db)
            log = db.parts.store.log
            log.flush()
            if log.partner is not None and durability == DURABLE:
                log.partner = parts[name] = TimedPartner(log.partner)
        write = stack.enter_context(raw_file(folder))
        works = [Work(RAW, timed(lambda: [write() for _ in range(count)]))] if durability == DURABLE else []

        def one_of(db: Any) -> Callable[[], float]:
            return timed(lambda: _updates(db[NAME].update, 0, count, values))

        works += [Work(name, one_of(db)) for name, db in stores.items()]
        one = interleave(works, count, rounds)
        for name, timing in one.items():
            own_us, members_us = parts[name].parts_us() if name in parts else (None, None)
            found[name] = {"one_us": timing.median_s * 1e6, "own_us": own_us, "members_us": members_us}
            found[name]["many_per_second"] = None
        each = max(1, count // 4)
        works = [
            Work(name, lambda db=db: _many(db[NAME].update, each, values))  # type: ignore[misc]
            for name, db in stores.items()
        ]
        for name, timing in interleave(works, THREADS * each, rounds).items():
            found[name]["many_per_second"] = 1 / timing.median_s
        for name, partner in parts.items():
            stores[name].parts.store.log.partner = partner.partner
    return found


def through_clients(connect: Callable[[], Any], name: str, count: int) -> dict[str, float]:
    """Measure the same through one client of this process, which all threads share; it opens links as needed."""
    values = map(float, itertools.count(1))
    with connect() as db:
        update = db[name].update
        _updates(update, 0, count, values)
        one_s = timed(lambda: _updates(update, 0, count, values))() / count
        each = max(1, count // 4)
        _many(update, each, values)
        many_s = _many(update, each, values) / (THREADS * each)
    return {"one_us": one_s * 1e6, "many_per_second": 1 / many_s}
