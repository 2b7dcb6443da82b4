"""Members and primaries die: a member has a prefix of the stream, and continues after it, following or leading."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.node_group.pair import Pair, contents, copy_file, same_slots
from tests.seeds import fresh_seeds
from tests.store.support import open_memory
from tidemark.engine.store.group_apply import GroupApplier
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles

NAME = "test.t"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("email", tm.VarChar(60), nullable=True),
    tm.Column("n", tm.Int32),
    tm.Column("note", tm.Text, nullable=True),
    tm.Column("cold", tm.VarBinary(900), storage="disk"),
]
OPTIONS: dict[str, Any] = {
    "redo_log": "8 MiB",
    "undo_log": "8 MiB",
    "transaction_memory": "64 KiB",
    "data_memory": "32 MiB",
    "page_buffer": "1 MiB",
}


def work(db: Any, rng: random.Random, count: int) -> None:
    """Run transactions of all sizes, some of them spooled."""
    for _ in range(count):
        keys = rng.sample(range(300), rng.choice([1, 1, 3, 40, 250]))
        with db.transaction() as txn:
            rows = [(key, None, rng.randint(0, 9), "n" * rng.randint(0, 600), rng.randbytes(key)) for key in keys]
            txn.write_many(NAME, rows)
            if rng.random() < 0.5:
                txn.delete_many(NAME, keys[::2])


def make(db: Any) -> None:
    db.create_tablespace("main", "512 KiB", page_size="4 KiB", extent="64 KiB")
    db.create_table(NAME, COLUMNS, "id", tm.HashPartition(2))
    db.create_index(NAME, "by_n", ["n"])


@pytest.mark.parametrize("seed", fresh_seeds(2))
def test_member_killed_at_any_write_reopens_to_a_prefix_and_continues(seed: int) -> None:
    rng = random.Random(seed)
    inner = MemoryFiles()
    images: list[tuple[int, Any]] = []
    plan = Plan()
    pair = Pair((MemoryFiles(), FaultFiles(inner, plan)), **OPTIONS)
    make(pair.primary)
    pair.pump()
    wanted: dict[int, list[str]] = {}
    state = {"acknowledged": 0}

    def after(sequence: int) -> None:
        wanted[sequence] = contents(pair.member, NAME)
        state["acknowledged"] = sequence

    def take() -> None:
        if rng.random() < 0.06 and len(images) < 6:
            disk = inner.kill() if rng.random() < 0.3 else inner.crash(rng, rng.choice(CRASH_POLICIES))
            images.append((state["acknowledged"], disk))

    pair.stream.after = after
    after(pair.member.parts.store.log.sequence - 1)
    base = state["acknowledged"]
    plan.add(Rule("*", once=False, stall=take))
    rounds = 0
    while rounds < 3 or (not images and rounds < 30):  # a seed may draw no image in three rounds
        work(pair.primary, rng, 3)
        pair.member.checkpoint() if rng.random() < 0.5 else pair.member.parts.clockwork.advance_gci()
        pair.pump()
        same_slots(pair.primary, pair.member, f"seed {seed}")
        rounds += 1
    plan.is_over = True
    assert images, f"seed {seed}"
    for acknowledged, disk in images:
        again: Any = open_memory(disk, **OPTIONS)
        last = again.parts.store.log.sequence - 1
        assert acknowledged <= last <= base + len(pair.stream.words), f"seed {seed}"
        assert contents(again, NAME) == wanted[last], f"seed {seed}, group {last}"
        # A control file that was torn in the crash stays torn until the next local checkpoint.
        problems = [each for each in again.check()["problems"] if "another local checkpoint is used" not in each]
        assert problems == [], f"seed {seed}"
        catch_up(again, pair, f"seed {seed}")
        again.close()
    pair.close()


def catch_up(again: Any, pair: Pair, said: str) -> None:
    """Give a reopened member what it lacks, and check that it is equal then."""
    applier = GroupApplier(again.parts.store)
    missing = [words for words in pair.stream.words if int(words[5]) >= again.parts.store.log.sequence]
    assert [int(words[5]) for words in missing] == [
        *range(again.parts.store.log.sequence, pair.primary.parts.store.log.sequence)
    ]
    if missing:
        applier.start_at(int(missing[0][8]))
    for words in missing:
        for names in pair.stream.offered:
            for name in names:
                if pair.files[0].exists(name) and not again.parts.files.exists(name):
                    copy_file(pair.files[0], again.parts.files, name)
        applier.apply(words.copy())
    again.parts.store.log.flush()
    same_slots(pair.primary, again, said)
    check_arena(again)
    applier.lead(lambda incarnation: again.parts.opened.keeper.write(incarnation=incarnation))


@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_member_leads_when_the_primary_is_gone_and_is_replayed_strictly(seed: int) -> None:
    rng = random.Random(seed)
    pair = Pair(**OPTIONS)
    make(pair.primary)
    for _ in range(40):
        pair.primary.transaction().rollback()  # ids of which the member saw no record
    work(pair.primary, rng, 5)
    pair.verify(f"seed {seed}")
    assert pair.member.parts.store.resources.txid_limit() >= int(pair.stream.words[-1][10])
    ids = pair.primary.parts.store.resources.txid_limit()
    epoch = pair.primary.parts.store.epochs.current
    pair.files[0].kill()  # it does not come back
    db = pair.member
    pair.applier.lead(lambda incarnation: db.parts.opened.keeper.write(incarnation=incarnation))
    incarnation = db.parts.opened.keeper.content.incarnation
    assert db.parts.store.epochs.current > epoch and db.parts.store.epochs.current >> 32 > epoch >> 32
    with db.transaction() as txn:
        assert txn.txid >= ids and txn.txid >> 40 == incarnation
    work(db, rng, 5)
    db.create_table("test.more", COLUMNS[:3], "id")
    db.checkpoint()
    work(db, rng, 3)
    check_arena(db)
    assert db.check()["problems"] == [], f"seed {seed}"
    want = contents(db, NAME)
    again = open_memory(pair.files[1].kill(), **OPTIONS)
    assert contents(again, NAME) == want, f"seed {seed}"
    assert again.check()["problems"] == []
    assert again.parts.opened.identity[1] > incarnation
    again.close()
    db.close()


def test_both_reopened_are_equal_and_follow_on() -> None:
    rng = random.Random(3)
    pair = Pair(**OPTIONS)
    make(pair.primary)
    work(pair.primary, rng, 6)
    pair.member.checkpoint()
    work(pair.primary, rng, 3)
    pair.verify()
    opened = Pair((pair.files[0].kill(), pair.files[1].kill()), **OPTIONS)
    opened.verify("reopened")
    work(opened.primary, rng, 4)
    opened.verify("followed on")
    opened.close()
