"""The thread that touches memory ahead of a large insert: how far it goes, that no byte changes, and that it ends."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidemark as tm
from tests.elsewhere import in_child
from tests.engine.arena_check import check_arena
from tests.store.support import open_memory
from tests.waiting import wait_until
from tidemark.engine.memory import touch_ahead as touched
from tidemark.engine.memory import touch_ahead_kernels as w
from tidemark.engine.memory.arena import Words, reserve
from tidemark.engine.memory.arena_layout import P_HIGH, P_LIMIT, PAGE_SHIFT, S_POOL, X_USED

TXN = 200  # where these tests put a descriptor
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("a", tm.Int64), tm.Column("text", tm.VarChar(30))]
COMPILED = pytest.mark.skipif(bool(numba.config.DISABLE_JIT), reason="as plain Python the advice does nothing")


def memory(words: int) -> Words:
    """Memory that nobody has touched."""
    return np.frombuffer(reserve(words, "data_memory", mmap.MADV_NOHUGEPAGE), dtype=np.int64)


def plan_of(arena: tuple[int, int], buffer: tuple[int, int]) -> Words:
    plan = np.zeros(w.W_WORDS, dtype=np.int64)
    plan[w.W_TXN] = TXN
    plan[w.W_ARENA : w.W_ARENA + 2] = arena
    plan[w.W_BUFFER : w.W_BUFFER + 2] = buffer
    return plan


def resident(words: Words, start: int, stop: int) -> int:
    """How many pages of the system in words[start:stop] are in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    first = (words.ctypes.data + 8 * start) // mmap.PAGESIZE * mmap.PAGESIZE
    size = words.ctypes.data + 8 * stop - first
    found = ctypes.create_string_buffer(-(-size // mmap.PAGESIZE))
    assert libc.mincore(first, size, found) == 0
    return sum(each & 1 for each in found.raw[: -(-size // mmap.PAGESIZE)])


def knows_advice() -> bool:
    some = memory(1 << 12)
    return sys.platform == "linux" and w.touch_ahead(some, some, plan_of((0, 1 << 12), (0, 0))) > 0


def work(begun: list[Words]) -> bool:
    return any(plan[w.W_STATE] == w.WORKS for plan in begun)


# --- the kernel ------------------------------------------------------------------------------------
@given(
    st.integers(0, 1_000),
    st.integers(0, 3_000_000),
    st.integers(0, 500_000),
    st.integers(0, 500_000),
    st.integers(0, 1),
)
def test_any_plan_is_done_as_by_its_twin(high: int, end: int, used: int, size: int, stop: int) -> None:
    mem, buf = memory(1 << 22), memory(1 << 19)
    mem[S_POOL + P_HIGH] = high
    mem[TXN + X_USED] = used
    plan = plan_of((0, end), (0, size))
    plan[w.W_STOP] = stop
    expected, total = plan.copy(), 0
    expected[w.W_STATE] = w.ENDED
    if not stop:  # both ends are less than 64 MiB away
        for place, at in ((w.W_ARENA, high << PAGE_SHIFT), (w.W_BUFFER, used)):
            total += max(0, int(plan[place + w.W_END]) - at)
            expected[place + w.W_NEXT] = max(at, int(plan[place + w.W_END]))
    if stop or knows_advice():
        assert w.touch_ahead(mem, buf, plan) == total
        assert plan.tolist() == expected.tolist()


@COMPILED
def test_memory_is_there_afterwards_and_no_byte_has_changed() -> None:
    if not knows_advice():
        pytest.skip("this system does not know the advice")
    mem, buf = memory(1 << 20), memory(1 << 19)
    mem[S_POOL + P_HIGH] = 2
    buf[:5_000] = np.arange(5_000)
    mem[TXN + X_USED] = 5_000
    mem[9_000:9_100] = 7
    before = resident(mem, 100_000, 900_000) + resident(buf, 100_000, 400_000)
    assert before == 0
    w.touch_ahead(mem, buf, plan_of((0, 900_000), (0, 400_000)))
    pages = resident(mem, 100_000, 899_000) + resident(buf, 100_000, 399_000)
    assert pages >= (799_000 + 299_000) * 8 // mmap.PAGESIZE
    assert resident(mem, 910_000, 1 << 20) == 0
    assert buf[:5_000].tolist() == list(range(5_000)) and not buf[5_000:].any()
    assert mem[9_000:9_100].tolist() == [7] * 100 and not mem[9_100:].any()


@COMPILED
def test_thread_waits_for_the_one_it_is_ahead_of() -> None:
    if not knows_advice():
        pytest.skip("this system does not know the advice")
    end = 3 * w.AHEAD_WORDS
    mem = memory(end + 1)
    plan = plan_of((0, end), (0, 0))
    thread = threading.Thread(target=w.touch_ahead, args=(mem, mem, plan))
    thread.start()
    try:
        wait_until(lambda: plan[w.W_ARENA] > w.AHEAD_WORDS)
        assert plan[w.W_ARENA] <= w.AHEAD_WORDS + w.STEP_WORDS
        mem[S_POOL + P_HIGH] = w.AHEAD_WORDS >> PAGE_SHIFT
        wait_until(lambda: plan[w.W_ARENA] > 2 * w.AHEAD_WORDS)
        assert plan[w.W_ARENA] <= 2 * w.AHEAD_WORDS + w.STEP_WORDS and thread.is_alive()
    finally:
        plan[w.W_STOP] = 1
        thread.join()


# --- calls -----------------------------------------------------------------------------------------
@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Words]]:
    """Makes small calls have a thread; the plans of those that had one."""
    plans: list[Words] = []
    start = touched.start_new_thread

    def noted(run: Any, arguments: Any) -> int:
        plans.append(run.__self__.plan)
        return int(start(run, arguments))

    monkeypatch.setattr(touched, "WORDS_MIN", 1)
    monkeypatch.setattr(touched, "start_new_thread", noted)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(sys, "platform", "linux")
    yield plans
    assert not work(plans)


def rows(first: int, count: int) -> Any:
    ids = range(first, first + count)
    return pa.table({"id": ids, "a": [7 * each for each in ids], "text": [f"text {each}" for each in ids]})


def test_rows_of_a_large_insert_are_all_there(begun: list[Words]) -> None:
    with open_memory() as db:
        table = db.create_table("t", COLUMNS, "id")
        table.insert_many(rows(0, 3_000))
        table.write_many(rows(2_000, 2_000))
        assert len(begun) == 2
        mem = db.parts.store.mem
        assert begun[0][w.W_ARENA + w.W_END] > 0
        assert begun[1][w.W_ARENA + w.W_END] <= int(mem[S_POOL + P_HIGH]) << PAGE_SHIFT  # rows may exist: no pages
        assert sorted(row[:2] for row in table.scan()) == [(each, 7 * each) for each in range(4_000)]
        check_arena(db)


def test_small_insert_has_no_thread(begun: list[Words], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touched, "WORDS_MIN", 1 << 21)
    with open_memory() as db:
        db.create_table("t", COLUMNS, "id").insert_many(rows(0, 3_000))
    assert not begun


def test_nothing_past_data_memory_is_touched(begun: list[Words]) -> None:
    with open_memory(data_memory="2 MiB", transaction_memory="4 MiB") as db:
        table = db.create_table("t", COLUMNS, "id")
        with pytest.raises(tm.MemoryExhausted):
            table.insert_many(rows(0, 60_000))
        limit = int(db.parts.store.mem[S_POOL + P_LIMIT]) << PAGE_SHIFT
        assert begun[0][w.W_ARENA + w.W_END] == limit
        assert not work(begun)
        table.insert_many(rows(0, 10))
        assert table.get(3).a == 21
        check_arena(db)


def test_thread_ends_with_a_call_that_fails(begun: list[Words]) -> None:
    with open_memory() as db:
        table = db.create_table("t", COLUMNS, "id")
        table.insert((2_999, 1, "x"))
        with pytest.raises(tm.DuplicateKey):
            table.insert_many(rows(0, 3_000))
        assert begun and not work(begun)
        assert [row.id for row in table.scan()] == [2_999]


@pytest.mark.parametrize(
    ("name", "error"), [("start_new_thread", RuntimeError("can't start new thread")), ("touch_ahead", MemoryError())]
)
def test_no_room_for_a_thread_or_in_it_changes_nothing(
    begun: list[Words], monkeypatch: pytest.MonkeyPatch, name: str, error: Exception
) -> None:
    def refuse(*arguments: Any) -> int:
        raise error

    monkeypatch.setattr(touched, name, refuse)
    with open_memory() as db:
        table = db.create_table("t", COLUMNS, "id")
        assert table.insert_many(rows(0, 3_000)) == 3_000
        assert table.get(2_999).a == 7 * 2_999
    assert bool(begun) == (name == "touch_ahead")


def test_store_is_closed_while_the_thread_works(begun: list[Words]) -> None:
    db = open_memory()
    table = db.create_table("t", COLUMNS, "id")
    with pytest.raises(tm.Error):
        table.insert_many(rows(0, 150_000), progress=lambda *done: db.close())
    assert begun and not work(begun)


def test_process_forks_while_the_thread_works(begun: list[Words]) -> None:
    ended: list[str] = []

    def close() -> str:
        ahead = touched.TouchAhead(db.parts.store.mem)
        ahead.plan, ahead.process = begun[0], os.getppid()
        begun[0][w.W_STATE] = w.WORKS  # the thread is the other process's
        ahead.close()
        return "closed"

    def fork(*done: Any) -> None:
        if not ended:
            ended.append(in_child(close))

    with open_memory(transaction_memory="16 MiB", redo_log="32 MiB") as db:
        table = db.create_table("t", COLUMNS, "id")
        assert table.insert_many(rows(0, 70_000), progress=fork) == 70_000
        assert ended == ["closed"]
        assert table.get(69_999).a == 7 * 69_999


def test_thread_that_never_begins_is_not_waited_for(begun: list[Words], monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: in a process without address space a thread was made and had no memory to begin. `threading` waited for it
    for ever.
    """
    monkeypatch.setattr(touched, "start_new_thread", lambda run, arguments: begun.append(run.__self__.plan) or 0)
    with open_memory() as db:
        table = db.create_table("t", COLUMNS, "id")
        assert table.insert_many(rows(0, 3_000)) == 3_000
    assert [plan[w.W_STATE] for plan in begun] == [w.NOT_BEGUN]
    w.touch_ahead(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), begun[0])  # too late: it reads neither
    assert begun[0][w.W_STATE] == w.ENDED
