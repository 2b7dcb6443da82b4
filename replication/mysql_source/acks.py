"""Acks of a semi-synchronous replica: it has received a transaction, up to a position. They say nothing about applied.

After the first byte of each message of such a dump come two more: a magic number, and whether an ack is wanted. It is
wanted at the end of each transaction.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source.screen import fatal

_MAGIC: Final = 0xEF
_POSITION_BYTES: Final = 8
EPOCHS_MAX: Final = 1 << 16


def header(wants_ack: bool) -> bytes:
    """Return the bytes of semi-sync at the head of a message."""
    return bytes((_MAGIC, wants_ack))


def number_of(file: str) -> int:
    """Return the number of a binlog file, -1 without one."""
    digits = file.rpartition(".")[2]
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else -1


class Acks:
    """The ends of transactions that were sent and not acknowledged yet. One thread sends, another one may receive."""

    def __init__(self, note: Callable[[int], None]) -> None:
        """note: called with the newest epoch that is received."""
        self._note = note
        self._sent: deque[tuple[tuple[int, int], int]] = deque()  # (file number, position), epoch
        self._newest = (0, 0)
        self._mutex = threading.Lock()

    @property
    def are_complete(self) -> bool:
        """Whether all that was sent is acknowledged."""
        return not self._sent

    def sent(self, end: Position, epoch: int) -> None:
        """Note the end of a transaction before it is sent. If a replica acknowledges none of very many, the oldest are
        forgotten: a later ack stands for them too.
        """
        with self._mutex:
            self._newest = (number_of(end.file), end.position)
            self._sent.append((self._newest, epoch))
            if len(self._sent) > EPOCHS_MAX:
                self._sent.popleft()

    def receive(self, message: bytes) -> None:
        """Take an ack. Raises: Refused for a malformed one, and for a position that was not sent."""
        file, position = message[1 + _POSITION_BYTES :], message[1 : 1 + _POSITION_BYTES]
        if len(message) < 1 + _POSITION_BYTES + 1 or message[0] != _MAGIC:
            raise fatal("Read semi-sync reply magic number error")
        name = file.rstrip(b"\0").decode("utf-8", "replace")
        place = (number_of(name), int.from_bytes(position, "little"))
        epoch = 0
        with self._mutex:
            if not (0, 0) < place <= self._newest:
                raise fatal(f"semi-sync reply for {name[:255]}:{place[1]}, which was not sent")
            while self._sent and self._sent[0][0] <= place:
                epoch = max(epoch, self._sent.popleft()[1])
        if epoch:
            self._note(epoch)
