"""`python -m bench.takeover [--kills N] [--quick] [--out DIR] [--picture FILE] [--page FILE]`: a primary is killed.

Groups of three nodes, and of two with an arbitrator, each node a process of its own (`tidemark node`). Threads of this
process commit through clients that were told of all nodes, at a steady rate; one more for each node reads at that node
alone. `kill -9` of the primary, again and again; it comes back each time before the next one.

Counted for each kill: how long until a commit that was begun after it is acknowledged, until the last writer has one,
and until reads at each survivor continue. Then what a commit costs in groups of one, two and three nodes
(`bench/round_trip.py`), beside one store with the same sync.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from bench.node_processes import CLOCK, SECRET, Group, NodeProcess, running, wait_until
from bench.report import RESULTS, git_commit, keep, put_table
from bench.round_trip import DURABLE, SHARED, THREADS, through_clients
from bench.round_trip import measure as measure_commits
from bench.rows import COLUMNS, make_table, to_tuples
from bench.takeover_figures import NAMES, Kill, draw_picture, judged, shown, table_of
from tidemark.engine.base.errors import NotPrimary, OutcomeUnknown, PeerError, Retryable
from tidemark.engine.jit.registry import compile_declared
from tidemark.replication.calls.conversation import CallLink
from tidemark.replication.wire.wire import parse_address

NAME = "test.t"
ROWS = 10_000
WRITERS = 4
RATE = 200  # commits a second, of all writers
KILLS = 10
READ_PAUSE_SECONDS = 0.002
CALM_SECONDS = 1.0  # between a whole group and the kill, and after the last writer and reader have resumed


class Writer(threading.Thread):
    """Updates a row of its own at a steady rate, one commit each; updates whose time has passed are skipped."""

    def __init__(self, group: Group, key: int, rate: float) -> None:
        super().__init__(daemon=True)
        self._group = group
        self._key = key
        self._pause_s = 1 / rate
        self.is_over = threading.Event()
        self.acknowledged: list[tuple[float, float]] = []  # begin and end of each commit
        self.value = 0.0  # of the newest acknowledged update
        self.unknown = self.lost = 0

    def run(self) -> None:
        """Write until told to end."""
        with self._group.connect() as db:
            table = db[NAME]
            due, value = time.perf_counter(), 0.0
            while not self.is_over.wait(max(0.0, due - time.perf_counter())):
                value += 1.0
                began = time.perf_counter()
                try:
                    table.update(self._key, {"b": value})
                except OutcomeUnknown:
                    self.unknown += 1
                except (Retryable, PeerError):
                    self.lost += 1
                else:
                    self.value = value
                    self.acknowledged.append((began, time.perf_counter()))
                due = max(due + self._pause_s, time.perf_counter())


class Reader(threading.Thread):
    """Reads of one row at one node, and nowhere else."""

    def __init__(self, address: str, key: int) -> None:
        super().__init__(daemon=True)
        self._address = parse_address(address)
        self._what = ["table", NAME, "get", [key], {}]
        self.is_over = threading.Event()
        self.answered: list[tuple[float, float]] = []
        self.refused: list[float] = []

    def run(self) -> None:
        """Read until told to end; reconnect if a link breaks."""
        link: CallLink | None = None
        while not self.is_over.wait(READ_PAUSE_SECONDS):
            began = time.perf_counter()
            try:
                if link is None:
                    link = CallLink(self._address, SECRET, None, CLOCK)
                link.ask(self._what)
                self.answered.append((began, time.perf_counter()))
            except NotPrimary:
                self.refused.append(began)
            except PeerError:
                self.refused.append(began)
                link = None
        if link is not None:
            link.close()


def make_rows(group: Group) -> None:
    """A table with rows at every node."""
    with group.connect() as db:
        db.create_table(NAME, COLUMNS, "id")
        db[NAME].insert_many(to_tuples(make_table(0, ROWS)))


def kill_once(group: Group) -> Kill:
    """Kill the primary under load, and measure when writers and readers resume. On return the group is whole again."""
    group.wait_whole()
    victim = group.primary()
    writers = [Writer(group, key, RATE / WRITERS) for key in range(WRITERS)]
    readers = {number: Reader(group.calls[number], WRITERS) for number in group.calls if number != victim}
    threads: list[Any] = [*writers, *readers.values()]
    for thread in threads:
        thread.start()
    CLOCK.sleep(CALM_SECONDS)
    process: NodeProcess = group.nodes[victim]
    at = process.kill()

    def all_resumed() -> bool:
        resumed = [each.acknowledged and each.acknowledged[-1][0] > at for each in writers]
        return all(resumed) and all(each.answered and each.answered[-1][0] > at + 0.1 for each in readers.values())

    wait_until(all_resumed, "commits and reads continue")
    CLOCK.sleep(CALM_SECONDS)
    for thread in threads:
        thread.is_over.set()
    for thread in threads:
        thread.join()
    with group.connect() as db:
        for key, writer in enumerate(writers):
            there = db[NAME].get(key).b
            assert there >= writer.value, f"commit {writer.value} of row {key} was acknowledged, {there} is there"
    process.start()
    group.wait_whole()
    return judged(
        at,
        [each.acknowledged for each in writers],
        {number: (each.answered, each.refused) for number, each in readers.items()},
        sum(each.lost for each in writers),
        sum(each.unknown for each in writers),
    )


def measure_takeovers(folder: Path, kills: int, commits: int) -> dict[str, Any]:
    """Measure both groups: first commits through clients without faults, then the kills."""
    found: dict[str, Any] = {}
    for kind, nodes, has_arbitrator in (("three", 3, False), ("two", 2, True)):
        with running(Group(folder / kind, nodes, has_arbitrator)) as group:
            group.wait_whole()
            make_rows(group)
            clients = through_clients(group.connect, NAME, commits)
            each_kill = []
            for number in range(kills):
                kill = kill_once(group)
                print(f"{NAMES[kind]}, kill {number + 1}: {shown(kill)}", flush=True)
                each_kill.append(kill.to_dict())
        found[kind] = {"clients": clients, "kills": each_kill}
    return found


def run() -> None:
    """Measure, print, keep, draw, and put the tables into their page."""
    parser = argparse.ArgumentParser(prog="python -m bench.takeover", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two kills and few commits: to see that it works")
    parser.add_argument("--kills", type=int, help=f"of the primary of each group (default: {KILLS})")
    parser.add_argument("--rounds", type=int, default=5, help="of the commits; the median is shown (default: 5)")
    parser.add_argument("--folder", type=Path, help="where the stores lie (default: the system's for temporary files)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    parser.add_argument("--picture", type=Path, help="also draw every kill into this SVG file")
    parser.add_argument("--page", type=Path, help="also put the tables into this Markdown page, between its marks")
    arguments = parser.parse_args()
    kills = arguments.kills or (2 if arguments.quick else KILLS)
    rounds, commits = (1, 100) if arguments.quick else (arguments.rounds, 400)
    compile_declared()
    with tempfile.TemporaryDirectory(dir=arguments.folder, prefix=".takeover-") as place:
        folder = Path(place)
        round_trips = measure_commits(folder / DURABLE, commits, rounds, DURABLE)
        shared = measure_commits(folder / SHARED, 10 * commits, rounds, SHARED)
        takeovers = measure_takeovers(folder, kills, commits)
    settings = {
        "is_quick": arguments.quick,
        "writers": WRITERS,
        "rate": RATE,
        "rows": ROWS,
        "threads": THREADS,
        "commits": commits,
        "rounds": rounds,
        "round_trips": round_trips,
        "shared": shared,
        "takeovers": takeovers,
    }
    target = keep([], settings, arguments.out, "takeover" + ("-quick" if arguments.quick else ""))
    print(f"kept in {target.name}, tree {git_commit()}")
    if arguments.picture:
        draw_picture(settings, arguments.picture)
    if arguments.page:
        put_table(arguments.page, "bench.takeover", table_of(settings), target.name)
    else:
        print(table_of(settings))


if __name__ == "__main__":
    run()
