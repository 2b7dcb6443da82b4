"""`tm.aio`: calls that are awaited. A cancelled task leaves no transaction, lock or store open, and loses no commit."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import SMALL
from tests.waiting import wait_until
from tidemark.database import Database
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.options import Options
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

ITEM = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop; a task that hangs fails it after a minute."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        async def limited() -> None:
            async with asyncio.timeout(60):
                await test(**given)

        asyncio.run(limited())

    return run


@asynccontextmanager
async def opened(plan: Plan | None = None, **options: Any) -> AsyncIterator[Any]:
    """A store in memory with a table `item` of two rows."""
    parsed = Options.from_keywords({**SMALL, "background": False, **options})
    store = Database(FaultFiles(MemoryFiles(), plan or Plan(())), parsed, SystemClock(), None, None)
    async with tm.aio.Database(store, threads=2) as db:
        item = await db.create_table("item", ITEM, "id")
        await item.insert_many([(1, 10), (2, 20)])
        yield db


async def in_thread(event: threading.Event) -> None:
    """Wait for an event without holding up the loop."""
    await asyncio.to_thread(wait_until, event.is_set)


@in_loop
async def test_a_scan_of_many_rows_and_one_that_ends_early() -> None:
    async with opened() as db:
        await db["item"].insert_many({"id": list(range(10, 5_010)), "n": [1] * 5_000})
        assert len([row async for row in db["item"].scan()]) == 5_002
        async with db.transaction() as txn:
            async for row in txn.scan("item"):
                assert len(row) == 2
                break


@in_loop
async def test_transactions_of_many_tasks_run_at_the_same_time() -> None:
    """Each has a thread of its own: more of them than threads for single calls wait for each other's locks."""
    async with opened(lock_timeout_ms=60_000) as db:

        async def add(txn: Any) -> None:
            row = await txn.get("item", 1, lock="exclusive")
            await txn.update("item", 1, {"n": row.n + 1})

        await asyncio.gather(*(db.run(add) for _ in range(12)))
        assert (await db["item"].get(1)).n == 22


@in_loop
async def test_a_task_cancelled_while_it_waits_for_a_lock_leaves_no_lock() -> None:
    plan = Plan(())
    async with opened(plan, lock_timeout_ms=60_000) as db:
        begun = threading.Event()

        async def waiting() -> None:
            async with db.transaction() as txn:
                await txn.update("item", 2, {"n": 0})
                begun.set()
                await txn.update("item", 1, {"n": 0})

        async with db.transaction() as holder:
            await holder.update("item", 1, {"n": 11})
            task = asyncio.create_task(waiting())
            await in_thread(begun)
            task.cancel()
            await asyncio.sleep(0)
            task.cancel()  # the second one must not leave the transaction to the first
        with pytest.raises(asyncio.CancelledError):
            await task
        async with db.transaction() as txn:
            assert await txn.get("item", 1, lock="exclusive") == (1, 11)
            assert await txn.get("item", 2, lock="exclusive") == (2, 20)


@in_loop
async def test_a_commit_that_has_begun_when_its_task_is_cancelled_is_completed() -> None:
    """The log had the commit, and a cancelled task that rolled it back would lie to its caller."""
    plan, at_sync, resume = Plan(()), threading.Event(), threading.Event()
    async with opened(plan) as db:

        def stall() -> None:
            at_sync.set()
            wait_until(resume.is_set)

        async def committing() -> None:
            async with db.transaction() as txn:
                await txn.update("item", 1, {"n": 11})
                plan.add(Rule("fdatasync", "redo/*", stall=stall))

        task = asyncio.create_task(committing())
        await in_thread(at_sync)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        resume.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await db["item"].get(1) == (1, 11)


def test_an_opening_that_is_cancelled_closes_the_store(tmp_path: Path) -> None:
    @in_loop
    async def cancelled() -> None:
        started, resume = threading.Event(), threading.Event()

        def progress(*_: Any) -> None:
            started.set()
            wait_until(resume.is_set)

        task = asyncio.create_task(opening(tm.aio.open(tmp_path / "shop", progress=progress, **SMALL)))
        await in_thread(started)
        task.cancel()
        await asyncio.sleep(0)
        resume.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def opening(store: Any) -> None:
        await store

    with tm.open(tmp_path / "shop", **SMALL) as db:
        db.create_table("item", ITEM, "id").insert((1, 1))
        db.checkpoint()
    cancelled()
    tm.open(tmp_path / "shop", **SMALL).close()  # Raises: Locked if it were still open


@in_loop
async def test_context_variables_reach_the_thread() -> None:
    marked: contextvars.ContextVar[str] = contextvars.ContextVar("marked", default="")
    marked.set("task")
    seen: list[str] = []
    async with opened() as db:
        await db["item"].scan(progress=lambda *_: seen.append(marked.get())).to_arrow()
    assert seen and set(seen) == {"task"}


@pytest.mark.parametrize("threads", [0, -1, "4", None])
def test_threads_is_a_number(threads: Any) -> None:
    with pytest.raises(tm.Rejected, match=f"threads is {threads!r}; give a number of 1 or more"):
        tm.aio.Database(None, threads)
