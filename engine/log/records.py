"""Records of the log, as Python reads them: where each one is. Kernels read them by `records_kernels.py`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tidemark.engine.log.records_kernels import FRAME_WORDS, list_frames
from tidemark.engine.memory.arena import Words
from tidemark.engine.memory.arena_layout import OK, ST_MORE

FRAMES_AT_ONCE = 4_096  # records listed at once: a large group needs no large list


class InvalidRecord(Exception):
    """The words at an offset are not a record. The caller turns it into its own error, which names file and advice."""

    def __init__(self, at: int) -> None:
        super().__init__(f"word {at} does not begin a record")
        self.at = at


class Frame(NamedTuple):
    """The place of a record, words[at:end], and its kind."""

    at: int
    kind: int
    end: int


def frames(words: Words, start: int, stop: int) -> Iterator[Frame]:
    """Yield the records words[start:stop]. Raises: InvalidRecord, after the records before it."""
    return _listed(words, start, stop, False, 0)


def transactions(words: Words, start: int, stop: int, wanted: int = 0) -> Iterator[Frame]:
    """Yield the transactions words[start:stop], with the kind of the first record of each, 0 for none. wanted: yield
    those of this kind alone; 0: all. Raises: InvalidRecord, also for a record outside of transactions.
    """
    return _listed(words, start, stop, True, wanted)


def _listed(words: Words, start: int, stop: int, by_transaction: bool, wanted: int) -> Iterator[Frame]:
    out: Words = np.empty(FRAMES_AT_ONCE * FRAME_WORDS, dtype=np.int64)
    state: Words = np.array([start, 0], dtype=np.int64)
    status = ST_MORE
    while status == ST_MORE:
        status = int(list_frames(words, stop, by_transaction, wanted, out, state))
        for at, kind, end in out[: int(state[1]) * FRAME_WORDS].reshape(-1, FRAME_WORDS).tolist():
            yield Frame(at, kind, end)
    if status != OK:
        raise InvalidRecord(int(state[0]))
