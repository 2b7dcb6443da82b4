"""The calls a commit partner gets and when; the outcome of commits when it fails, or a signal comes in between."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import tidemark as tm
from tests.store.support import ACCOUNT, open_memory
from tests.waiting import wait_until
from tidemark.engine.log.group import Group
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, is_sealed
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

NAME = "test.account"


class Notes:
    """A partner that notes its calls, and raises the error it was given for a call."""

    def __init__(self, db: Any) -> None:
        self.db = db
        self.reported: list[tuple[Any, ...]] = []
        self.raises: dict[str, list[BaseException]] = {}
        self.named: list[tuple[str, ...]] = []

    def _note(self, call: str, *what: Any) -> None:
        log = self.db.parts.store.log
        self.reported.append((call, *what))
        if call in ("send", "wait"):
            assert log.durable_sequence < what[0], "published before the partner had it"
        if self.raises.get(call):
            raise self.raises[call].pop(0)

    def send(self, group: Group) -> None:
        assert is_sealed(group.words, KIND_GROUP, group.written_words)
        self.named += [group.files] if group.files else []
        self._note("send", group.sequence, group.words[: group.written_words].tobytes())

    def wait(self, sequence: int) -> None:
        self._note("wait", sequence)

    def share(self, sequence: int) -> None:
        self._note("share", sequence)

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        self._note("epoch_closed", epoch, sequence)


def stage(**options: Any) -> tuple[Any, Notes, MemoryFiles]:
    files = MemoryFiles()
    db: Any = open_memory(files, **options)
    db.create_table(NAME, ACCOUNT, "id")
    notes = Notes(db)
    db.parts.store.log.partner = notes
    return db, notes, files


def row(key: int, note: Any = None) -> tuple[Any, ...]:
    return (key, "o", 1.0, note)


def test_each_group_is_sent_then_waited_for_and_closings_come_where_they_fall() -> None:
    db, notes, _ = stage()
    first = db.parts.store.log.sequence
    db[NAME].insert(row(1))
    db.sync()
    db[NAME].insert(row(2))
    db.parts.clockwork.advance_gci()
    calls = [each[:2] for each in notes.reported if each[0] != "epoch_closed"]
    assert calls == [("send", first), ("wait", first), ("send", first + 1), ("wait", first + 1)]
    closings = [each for each in notes.reported if each[0] == "epoch_closed"]
    assert [each[2] for each in closings] == [first + 1, first + 2]
    assert [each[1] for each in closings] == [1 << 32 | 1, 2 << 32]
    db.close()


def test_commit_that_does_not_wait_for_the_disk_waits_for_the_memory_of_others() -> None:
    """Story: with durability="epoch" a commit of a node group returned before any other node had it."""
    db, notes, files = stage(durability="epoch")
    first = db.parts.store.log.sequence
    for key in (1, 2):
        db[NAME].insert(row(key))
    assert [each[:2] for each in notes.reported] == [
        ("send", first),
        ("share", first),
        ("send", first + 1),
        ("share", first + 1),
    ]
    assert db.parts.store.log.durable_sequence == first - 1, "no disk was waited for"
    sent = [each[2] for each in notes.reported if each[0] == "send"]
    db.sync()
    after = [each[:2] for each in notes.reported[4:] if each[0] != "epoch_closed"]
    assert after == [("wait", first + 1)], "both by one write, none sent again"
    assert len(open_memory(files.kill())[NAME]) == 2
    assert sent[0] != sent[1] and db.parts.store.log.durable_sequence == first + 1
    db.close()


def test_commits_that_came_together_are_shared_as_one_group() -> None:
    db, notes, _ = stage(durability="epoch")
    log, first = db.parts.store.log, db.parts.store.log.sequence
    gate, real = threading.Event(), notes.share

    def slow(sequence: int) -> None:
        assert gate.wait(100)
        real(sequence)

    notes.share = slow  # type: ignore[method-assign]
    threads = [threading.Thread(target=db[NAME].insert, args=(row(100),))]
    threads[0].start()
    wait_until(lambda: log.sequence == first + 1)
    threads += [threading.Thread(target=db[NAME].insert, args=(row(key),)) for key in range(8)]
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: int(log.fill[1]) == 8)
    gate.set()
    for thread in threads:
        thread.join()
    assert [each[1] for each in notes.reported if each[0] == "send"] == [first, first + 1]
    assert [each[1] for each in notes.reported if each[0] == "share"] == [first, first + 1]
    db.close()


def test_partner_that_fails_to_share_ends_the_store_and_the_outcome_is_unknown() -> None:
    db, notes, _ = stage(durability="epoch")
    notes.raises["share"] = [tm.IoFailed("the link is gone; lost its group")]
    with pytest.raises(tm.CommitOnFailedStore) as caught:
        db[NAME].insert(row(2))
    assert caught.value.evidence["txid"] > 0
    with pytest.raises(tm.IoFailed, match="lost its group"):
        db[NAME].insert(row(3))


def test_interrupt_while_sharing_reports_the_txid_and_the_group_is_shared_once_more() -> None:
    db, notes, files = stage(durability="epoch")
    notes.raises["send"] = [KeyboardInterrupt()]
    with pytest.raises(tm.CommitInterrupted) as caught:
        db[NAME].insert(row(1))
    assert caught.value.evidence["txid"] > 0
    db[NAME].insert(row(2))
    sends = [each[1:] for each in notes.reported if each[0] == "send"]
    assert [each[0] for each in sends] == [sends[0][0], sends[0][0], sends[0][0] + 1]
    db.sync()
    assert len(open_memory(files.kill())[NAME]) == 2
    db.close()


def test_files_are_synced_before_the_group_that_names_them_is_sent() -> None:
    db, notes, files = stage(transaction_memory="64 KiB", redo_log="8 MiB")
    with db.transaction() as txn:
        txn.insert_many(NAME, [row(key, "n" * 200) for key in range(900)])
    assert [each[0] for each in notes.reported] == ["send", "wait"]
    ((name,),) = notes.named
    again = MemoryFiles.from_snapshot(files.kill().snapshot())
    assert again.exists(name)
    db.close()


@pytest.mark.parametrize("call", ["send", "wait"])
def test_partner_that_fails_ends_the_store_and_the_outcome_is_unknown(call: str) -> None:
    db, notes, files = stage()
    db[NAME].insert(row(1))
    notes.raises[call] = [tm.IoFailed("the link is gone; lost its group")]
    with pytest.raises(tm.CommitOnFailedStore) as caught:
        db[NAME].insert(row(2))
    assert caught.value.evidence["txid"] > 0
    with pytest.raises(tm.IoFailed, match="lost its group"):
        db[NAME].insert(row(3))
    # Its own log has the row or not: the group is sent before the write, but waited for after the sync.
    again = open_memory(files.kill())
    assert len(again[NAME]) == (1 if call == "send" else 2)
    again.close()


@pytest.mark.parametrize("call", ["send", "wait"])
def test_partner_with_a_mistake_ends_the_store_and_says_what_it_was(call: str) -> None:
    db, notes, _ = stage()
    notes.raises[call] = [ValueError("no such peer")]
    with pytest.raises(tm.CommitOnFailedStore):
        db[NAME].insert(row(2))
    with pytest.raises(tm.InvariantBroken, match="no such peer"):
        db.check_usable()


@pytest.mark.parametrize("call", ["send", "wait"])
def test_interrupt_in_the_partner_has_it_asked_again_and_the_same_group_sent(call: str) -> None:
    db, notes, files = stage()
    notes.raises[call] = [KeyboardInterrupt(), KeyboardInterrupt()]
    with pytest.raises(tm.CommitInterrupted):
        db[NAME].insert(row(1))
    reported = [each for each in notes.reported if each[0] == call]
    assert len(reported) == 3 and len(set(reported)) == 1
    db[NAME].insert(row(2))
    assert len(open_memory(files.kill())[NAME]) == 2
    db.close()


def test_followers_of_a_group_whose_partner_fails_all_learn_it() -> None:
    """Four threads commit; the partner fails while the others wait: no commit reports success, and none hangs."""
    db, notes, _ = stage(lock_timeout_ms=2_000)
    gate = threading.Event()
    answers: list[str] = []

    def slow(group: Group) -> None:
        assert gate.wait(100)
        raise tm.IoFailed("the link is gone; lost its group")

    notes.send = slow  # type: ignore[method-assign]

    def commit(key: int) -> None:
        try:
            db[NAME].insert(row(key))
            answers.append("committed")
        except tm.Error as error:
            answers.append(type(error).__name__)

    threads = [threading.Thread(target=commit, args=(key,)) for key in range(4)]
    for each in threads:
        each.start()
    log = db.parts.store.log
    while log.sequence == log.durable_sequence + 1 and not log.has_records():
        pass
    gate.set()
    for each in threads:
        each.join(100)
        assert not each.is_alive()
    assert len(answers) == 4 and set(answers) <= {"CommitOnFailedStore", "IoFailed"}, answers
