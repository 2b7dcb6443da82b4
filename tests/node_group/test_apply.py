"""Groups of one store applied to another one in use: both are equal after every group."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.node_group.pair import Pair, PairWorld, slots_of
from tests.store.history import LEAST, PAGE_SIZES, History, Step
from tests.store.support import ACCOUNT
from tidemark.engine.log.reader import GroupRead, LogReader, described
from tidemark.engine.log.records import Frame, frames
from tidemark.engine.log.redo_layout import GROUP_WORDS, KIND_DELETE, KIND_INSERT, KIND_UPDATE
from tidemark.session import Transaction

LARGE = {"redo_log": "16 MiB", "data_memory": "32 MiB", "undo_log": "16 MiB", "transaction_memory": "8 MiB"}


def test_rows_come_with_slots_epochs_and_ids_and_the_member_refuses_writers() -> None:
    pair = Pair()
    pair.primary.create_table("test.account", ACCOUNT, "id")
    for key in range(5):
        pair.primary["test.account"].insert((key, "o", 1.0, None))
    pair.primary["test.account"].delete(3)
    with pair.primary.transaction() as txn:
        txn.insert("test.account", (10, "p", 2.0, "x" * 500))
        txn.update("test.account", 10, {"balance": 3.0})
        txn.delete("test.account", 1)
        txn.insert("test.account", (1, "again", 4.0, "y"))
    pair.verify()
    with pytest.raises(tm.NotPrimary, match="not the primary"):
        pair.member["test.account"].insert((99, "o", 1.0, None))
    with pytest.raises(tm.NotPrimary):
        pair.member.create_table("test.u", ACCOUNT, "id")
    assert len(pair.member["test.account"]) == 5
    pair.close()


def test_authors_and_any_values_are_those_of_the_primary() -> None:
    pair = Pair()
    pair.primary.create_table("test.account", ACCOUNT, "id")
    for author in (0, 7, 0, 9):
        txn: Any = pair.primary.parts.store.transactions.begin(5 + author, author, kind=Transaction)
        txn.write("test.account", (author, "o", 1.0, None))
        txn.write("test.account", (1, "o", float(author), None))
        txn.commit(False)
    pair.verify()
    assert {row[1] for row in slots_of(pair.member)[0].values()} == {0, 7, 9}
    pair.close()


def test_log_of_the_member_has_the_groups_of_the_primary_word_for_word() -> None:
    pair = Pair(**LARGE)
    pair.primary.create_tablespace("main", "1 MiB", page_size="8 KiB", extent="256 KiB")
    pair.primary.create_table("test.account", [*ACCOUNT, tm.Column("d", tm.Text, storage="disk")], "id")
    # An open transaction reserves pages: the member does not know of it, so its own choice of pages would differ.
    open_one = pair.primary.transaction()
    open_one.insert_many("test.account", [(key, "o", 0.0, "n", "e" * 900) for key in range(-40, 0)])
    for count in (1, 3, 400, 30_000):
        with pair.primary.transaction() as txn:
            txn.write_many("test.account", [(key, "o", float(count), "n", "d" * (key % 50)) for key in range(count)])
    open_one.rollback()
    pair.primary["test.account"].delete_many(list(range(0, 30_000, 7)))
    pair.verify()
    first, second = (groups_of(db) for db in (pair.primary, pair.member))
    assert len(first) == len(second) == pair.primary.parts.store.log.sequence - 1
    for one, other in zip(first, second, strict=True):
        names = ("sequence", "epoch", "wall_us", "next_txid", "transactions", "records_words")
        assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]
        stop = GROUP_WORDS + one.records_words
        assert np.array_equal(one.words[GROUP_WORDS:stop], other.words[GROUP_WORDS:stop])
    pair.close()


def groups_of(db: Any) -> list[GroupRead]:
    log = db.parts.store.log
    reader = LogReader(db.parts.files, log.geometry, db.parts.opened.identity[0])
    groups = list(reader.groups(log.tail_lsn, log.tail_sequence))
    reader.close()
    return groups


def frames_of(words: Any) -> Iterator[Frame]:
    return frames(words, GROUP_WORDS, GROUP_WORDS + described(words).records_words)


def run(history: History, world: PairWorld, steps: int, said: str) -> None:
    """Run random calls at the primary; whatever their results, the member is equal."""
    for number, step in enumerate(history.steps(steps)):
        world.answer(step)
        if number % 10 == 0 and world.txn is None:
            world.pair.verify(f"{said}, step {number}: {step.call}")
    world.answer(Step("rollback"))
    world.pair.verify(said)
    applied = [frame.kind for words in world.pair.stream.words for frame in frames_of(words)]
    assert {KIND_INSERT, KIND_UPDATE, KIND_DELETE}.intersection(applied)
    world.pair.close()


@pytest.mark.parametrize("storage", ["memory", "disk"])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_history_leaves_both_equal_slot_by_slot(storage: str, seed: int) -> None:
    history = History(seed)
    how: dict[str, Any] = {}
    columns = history.columns
    if storage == "disk":
        columns = history.placed()
        rng = random.Random(seed)
        how = {"page_size": rng.choice(PAGE_SIZES), "undo_filter": rng.random() < 0.7, **LEAST}
    run(history, PairWorld(columns, 3, **how), 120, f"seed {seed} {how}")
