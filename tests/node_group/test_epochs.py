"""Epochs of a member end where the stream says, and a thread that asks for a boundary has it to itself."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.pair import Pair, contents
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.memory.arena import address_of
from tidemark.engine.memory.arena_layout import F_LCP_ACTIVE
from tidemark.engine.txn.epoch import HELD_POLLS

NAME = "test.account"
ACCOUNTS = 40


def bank(db: Any) -> None:
    db.create_table(NAME, ACCOUNT, "id", tm.HashPartition(3))
    db[NAME].insert_many([(key, "o", 100.0, None) for key in range(ACCOUNTS)])


def transfer(db: Any, rng: random.Random) -> None:
    one, other = rng.sample(range(ACCOUNTS), 2)
    with db.transaction() as txn:
        for key, amount in ((one, -1.0), (other, 1.0)):
            row = txn.get(NAME, key, lock="exclusive")
            txn.update(NAME, key, {"balance": row.balance + amount, "note": "n" * rng.randint(0, 200)})


def test_member_closes_no_epoch_of_its_own_and_numbers_are_those_of_the_primary() -> None:
    pair = Pair()
    bank(pair.primary)
    pair.pump()
    store = pair.member.parts.store
    for _ in range(3):
        pair.primary.sync()
        pair.primary[NAME].update(1, {"balance": 100.0})
        pair.pump()
        before = store.epochs.current
        assert before == pair.primary.parts.store.epochs.current
        pair.member.parts.clockwork.advance_epoch()
        pair.member.parts.clockwork.advance_gci()
        assert store.epochs.current == before
    pair.primary.parts.clockwork.advance_gci()
    pair.pump()
    pair.member.parts.clockwork.advance_gci()
    assert store.epochs.current == pair.primary.parts.store.epochs.current
    assert pair.member.parts.opened.keeper.content.gci == store.epochs.current >> 32
    pair.close()


def test_snapshots_and_checkpoints_of_a_member_stand_between_epochs_while_groups_come() -> None:
    """A writer at the primary runs next to snapshots and local checkpoints of the member: the sum is always right."""
    rng = random.Random(11)
    pair = Pair(redo_log="4 MiB")
    bank(pair.primary)
    pair.pump()
    # The primary closes epochs by itself; the member cannot ask it to.
    pair.member.parts.store.epochs.on_wanted = lambda: None
    ended = threading.Event()
    done: list[int] = []

    def write() -> None:
        count = 0
        while not ended.is_set():
            # With a full log the member takes no group; this loop still gives it the boundary for its local checkpoint.
            is_full = pair.member.parts.store.log.used_bytes() > 2 << 20
            for _ in range(0 if is_full else rng.randint(1, 5)):
                transfer(pair.primary, rng)
                count += 1
            with pair.primary.parts.store.latch:
                pair.primary.parts.store.epochs.close()
            pair.pump()
            if pair.primary.parts.store.log.used_bytes() > 1 << 20:
                pair.primary.checkpoint()
        done.append(count)

    thread = threading.Thread(target=write)
    thread.start()
    epochs = []
    try:
        for _ in range(40):
            if not thread.is_alive():
                break  # the asserts below report its error
            with pair.member.snapshot() as snapshot:
                assert sum(row.balance for row in snapshot[NAME].scan()) == 100.0 * ACCOUNTS
                epochs.append(snapshot.epoch)
                pair.member.checkpoint()
                assert sum(row.balance for row in snapshot[NAME].scan()) == 100.0 * ACCOUNTS
    finally:
        ended.set()
        thread.join(100)
    assert not thread.is_alive() and done[0] > 10
    assert len(epochs) == 40 and epochs == sorted(set(epochs))
    pair.verify()
    want = contents(pair.member, NAME)
    pair.applier.end_stream()
    again = open_memory(pair.files[1].kill(), redo_log="4 MiB")
    assert contents(again, NAME) == want
    again.close()
    pair.close()


def test_checkpoint_of_a_member_keeps_rows_of_its_epoch_while_groups_change_them() -> None:
    """The scan is held at its first page while groups come: the copy must be that of the end of its epoch."""
    rng = random.Random(12)
    pair = Pair(redo_log="4 MiB")
    bank(pair.primary)
    pair.pump()
    store = pair.member.parts.store
    seen: list[int] = []
    gate = threading.Event()

    def progress(done: int, total: int, unit: str) -> None:
        if not seen:
            seen.append(done)
            assert gate.wait(100)

    thread = threading.Thread(target=lambda: pair.member.checkpoint(progress))
    thread.start()
    while not seen:
        pair.close_epoch()
    want = contents(pair.primary, NAME)
    fragments = store.tables.by_name[NAME].fragments
    assert any(int(store.mem[address_of(fragment) + F_LCP_ACTIVE]) for fragment in fragments)
    for _ in range(60):
        transfer(pair.primary, rng)
    pair.primary[NAME].delete(3)
    pair.primary[NAME].insert((300, "new", 100.0, "x"))
    pair.pump()
    changed = contents(pair.primary, NAME)
    gate.set()
    thread.join(100)
    assert pair.member.parts.lcp.completed == 1
    pair.verify()
    again = open_memory(pair.files[1].kill(), redo_log="4 MiB")
    assert contents(again, NAME) == changed != want
    assert again.check()["problems"] == []
    again.close()
    pair.close()


def test_waiter_for_a_boundary_is_woken_when_the_stream_ends_or_the_store_fails() -> None:
    for end in ("stream", "failure", "lead"):
        pair = Pair()
        bank(pair.primary)
        pair.pump()
        store = pair.member.parts.store
        store.epochs.on_wanted = lambda: None
        said: list[Any] = []

        def look(pair: Pair = pair, said: list[Any] = said) -> None:
            try:
                with pair.member.snapshot() as snapshot:
                    said.append(len(list(snapshot[NAME].scan())))
            except tm.Error as error:
                said.append(type(error))

        thread = threading.Thread(target=look)
        thread.start()
        while not store.epochs.wanting:
            thread.join(0.001)
        if end == "stream":
            pair.applier.end_stream()
        elif end == "failure":
            store.failure.latch(tm.IoFailed("the disk is gone"))
        else:
            pair.applier.lead(lambda incarnation: None)
        thread.join(100)
        assert said == [{"stream": tm.NotPrimary, "failure": tm.IoFailed, "lead": ACCOUNTS}[end]]


def test_closing_reported_before_its_groups_have_come_is_a_gap() -> None:
    pair = Pair()
    bank(pair.primary)
    pair.pump()
    with pytest.raises(tm.InvariantBroken, match="are missing"):
        pair.applier.close_epoch(99 << 32, pair.member.parts.store.log.sequence + 1)


@pytest.mark.parametrize("is_hurried", [False, True])
def test_stream_is_held_at_a_boundary_for_its_successor_and_not_for_ever(is_hurried: bool) -> None:
    """The stream is held for a bounded time, and not at all if hurried: the thread it is held for may need what comes
    next in the stream, as a takeover does.
    """
    pair = Pair()
    bank(pair.primary)
    pair.pump()
    epochs = pair.member.parts.store.epochs
    asked: list[bool] = []

    def holds() -> bool:
        asked.append(epochs.is_boundary)
        return True

    epochs.holds_stream, epochs.is_hurried = holds, is_hurried
    before = epochs.newest_closed
    pair.close_epoch()
    assert epochs.newest_closed > before and not epochs.is_boundary
    assert len(asked) == (0 if is_hurried else HELD_POLLS) and all(asked)
    pair.close()


def test_local_checkpoint_that_is_yet_to_ask_for_its_boundary_has_the_one_the_stream_is_held_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tidemark.engine.txn.epoch.HELD_POLLS", 1 << 30)
    pair = Pair()
    bank(pair.primary)
    pair.pump()
    store = pair.member.parts.store
    store.epochs.on_wanted = lambda: None  # no other epoch is closed
    made: list[int] = []
    making = threading.Thread(target=lambda: made.append(pair.member.checkpoint()["epoch"]))

    def holds() -> bool:
        if making.ident is None:
            making.start()
        return pair.member.parts.lcp.completed == 0

    store.epochs.holds_stream = holds
    closed = store.epochs.current
    pair.close_epoch()
    making.join(100)
    assert made == [closed]
    pair.close()
