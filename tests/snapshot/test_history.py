"""Random transactions during several open snapshots: by every call, each snapshot shows the rows from its opening."""

from __future__ import annotations

import pytest

from tests.index.stored import NAME, SEEDS
from tests.index.test_store_history import SHAPES
from tests.snapshot import walk
from tests.snapshot.watched import Watched, small_steps
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.txn import versions_layout as v

__all__ = ["small_steps"]


def test_version_that_was_not_kept_is_missed_by_the_walk_and_by_readers() -> None:
    store = Watched(5)
    store.index("by_n")
    for _ in range(12):
        store.transaction()
    one = store.take()
    store.table.delete(min(store.rows))
    store.verify_store()
    store.look(one)
    mem = store.db.parts.store.mem
    (version,) = walk.versions(mem)
    at = int(mem[a.S_VERSION_RING]) + version.position % int(mem[a.S_VERSION_RING_WORDS])
    mem[at + v.V_FRAGMENT] = 0
    with pytest.raises(AssertionError):
        store.verify_store()
    for look in (store.all_rows, store.hidden, store.numbers):
        with pytest.raises(AssertionError):
            look(one, lambda: None)
    assert len(list(one.snapshot[NAME].scan(index="by_n"))) == len(one.rows) - 1


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_transactions_leave_every_snapshot_as_it_was(shape: str, seed: int) -> None:
    print(f"seed {seed}")
    store = Watched(seed, *SHAPES[shape])
    store.index("by_owner", "by_text")
    for step in range(1, 61 if seed == 1 else 151):
        store.transaction()
        draw = store.rng.random()
        if draw < 0.15 and len(store.taken) < 5:
            store.take()
        elif draw < 0.22:
            store.drop_one()
        if store.taken and store.rng.random() < 0.6:
            one = store.rng.choice(store.taken)
            store.look(one, store.transaction if store.rng.random() < 0.5 else lambda: None)
        if step % 10 == 0:
            store.verify_store()
        if step == 12:
            store.index("by_n")
        if step % 20 == 0:
            store.db.checkpoint(lambda *_: store.transaction())
        if step == 25:
            store.db.sync()
    store.verify()
    for one in list(store.taken):
        for _ in range(3):
            store.look(one)
    while store.taken:
        store.drop_one()
        store.verify_store()
    status = store.db.status()["snapshots"]
    assert (status["open"], status["used_bytes"], status["dropped"]) == (0, 0, 0)
    assert status["versions_kept"] > 0
    rows = store.rows
    store.crash()
    assert {row[0]: tuple(row) for row in store.db[NAME].scan()} == rows
