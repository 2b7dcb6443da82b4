"""The built-in program over numbers that a store gives: no number twice, and none below what was seen.

Rows get numbers alone, in batches, from the caller, and in transactions that are rolled back; the newest row is deleted
again; local checkpoints and openings come between. A named sequence gives numbers that leave the store.

Ledger lines: "row NUMBER" for a row that was committed, "gone NUMBER" once it is deleted, "given NUMBER" of the
sequence.
"""

from __future__ import annotations

import random
from typing import Any

import tidemark as tm
from tidemark.recovery.crash_harness.program import Ledger, OpenStore

TABLE = "test.numbered"
SEQUENCE = "invoice"
STEPS = 40
COLUMNS = [tm.Column("id", tm.Int64, default=tm.autoincrement), tm.Column("note", tm.VarChar(20), nullable=True)]


def work(open_store: OpenStore, seed: int, ledger: Ledger, steps: int = STEPS) -> None:
    """The program, for crash states."""
    rng = random.Random(seed)
    db: Any = open_store()
    if TABLE not in db:
        db.create_table(TABLE, COLUMNS, "id", tm.HashPartition(2))
    for step in range(steps):
        if step % 13 == 7:
            db.checkpoint()
        elif step % 17 == 11:
            db.close()
            db = open_store()
        else:
            _step(db, rng, ledger)
    db.close()


def endless_work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    """The program, until it is killed."""
    work(open_store, seed, ledger, 1 << 40)


def _step(db: Any, rng: random.Random, ledger: Ledger) -> None:
    table, draw = db[TABLE], rng.random()
    if draw < 0.3:
        ledger.acknowledge(f"row {table.insert({'note': 'one'})}")
    elif draw < 0.45:
        before = {row.id for row in table}
        table.insert_many([{"note": "many"}] * rng.choice((2, 130)))
        for number in sorted({row.id for row in table} - before):
            ledger.acknowledge(f"row {number}")
    elif draw < 0.6:
        number = table.insert({"note": "before it"})
        ledger.acknowledge(f"row {number}")
        number += rng.choice((1, 5, 250))
        ledger.acknowledge(f"row {table.insert((number, 'own'))}")
    elif draw < 0.75:
        txn = db.transaction()
        txn.insert(TABLE, {"note": "undone"})
        txn.rollback()
    elif draw < 0.85:
        ledger.acknowledge(f"given {db.sequence(SEQUENCE).next()}")
    else:
        number = max((row.id for row in table), default=0)
        if number:
            ledger.begin(f"gone {number}")
            table.delete(number)
            ledger.acknowledge(f"gone {number}")


def verify(db: Any, ledger: Ledger) -> list[str]:
    """Every violation of the promises above."""
    seen: dict[str, list[int]] = {"row": [], "gone": [], "given": []}
    for line in ledger.acknowledged:
        what, number = line.split()
        seen[what].append(int(number))
    found = [f"{what} {number} came twice" for what in seen for number in seen[what] if seen[what].count(number) > 1]
    if TABLE not in db:
        return [*found, "the table is lost"] if seen["row"] else found
    there = {row.id for row in db[TABLE]}
    going = {int(line.split()[1]) for line in ledger.under_way}
    found += [f"row {number} is lost" for number in sorted({*seen["row"]} - there - {*seen["gone"]} - going)]
    found += [f"row {number} is back" for number in sorted({*seen["gone"]} & there)]
    txn = db.transaction()
    number = txn.insert(TABLE, {})
    txn.rollback()
    newest = max([*seen["row"], *there], default=0)
    if number <= newest:
        found.append(f"the table gives {number} after {newest}")
    given = db.sequence(SEQUENCE).next()
    if given <= max(seen["given"], default=0):
        found.append(f"the sequence gives {given} after {max(seen['given'])}")
    return found
