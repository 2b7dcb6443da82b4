"""`python -m bench.delete_log_cost`: what a delete log adds to commits, and what a search of the records would cost.

Two stores in memory, with and without a delete log, commit the same deletes in turn. The least time of all rounds
counts, because other work on the machine only adds to it.
"""

from __future__ import annotations

import gc
import time
from typing import Any

import numpy as np

import tidemark as tm
from bench.rows import COLUMNS, make_table
from tidemark.database import Database
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.options import Options
from tidemark.engine.log.redo_layout import KIND_DELETE, KIND_UPDATE, OPERATION_WORDS, pack_kind, pack_rows
from tidemark.engine.memory.arena_layout import PAGE_WORDS, S_DELETE_LOG
from tidemark.engine.txn.delete_log_kernels import note_deletes_of, setup_delete_log
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ROWS = 200_000
BATCH = 10_000
SINGLES = 200
ROUNDS = 5
LOG = "256 KiB"  # so small that it soon wraps round: then all of its memory has been touched
OPTIONS: dict[str, Any] = {
    "data_memory": "256 MiB",
    "redo_log": "256 MiB",
    "durability": "epoch",
    "background": False,
}


def filled(delete_log: str) -> Any:
    """A store with rows."""
    db: Any = Database(MemoryFiles(), Options.from_keywords({**OPTIONS, "delete_log": delete_log}), SystemClock())
    db.create_table("t", COLUMNS, "id", tm.HashPartition(2)).insert_many(make_table(0, ROWS))
    return db


def large(db: Any, keys: list[int]) -> float:
    """Return the seconds per delete of a commit with many deletes."""
    txn = db.transaction()
    txn.delete_many("t", keys)
    began = time.perf_counter()
    txn.commit(False)
    return (time.perf_counter() - began) / len(keys)


def single(db: Any, keys: list[int]) -> float:
    """Return the seconds of a whole transaction of one delete."""
    table = db["t"]
    began = time.perf_counter()
    for key in keys:
        table.delete(key)
    return (time.perf_counter() - began) / len(keys)


def seconds_per_record(kind: int, words: int) -> float:
    """Return the seconds to read one record of the log, and to note the record if it is a delete."""
    mem = np.zeros(PAGE_WORDS + 3 * BATCH, dtype=np.int64)
    setup_delete_log(mem, PAGE_WORDS, 3 * BATCH)
    assert mem[S_DELETE_LOG]
    records = np.zeros(words * BATCH, dtype=np.int64)
    records[0::words] = pack_kind(kind, 0, words)
    records[1::words] = 5
    records[2::words] = [pack_rows(int(rowid), 1) for rowid in np.random.default_rng(1).permutation(BATCH)]
    least = 1.0
    for _ in range(20 * ROUNDS):
        began = time.perf_counter()
        note_deletes_of(mem, records, 0, records.size, 7)
        least = min(least, time.perf_counter() - began)
    return least / BATCH


def main() -> None:
    """Measure and print."""
    least: dict[tuple[str, str], float] = {}
    for number in range(ROUNDS):
        keys = np.random.default_rng(number).permutation(ROWS).tolist()
        names = ("off", "on") if number % 2 else ("on", "off")
        stores = {name: filled("0 B" if name == "off" else LOG) for name in names}
        half = ROWS // 2
        for first in range(0, half, BATCH):
            for name, db in stores.items():
                took = large(db, keys[first : first + BATCH])
                least[name, "large"] = min(least.get((name, "large"), 1.0), took)
        for first in range(half, half + half // 4, SINGLES):
            for name, db in stores.items():
                took = single(db, keys[first : first + SINGLES])
                least[name, "single"] = min(least.get((name, "single"), 1.0), took)
        for db in stores.values():
            db.close()
        gc.collect()
    for work, what in (("large", f"a delete in a commit of {BATCH:,}"), ("single", "a transaction of one delete")):
        print(f"{what}: {least['off', work] * 1e9:,.0f} ns without the log, {least['on', work] * 1e9:,.0f} ns with it")
    print(f"a pass over the records: {seconds_per_record(KIND_DELETE, OPERATION_WORDS) * 1e9:.1f} ns for each delete,")
    print(f"{seconds_per_record(KIND_UPDATE, 12) * 1e9:.1f} ns for each update of 12 words, of which nothing is noted")


if __name__ == "__main__":
    main()
