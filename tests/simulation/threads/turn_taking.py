"""Threads and locks that take turns, in place of those of `threading`, while a life is scheduled.

Everything else in `threading` and `queue` is made of plain locks. These are replaced where `threading` makes them, so
that re-entrant locks, conditions, events, semaphores and queues take turns as well. A thread that is started by one
that takes part takes part too. For threads outside the life, a lock made here works like any lock.
"""

from __future__ import annotations

import functools
import queue
import sys
import threading
from _thread import allocate_lock, get_ident
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.threads.turns import Turns, thread_name

_turns: Turns | None = None
_trace: Any = None  # of each thread that takes part


def read() -> None:
    """Make a point, now and then, before a word of an arena is read."""
    if _turns is not None:
        _turns.read()


class TurnLock:
    """`threading.Lock` that hands the turn over while it waits."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """See `threading.Lock.acquire`; the timeout is in virtual time."""
        turns = _turns
        if turns is None or not turns.takes_part():
            return self._lock.acquire(blocking, timeout)
        turns.point("acquire")
        if self._lock.acquire(False):
            return True
        if not blocking:
            return False
        deadline = None if timeout < 0 else turns.now + timeout
        while deadline is None or turns.now < deadline:
            turns.wait(self, "a lock", deadline)
            if self._lock.acquire(False):
                return True
        return False

    def release(self) -> None:
        """See `threading.Lock.release`."""
        self._lock.release()
        turns = _turns
        if turns is not None and turns.takes_part():
            turns.wake(self)
            turns.point("release")

    def locked(self) -> bool:
        """See `threading.Lock.locked`."""
        return self._lock.locked()

    def _at_fork_reinit(self) -> None:
        self._lock = allocate_lock()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class _Begun:
    """An event, set when a thread has begun. It does not take turns, because the new thread has no turn yet."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._lock.acquire()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.acquire()
        self._lock.release()
        return True


_real_start = threading.Thread.start
_real_join = threading.Thread.join


def _start(thread: Any) -> None:
    """`Thread.start` for a thread that takes part from its first line on."""
    turns = _turns
    if turns is None or not turns.takes_part():
        _real_start(thread)
        return
    turn = turns.add(thread_name(thread))
    run = thread.run
    thread.turn = turn

    def run_in_turn() -> None:
        turn.ident = get_ident()
        entered.release()
        turns.enter(turn)
        try:
            sys.settrace(_trace)
            run()
        finally:
            sys.settrace(None)
            turns.leave(turn)

    entered = allocate_lock()
    entered.acquire()
    thread.run = run_in_turn
    thread._started = _Begun()
    _real_start(thread)
    entered.acquire()  # its identity is known now
    turns.point("start")


def _join(thread: Any, timeout: float | None = None) -> None:
    """`Thread.join` that hands the turn over."""
    turns, turn = _turns, getattr(thread, "turn", None)
    if turns is not None and turn is not None and turns.takes_part():
        deadline = None if timeout is None else turns.now + timeout
        while not turn.has_ended and (deadline is None or turns.now < deadline):
            turns.wait(turn, f"the end of {turn.name}", deadline)
        if not turn.has_ended:
            return
        timeout = None
    _real_join(thread, timeout)


def _cached(prop: Any, instance: Any, owner: Any = None) -> Any:
    """`functools.cached_property.__get__` without the lock that it has in Python 3.11. A thread that waited for that
    lock would keep the turn, and its holder would never get one.
    """
    if instance is None:
        return prop
    if prop.attrname not in instance.__dict__:
        instance.__dict__[prop.attrname] = prop.func(instance)
    return instance.__dict__[prop.attrname]


_PATCHES: tuple[tuple[Any, str, Any], ...] = (
    (threading, "Lock", TurnLock),
    (threading, "_allocate_lock", TurnLock),
    (threading, "_CRLock", None),  # then `RLock` makes the lock of plain ones
    (threading.Thread, "start", _start),
    (threading.Thread, "join", _join),
    (functools.cached_property, "__get__", _cached),
    (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
)


@contextmanager
def taking_turns(turns: Turns, trace: Any = None) -> Iterator[None]:
    """Let the calling thread, and threads it starts, take turns until the block ends. trace: for `sys.settrace` in
    each.
    """
    global _turns, _trace
    before = [(place, name, getattr(place, name)) for place, name, _ in _PATCHES]
    for place, name, made in _PATCHES:
        setattr(place, name, made)
    _turns, _trace = turns, trace
    turns.begin()
    try:
        sys.settrace(trace)
        yield
    finally:
        sys.settrace(None)
        turns.end()
        _turns = _trace = None
        for place, name, was in before:
            setattr(place, name, was)
