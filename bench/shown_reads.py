"""`python -m bench.shown_reads [--quick] [--out DIR] [--page FILE]`: reads whose answers wait for what they show.

One store is served by a process of its own, in which the writers are threads; the client is this process. Each read is
measured with the wait and without it (`RedoLog.secure` does nothing then). Writers update one row after the other, each
durable. A group of three nodes is measured with the wait alone, each node a process.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import tidemark as tm
from bench.node_processes import CLOCK, HOST, SECRET, Group
from bench.report import RESULTS, Line, keep, put_table
from tidemark.engine.log.redo import RedoLog

NAME = "test.t"
ROWS = 10_000
CALM = 17  # a row that no writer changes
SECONDS = 1.0
ROUNDS = 5
WRITERS = (0, 1, 4)


def get(db: Any) -> None:
    """Read a row that does not change."""
    db[NAME].get(CALM)


def get_none(db: Any) -> None:
    """Read a row that is not there."""
    db[NAME].get(-1)


def txn_of_get(db: Any) -> None:
    """Read a row that does not change, in a transaction."""
    with db.transaction() as txn:
        txn.get(NAME, CALM)


def scan(db: Any) -> None:
    """Read ten rows."""
    db[NAME].scan(limit=10).to_arrow()


WAYS: dict[str, Callable[[Any], None]] = {
    "get of a row": get,
    "get of no row": get_none,
    "transaction of one get": txn_of_get,
    "scan of ten rows": scan,
}


def make_rows(db: Any) -> None:
    """Make the table."""
    db.create_table(NAME, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db[NAME].insert_many({"id": list(range(ROWS)), "n": [0] * ROWS})


def write(db: Any, number: int, is_over: threading.Event) -> None:
    """Update one row after the other, not CALM."""
    for each in itertools.count(1_000 * (1 + number)):
        if is_over.is_set():
            return
        db[NAME].update(1_000 + each % (ROWS - 1_000), {"n": each})


def serve(folder: str, writers: int, waits: bool, parent: Connection) -> None:
    """Serve a store with writers until the parent says so; the process of the store."""
    if not waits:
        RedoLog.secure = lambda *_: None  # type: ignore[method-assign]
    is_over = threading.Event()
    with tm.open(folder, data_memory="64 MiB", redo_log="64 MiB") as db, tm.serve_calls(db, (HOST, 0), SECRET) as at:
        make_rows(db)
        threads = [threading.Thread(target=write, args=(db, number, is_over)) for number in range(writers)]
        for thread in threads:
            thread.start()
        parent.send(at.address)
        while parent.recv():
            parent.send(db.status()["log"]["transactions_written"])
        in_process = microseconds(lambda: txn_of_get(db), SECONDS)
        is_over.set()
        for thread in threads:
            thread.join()
        parent.send(in_process)


def microseconds(call: Callable[[], None], seconds: float) -> float:
    """Return the mean time of a call, over some seconds."""
    call()
    count, began = 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        for _ in range(10):
            call()
        count += 10
    return spent / count * 1e6


def measure(folder: Path, writers: int, waits: bool, seconds: float) -> dict[str, tuple[float, float]]:
    """Return by way of reading (microseconds of a call, commits a second meanwhile)."""
    mine, other = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(str(folder), writers, waits, other))
    process.start()
    found: dict[str, tuple[float, float]] = {}

    def commits() -> int:
        mine.send(True)
        return int(mine.recv())

    with tm.connect([mine.recv()], SECRET) as db:
        CLOCK.sleep(0.5)  # the epoch of the first rows ends
        for name, way in WAYS.items():
            before, began = commits(), time.perf_counter()
            spent = microseconds(lambda way=way: way(db), seconds)  # type: ignore[misc]
            found[name] = spent, (commits() - before) / (time.perf_counter() - began)
    mine.send(False)
    found["the same in the process of the store"] = float(mine.recv()), 0.0
    process.join()
    return found


def measure_group(folder: Path, writers: int, seconds: float) -> dict[str, tuple[float, float]]:
    """The same reads without a transaction at a member of a group of three nodes; writers are clients here."""
    group, is_over = Group(folder, 3), threading.Event()
    found: dict[str, tuple[float, float]] = {}
    group.start()
    try:
        group.wait_whole()
        member = next(number for number in group.calls if number != group.primary())
        with group.connect() as db, group.connect(member) as reader:
            make_rows(db)
            threads = [threading.Thread(target=write, args=(db, number, is_over)) for number in range(writers)]
            for thread in threads:
                thread.start()
            CLOCK.sleep(0.5)
            ways = [name for name in WAYS if name != "transaction of one get"]
            for name in ways:
                found[name] = microseconds(lambda name=name: WAYS[name](reader), seconds), 0.0  # type: ignore[misc]
            is_over.set()
            for thread in threads:
                thread.join()
    finally:
        for node in group.nodes.values():
            node.end()
    return found


def table_of(lines: list[Line]) -> str:
    """The figures as Markdown."""
    out = ["| read, µs | no writer | 1 writer | 4 writers |", "|---|---:|---:|---:|"]
    out += [f"| {line.what} | {' | '.join(f'{value:,.0f}' for value in line.figures.values())} |" for line in lines]
    return "\n".join(out)


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(prog="python -m bench.shown_reads", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file")
    parser.add_argument("--page", type=Path, help="also put the table into this Markdown page, between its marks")
    arguments = parser.parse_args()
    rounds, seconds = (1, 0.2) if arguments.quick else (ROUNDS, SECONDS)
    runs: dict[tuple[str, int], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn, writers in itertools.product(range(rounds), WRITERS):
            for waits in (True, False):
                found = measure(Path(folder) / f"{turn}-{writers}-{waits}", writers, waits, seconds)
                for name, figure in found.items():
                    runs.setdefault((f"{name}, {'waits' if waits else 'without the wait'}", writers), []).append(figure)
        for writers in WRITERS:
            for name, figure in measure_group(Path(folder) / f"group-{writers}", writers, seconds).items():
                runs[f"{name}, at a member of three nodes", writers] = [figure]
    lines: list[Line] = []
    for name in dict.fromkeys(name for name, _ in runs):
        figures = {f"{each} writers": min(one for one, _ in runs[name, each]) for each in WRITERS}
        each_round = {f"{each} writers": [one for one, _ in runs[name, each]] for each in WRITERS}
        commits = {
            f"{each} writers, commits/s": f"{statistics.median(two for _, two in runs[name, each]):,.0f}"
            for each in WRITERS
        }
        lines.append(Line("reads", name, "µs", figures, settings=commits, rounds=each_round))
    target = keep(lines, {"rounds": rounds, "seconds": seconds, "rows": ROWS}, arguments.out, "shown-reads")
    if arguments.page:
        put_table(arguments.page, "bench.shown_reads", table_of(lines), target.name)
    print(table_of(lines))


if __name__ == "__main__":
    main()
