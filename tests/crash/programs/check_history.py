"""A program whose checks come and go: what was refused never comes back, and a check that was acknowledged is asked.

A line of the ledger is a row's key and value, or the names of the checks from then on.
"""

from __future__ import annotations

import random
from typing import Any

from tidemark.engine.base.errors import CheckFailed
from tidemark.engine.programs.expressions import Expression, col
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Int64, VarChar
from tidemark.recovery.crash_harness.program import Ledger, OpenStore

TABLE = "test.purse"
CHECKS: dict[str, Expression] = {"positive": col("cents") >= 0, "even": col("cents") % 2 == 0, "few": col("cents") < 90}
HELD: dict[str, Any] = {
    "positive": lambda cents: cents >= 0,
    "even": lambda cents: cents % 2 == 0,
    "few": lambda cents: cents < 90,
}


def work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    rng = random.Random(seed)
    db = open_store()
    names = ["positive"]
    _schema(ledger, names)
    columns = [Column("id", Int64), Column("cents", Int64), Column("note", VarChar(20), nullable=True)]
    db.create_table(TABLE, columns, "id", checks={"positive": CHECKS["positive"]})
    ledger.acknowledge(f"checks {','.join(names)}")
    rows: dict[int, int] = {}
    for number in range(60):
        key, cents = rng.randrange(8), rng.randrange(-20, 100)
        is_right = all(HELD[name](cents) for name in names)
        ledger.begin(f"{key} {cents}")
        try:
            if key in rows:
                db[TABLE].update(key, {"cents": cents})
            elif number % 2:
                db[TABLE].insert((key, cents, "x"))
            else:
                db[TABLE].insert_many({"id": [key], "cents": [cents]})
            assert is_right, (key, cents, names)
            rows[key] = cents
            ledger.acknowledge(f"{key} {cents}")
        except CheckFailed:
            assert not is_right, (key, cents, names)
            ledger.under_way.discard(f"{key} {cents}")
        if number % 6 == 5:
            names = _changed(db, rng, ledger, names, rows)
        if number % 25 == 24:
            db.checkpoint()
    db.close()


def _changed(db: Any, rng: random.Random, ledger: Ledger, names: list[str], rows: dict[int, int]) -> list[str]:
    """Add or drop a check."""
    name = rng.choice(list(CHECKS))
    after = [each for each in names if each != name] if name in names else [*names, name]
    _schema(ledger, after)
    try:
        if name in names:
            db.drop_check(TABLE, name)
        else:
            db.add_check(TABLE, name, CHECKS[name])
            assert all(map(HELD[name], rows.values())), (name, rows)
    except CheckFailed:
        assert not all(map(HELD[name], rows.values())), (name, rows)
        ledger.under_way.discard(f"checks {','.join(after)}")
        return names
    ledger.acknowledge(f"checks {','.join(after)}")
    return after


def _schema(ledger: Ledger, names: list[str]) -> None:
    ledger.begin(f"checks {','.join(names)}")


def verify(db: Any, ledger: Ledger) -> list[str]:
    """Compare rows and checks with what was promised, and have each check refuse a row."""
    promised = [line for line in ledger.acknowledged if line.startswith("checks")]
    if TABLE not in db:
        return ["the table is lost"] if promised else []
    names = [check.name for check in db[TABLE].definition.checks]
    wrong = []
    if f"checks {','.join(names)}" not in {*promised[-1:], *ledger.under_way}:
        wrong.append(f"the checks are {names}, {promised[-1:]} were promised")
    rows = {row.id: row.cents for row in db[TABLE].scan()}
    expected: dict[int, int] = {}
    for line in ledger.acknowledged:
        if not line.startswith("checks"):
            key, cents = map(int, line.split())
            expected[key] = cents
    for key, cents in rows.items():
        if expected.get(key) != cents and f"{key} {cents}" not in ledger.under_way:
            wrong.append(f"row {key} has {cents}, {expected.get(key)} was promised")
    wrong += [f"row {key} is lost" for key in expected if key not in rows]
    wrong += [f"row {key} breaks {name}" for key, cents in rows.items() for name in names if not HELD[name](cents)]
    for name, cents in (("positive", -2), ("even", 7), ("few", 98)):
        if name in names:
            try:
                db[TABLE].insert((99, cents, None))
                wrong.append(f"check {name} is not asked after a restart")
            except CheckFailed:
                pass
    return wrong
