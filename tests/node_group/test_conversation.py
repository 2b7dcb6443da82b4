"""Conversations of two nodes: large messages both ways at once, ends from either side, bounded memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.node_group.carriers import STORE, End, Site
from tests.node_group.test_carrier import Process, process, raw_link, tls
from tests.waiting import wait_until
from tidemark.engine.base.errors import PeerError
from tidemark.recovery.node_restart.messages import End as EndOfCopy
from tidemark.recovery.node_restart.messages import Ready, Slice, Taken
from tidemark.replication.node_group.codec import encode
from tidemark.replication.node_group.conversation import Conversation
from tidemark.replication.node_group.messages import Opened
from tidemark.replication.node_group.party import CONVERSATION, NO_STORE
from tidemark.replication.wire.frame_layout import FRAME_NODE_PIECE
from tidemark.replication.wire.pieces import frames_of

__all__ = ["process", "tls"]
WORDS = np.arange(40_000, dtype=np.int64)


def slice_of(number: int, words: np.ndarray = WORDS) -> Slice:
    return Slice((1, 2), 1, number, number + 1, 5, 6, words, 7)


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.close()


def serving(end: End, does: Callable[[Conversation], None]) -> None:
    end.serve = does  # type: ignore[method-assign]


def echo(conversation: Conversation) -> None:
    try:
        while True:
            conversation.send(conversation.receive())
    except PeerError:
        return


@pytest.mark.parametrize("with_tls", [False, True])
def test_messages_of_any_size_come_and_go(with_tls: bool, request: pytest.FixtureRequest) -> None:
    site = Site((1, 2), request.getfixturevalue("tls")) if with_tls else Site()
    one, other = site.end(1, store=NO_STORE), site.end(2)
    serving(other, echo)
    big = np.arange(3_000_000, dtype=np.int64)
    with one.carrier.converse(2) as link:
        assert link.peer[:2] == (2, bytes.fromhex(STORE))
        link.send(Ready(1, 2, "rowid_sync", ""))
        assert link.receive() == Ready(1, 2, "rowid_sync", "")
        for words in (WORDS[:0], WORDS, big):
            link.send(slice_of(3, words))
            back = link.receive()
            assert np.array_equal(back.words, words) and back.start == 3
    assert other.served[0].peer[:2] == (1, bytes(16))
    site.close()


def test_both_sides_may_send_at_once_without_waiting_for_each_other(site: Site) -> None:
    """A source that sends slices and a joiner that answers each must not both wait for room.

    Story of the test: the joiner records its end after the last answer, and this side may see that answer before the
    joiner's thread has run on.
    """
    one, other = site.end(1), site.end(2)
    count = 4_000
    done = threading.Event()

    def joiner(conversation: Conversation) -> None:
        for _ in range(count):
            conversation.send(Taken(conversation.receive().words.size))
        done.set()
        with pytest.raises(PeerError):
            conversation.receive()

    serving(other, joiner)
    answered = 0
    with one.carrier.converse(2) as link:
        for number in range(count):
            link.send(slice_of(number, WORDS[: number % 3_000]))
            while link.try_receive() is not None:
                answered += 1
        while answered < count:
            assert link.receive() is not None
            answered += 1
        assert link.try_receive() is None and not link.wait(0)
        assert done.wait(60), "waited a minute for the joiner to note its end"


@pytest.mark.parametrize("with_tls", [False, True])
def test_two_large_messages_that_meet_pass_each_other(with_tls: bool, request: pytest.FixtureRequest) -> None:
    """Each is longer than all buffers between. Story: a side that took nothing while it sent a piece waited for ever,
    now and then: when both sides had filled the other's buffers since they had last looked.
    """
    site = Site((1, 2), request.getfixturevalue("tls")) if with_tls else Site()
    one, other = site.end(1), site.end(2)
    big = np.arange(4_000_000, dtype=np.int64)
    came: list[Slice] = []

    def meets(conversation: Conversation) -> None:
        conversation.send(slice_of(2, big))
        came.append(conversation.receive())

    serving(other, meets)
    with one.carrier.converse(2) as link:
        link.send(slice_of(1, big))
        came.append(link.receive())
        wait_until(lambda: len(came) == 2)
    assert {each.start for each in came} == {1, 2} and all(np.array_equal(each.words, big) for each in came)
    site.close()


def test_what_was_sent_arrives_though_the_sender_ends_at_once_with_answers_unread(site: Site) -> None:
    """When a socket with unread bytes closes, TCP discards what is still in flight."""
    one, other = site.end(1), site.end(2)
    got: list[object] = []
    is_over = threading.Event()

    def joiner(conversation: Conversation) -> None:
        try:
            while True:
                got.append(conversation.receive())
                conversation.send(Taken(1))
        except PeerError:
            is_over.set()

    serving(other, joiner)
    with one.carrier.converse(2) as link:
        for number in range(30):
            link.send(slice_of(number))
        link.send(EndOfCopy(1, 2, 3))
    assert is_over.wait(60)
    assert len(got) == 31 and got[-1] == EndOfCopy(1, 2, 3)


def test_side_that_takes_nothing_makes_the_other_wait_and_memory_stays(site: Site) -> None:
    one, other = site.end(1), site.end(2)
    link = one.carrier.converse(2)
    assert other.is_serving.wait(60)
    sent: list[int] = []

    def flood() -> None:
        with pytest.raises(PeerError):
            for number in range(1_000):
                link.send(slice_of(number))
                sent.append(number)

    thread = threading.Thread(target=flood)
    thread.start()
    before = -1
    while before != len(sent):
        before = len(sent)
        thread.join(0.3)
    assert thread.is_alive() and len(sent) < 200, "64 MB are in no buffer"
    link.close()
    thread.join()
    other.may_end.set()


@pytest.mark.parametrize("party", ["caller", "called", "carrier of the caller", "carrier of the called"])
def test_the_other_side_hears_of_an_end_by_either_side(site: Site, party: str) -> None:
    one, other = site.end(1), site.end(2)
    errors: list[str] = []

    def waits(conversation: Conversation) -> None:
        try:
            conversation.receive()
        except PeerError as error:
            errors.append(error.message)

    serving(other, waits)
    link = one.carrier.converse(2)
    assert other.is_serving.wait(60)
    waiting = threading.Thread(target=waits, args=(link,))
    waiting.start()
    ends = {
        "caller": link.close,
        "called": other.served[0].close,
        "carrier of the caller": one.carrier.close,
        "carrier of the called": other.carrier.close,
    }
    ends[party]()
    waiting.join()
    wait_until(lambda: len(errors) == 2)
    for call in (link.receive, link.try_receive, lambda: link.send(Taken(1)), lambda: link.wait(0)):
        with pytest.raises(PeerError):
            call()
    link.close()


def test_notify_ends_a_wait(site: Site) -> None:
    one, other = site.end(1), site.end(2)
    serving(other, echo)
    with one.carrier.converse(2) as link:
        timer = threading.Timer(0.05, link.notify)
        timer.start()
        assert not link.wait(200)
        link.send(Taken(3))
        while not link.wait(200):
            pass
        assert link.try_receive() == Taken(3)
        timer.join()


def test_conversation_without_a_peer_is_reported(site: Site) -> None:
    one = site.end(1)
    with pytest.raises(PeerError, match="no link"):
        one.carrier.converse(2)
    with pytest.raises(PeerError, match="not configured"):
        one.carrier.converse(9)
    one.carrier.close()
    other = site.end(2)
    with pytest.raises(PeerError):
        one.carrier.converse(2)
    other.may_end.set()


def test_message_of_the_view_machines_has_no_place_in_a_conversation(site: Site) -> None:
    one = site.end(1)
    failed: list[PeerError] = []

    def waits(conversation: Conversation) -> None:
        with pytest.raises(PeerError) as caught:
            conversation.receive()
        failed.append(caught.value)

    serving(one, waits)
    connection, writer = raw_link(site, one, CONVERSATION)
    connection.sendall(b"".join(frames_of(writer, FRAME_NODE_PIECE, encode(Opened(1)), 100)))
    wait_until(lambda: bool(failed))
    assert "is not allowed here" in failed[0].message
    connection.close()


def test_process_that_dies_ends_its_conversation(process: tuple[Site, End, Process]) -> None:
    _, one, killed = process
    with one.carrier.converse(2) as link:
        link.send(Taken(1))
        killed.process.send_signal(signal.SIGKILL)
        with pytest.raises(PeerError):
            link.receive()


def test_error_of_the_side_that_serves_reaches_the_caller(site: Site, tmp_path: Path) -> None:
    one, other = site.end(1), site.end(2)

    def refuses(conversation: Conversation) -> None:
        raise PeerError("this node restarts itself")

    serving(other, refuses)
    with one.carrier.converse(2) as link:
        with pytest.raises(PeerError, match="this node restarts itself"):
            link.receive()
