"""The memory that the calls of all links of one server may take together: messages that come, what is built of them,
and answers on their way.

A call that finds no room is refused, never made to wait: those before it may wait for locks that its transaction holds.
Each link has a little for itself, so that small calls, ends of transactions above all, go on whatever others do.
"""

from __future__ import annotations

import threading

from tidemark.engine.base.errors import CallMemoryExhausted

CALLS_BYTES_MAX = 2 << 30  # more than the largest call takes, so that each finds room when others have ended
FREE_BYTES = 64 << 10  # of each link


class CallMemory:
    """How much all links hold."""

    def __init__(self, most_bytes: int = CALLS_BYTES_MAX) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._mutex = threading.Lock()

    def change(self, by_bytes: int) -> bool:
        """Take more, or give some back; False if there is not so much."""
        with self._mutex:
            if by_bytes > 0 and self.held_bytes + by_bytes > self.most_bytes:
                return False
            self.held_bytes += by_bytes
            return True


class Share:
    """What one link holds."""

    def __init__(self, memory: CallMemory) -> None:
        self._memory = memory
        self.held_bytes = 0

    def take(self, count: int) -> None:
        """Hold so many bytes more. Raises: CallMemoryExhausted, and nothing is held any more."""
        held = self.held_bytes + count
        if not self._memory.change(_counted(held) - _counted(self.held_bytes)):
            self.release()
            raise CallMemoryExhausted(
                f"a call needs {held} bytes of memory, and with those of other clients that is more than"
                f" {self._memory.most_bytes >> 20} MiB; its transaction was rolled back, run it again later",
                bytes=held,
            )
        self.held_bytes = held

    def give(self, count: int) -> None:
        """Hold so many bytes less."""
        held = max(0, self.held_bytes - count)
        self._memory.change(_counted(held) - _counted(self.held_bytes))
        self.held_bytes = held

    def release(self) -> None:
        """Hold nothing."""
        self.give(self.held_bytes)


def _counted(held: int) -> int:
    return max(0, held - FREE_BYTES)
