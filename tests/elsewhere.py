"""Calls in other threads, in a forked child, and in another Python. A transaction belongs to the thread that began it,
and waits for locks of others alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

R = TypeVar("R")
T = TypeVar("T")
ROOT = Path(__file__).resolve().parents[1]
# The refusal of a call that would wait for a lock of its own thread.
OWN_LOCK = "this thread holds the lock in transaction 0x"


def elsewhere(call: Callable[[], R]) -> R:
    """Call in a new thread; return what it returns, raise what it raises."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def at_once(call: Callable[[T], R], given: Iterable[T]) -> list[R]:
    """Call for each at once, in a thread of its own; return what the calls return, raise what the first one raises."""
    arguments = list(given)
    with ThreadPoolExecutor(len(arguments)) as pool:
        return list(pool.map(call, arguments))


@contextmanager
def beside(stop: threading.Event, work: Callable[[T], object], given: Iterable[T]) -> Iterator[None]:
    """Within the block, threads work, one for each argument. At its end they are told to stop, and what one raises is
    raised.
    """
    arguments = list(given)
    with ThreadPoolExecutor(len(arguments)) as pool:
        futures: list[Any] = [pool.submit(work, each) for each in arguments]
        try:
            yield
        finally:
            stop.set()
    for future in futures:
        future.result()


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child, as JSON through a pipe."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(write, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return json.loads(answer)


def python(*arguments: str, root: Path = ROOT, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run Python with the program of a tree, which is its working directory too. variables: of its environment."""
    environment = {**os.environ, "PYTHONPATH": str(root), **{name: str(value) for name, value in variables.items()}}
    return subprocess.run([sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True)
