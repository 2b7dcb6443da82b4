"""A program whose rows expire: each run deletes all of them or none, what it has deleted never comes back, and other
rows stay.

A line of the ledger is a row's key and whether it has expired, the expiry from then on, or a run of `expire`.
"""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

from tidemark.engine.schema.column import Column
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Int64, Timestamp, VarChar
from tidemark.recovery.crash_harness.program import Ledger, OpenStore

TABLE = "test.session"
PAST, FUTURE = datetime(1980, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
EXPIRIES = ("seen + 30 min", "seen", None)
RUN = "expire"


def work(open_store: OpenStore, seed: int, ledger: Ledger) -> None:
    rng = random.Random(seed)
    db = open_store()
    columns = [Column("id", Int64), Column("seen", Timestamp, nullable=True), Column("note", VarChar(20), default="x")]
    expires: str | None = EXPIRIES[0]
    ledger.begin(f"expires {expires}")
    # One partition: a run finds its rows in one batch, so it is one transaction.
    db.create_table(TABLE, columns, "id", HashPartition(1), expires=expires)
    ledger.acknowledge(f"expires {expires}")
    key = 0
    for number in range(18):
        for _ in range(rng.randrange(1, 4)):
            key += 1
            seen = rng.choice([PAST, PAST, FUTURE, None])
            line = f"{key} {seen == PAST}"
            ledger.begin(line)
            db[TABLE].insert({"id": key, "seen": seen})
            ledger.acknowledge(line)
        if number % 3 == 1:
            expires = rng.choice([each for each in EXPIRIES if each != expires])
            ledger.begin(f"expires {expires}")
            db.set_expiry(TABLE, expires)
            ledger.acknowledge(f"expires {expires}")
        if expires is not None:
            ledger.begin(RUN)
            db.expire()
            ledger.acknowledge(RUN)
        if number == 11:
            db.checkpoint()
    db.close()


def verify(db: Any, ledger: Ledger) -> list[str]:
    """Compare rows and expiry with what was promised. It deletes nothing: the harness looks twice."""
    promised = [line for line in ledger.acknowledged if line.startswith("expires")]
    if TABLE not in db:
        return ["the table is lost"] if promised else []
    expires = db[TABLE].definition.expires
    wrong = []
    if f"expires {expires}" not in {*promised[-1:], *ledger.under_way}:
        wrong.append(f"the rows expire by {expires}, {promised[-1:]} was promised")
    kept: set[int] = set()
    stale: set[int] = set()
    for line in ledger.acknowledged:
        if line == RUN:
            stale.clear()
        elif not line.startswith("expires"):
            key, has_expired = line.split()
            (stale if has_expired == "True" else kept).add(int(key))
    new = {int(line.split()[0]) for line in ledger.under_way if line != RUN and not line.startswith("expires")}
    rows = {row.id for row in db[TABLE].scan()}
    found = rows & stale
    wrong += [f"row {key} is lost" for key in kept - rows]
    wrong += [f"row {key} came back" for key in rows - kept - stale - new]
    if found != stale and (found or RUN not in ledger.under_way):
        wrong.append(f"of the expired rows {stale}, {stale - found} are gone")
    return wrong
