"""Mixed work on one store for minutes, while memory and descriptors must not grow: `python -m tests.soak.steady FOLDER
--seconds 60 --seed 1`.

A round is work of every kind that ends with the rows it began with: batches, single rows, transactions that are rolled
back, snapshots, scans, indexes, tables that are created and dropped, local checkpoints, openings. After each round the
arena, the descriptors of the process and what the store holds are measured; after the first rounds none of them may
grow. The closed store leaves no descriptor. These are figures of a process, so the program needs one of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidemark as tm
from tidemark.engine.base.clock import SystemClock

OPTIONS: dict[str, Any] = {
    "data_memory": "32 MiB",
    "redo_log": "16 MiB",
    "undo_log": "8 MiB",
    "page_buffer": "1 MiB",
    "transaction_memory": "1 MiB",
    "transaction_limit": "16 MiB",
    "background": False,
}
KEYS = 300
WARM_ROUNDS = 4
ARENA_SLACK_BYTES = 256 << 10
RSS_SLACK_BYTES = 48 << 20
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("owner", tm.VarChar(40)), tm.Column("note", tm.Text, nullable=True)]
ON_DISK = [*COLUMNS[:2], tm.Column("note", tm.VarChar(800), nullable=True, storage="disk")]
TABLES = ("steady.memory", "steady.disk")


@dataclass(frozen=True)
class Held:
    """Resources held after a round."""

    arena_bytes: int
    descriptors: int
    snapshots: int
    locks: int
    spools: int
    rss_bytes: int


def descriptors() -> set[str]:
    """Return the open descriptors of the process."""
    return set(os.listdir("/proc/self/fd"))


def held_by(db: tm.Database) -> Held:
    """Measure what the store and the process hold."""
    status = db.status()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return Held(
        status["memory"]["used_bytes"],
        len(descriptors()),
        status["snapshots"]["open"],
        len(db.parts.store.locks.by_slot),
        status["spool"]["open"],
        pages * os.sysconf("SC_PAGE_SIZE"),
    )


def rows_of(keys: Sequence[int], rng: random.Random) -> list[tuple[int, str, str | None]]:
    """Return rows of these keys; all notes have one length, so that replaced rows need the same memory."""
    return [(key, f"owner {rng.randrange(1_000):03}", "n" * 600) for key in keys]


def work(db: tm.Database, rng: random.Random) -> int:
    """Run one round; return the number of changes."""
    changes = 0
    for name in TABLES:
        table = db[name]
        keys = rng.sample(range(KEYS), KEYS // 3)
        table.delete_many(keys)
        table.insert_many(rows_of(keys, rng))
        with db.snapshot() as snapshot:
            table.write_many(rows_of(keys, rng))
            assert len(list(snapshot[name].scan(["id"]))) == KEYS
        for key in rng.sample(range(KEYS), 40):
            table.update(key, {"owner": f"single {key:03}"})
        try:
            with db.transaction() as txn:
                txn.write_many(name, rows_of(range(20 * KEYS), rng))  # more than fits in memory: spooled
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        db.create_index(name, "by_owner", ["owner"])
        assert len(list(table.scan(["id"], index="by_owner", lower=("",)))) == KEYS
        db.drop_index(name, "by_owner")
        changes += 3 * len(keys) + 40
    db.create_table("steady.passing", COLUMNS, "id")
    db["steady.passing"].insert_many(rows_of(range(200), rng))
    db.drop_table("steady.passing")
    db.checkpoint()
    db.checkpoint()
    return changes + 200


def grown(rounds: Sequence[Held], is_long: bool = False) -> list[str]:
    """Return which figures are higher after the first rounds than in any of them. is_long: over many rounds, where the
    random keys may need a page more or less in the arena, and the memory of the process counts too.
    """
    names = ["arena_bytes", "descriptors", "snapshots", "locks", "spools"]
    first, later = rounds[:WARM_ROUNDS], rounds[WARM_ROUNDS:]
    found = []
    for name in names:
        before, after = max(getattr(each, name) for each in first), max(getattr(each, name) for each in later)
        if after > before + (ARENA_SLACK_BYTES if is_long and name == "arena_bytes" else 0):
            found.append(f"{name}: {before} in the first {WARM_ROUNDS} rounds, {after} after them")
    if is_long and later[-1].rss_bytes > first[-1].rss_bytes + RSS_SLACK_BYTES:
        found.append(f"memory of the process: {first[-1].rss_bytes} bytes, then {later[-1].rss_bytes}")
    return found


def run(folder: Path, seed: int, rounds: int | None = None, seconds: float = 0.0) -> tuple[list[Held], int]:
    """Run this many rounds, or seconds; return what was held after each, and the number of changes."""
    rng, clock, held, changes = random.Random(seed), SystemClock(), list[Held](), 0
    until = clock.monotonic() + seconds
    while len(held) < (rounds or 0) or (rounds is None and (clock.monotonic() < until or len(held) <= WARM_ROUNDS)):
        with tm.open(folder, **OPTIONS) as db:
            if not db.tables():
                db.create_tablespace("main", "4 MiB", page_size="4 KiB", extent="64 KiB")
                for name, columns in zip(TABLES, (COLUMNS, ON_DISK), strict=True):
                    db.create_table(name, columns, "id")
                    db[name].insert_many(rows_of(range(KEYS), rng))
            for _ in range(2):
                changes += work(db, rng)
                held.append(held_by(db))
    with tm.open(folder, **OPTIONS) as db:
        assert db.check()["is_sound"] and [len(db[name]) for name in TABLES] == [KEYS, KEYS]
    return held, changes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; print its figures as JSON, or what has grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.steady", description=__doc__)
    parser.add_argument("folder", help="an empty folder")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, help="so many, in place of seconds; two or more of them an opening")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    before = descriptors()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        held, changes = run(Path(folder) / "store", asked.seed, asked.rounds, asked.seconds)
    found = grown(held, is_long=asked.rounds is None)
    if left := sorted(descriptors() - before):
        found.append(f"descriptors of the closed store: {left}")
    print(json.dumps({"rounds": len(held), "changes": changes, **held[-1].__dict__, "grown": found}))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
