"""Transactions whose records are in files: the files come first, the rows with the group that names the files."""

from __future__ import annotations

from typing import Any

import pytest

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.load import support as load
from tests.node_group.pair import Pair
from tests.spool.support import LOW
from tests.store.support import ACCOUNT
from tidemark.engine.log.spool_files import spool_ids

NAME = "test.account"


def verify(pair: Pair, said: str = "") -> None:
    pair.verify(said)
    for db in (pair.primary, pair.member):
        check_arena(db)


@pytest.mark.parametrize("is_indexed", [False, True], ids=["plain", "indexed"])
def test_spooled_transactions_of_every_kind_of_change(is_indexed: bool) -> None:
    pair = Pair(**{**LOW, "redo_log": "8 MiB"})
    db = pair.primary
    db.create_table(NAME, ACCOUNT, "id", tm.HashPartition(2))
    if is_indexed:
        db.create_index(NAME, "by_balance", ["balance"])
        db.create_index(NAME, "by_owner", ["owner", "id"], unique=True, ordered=True)
    with db.transaction() as txn:
        txn.insert_many(NAME, [(key, "o" * (key % 30), key / 2, "n" * 200) for key in range(900)])
        assert txn.spool is not None
    verify(pair, "inserted")
    with pair.member.snapshot() as snapshot:
        with db.transaction() as txn:
            txn.update_many(NAME, [{"id": key, "note": "m" * (key % 300)} for key in range(0, 900, 2)])
            txn.delete_many(NAME, list(range(1, 900, 6)))
            txn.insert_many(NAME, [(key, "p", 1.0, "z" * 300) for key in range(2_000, 2_300)])
            txn.delete_many(NAME, list(range(0, 60, 2)))
            txn.insert_many(NAME, [(key, "again", 7.0, None) for key in range(0, 60, 4)])
            assert txn.spool is not None
        verify(pair, "changed")
        assert len(list(snapshot[NAME].scan())) == 900
    assert spool_ids(pair.files[0]) == spool_ids(pair.files[1]) != []
    primary, member = (each.kill() for each in pair.files)
    for number in range(3):
        db[NAME].write((2, "last", float(number), None))
        db.checkpoint()
        pair.member.checkpoint()
    assert spool_ids(pair.files[0]) == spool_ids(pair.files[1]) == [], "files go with the log that names them"
    pair.close()
    reopened = load.open_memory(member, **{**LOW, "redo_log": "8 MiB"})
    assert len(reopened[NAME]) == len(load.open_memory(primary, **LOW)[NAME])
    reopened.close()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_adopted_load_next_to_rows_and_indexes(on_disk: bool) -> None:
    pair = Pair(**load.ROOM)
    db = pair.primary
    db.create_table(load.NAME, load.columns(on_disk), "id", tm.HashPartition(2))
    db.create_index(load.NAME, "by_n", ["n"])
    db.create_index(load.NAME, "by_email", ["email"], unique=True)
    db[load.NAME].insert_many(load.rows(0, 200))
    db[load.NAME].delete_many(list(range(50, 90)))
    assert db.adopt(load.published(db, load.rows(1_000, 1_500), parts=2)).rows == 1_500
    verify(pair, "adopted")
    db[load.NAME].delete_many(list(range(1_000, 1_300)))
    db[load.NAME].insert_many(load.rows(5_000, 300))
    verify(pair, "changed after it")
    db.checkpoint()
    pair.member.checkpoint()
    verify(pair, "checkpoint")
    pair.close()


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
def test_large_transaction_that_is_a_group_of_its_own(on_disk: bool) -> None:
    pair = Pair(**load.ROOM, transaction_memory="8 MiB")
    db = pair.primary
    db.create_table(load.NAME, load.columns(on_disk), "id", tm.HashPartition(2))
    db.create_index(load.NAME, "by_n", ["n"])
    with db.transaction() as txn:
        txn.insert_many(load.NAME, load.rows(0, 4_000))
        txn.update_many(load.NAME, [{"id": key, "n": key % 7} for key in range(0, 4_000, 3)])
        assert txn.spool is None
    verify(pair, "inserted")
    with db.transaction() as txn:
        txn.delete_many(load.NAME, list(range(0, 4_000, 2)))
        txn.write_many(load.NAME, load.rows(1_001, 1_500, "other"))
    verify(pair, "changed")
    pair.close()


def test_file_that_did_not_come_ends_the_member_and_nothing_of_the_group_is_there() -> None:
    options: dict[str, Any] = {**LOW, "redo_log": "8 MiB"}
    pair = Pair(**options)
    db = pair.primary
    db.create_table(NAME, ACCOUNT, "id")
    db[NAME].insert((1, "o", 1.0, None))
    pair.pump()
    pair.stream.before = lambda words: [pair.files[1].unlink(name) for name in pair.stream.offered[-1]]
    with pytest.raises(tm.OutcomeUnknown), db.transaction() as txn:
        txn.insert_many(NAME, [(key, "o", 1.0, "n" * 200) for key in range(10, 900)])
    with pytest.raises(tm.InvariantBroken, match="cannot be opened"):
        pair.member.check_usable()
    reopened = load.open_memory(pair.files[1].kill(), **options)
    assert len(reopened[NAME]) == 1
    reopened.close()
