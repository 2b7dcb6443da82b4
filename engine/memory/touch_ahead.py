"""A thread that touches memory for a call that inserts many rows, a bounded piece ahead of it.

The first touch of a page makes the system find and zero it. That takes 0.1 ms for a MiB, and several where the host of
a virtual machine has to back it. The thread has the system do this by an advice, and holds no GIL. It touches only what
the call is going to use, lives no longer than the call, and changes no byte: if it cannot start, or the system knows no
such advice, the call takes longer.

It is started without `threading`, whose `start` waits for ever for a thread that has no memory to begin.
"""

from __future__ import annotations

import os
import sys
from _thread import start_new_thread
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.closable import Closable
from tidemark.engine.memory.arena_layout import P_FREE_PAGE_COUNT, P_HIGH, P_LIMIT, PAGE_SHIFT, S_POOL, X_USED
from tidemark.engine.memory.touch_ahead_kernels import (
    W_ARENA,
    W_BUFFER,
    W_END,
    W_TXN,
    W_WORDS,
    end_touch,
    touch_ahead,
)

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

WORDS_MIN = 1 << 21  # 16 MiB; a call that needs less is over before a thread helps


class TouchAhead(Closable):
    """The thread of one call. It begins with the first `begin` that needs much memory; `close` ends it."""

    def __init__(self, mem: Words) -> None:
        self._mem = mem
        self.plan: Words = np.zeros(W_WORDS, dtype=np.int64)
        self.process = 0  # that has the thread

    def begin(self, words: int, buf: Words, txn: int) -> None:
        """Touch memory for `words` more words of pages, and the rest of a transaction's buffer. txn: its descriptor."""
        if self.process or sys.platform != "linux" or (os.cpu_count() or 1) < 2:
            return
        pool = self._mem[S_POOL : S_POOL + P_LIMIT + 1]
        words -= int(self._mem[S_POOL + P_FREE_PAGE_COUNT]) << PAGE_SHIFT
        used = int(pool[P_HIGH]) << PAGE_SHIFT
        end = min(used + max(words, 0), int(pool[P_LIMIT]) << PAGE_SHIFT)
        if end - used + buf.size - int(self._mem[txn + X_USED]) < WORDS_MIN:
            return
        self.plan[W_TXN] = txn
        self.plan[W_ARENA + W_END] = end
        self.plan[W_BUFFER + W_END] = buf.size
        self.process = os.getpid()
        try:
            start_new_thread(self._run, (buf,))
        except RuntimeError:  # the system has no room for a thread
            return

    def close(self) -> None:
        """End the thread, and wait for it: for a step, some milliseconds. A forked process has no thread."""
        if self.process == os.getpid():
            end_touch(self.plan)

    def _run(self, buf: Words) -> None:
        try:
            touch_ahead(self._mem, buf, self.plan)
        except MemoryError:
            return  # of the interpreter, before the kernel ran
