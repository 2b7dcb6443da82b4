"""A group of the REDO log on its way to the disk, and the position where a log continues."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tidemark.engine.jit.entries import entry_of
from tidemark.engine.log.group_kernels import prepare_group, prepare_large_group
from tidemark.engine.log.group_layout import GROUP, GROUP_ALIGN_WORDS
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.sealed.checksums_kernels import STRIPE_WORDS, xxh3_merge
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, header_of, write_seal

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

SMALL_WORDS = 8_192  # up to here a group is sealed with the GIL held: it takes a few µs


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


class Sealer:
    """Seals the groups of one opening of a store, one at a time."""

    def __init__(self, store: bytes, incarnation: int) -> None:
        """store: its UUID."""
        self._head = np.zeros(GROUP_WORDS, dtype=np.int64)  # what all groups have in common
        write_seal(header_of(self._head, GROUP), KIND_GROUP, 0, store, incarnation)
        self._lanes = np.zeros(STRIPE_WORDS, dtype=np.int64)
        self._prepare, self._prepare_large = entry_of(prepare_group), entry_of(prepare_large_group)
        self._merge = entry_of(xxh3_merge)

    def seal(self, group: Group, lap: int, stamp: tuple[int, int], unsynced: int) -> None:
        """Write header, padding and checksum. stamp: time and next transaction id, if the group has none yet. unsynced:
        how many groups directly before it may not be durable when it is written.
        """
        words, written, lanes = group.words, group.written_words, self._lanes
        group.stamp = wall_us, next_txid = group.stamp or stamp
        prepare = self._prepare if written <= SMALL_WORDS else self._prepare_large
        place = group.sequence, group.lsn, lap, group.transactions, group.epoch
        prepare(words, self._head, group.used, written, *place, wall_us, next_txid, unsynced, lanes)
        words[0] = self._merge(lanes, written - 1)


def content_of(batch: list[Group]) -> Words:
    """Return the words of consecutive groups as they are written to the log."""
    if len(batch) == 1:
        return batch[0].words[: batch[0].written_words]
    return np.concatenate([group.words[: group.written_words] for group in batch])


class Position(NamedTuple):
    """Where the log continues: the next group's sequence and LSN, and the first sequence and LSN still needed."""

    sequence: int = 1
    lsn: int = 0
    tail_lsn: int = 0
    tail_sequence: int = 1
