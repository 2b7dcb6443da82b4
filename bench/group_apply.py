"""`python -m bench.group_apply [ROWS]`: the cost of a row at a member next to its cost at the primary.

Each work runs on a primary (`durability="epoch"`, no partner); then its groups are read back from the log and applied
to a member. Timed separately: all calls of the primary, its commits alone, and `GroupApplier.apply`; the fsync of both
is left out. Rounds run one after the other on the same two stores. The least of three is shown, because other work on
the machine only adds to it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tidemark as tm
from bench.rows import COLUMNS, make_table
from tidemark.engine.log.reader import LogReader
from tidemark.engine.store.group_apply import GroupApplier

ROUNDS = 3
BATCH = 10_000
OPTIONS: dict[str, Any] = {
    "data_memory": "512 MiB",
    "redo_log": "512 MiB",
    "durability": "epoch",
    "background": False,
    "transaction_memory": "64 MiB",
}
NAME, WIDE = "test.t", "test.wide"
SLICE_SLOTS = 20_000


class Bench:
    """A primary and a member."""

    def __init__(self, folder: Path, is_indexed: bool) -> None:
        self.primary: Any = tm.open(folder / "primary", **OPTIONS)
        # A member begins as a copy with the same identity.
        self.primary.close()
        shutil.copytree(folder / "primary", folder / "member")
        self.primary = tm.open(folder / "primary", **OPTIONS)
        self.member: Any = tm.open(folder / "member", **OPTIONS)
        self.applier = GroupApplier(self.member.parts.store)
        self.primary.create_table(NAME, COLUMNS, "id", tm.HashPartition(2))
        if is_indexed:
            self.primary.create_index(NAME, "by_ts", ["ts"])
        self.commit_seconds = 0.0
        self.applied_lsn = 0
        self.apply()

    def apply(self) -> float:
        """Apply the groups that the member lacks; return the seconds."""
        store = self.primary.parts.store
        self.primary.sync()
        reader = LogReader(self.primary.parts.files, store.log.geometry, self.primary.parts.opened.identity[0])
        lsn = self.applied_lsn
        sequence = self.member.parts.store.log.sequence
        groups = []
        while (group := reader.group_at(lsn, sequence)) is not None:
            groups.append(group.words)
            lsn, sequence = group.end_lsn, sequence + 1
        reader.close()
        self.applied_lsn = lsn
        seconds = 0.0
        for words in groups:
            began = time.perf_counter()
            self.applier.apply(words)
            seconds += time.perf_counter() - began
            self.member.parts.store.log.flush()
        return seconds

    def transact(self, calls: list[Callable[[Any], None]]) -> float:
        """Run each call in a transaction of its own; return the seconds. `commit_seconds` has those of the commits."""
        self.commit_seconds = 0.0
        began = time.perf_counter()
        for call in calls:
            txn = self.primary.transaction()
            call(txn)
            begun = time.perf_counter()
            txn.commit(False)
            self.commit_seconds += time.perf_counter() - begun
        return time.perf_counter() - began

    def close(self) -> None:
        self.primary.close()
        self.member.close()


def works(rows: int, number: int) -> dict[str, tuple[int, list[Callable[[Any], None]]]]:
    """Return, by name, rows and the calls of each transaction. After a round of all works the tables are as before."""
    rng = np.random.default_rng(number)
    table = make_table(1_000_000 * number, rows)
    tuples = list(zip(*(column.to_pylist() for column in table.columns), strict=True))
    singles = max(rows // 10, 1)
    single = tuples[:singles]
    ids = [row[0] for row in tuples]
    some = rng.permutation(len(ids))

    def batches(call: Callable[[Any, int, int], None]) -> list[Callable[[Any], None]]:
        return [lambda txn, begin=begin: call(txn, begin, begin + BATCH) for begin in range(0, rows, BATCH)]

    changes = {
        "id": np.array(ids)[some],
        "b": rng.random(rows),
        "ts": rng.integers(0, 1 << 40, rows),
    }
    return {
        "insert, 1 row": (singles, [lambda txn, row=row: txn.insert(NAME, row) for row in single]),
        "update, 1 row": (singles, [lambda txn, row=row: txn.update(NAME, row[0], {"b": 0.5}) for row in single]),
        "delete, 1 row": (singles, [lambda txn, row=row: txn.delete(NAME, row[0]) for row in single]),
        "insert, 10,000": (rows, batches(lambda txn, a, b: txn.insert_many(NAME, table.slice(a, b - a)))),
        "update, 10,000": (
            rows,
            batches(lambda txn, a, b: txn.update_many(NAME, {name: each[a:b] for name, each in changes.items()})),
        ),
        "delete, 10,000": (rows, batches(lambda txn, a, b: txn.delete_many(NAME, ids[a:b]))),
    }


def measure(rows: int, is_indexed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), is_indexed)
        best: dict[str, tuple[float, float, float]] = {}
        for number in range(1, ROUNDS + 1):
            for name, (count, calls) in works(rows, number).items():
                whole = bench.transact(calls)
                commit = bench.commit_seconds
                applied = bench.apply()
                found = tuple(each / count * 1e6 for each in (whole, commit, applied))
                best[name] = tuple(map(min, best.get(name, found), found))  # type: ignore[assignment]
        print(f"\n{'with an ordered index' if is_indexed else 'no index'}: µs a row")
        print("| work | primary, all | its commit | member | member / all |\n|---|---|---|---|---|")
        for name, (whole, commit, applied) in best.items():
            print(f"| {name} | {whole:.3f} | {commit:.3f} | {applied:.3f} | {applied / whole:.2f} |")
        bench.close()


def main() -> None:
    """Both tables."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    measure(rows, False)
    measure(rows, True)


if __name__ == "__main__":
    main()
