"""Group commit: what `wait` has answered is durable, whichever thread leads, is interrupted or fails."""

from __future__ import annotations

import errno
import random
import threading
from typing import Any

import pytest

import tidemark as tm
from tests.elsewhere import at_once
from tests.log.support import Log, read, records
from tests.store.interrupts import interrupt_at
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.base.errors import CommitOnFailedStore, StoreFailed
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles, Personality

FILE_CALLS = ["pwrite", "fdatasync"]


def on_disk(log: Log) -> set[int]:
    return {word for group in read(log.after_power_loss(), log.geometry) for word in records(group)}


def test_sixteen_threads_each_acknowledged_commit_is_in_a_power_loss_image() -> None:
    log = Log()
    missing: list[int] = []
    commits = 24

    def work(number: int) -> None:
        for step in range(commits):
            value = number * 1_000 + step + 1
            log.write(value, words=random.Random(value).randrange(600))
            if step % 6 == number % 6 and value not in on_disk(log):
                missing.append(value)

    at_once(work, range(16))
    assert not missing
    everything = [word for group in read(log.after_power_loss(), log.geometry) for word in records(group)]
    assert sorted(everything) == sorted(n * 1_000 + step + 1 for n in range(16) for step in range(commits))
    for number in range(16):  # one thread's commits are in the order it made them
        own = [word for word in everything if word // 1_000 == number]
        assert own == sorted(own)
    assert log.redo.groups_written <= 16 * commits


def test_followers_are_written_with_one_group_while_the_leader_is_at_the_disk() -> None:
    at_disk, resume = threading.Event(), threading.Event()

    def stall() -> None:
        at_disk.set()
        resume.wait()

    log = Log(lambda files: FaultFiles(files, [Rule("fdatasync", "redo/*", stall=stall)]))
    threads = [threading.Thread(target=log.write, args=(1,))]
    threads[0].start()
    at_disk.wait()
    tickets = {log.put(number) for number in range(2, 10)}
    assert len(tickets) == 1
    threads += [threading.Thread(target=log.redo.wait, args=(ticket,)) for ticket in list(tickets) * 8]
    for thread in threads[1:]:
        thread.start()
    resume.set()
    for thread in threads:
        thread.join()
    assert [records(group) for group in read(log.after_power_loss(), log.geometry)] == [[1], list(range(2, 10))]


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("operation", FILE_CALLS)
def test_leader_interrupted_at_a_file_call_leaves_no_follower_waiting(operation: str, nth: int) -> None:
    followers: list[threading.Thread] = []

    def stall() -> None:
        # The signal comes while others wait for what the leader writes, and for what the next leader writes.
        for number in (20, 21, 22):
            followers.append(threading.Thread(target=log.write, args=(number,)))
            followers[-1].start()
        while log.redo.writing.followers < 3:
            pass
        raise KeyboardInterrupt

    log = Log(lambda files: FaultFiles(files, [Rule(operation, "redo/*", nth=nth, stall=stall)]))
    with pytest.raises(KeyboardInterrupt):
        for number in range(1, 4):
            log.write(number)
    for follower in followers:
        follower.join(60)
        assert not follower.is_alive()
    log.write(30)
    groups = [word for group in read(log.after_power_loss(), log.geometry) for word in records(group)]
    assert groups == [*range(1, nth + 1), *sorted(groups[nth:-1]), 30]
    assert sorted(groups[nth:-1]) == [20, 21, 22]


def test_leader_interrupted_anywhere_leaves_a_log_that_others_lead() -> None:
    """Story: a signal just before the handover left the log with a leader that was gone. Every later commit waited for
    ever.
    """
    first = Log()
    ticket = first.put(1)
    points = interrupt_at(-1, lambda: first.redo.wait(ticket)).count
    assert points > 20
    for nth in range(1, points + 1):
        log = Log(file_bytes=1 << 16)
        ticket = log.put(1)
        others = [threading.Thread(target=log.write, args=(number,)) for number in (2, 3)]
        others[0].start()
        point = interrupt_at(nth, lambda log=log, ticket=ticket: log.redo.wait(ticket))
        others[1].start()
        for other in others:
            other.join(60)
            assert not other.is_alive(), point.where
        assert on_disk(log) == {1, 2, 3}, point.where


def test_signal_after_the_publishing_of_a_group_does_not_write_its_buffer_again() -> None:
    """Story: an interrupted leader wrote its group again, though the group had been published and its buffer reused for
    the next records: a durable group was overwritten by bytes of another.
    """
    log = Log()

    class Taken(list[Any]):
        def append(self, words: Any) -> None:
            words[:] = 7  # records of another thread
            raise KeyboardInterrupt

    log.redo.spares = Taken()
    with pytest.raises(KeyboardInterrupt):
        log.write(1)
    assert on_disk(log) == {1}
    assert log.redo.durable_sequence == 1 and not log.redo.pending


@pytest.mark.parametrize("personality", ["clean", "reverted", "late"])
@pytest.mark.parametrize("operation", FILE_CALLS)
def test_failure_at_the_disk_tells_all_waiters_that_the_outcome_is_unknown(
    operation: str, personality: Personality
) -> None:
    outcomes: dict[int, type[BaseException] | None] = {}
    followers: list[threading.Thread] = []

    def commit(number: int) -> None:
        try:
            log.write(number)
            outcomes[number] = None
        except tm.Error as error:
            outcomes[number] = type(error)

    def stall() -> None:
        for number in range(2, 6):
            followers.append(threading.Thread(target=commit, args=(number,)))
            followers[-1].start()
        while log.redo.writing.followers < 4:
            pass

    def faulty(memory: MemoryFiles) -> FaultFiles:
        disk = MemoryFiles(memory.disk, personality)
        return FaultFiles(disk, [Rule(operation, "redo/*", stall=stall, error=errno.EIO)])

    log = Log(faulty)
    commit(1)
    for follower in followers:
        follower.join(60)
    expected: dict[int, Any] = dict.fromkeys(range(1, 6), CommitOnFailedStore)
    if operation == "fdatasync" and personality == "late":
        expected[1] = None  # this disk reports the error of a sync at the next one
    assert outcomes == expected
    assert log.files.failure.first is not None
    with pytest.raises(CommitOnFailedStore):
        log.write(9)
    assert on_disk(log) <= {1}


@pytest.mark.parametrize("personality", ["clean", "reverted", "late"])
def test_failed_sync_after_reopening_acknowledged_commits_stand_and_the_failed_one_is_whole_or_absent(
    personality: Personality,
) -> None:
    for nth in range(1, 12):
        memory = MemoryFiles(personality=personality)
        faulty = FaultFiles(memory, [Rule("fdatasync", "redo/*", nth=nth + 6, error=errno.EIO)])
        acknowledged, failed = [], None
        db = open_memory(faulty)
        try:
            db.create_table("test.account", ACCOUNT, primary_key="id")
            for key in range(20):
                failed = key
                with db.transaction() as txn:
                    txn.insert_many("test.account", [(key * 10 + part, "a", 1.0, None) for part in range(3)])
                acknowledged.append(key)
        except StoreFailed:
            pass
        except CommitOnFailedStore:
            assert db.status()["store"]["state"] == "failed"
        images = [memory.kill()]
        if personality != "late":  # a disk that reports an unfinished sync as done has lost what it promised (F27)
            images.append(memory.image(lambda piece: False))
        for image in images:
            again = open_memory(image)
            if "test.account" not in again:
                assert not acknowledged
                continue
            keys = sorted(rows_of(again))
            whole = {key * 10 + part for key in acknowledged for part in range(3)}
            assert whole <= set(keys)
            assert set(keys) - whole in (set(), {failed * 10 + part for part in range(3)})
