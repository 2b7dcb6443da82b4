"""The kernels of node groups compared with twins that keep rows in a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.naive import group_apply as naive
from tests.node_group.pair import Pair, slots_of
from tests.seeds import fresh_seeds
from tests.store.history import ROOM, History

NAME = "test.t"


def shapes(db: Any) -> dict[int, naive.Shape]:
    return {
        each.table_id: naive.Shape(each.format.fixed_words, each.format.has_var, each.format.has_disk)
        for each in db.parts.store.tables.by_name.values()
    }


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_random_groups_leave_the_rows_that_the_twin_has(storage: str, seed: int) -> None:
    history = History(seed)
    pair = Pair(**ROOM)
    if storage == "disk":
        pair.primary.create_tablespace("main", "1 MiB", page_size="8 KiB", extent="256 KiB")
    pair.primary.create_table(NAME, history.columns if storage == "memory" else history.placed(), "id")
    pair.pump()
    first = len(pair.stream.words)
    txn: Any = None
    for step in history.steps(80):
        if step.call.endswith(("insert", "write", "delete", "many")) and step.call != "get_many":
            txn = txn or pair.primary.transaction()
            try:
                getattr(txn, step.call)(NAME, step.data)
            except tm.Rejected:
                continue
        elif txn is not None and step.call in ("commit", "begin", "get"):
            txn.commit(False)
            txn = None
            if step.call == "get":
                pair.primary.parts.clockwork.advance_epoch()
    if txn is not None:
        txn.rollback()
    pair.pump()
    rows: dict[naive.Slot, naive.Row] = {}
    for words in pair.stream.words[first:]:
        naive.apply(words.tolist(), shapes(pair.primary), rows)
    found, _ = slots_of(pair.member)
    assert found == {
        place: (epoch, author, np.array(image, dtype=np.int64).tobytes())
        for place, (epoch, author, image) in rows.items()
    }, f"seed {seed}"
    pair.close()
