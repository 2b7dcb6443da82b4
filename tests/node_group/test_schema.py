"""Schema changes of the primary, carried out at the member from records of the stream, with rows and indexes in use."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.node_group.pair import Pair
from tests.replication.site import DISK
from tidemark.engine.log.redo_layout import GROUP_WORDS, TRANSACTION_WORDS
from tidemark.engine.sealed.sealed_layout import seal

NAME = "test.t"
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("email", tm.VarChar(60), nullable=True),
    tm.Column("n", tm.Int32),
    tm.Column("cold", tm.VarBinary(900), nullable=True, storage="disk"),
]
RANGES = tm.RangePartition("id", [("low", 100), ("high", 1_000)])


def rows(rng: random.Random, keys: Any) -> list[tuple[Any, ...]]:
    return [
        (key, None if key % 5 == 0 else f"{key}@x", rng.randint(0, 20), None if key % 3 else rng.randbytes(key % 800))
        for key in keys
    ]


def verify(pair: Pair, said: str = "") -> None:
    pair.verify(said)
    for db in (pair.primary, pair.member):
        check_arena(db)


def test_indexes_partitions_columns_and_tablespaces_come_and_go_with_rows_between() -> None:
    rng = random.Random(5)
    pair = Pair(**DISK)
    db = pair.primary
    db.create_tablespace("cold", "1 MiB", page_size="8 KiB", extent="256 KiB")
    db.add_datafile("cold", "512 KiB")
    db.create_table(NAME, COLUMNS, "id", RANGES, "cold")
    db[NAME].insert_many(rows(rng, range(150)))
    verify(pair, "rows")
    steps: list[Any] = [
        lambda: db.create_index(NAME, "by_n", ["n"]),
        lambda: db.create_index(NAME, "by_email", ["email"], unique=True, ordered=True),
        lambda: db[NAME].insert_many(rows(rng, range(200, 300))),
        lambda: db.add_partition(NAME, "top", 2_000),
        lambda: db[NAME].insert_many(rows(rng, range(1_500, 1_540))),
        lambda: db.add_column(NAME, tm.Column("late", tm.VarChar(20), default="none")),
        lambda: db[NAME].update(7, {"late": "now", "n": 3}),
        lambda: db[NAME].delete_many(list(range(20, 60))),
        lambda: db.drop_partition(NAME, "low"),
        lambda: db.rename_column(NAME, "n", "number"),
        lambda: db.widen_column(NAME, "late", tm.VarChar(40)),
        lambda: db.set_default(NAME, "late", "later"),
        lambda: db.widen_column(NAME, "email", tm.VarChar(90)),  # with the index over it
        lambda: db.widen_column(NAME, "number", tm.Int64, nullable=True),
        lambda: db.drop_index(NAME, "by_n"),
        lambda: db[NAME].update(210, {"number": None}),
        lambda: db[NAME].update(211, {"number": 1 << 40}),
        lambda: db.create_index(NAME, "by_both", ["number", "late"]),
        lambda: db.rename(NAME, "other.t"),
        lambda: db["other.t"].update_many([{"id": key, "number": 5, "late": "x" * 30} for key in range(200, 240)]),
        lambda: db.drop_column("other.t", "email") if "by_email" not in db["other.t"].indexes() else None,
        lambda: db.drop_table("other.t"),
        lambda: (db.checkpoint(), pair.member.checkpoint()),
        lambda: (db.checkpoint(), pair.member.checkpoint()),
        lambda: db.drop_tablespace("cold"),
        lambda: db.create_table(NAME, COLUMNS, "id"),
        lambda: db[NAME].insert_many(rows(rng, range(40))),
    ]
    for number, step in enumerate(steps):
        if number == 20:
            db.drop_index("other.t", "by_email")
        step()
        verify(pair, f"step {number}")
    assert pair.member.tablespaces() == ["main"]
    pair.close()


def test_unique_keys_that_change_hands_within_a_transaction_do_so_at_the_member() -> None:
    pair = Pair(**DISK)
    db = pair.primary
    db.create_table(NAME, COLUMNS, "id")
    db.create_index(NAME, "by_email", ["email"], unique=True)
    db[NAME].insert_many([(1, "a", 0, None), (2, "b", 0, b"x")])
    with db.transaction() as txn:
        txn.delete(NAME, 1)
        txn.insert(NAME, (3, "a", 0, None))
        txn.update(NAME, 3, {"email": "c"})
        txn.update(NAME, 2, {"email": "a"})
        txn.insert(NAME, (4, "b", 0, None))
        txn.insert(NAME, (1, "d", 1, None))
    verify(pair)
    got = {email: pair.member[NAME].get(email, index="by_email").id for email in "abcd"}
    assert got == {"a": 2, "b": 4, "c": 3, "d": 1}
    pair.close()


def test_transaction_that_was_open_while_its_table_was_dropped_is_skipped() -> None:
    pair = Pair(**DISK)
    db = pair.primary
    db.create_table(NAME, COLUMNS, "id")
    db.create_table("test.stays", COLUMNS[:3], "id")
    txn = db.transaction()
    txn.insert(NAME, (1, "a", 0, None))
    txn.insert("test.stays", (1, "a", 0))
    db.drop_table(NAME)
    txn.commit(True)
    verify(pair)
    assert len(pair.member["test.stays"]) == 1
    pair.close()


def test_change_that_comes_out_otherwise_ends_the_member() -> None:
    pair = Pair()
    pair.primary.create_table(NAME, COLUMNS[:3], "id")

    def bend(words: Any) -> None:
        at = GROUP_WORDS + TRANSACTION_WORDS
        body = words[at + 2 :].tobytes()[: int(words[at + 1])]
        change = json.loads(body)
        change["create"]["version"] = 2
        bent = json.dumps(change, sort_keys=True, ensure_ascii=False).encode()
        assert len(bent) == len(body)
        start = (at + 2) * 8
        words.data.cast("B")[start : start + len(bent)] = bent
        seal(words, words.size)

    pair.stream.before = bend
    with pytest.raises(tm.CommitOnFailedStore):
        pair.primary.create_table("test.second", COLUMNS[:3], "id")
    with pytest.raises(tm.InvariantBroken, match="at the primary and"):
        pair.member.check_usable()
