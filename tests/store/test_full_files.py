"""Full files of a store: REDO log, UNDO log, spool, tablespaces. Each is filled until it refuses; then the test follows
the advice of the message as a user would, and the same change goes through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import open_memory
from tidemark.engine.memory.arena_layout import S_REDO_FREE, S_REDO_RESERVED, X_REDO_WORDS
from tidemark.engine.txn.before_images_kernels import set_capture

NAME, OTHER = "test.full", "test.other"
SIZES: dict[str, Any] = {"page_size": "4 KiB", "extent": "64 KiB"}


def _until(error: type[tm.Error], change: Callable[[int], object]) -> str:
    """Make changes until one is refused so; the message."""
    for number in range(100_000):
        try:
            change(number)
        except error as refused:
            return refused.message
    raise AssertionError("nothing was refused")


def _rows(number: int, count: int = 100) -> list[tuple[Any, ...]]:
    return [(key, number, b"c" * 100) for key in range(number * count, number * count + count)]


def _create(db: Any, name: str = NAME, storage: str = "memory", tablespace: str | None = None) -> None:
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("c", tm.VarBinary(200), storage=storage)]
    db.create_table(name, columns, "id", **({} if tablespace is None else {"tablespace": tablespace}))


def _checkpoints(db: Any, advice: str) -> None:
    assert "checkpoint() twice" in advice, advice
    db.checkpoint()
    db.checkpoint()


@pytest.mark.parametrize("how", ["insert_many", "delete_many", "delete_where", "create_table"])
def test_a_full_redo_log_has_room_after_what_its_message_advises(how: str) -> None:
    db = open_memory(data_memory="16 MiB", redo_log="1 MiB", transaction_memory="256 KiB")
    _create(db)
    advice = _until(tm.RedoOverloaded, lambda number: db[NAME].insert_many(_rows(number)))
    rows = len(list(db[NAME].scan(["id"])))
    if how == "create_table":
        with pytest.raises(tm.RedoOverloaded):
            for number in range(1_000):
                _create(db, f"test.t{number}")
    _checkpoints(db, advice)
    if how == "delete_many":
        db[NAME].delete_many(list(range(rows // 2)))
    elif how == "delete_where":
        db[NAME].delete_where(tm.col("id") < rows // 2)
    elif how == "create_table":
        _create(db, OTHER)
    db[NAME].insert_many(_rows(1_000))
    assert db.check()["problems"] == []
    db.close()


@pytest.mark.parametrize("one_by_one", [True, False])
def test_a_large_transaction_spools_before_it_fills_the_log(one_by_one: bool) -> None:
    """Story: a transaction reserved the whole REDO log before it spooled, and others waited for it in vain."""
    db = open_memory(data_memory="64 MiB", redo_log="4 MiB", lock_timeout_ms=0)
    _create(db)
    _create(db, OTHER)
    rows = _rows(0, 40_000)
    with db.transaction() as txn:
        for at in range(0, len(rows), 1 if one_by_one else 5_000):
            if one_by_one:
                txn.insert(NAME, rows[at])
            else:
                txn.insert_many(NAME, rows[at : at + 5_000])
            if at % 5_000 == 0:
                db[OTHER].insert_many(_rows(at, 10))
        assert db.parts.store.mem[S_REDO_RESERVED] * 8 < 4 << 19
    assert len(list(db[NAME].scan(["id"]))) == 40_000
    assert db.status()["spool"]["committed"] == 1
    db.close()


def test_a_transaction_between_the_log_and_its_usable_part_can_never_fit() -> None:
    """Story: a transaction a little smaller than the REDO log, which keeps a part for itself, was RedoOverloaded each
    time it was run again.
    """
    db = open_memory(data_memory="32 MiB", redo_log="1 MiB", transaction_memory="8 MiB", transaction_limit="8 MiB")
    log = db.parts.store.log
    with db.transaction() as txn:
        txn.begin()
        own = txn.desc
        words = log.room_bytes // 8 - int(db.parts.store.mem[own + X_REDO_WORDS])
        with pytest.raises(tm.TransactionTooLarge, match=r"larger redo_log, or open it with a transaction_limit above"):
            db.parts.store.room.reserve(own, words + 1)
        assert log.room_bytes < log.geometry.capacity_bytes
    db.close()


def test_a_log_without_room_for_the_old_image_of_a_large_row_refuses_its_update() -> None:
    """Story: an update of a large row ran forever in a store with a binlog. The log had room for the new image, not for
    the old one too, and the transaction replaced its buffer by one of the same size again and again.
    """
    db = open_memory(data_memory="16 MiB", redo_log="1 MiB", lock_timeout_ms=0)
    db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("c", tm.VarBinary(32_000))], "id")
    mem, room = db.parts.store.mem, db.parts.store.room
    set_capture(mem, db["t"].table.handle, 2)  # as a binlog does
    db["t"].insert((1, bytes(32_000)))

    def update(free_words: int) -> None:
        with db.transaction() as other, db.transaction() as txn:
            other.begin()
            room.reserve(other.desc, int(mem[S_REDO_FREE] - mem[S_REDO_RESERVED]) - free_words)
            txn.update("t", 1, {"c": b"x" * 32_000})

    for free_words in range(5_100, 8_000, 700):
        with pytest.raises(tm.RedoOverloaded):
            update(free_words)
    update(16_000)
    assert db["t"][1].c == b"x" * 32_000
    db.close()


@pytest.mark.parametrize("how", ["insert_many", "delete_many", "delete_where", "drop_table"])
def test_a_full_undo_log_has_room_after_what_its_message_advises(how: str) -> None:
    db = open_memory(
        data_memory="16 MiB", redo_log="32 MiB", undo_log="1 MiB", undo_filter=False, transaction_memory="4 MiB"
    )
    db.create_tablespace("main", "16 MiB", **SIZES)
    _create(db, storage="disk")
    db[NAME].insert_many(_rows(0, 5_000))
    db.checkpoint()
    advice = _until(tm.StorageFull, lambda number: db[NAME].update_where({"c": bytes([number % 256]) * 120}))
    assert "UNDO" in advice
    _checkpoints(db, advice)
    if how == "delete_many":
        db[NAME].delete_many(list(range(500)))
    elif how == "delete_where":
        db[NAME].delete_where(tm.col("id") < 500)
    elif how == "drop_table":
        db.drop_table(NAME)
        _create(db, storage="disk")
    db[NAME].insert_many(_rows(1_000))
    assert db.check()["problems"] == []
    db.close()


def test_a_transaction_past_its_limit_goes_in_parts() -> None:
    db = open_memory(data_memory="16 MiB", redo_log="8 MiB", transaction_memory="64 KiB", transaction_limit="128 KiB")
    _create(db)
    for number in range(100):
        db[NAME].insert_many(_rows(number))
    for call in (
        lambda: db[NAME].insert_many(_rows(100, 2_000)),
        lambda: db[NAME].delete_where(tm.col("id") >= 0),
    ):
        with pytest.raises(tm.TransactionTooLarge, match="split it"):
            call()
    for first in range(0, 10_000, 1_000):
        assert db[NAME].delete_where((tm.col("id") >= first) & (tm.col("id") < first + 1_000)) == 1_000
    db[NAME].insert_many(_rows(100, 500))
    assert db.check()["problems"] == []
    db.close()


@pytest.mark.parametrize("how", ["drop_table", "add_datafile", "another", "delete_many", "delete_where"])
@pytest.mark.parametrize("bound", ["fixed", "limit"])
def test_a_full_tablespace_takes_rows_again_after_what_its_message_advises(bound: str, how: str) -> None:
    db = open_memory(data_memory="16 MiB", redo_log="32 MiB", undo_log="16 MiB", transaction_memory="4 MiB")
    size = {"autoextend": False} if bound == "fixed" else {"limit": "1 MiB"}
    db.create_tablespace("main", "1 MiB", **SIZES, **size)
    _create(db, OTHER, "disk", "main")
    db[OTHER].insert_many(_rows(0, 2_000))
    _create(db, NAME, "disk", "main")
    advice = _until(tm.StorageFull, lambda number: db[NAME].insert_many(_rows(number)))
    words = {"drop_table": "drop tables", "add_datafile": "add_datafile()", "another": "another tablespace"}.get(how)
    if words is not None and words not in advice:
        assert (bound, how) in (("limit", "add_datafile"), ("fixed", "another"))
        return
    if words is None:
        assert "delete rows" in advice
    rows = len(list(db[NAME].scan(["id"])))
    if how == "drop_table":
        db.drop_table(OTHER)
        with pytest.raises(tm.StorageFull) as late:
            db[NAME].insert_many(_rows(1_000))
        _checkpoints(db, late.value.message)
    elif how == "add_datafile":
        db.add_datafile("main", "1 MiB")
    elif how == "another":
        db.create_tablespace("more", "1 MiB", **SIZES)
        _create(db, "test.more", "disk", "more")
        db["test.more"].insert_many(_rows(1_000))
        return
    elif how == "delete_many":
        db[NAME].delete_many(list(range(rows // 2)))
    else:
        db[NAME].delete_where(tm.col("id") < rows // 2)
    db[NAME].insert_many(_rows(1_000))
    assert db.check()["problems"] == []
    db.close()


def test_room_of_dropped_tables_is_waited_for() -> None:
    db = open_memory(redo_log="8 MiB", lock_timeout_ms=1_000)
    db.create_tablespace("main", "1 MiB", **SIZES, autoextend=False)
    _create(db, OTHER, "disk", "main")
    db[OTHER].insert_many(_rows(0, 2_000))
    _create(db, NAME, "disk", "main")
    _until(tm.StorageFull, lambda number: db[NAME].insert_many(_rows(number)))
    db.drop_table(OTHER)
    wanted: list[int] = []

    def checkpoint() -> None:  # as the thread of local checkpoints does
        wanted.append(1)
        db.checkpoint()

    db.parts.store.room.on_full = checkpoint
    db[NAME].insert_many(_rows(1_000))
    assert len(wanted) == 2
    db.close()
