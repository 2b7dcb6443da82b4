"""The memory that the calls of all links of one server may take together: incoming messages, the values built from
them, and outgoing answers.

A call that gets no memory is refused at once. If it waited, the calls that hold the memory might wait for locks that
its transaction holds. Each link has a small amount of its own, so that small calls, above all ends of transactions,
always succeed.
"""

from __future__ import annotations

import threading

from tidemark.engine.base.errors import CallMemoryExhausted

CALLS_BYTES_MAX = 2 << 30  # more than the largest call takes, so every call fits once the others have ended
FREE_BYTES = 64 << 10  # per link, not counted


class CallMemory:
    """The memory that all links of a server hold together."""

    def __init__(self, most_bytes: int = CALLS_BYTES_MAX) -> None:
        self.most_bytes = most_bytes
        self.held_bytes = 0
        self._mutex = threading.Lock()

    def change(self, by_bytes: int) -> bool:
        """Take bytes, or return them if `by_bytes` is negative; return False if the limit would be exceeded."""
        with self._mutex:
            if by_bytes > 0 and self.held_bytes + by_bytes > self.most_bytes:
                return False
            self.held_bytes += by_bytes
            return True


class Share:
    """The memory that one link holds."""

    def __init__(self, memory: CallMemory) -> None:
        self._memory = memory
        self.held_bytes = 0

    def take(self, count: int) -> None:
        """Take `count` more bytes. Raises: CallMemoryExhausted, after releasing all bytes."""
        held = self.held_bytes + count
        if not self._memory.change(_counted(held) - _counted(self.held_bytes)):
            self.release()
            raise CallMemoryExhausted(
                f"a call needs {held} bytes of memory, which with the calls of other clients exceeds"
                f" {self._memory.most_bytes >> 20} MiB; its transaction was rolled back, run it again later",
                bytes=held,
            )
        self.held_bytes = held

    def free(self, count: int) -> None:
        """Return `count` bytes."""
        held = max(0, self.held_bytes - count)
        self._memory.change(_counted(held) - _counted(self.held_bytes))
        self.held_bytes = held

    def release(self) -> None:
        self.free(self.held_bytes)


def _counted(held: int) -> int:
    return max(0, held - FREE_BYTES)
