"""Strict replay of REDO records on rows in private memory: every record must fit the current rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.memory.arena_layout import OK, ST_MEMORY
from tidemark.engine.store.replay_kernels import replay_group

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store


class PartsOutOfMemory(Exception):
    """One thread's half of the arena is full; the rows may still fit if one thread loads them."""


class RecordDoesNotFit(Exception):
    """The record at word `at` does not fit the current rows; the caller knows its file."""

    def __init__(self, at: int, status: int) -> None:
        super().__init__(f"the record at word {at} does not fit the rows (status {status})")
        self.at = at
        self.status = status


class Replay:
    """Replays records of tables without disk columns, in the fragments of one part; each thread has its own."""

    def __init__(self, store: Store, tables: Words, part: int = 0, parts: int = 1) -> None:
        """tables: handles by table number, 0 for tables to be skipped. Of their fragments, those whose number modulo
        `parts` is `part` are replayed.
        """
        self._mem = store.mem
        self._tables = tables_with(store, tables, has_disk=False)
        self._part = (part, parts)
        self._state = np.zeros(2, dtype=np.int64)

    @property
    def operations(self) -> int:
        """How many operations it has replayed."""
        return int(self._state[1])

    def run(self, words: Words, start: int, stop: int, epoch: int) -> None:
        """Replay the records words[start:stop] of a group. Raises: PartsOutOfMemory; RecordDoesNotFit, with that record
        partly applied.
        """
        status = int(replay_group(self._mem, self._tables, words, start, stop, epoch, *self._part, self._state))
        if status == ST_MEMORY:
            raise PartsOutOfMemory
        if status != OK:
            raise RecordDoesNotFit(int(self._state[0]), status)


def tables_with(store: Store, tables: Words, has_disk: bool) -> Words:
    """Return the handles of the tables with, or without, disk columns; 0 for the others."""
    chosen = tables.copy()
    for number in np.flatnonzero(tables).tolist():
        if store.tables.by_id[number].format.has_disk != has_disk:
            chosen[number] = 0
    return chosen
