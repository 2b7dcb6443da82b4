"""Lives whose threads take turns by a seed: they end well, they repeat, and a standstill is reported."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark as tm
from tests.simulation.threads.points import OVERWRITTEN, overwrite_free_memory
from tests.store.support import open_memory
from tidemark.engine.memory.arena_layout import (
    BLOCK_WORDS,
    P_FREE_BLOCK_COUNT,
    P_FREE_BLOCKS,
    P_FREE_PAGE_COUNT,
    P_FREE_PAGES,
    PAGE_SHIFT,
    PAGE_WORDS,
    S_POOL,
)

ROOT = Path(__file__).resolve().parents[2]


def scheduled(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m tests.simulation.threads` with these arguments."""
    command = [sys.executable, "-m", "tests.simulation.threads", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def program(text: str) -> subprocess.CompletedProcess[str]:
    """A program whose threads take turns; `end` reports what is wrong and ends it."""
    start = """
import os, queue, threading
from tests.simulation.threads import turns as scheduler
from tests.simulation.threads.turn_taking import taking_turns
from tests.simulation.threads.turns import Turns

def end(text):
    print(text, flush=True)
    os._exit(3)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", start + text], env=environment, capture_output=True, text=True)


def traces(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The digest of each life, by its seed."""
    return dict(re.findall(r"^seed (\d+): .* trace ([0-9a-f]{16})", done.stderr, re.MULTILINE))


@pytest.fixture(scope="module")
def lives() -> subprocess.CompletedProcess[str]:
    return scheduled("--seeds", "0:2")


@pytest.mark.timeout(1_200)
def test_lives_end_well(lives: subprocess.CompletedProcess[str]) -> None:
    assert lives.returncode == 0, lives.stderr
    assert re.search(r"lives 2, findings 0, points [1-9]\d{4,}, switches [1-9]\d{3,}", lives.stdout)


def test_the_same_seed_gives_the_same_trace(lives: subprocess.CompletedProcess[str]) -> None:
    before = traces(lives)
    assert len(set(before.values())) == 2, lives.stderr
    again = traces(scheduled("--seeds", "1"))
    assert again == {"1": before["1"]}


def test_actors_and_storage_can_be_chosen_and_turns_are_printed() -> None:
    done = scheduled("--seeds", "3", "--actors", "reader", "--memory", "--trace")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ [\d.]+ writer-\d \[\w+\] -> ", done.stderr, re.MULTILINE)
    assert "backups" not in done.stderr
    assert scheduled("--seeds", "3", "--actors", "nothing").returncode == 2


def test_threads_that_wait_for_each_other_are_reported_with_their_places() -> None:
    done = program("""
def work(first, second):
    while True:
        with first, second:
            pass

with taking_turns(Turns(1, end)):
    one, two = threading.Lock(), threading.Lock()
    threads = [threading.Thread(target=work, args=locks) for locks in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
""")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("deadlock: no thread can run")
    assert done.stdout.count("waits for a lock") == 2 and done.stdout.count(" work: ") == 2


def test_life_without_an_end_is_reported() -> None:
    done = program("""
scheduler.POINTS_MAX = 2_000
with taking_turns(Turns(1, end)):
    lock = threading.Lock()
    while True:
        with lock:
            pass
""")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("no end after 2001 points")


def test_a_cached_property_that_is_being_computed_holds_no_turn() -> None:
    """Python 3.11 computes it under a lock of its own. Threads that took turns waited for that lock for ever."""
    done = program("""
import functools

class Shape:
    @functools.cached_property
    def words(self):
        turns.sleep(1)
        return 7

turns = Turns(1, end)
with taking_turns(turns):
    found = []
    threads = [threading.Thread(target=lambda: found.append(Shape().words)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(found)
""")
    assert (done.returncode, done.stdout) == (0, "[7, 7, 7]\n"), done.stderr


def test_all_that_threads_wait_with_takes_turns_and_time_is_virtual() -> None:
    done = program("""
turns = Turns(5, end)
with taking_turns(turns):
    told, ready, changed, waiting = [], threading.Event(), threading.Condition(), queue.SimpleQueue()
    assert not ready.wait(100)

    def work():
        told.append(ready.wait(60))
        with changed:
            told.append(changed.wait(1))
        told.append(waiting.get())
        lock = threading.RLock()
        with lock, lock:
            turns.sleep(30)

    thread = threading.Thread(target=work)
    thread.start()
    ready.set()
    turns.sleep(10)
    waiting.put("a word")
    thread.join(5)
    assert thread.is_alive()
    thread.join()
    assert not thread.is_alive()
    print(told, int(turns.now) - 100, flush=True)
""")
    assert done.stdout.split("\n")[0] == "[True, False, 'a word'] 40", done.stdout + done.stderr


def test_thread_that_only_sleeps_lets_stopped_threads_continue() -> None:
    """Story: a reader of a store without tables only slept, while all other threads were stopped for some points. A
    sleep was not a point: none passed, and two lives of a long run had no end.
    """
    done = program("""
turns = Turns(1, end)
turns.park_rate = 1.0
with taking_turns(turns):
    worked = []

    def work():
        turns.point("kernel", True)
        worked.append(turns.points)

    thread = threading.Thread(target=work)
    thread.start()
    while not worked:
        turns.sleep(0)
    thread.join()
    print("worked", flush=True)
""")
    assert done.stdout == "worked\n", done.stdout + done.stderr


def test_memory_that_was_freed_is_overwritten_and_nothing_else() -> None:
    with open_memory() as db:
        for name in ("kept", "dropped"):
            table = db.create_table(name, [tm.Column("id", tm.Int64), tm.Column("note", tm.VarChar(3_000))], "id")
            table.insert_many([(key, name * (key % 400)) for key in range(3_000)])
        db["kept"].delete_where(tm.col("id") % 3 == 0)
        want = [tuple(row) for row in db["kept"].scan()]
        db.drop_table("dropped")
        mem = db.parts.store.mem
        assert mem[S_POOL + P_FREE_PAGE_COUNT] > 100 and mem[S_POOL + P_FREE_BLOCK_COUNT] > 0
        overwrite_free_memory(mem)
        page, block = mem[S_POOL + P_FREE_PAGES] << PAGE_SHIFT, mem[S_POOL + P_FREE_BLOCKS]
        assert set(mem[page + 1 : page + PAGE_WORDS]) == set(mem[block + 2 : block + BLOCK_WORDS]) == {OVERWRITTEN}
        assert [tuple(row) for row in db["kept"].scan()] == want
        db["kept"].insert_many([(key, "again" * (key % 90)) for key in range(3_000, 5_000)])
        assert db.check()["problems"] == []
