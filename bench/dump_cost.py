"""`python -m bench.dump_cost [--quick] [--out DIR]`: what a served MySQL stream costs a store's commits.

A store in a process of its own commits small transactions at full speed, one thread. Meanwhile no reader, one, or five
follow its binlog over loopback, as replicas do: each is a process that logs in, asks for a dump from the end of the
binlog on, and throws away what it gets. So a reader costs little more than the system's own copy of the bytes. Counted:
commits a second; processor time of the store's process, of its threads that send the dumps, and of the readers, in
percent of one core; how long after the last commit the last reader has all. Rounds are interleaved; medians are shown.

`updates` are one-row updates of one table. `mixed` are inserts, updates and deletes of two tables by turns, each a
commit. With `durable` four threads update rows, and each commit waits for the disk.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import tempfile
import threading
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tidemark as tm
from bench.context import together
from bench.pair import HOST, SECRET, Remote
from bench.report import RESULTS, Line, at_most, keep, show
from bench.rows import COLUMNS, make_table
from tidemark.engine.jit.registry import compile_declared
from tidemark.replication.mysql_source import protocol_layout as p

SEED = 90_909
READERS = (0, 1, 5)
# Greatest fall in percent, by the number of readers.
GOALS = {1: 15.0, 5: 50.0}
WORKS = ("updates", "mixed", "durable")
DURABLE_THREADS = 4
READ_BYTES = 1 << 18
POLL_SECONDS = 0.002
NAMES = ("main.a", "main.b")
USER = "reader"
OPTIONS: dict[str, Any] = {
    "server_id": 1,
    "log_bin": "binlog",
    "log_gtids": True,
    "log_updated_only": False,
    "log_update_as_write": False,
    "durability": "epoch",
    "data_memory": "512 MiB",
    "redo_log": "512 MiB",
}


@dataclass
class Round:
    """One round. Processor time is in percent of one core."""

    work: str
    readers: int
    commits_per_second: float
    store_percent: float
    dumps_percent: float
    readers_percent: float
    late_ms: float
    megabytes: float


class Store:
    """The process that commits and serves."""

    def __init__(self, directory: str, rows: int) -> None:
        self.db = tm.open(directory, **OPTIONS)
        self.rows = rows
        for name in NAMES:
            self.db.create_table(name, COLUMNS, "id")
            self.db[name].insert_many(make_table(0, rows))
        self.fresh = rows
        users = [tm.MysqlUser(USER, SECRET)]
        self.serving = tm.serve_mysql(self.db, f"{HOST}:0", users)

    def address(self) -> tuple[str, int]:
        """Return the address of the port."""
        return self.serving.address

    def end(self) -> tuple[str, int]:
        """Make all commits part of the binlog; return its end."""
        binlog: Any = self.db.binlog
        binlog.reach(self.db.sync())
        binlog.write_closed_epochs()
        return tuple(binlog.durable_end())  # type: ignore[return-value]

    def wait_read(self, readers: int) -> float:
        """Wait until so many dumps have been sent all; return the seconds."""
        begun, end, pause = time.perf_counter(), self.end(), threading.Event()
        while True:
            dumps = self.serving.status()["dumps"]
            if len(dumps) == readers and all((each["file"], each["position"]) == end for each in dumps):
                return time.perf_counter() - begun
            pause.wait(POLL_SECONDS)

    def work(self, work: str, seed: int, seconds: float) -> tuple[float, float, float]:
        """Commit for so long; return commits a second, processor time of the process and of its threads of dumps."""
        began_cpu, began_dumps = time.process_time(), _cpu_of_dumps()
        begun = time.perf_counter()
        if work == "durable":
            counts = [0] * DURABLE_THREADS
            until = begun + seconds

            def run(number: int) -> None:
                counts[number] = self._durable(seed + number, until, number)

            together(DURABLE_THREADS, run)
            count = sum(counts)
        else:
            count = getattr(self, f"_{work}")(seed, begun + seconds)
        took = time.perf_counter() - begun
        return count / took, (time.process_time() - began_cpu) / took, (_cpu_of_dumps() - began_dumps) / took

    def _keys(self, seed: int) -> list[int]:
        return np.random.default_rng(seed).integers(0, self.rows, 1 << 18).tolist()  # type: ignore[no-any-return]

    def _updates(self, seed: int, until: float) -> int:
        keys, update, done = self._keys(seed), self.db[NAMES[0]].update, 0
        while time.perf_counter() < until:
            update(keys[done & 0x3FFFF], {"b": float(done)})
            done += 1
        return done

    def _mixed(self, seed: int, until: float) -> int:
        """In turn: an insert, an update, a delete of the row inserted; by turns in one of two tables."""
        keys, done = self._keys(seed), 0
        tables = [self.db[name] for name in NAMES]
        row = make_table(0, 1).to_pylist()[0]
        while time.perf_counter() < until:
            table, kind = tables[done & 1], done % 3
            if kind == 0:
                table.insert({**row, "id": self.fresh})
                inserted = table
            elif kind == 1:
                table.update(keys[done & 0x3FFFF], {"b": float(done)})
            else:
                inserted.delete(self.fresh)
                self.fresh += 1
            done += 1
        if done % 3:
            inserted.delete(self.fresh)
            self.fresh += 1
        return done

    def _durable(self, seed: int, until: float, number: int) -> int:
        keys, done = self._keys(seed), 0
        while time.perf_counter() < until:
            txn = self.db.transaction()
            key = keys[done & 0x3FFFF]
            txn.update(NAMES[0], key - key % DURABLE_THREADS + number, {"b": float(done)})
            txn.commit(True)
            done += 1
        return done


def _cpu_of_dumps() -> float:
    """Return the processor time of the threads that serve clients, in seconds."""
    ticks = 0
    for thread in threading.enumerate():
        if thread.name == "tidemark-MySQL client":
            fields = Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Reader:
    """A process that reads a dump and throws it away."""

    def __init__(self, address: tuple[str, int], server_id: int) -> None:
        self.address, self.server_id = address, server_id
        self.bytes = 0
        self.connection: Any = None
        self.thread: threading.Thread | None = None

    def begin(self, file: str, position: int) -> None:
        """Ask for a dump."""
        import pymysql

        self.connection = link = pymysql.connect(
            host=self.address[0], port=self.address[1], user=USER, password=SECRET.decode(), autocommit=None
        )
        with link.cursor() as cursor:
            cursor.execute("SET @source_binlog_checksum = @@global.binlog_checksum")
        asked = position.to_bytes(4, "little") + bytes(2) + self.server_id.to_bytes(4, "little") + file.encode()
        link._execute_command(p.COM_BINLOG_DUMP, asked)
        self.thread = threading.Thread(target=self._read, args=(link._sock,), daemon=True)
        self.thread.start()

    def _read(self, link: socket.socket) -> None:
        room = bytearray(READ_BYTES)
        link.settimeout(None)
        while got := link.recv_into(room):
            self.bytes += got

    def figures(self) -> tuple[float, int]:
        """Return the processor time of the process, and the bytes read."""
        return time.process_time(), self.bytes

    def finish(self) -> None:
        """End the dump."""
        assert self.thread is not None
        with closing(self.connection._sock) as link:
            link.shutdown(socket.SHUT_RDWR)
            self.thread.join()


def measure(store: Remote, readers: list[Remote], work: str, seed: int, seconds: float) -> Round:
    """One round, with the first of the readers."""
    end = store.ask("end")
    for each in readers:
        each.ask("begin", *end)
    store.ask("wait_read", len(readers))
    before = [each.ask("figures") for each in readers]
    rate, cpu, dumps = store.ask("work", work, seed, seconds)
    late_s = store.ask("wait_read", len(readers))
    after = [each.ask("figures") for each in readers]
    for each in readers:
        each.ask("finish")
    store.ask("wait_read", 0)
    spent = sum(late[0] - early[0] for early, late in zip(before, after, strict=True)) / seconds
    read = sum(late[1] - early[1] for early, late in zip(before, after, strict=True)) / max(1, len(readers))
    return Round(work, len(readers), rate, 100 * cpu, 100 * dumps, 100 * spent, 1e3 * late_s, read / 1e6)


def lines_of(rounds: list[Round]) -> list[Line]:
    """Return a line for each work, with its goals."""
    lines = []
    for work in WORKS:
        some = {count: [each for each in rounds if (each.work, each.readers) == (work, count)] for count in READERS}
        named = {f"{count} readers": [each.commits_per_second for each in some[count]] for count in READERS}
        medians = {name: statistics.median(values) for name, values in named.items()}
        line = Line("D", f"commits with a served stream, {work}", "1/s", medians, rounds=named)
        alone = medians["0 readers"]
        for count, limit in GOALS.items():
            fall = 100 * (1 - medians[f"{count} readers"] / alone)
            at_most(line, f"fall in percent with {count} readers", fall, limit)
        for count in READERS:

            def median(field: str, those: list[Round] = some[count]) -> float:
                return statistics.median(getattr(each, field) for each in those)

            line.notes.append(
                f"{count} readers: store {median('store_percent'):.0f} % of a core, its dumps"
                f" {median('dumps_percent'):.1f} %, readers {median('readers_percent'):.1f} % together; the last has"
                f" all {median('late_ms'):.0f} ms after the last commit; {median('megabytes'):.1f} MB each"
            )
        lines.append(line)
    return lines


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m bench.dump_cost", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows and rounds: to see that it works")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON file (default: bench/results)")
    asked = parser.parse_args()
    rows, seconds, count = (20_000, 2.0, 1) if asked.quick else (200_000, 6.0, 3)
    assert tm.serve_mysql  # imported before processes are forked
    compile_declared()
    load, rounds = os.getloadavg(), []
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        store = Remote(Store, f"{folder}/store", rows)
        address = store.ask("address")
        readers = [Remote(Reader, address, 100 + number) for number in range(max(READERS))]
        try:
            for number in range(count + 1):
                for work in WORKS:
                    for place in range(len(READERS)):
                        wanted = READERS[(place + number) % len(READERS)]
                        found = measure(store, readers[:wanted], work, SEED + number, seconds if number else 1.0)
                        if number:  # the first round warms up
                            rounds.append(found)
        finally:
            for each in (store, *readers):
                each.end()
    lines = lines_of(rounds)
    for line in lines:
        show(line)
    settings = {
        "rows": rows,
        "seconds": seconds,
        "store": OPTIONS,
        "load average before, after": [load[0], os.getloadavg()[0]],
        "rounds": [asdict(each) for each in rounds],
    }
    print(f"kept in {keep(lines, settings, asked.out, 'dump-cost' + ('-quick' if asked.quick else '')).name}")


if __name__ == "__main__":
    main()
