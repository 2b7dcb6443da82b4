"""Records of the log, as Python reads them: the place of each. Kernels read them by `records_kernels.py`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.log.records_kernels import FRAME_WORDS, list_frames
from tidemark.engine.log.redo_layout import WORDS_SHIFT
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


def schema_of(words: Words, at: int, stop: int) -> dict[str, Any]:
    """Return the change in the SCHEMA record at words[at:stop]. Raises: InvalidRecord if it is not a JSON object."""
    size = int(words[at]) >> WORDS_SHIFT
    length = int(words[at + 1]) if 2 <= size <= stop - at else -1
    if not 0 <= length <= (size - 2) * WORD_BYTES:
        raise InvalidRecord(at)
    try:
        change = json.loads(words[at + 2 : at + size].tobytes()[:length])
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(at) from error
    if not isinstance(change, dict):
        raise InvalidRecord(at)
    return change


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
