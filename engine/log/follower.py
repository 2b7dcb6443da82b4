"""Following the log: closed and durable epochs, read from the files as row changes and schema changes (D10).

The same code serves an open store and a store that is being opened. The log is not truncated past a follower: see
`Transactions.followers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import RedoDamaged
from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.log.row_changes import Change, ChangeReader, LoadAdopted
from tidemark.engine.log.spool_reader import SpoolReader, referred

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.geometry import Geometry
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.log.row_changes import RowChanges, SchemaChange
    from tidemark.engine.log.spool_reader import Referred
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition

# Groups are gathered up to this size. Alone, a group of one transaction costs a hundred times as much as its rows.
_GATHERED_WORDS = 128 << 10


@dataclass(frozen=True)
class FollowPoint:
    """Where following may begin: a group, and the tables that exist before it."""

    lsn: int = 0
    sequence: int = 1
    definitions: tuple[TableDefinition, ...] = ()


class EpochChanges:
    """One closed epoch; `parts` yields its changes once. Changes of a row keep their order in the log."""

    def __init__(self, epoch: int, reading: _Reading) -> None:
        self.epoch = epoch
        self.parts: Callable[[], Iterator[Change]] = reading.parts
        self._reading = reading

    @property
    def wall_us(self) -> int:
        """The time at which the last group read so far was sealed, in microseconds since 1970; after `parts` has ended,
        that is the last group of the epoch.
        """
        return self._reading.wall_us


class LogFollower:
    """Reads the log of a store from a point on. One thread at a time may call it."""

    def __init__(self, files: Files, geometry: Geometry, store: bytes, point: FollowPoint) -> None:
        """store: the identity all groups must have. Raises: FileMissing."""
        self._files = files
        self._store = store
        self._log = LogReader(files, geometry, store)
        self._lsn = point.lsn
        self._sequence = point.sequence
        self._changes = ChangeReader(point.definitions)

    def close(self) -> None:
        """Close the files."""
        self._log.close()

    def join_if(self, must_join: Callable[[TableDefinition], bool]) -> None:
        """Set of which tables all changes of a transaction to a row come as one (`ChangeReader.must_join`)."""
        self._changes.must_join = must_join

    def epochs(self, closed_epoch: int, durable_lsn: int, after: int = 0) -> Iterator[EpochChanges]:
        """Yield the epochs up to `closed_epoch` that have groups, each completely durable; skip those up to `after`.

        closed_epoch: no more groups of it or of earlier ones will be written. durable_lsn: groups before it are
        durable. The follower advances past an epoch only when the caller has taken all its parts and requests the next
        one; after an error it yields the epoch again. Raises: RedoDamaged, SpoolDamaged.
        """
        while True:
            first = self.group(self._lsn, self._sequence, durable_lsn)
            if first is None or first.epoch > closed_epoch:
                return
            if first.epoch <= after:
                self._changes.skim(first.words, GROUP_WORDS, GROUP_WORDS + first.records_words)
                self._lsn, self._sequence = first.end_lsn, first.sequence + 1
                continue
            reading = _Reading(self, first, durable_lsn, self._changes)
            yield EpochChanges(first.epoch, reading)
            if reading.end is None:
                return  # the caller did not take all parts: the next call yields them again
            self._lsn, self._sequence = reading.end
            self._changes = reading.changes

    @property
    def lsn(self) -> int:
        """The LSN that it has reached; it does not read groups before this LSN again."""
        return self._lsn

    def next_epoch(self, durable_lsn: int) -> int | None:
        """Return the epoch of the next group, None if there is none yet. Raises: RedoDamaged."""
        group = self.group(self._lsn, self._sequence, durable_lsn)
        return None if group is None else group.epoch

    def group(self, lsn: int, sequence: int, durable_lsn: int) -> GroupRead | None:
        """Return a durable group, None if there is none yet. Raises: RedoDamaged."""
        if lsn >= durable_lsn:
            return None
        group = self._log.group_at(lsn, sequence)
        if group is None:
            raise RedoDamaged(
                f"REDO group {sequence} at LSN {lsn} was durable and cannot be read back; restore from a backup",
                lsn=lsn,
            )
        return group

    def spool(self, what: Referred) -> SpoolReader:
        """Return a reader of the files that a group names."""
        return SpoolReader(self._files, self._store, what)

    def definitions(self) -> list[TableDefinition]:
        """Return the tables that exist at the LSN it has reached."""
        return [row_format.definition for row_format in self._changes.formats.values()]


class _Reading:
    """The reading of one epoch's groups; the follower continues after them when `parts` has ended."""

    def __init__(self, follower: LogFollower, first: GroupRead, durable_lsn: int, before: ChangeReader) -> None:
        self._follower = follower
        self._first = first
        self._durable_lsn = durable_lsn
        self._before = before
        self.changes = before
        self.end: tuple[int, int] | None = None
        self.wall_us = first.wall_us

    def parts(self) -> Iterator[Change]:
        """Yield the changes of the epoch."""
        self.changes = self._before.copy()
        self.end = None
        group: GroupRead | None = self._first
        gathered: list[Words] = []
        held = 0
        while group is not None and group.epoch == self._first.epoch:
            self.wall_us = group.wall_us
            what = referred(group)
            records = group.words[GROUP_WORDS : GROUP_WORDS + group.records_words]
            if what is not None or held + len(records) > _GATHERED_WORDS:
                yield from self._of_groups(gathered)
                gathered, held = [], 0
            if what is not None and what.load_rows:
                yield from self._of_load(what)
            elif what is not None:
                yield from self._of_spool(what)
            else:
                gathered.append(records)
                held += len(records)
            at = (group.end_lsn, group.sequence + 1)
            group = self._follower.group(*at, self._durable_lsn)
        yield from self._of_groups(gathered)
        self.end = at

    def _of_groups(self, gathered: list[Words]) -> Iterator[Change]:
        """Yield the changes of consecutive groups, given their records."""
        if gathered:
            words = gathered[0] if len(gathered) == 1 else np.concatenate(gathered)
            yield from self.changes.piece(words, 0, len(words))

    def _of_load(self, what: Referred) -> Iterator[Change]:
        """Yield the load a group adopts; a load has one table."""
        row_format = self.changes.formats.get(what.files[0].table_id)
        if row_format is not None:  # else the table was dropped while the load was adopted
            yield LoadAdopted(row_format, what.files[0].owner, what.load_rows, lambda: self._of_spool(what))

    def _of_spool(self, what: Referred) -> Iterator[RowChanges | SchemaChange]:
        """Yield the changes of a group that names files of records."""
        reader = self._follower.spool(what)
        reader.verify()

        def blocks() -> Iterator[tuple[Words, int, int]]:
            return ((block.words, block.start, block.stop) for block in reader.blocks())

        yield from self.changes.spooled(what.txid, blocks(), blocks())
