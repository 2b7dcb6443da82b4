"""A group of the REDO log on its way to the disk, and the position where a log continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.log.group_layout import GROUP, GROUP_ALIGN_WORDS
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION, KIND_GROUP, packer_of, seal

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

pack_header = packer_of(GROUP).pack_into
RESERVED_FIELDS = (0, 0, 0)


class Group:
    """A group: it gets its number and LSN when queued, is sealed when sent to other nodes and again when written."""

    __slots__ = (
        "epoch",
        "files",
        "is_sealed",
        "lsn",
        "sequence",
        "stamp",
        "transactions",
        "used",
        "words",
        "written_words",
    )

    def __init__(self, words: Words, used: int, transactions: int, files: tuple[str, ...] = ()) -> None:
        """Take a buffer with `used` words, its 16 header words included. files: names of the files it refers to."""
        self.words = words
        self.used = used
        self.written_words = -(-used // GROUP_ALIGN_WORDS) * GROUP_ALIGN_WORDS
        self.transactions = transactions
        self.files = files
        self.stamp: tuple[int, int] | None = None  # time and next transaction id at its first seal, on any node
        self.sequence = 0
        self.lsn = 0
        self.epoch = 0
        self.is_sealed = False  # sealed as it will be written

    @property
    def end_lsn(self) -> int:
        """The LSN where the next group starts."""
        return self.lsn + self.written_words * 8

    def seal(self, store: tuple[int, int], incarnation: int, lap: int, stamp: tuple[int, int], unsynced: int) -> None:
        """Write header and padding. stamp: time and next transaction id, if the group has none yet. unsynced: how many
        groups directly before it may not be durable when it is written.
        """
        words = self.words
        self.stamp = wall_us, next_txid = self.stamp or stamp
        words[self.used : self.written_words] = 0
        pack_header(
            words.data.cast("B"),
            0,
            0,
            KIND_GROUP,
            FORMAT_VERSION,
            self.written_words,
            *store,
            incarnation,
            self.sequence,
            self.lsn,
            lap,
            self.transactions,
            self.epoch,
            wall_us,
            next_txid,
            self.used - GROUP_WORDS,
            unsynced,
            *RESERVED_FIELDS,
        )
        seal(words, self.written_words)


def content_of(batch: list[Group]) -> Words:
    """Return the words of consecutive groups as they are written to the log."""
    if len(batch) == 1:
        return batch[0].words[: batch[0].written_words]
    return np.concatenate([group.words[: group.written_words] for group in batch])


class Position:
    """Where the log continues: the next group's sequence and LSN, and the first sequence and LSN still needed."""

    __slots__ = ("lsn", "sequence", "tail_lsn", "tail_sequence")

    def __init__(self, sequence: int = 1, lsn: int = 0, tail_lsn: int = 0, tail_sequence: int = 1) -> None:
        self.sequence = sequence
        self.lsn = lsn
        self.tail_lsn = tail_lsn
        self.tail_sequence = tail_sequence
