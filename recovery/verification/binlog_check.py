"""Verifies a binlog against the store: the store must have each key's last change in the binlog (docs/verify.md, 7).

The caller passes in a reader of the binlog: a function that returns the same pieces, in their order, each time. Memory
is bounded by `KEYS_MAX` keys. More keys are compared in parts by the digest of the key, with two reads of the binlog
for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import snapshot_reads
from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows.columnar import encode_keys
from tidemark.engine.schema.names import is_system_table
from tidemark.recovery.verification.compare import differing_columns
from tidemark.recovery.verification.digest_rows import digests, key_places
from tidemark.recovery.verification.findings import PROBLEMS_MAX, Findings

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.access.snapshot import Snapshot
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.table.table import Table

KEYS_MAX = 1 << 20
PLACE_END = 1 << 63
_TABLE_FACTOR = -0x61C8864E7A143579  # odd: tables stay apart, and so do keys
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LoggedRows:
    """Consecutive changes of one table in the binlog. `key` and `after` have the same rows; `after` has the logged
    columns, None for deletes.
    """

    epoch: int
    table: str
    key: pa.RecordBatch
    after: pa.RecordBatch | None


@dataclass(frozen=True)
class Altered:
    """A break in the changes of some tables (`tables`; None: of all).

    With `is_new` earlier changes do not count, and the binlog has all later ones, from after `epoch`; with `is_empty`
    the tables had no rows then. Without `is_new` earlier changes only show which keys exist.
    """

    tables: frozenset[str] | None
    is_new: bool
    epoch: int
    is_empty: bool = False


Piece = LoggedRows | Altered


@dataclass
class BinlogReport(Findings):
    """Counts of a comparison, and the problems found; `unjudged` is the number of keys that cannot be judged."""

    epoch: int
    changes: int = 0
    keys: int = 0
    unjudged: int = 0
    is_whole: bool = True
    seconds: float = 0.0


class _Last:
    """The number of the last change of each key, for keys from `low` on, as many as there is room for."""

    def __init__(self, low: int) -> None:
        self.low, self.bound = low, PLACE_END
        self._words: list[Words] = []
        self._places: list[Words] = []
        self._numbers: list[Words] = []
        self._held = 0

    def add(self, words: Words, places: Words, first: int) -> None:
        """Add changes number first, first + 1, …"""
        chosen = np.flatnonzero((places >= self.low) & (places <= self.bound - 1))
        self._words.append(words[chosen])
        self._places.append(places[chosen])
        self._numbers.append(chosen + first)
        self._held += chosen.size
        if self._held > 2 * KEYS_MAX:
            self._compress()

    def _compress(self) -> None:
        words, places, numbers = (
            np.concatenate([*each, NOTHING]) for each in (self._words, self._places, self._numbers)
        )
        # Equal words stay in the order of the binlog: the last one counts.
        order = np.argsort(words, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(words[order])), words.size - 1) if words.size else NOTHING
        kept = order[ends]
        if kept.size > KEYS_MAX:
            self.bound = max(int(np.partition(places[kept], KEYS_MAX // 2)[KEYS_MAX // 2]), self.low + 1)
            kept = kept[places[kept] < self.bound]
        kept.sort()
        self._words, self._places, self._numbers = [words[kept]], [places[kept]], [numbers[kept]]
        self._held = kept.size

    def forget(self, before: int, is_chosen: Callable[[Words], Any]) -> None:
        """Drop changes that are numbered below `before` and that `is_chosen` selects."""
        self._compress()
        numbers = self._numbers[0]
        kept = ~((numbers < before) & is_chosen(numbers))
        for each in (self._words, self._places, self._numbers):
            each[0] = each[0][kept]
        self._held = int(kept.sum())

    def finish(self) -> tuple[Words, Words]:
        """Return (numbers, words), each sorted separately."""
        self._compress()
        return np.sort(self._numbers[0]), np.sort(self._words[0])


class BinlogCheck:
    """One comparison, at the epoch of a snapshot."""

    def __init__(
        self,
        snapshot: Snapshot,
        read: Callable[[], Iterator[Piece]],
        is_whole: bool,
        logs_empty: bool = False,
        progress: Progress | None = None,
    ) -> None:
        """read: returns the pieces of the binlog up to the snapshot's epoch. is_whole: all changes of the store are
        logged, except for updates that change nothing; with logs_empty those are logged, too.
        """
        self._snapshot = snapshot
        self._read = read
        self._logs_empty = logs_empty
        self._progress = progress
        self.report = BinlogReport(snapshot.epoch, is_whole=is_whole)
        self._altered: dict[str, int] = {}  # changes of a table before this one only show which keys exist
        self._start = 0  # the binlog is complete after this epoch; `_starts`: by table, if it differs
        self._starts: dict[str, int] = {}
        self._numbers: dict[str, int] = {}

    def run(self) -> BinlogReport:
        """Compare. Raises: the errors of reading the binlog, SnapshotTooOld, StoreFailed."""
        low = 0
        while low < PLACE_END:
            last = self._find(low)
            numbers, words = last.finish()
            self.report.keys += numbers.size
            self._judge(numbers)
            self._look_for_unlogged(last.low, last.bound, words)
            low = last.bound
        return self.report

    def _identity(self, table: str, keys: pa.RecordBatch) -> tuple[Words, Words]:
        """Return (words that distinguish keys of all tables, places by which they are divided into parts)."""
        lanes = digests(keys.columns, keys.num_rows)
        number = self._numbers.setdefault(table, len(self._numbers) + 1)
        apart = np.int64((number * _TABLE_FACTOR + (1 << 63)) % (1 << 64) - (1 << 63))
        return lanes[0::2] ^ apart, key_places(lanes)

    # --- the last change of each key -------------------------------------------------------------
    def _find(self, low: int) -> _Last:
        last = _Last(low)
        self._altered = {}
        self._start, self._starts = 0, {}
        runs: list[tuple[int, str]] = []  # where runs of rows of one table begin
        at = 0
        for piece in self._read():
            if isinstance(piece, LoggedRows):
                runs.append((at, piece.table))
                words, places = self._identity(piece.table, piece.key)
                last.add(words, places, at)
                at += words.size
            elif piece.is_new:
                last.forget(at, _of_tables(runs, piece.tables))
                if piece.tables is None:
                    self._start, self._starts = piece.epoch, {}
                self._starts.update(dict.fromkeys(piece.tables or (), 0 if piece.is_empty else piece.epoch))
            else:
                self._altered.update(dict.fromkeys(piece.tables or (), at))
        self.report.changes = at
        return last

    # --- what the store has -----------------------------------------------------------------------
    def _judge(self, numbers: Words) -> None:
        at = 0
        for piece in self._read():
            if not isinstance(piece, LoggedRows):
                continue
            rows = piece.key.num_rows
            begin, end = np.searchsorted(numbers, (at, at + rows))
            chosen = numbers[begin:end] - at
            at += rows
            if self._progress is not None:
                self._progress(at, self.report.changes, "changes")
            table = self._snapshot.by_name.get(piece.table)
            if not chosen.size or table is None:
                continue
            self._judge_rows(piece, table, chosen, at - rows < self._altered.get(piece.table, 0))

    def _judge_rows(self, piece: LoggedRows, table: Table, chosen: Words, is_altered: bool) -> None:
        keys = piece.key.take(chosen)
        columns = [] if piece.after is None or is_altered else _shared(piece.after, table)
        names = list(dict.fromkeys([*table.definition.primary_key, *columns]))
        encoded = encode_keys(table.format, {name: keys.column(name) for name in keys.schema.names})
        found = snapshot_reads.read_keys(self._snapshot, table, encoded, table.format.needs_disk(names))
        entries, offsets, count = found
        held = decode_entries(table.format, entries, offsets, count, names)
        epochs = entries[offsets[:count] - ENTRY_WORDS + 1]
        words = self._identity(piece.table, keys)[0]
        there = self._identity(piece.table, held.select(keys.schema.names))[0]
        order = np.argsort(there)
        if count:
            places = order[np.minimum(np.searchsorted(there[order], words), count - 1)]
            is_there = there[places] == words
        else:
            places, is_there = np.zeros(words.size, dtype=np.int64), np.zeros(words.size, dtype=bool)
        is_newer = is_there & (epochs[places] > piece.epoch) if count else is_there
        if not self.report.is_whole:
            doubtful = is_newer | ~is_there & (piece.after is not None)
            self.report.unjudged += int(doubtful.sum())
            is_there &= ~is_newer
        elif piece.after is not None:
            self._add(keys, ~is_there, piece, "is missing, and the binlog does not say so")
        if piece.after is None:
            self._add(keys, is_there, piece, "is there, and the binlog says it was deleted")
        elif columns:
            rows = np.flatnonzero(is_there)
            after = piece.after.select(columns).take(chosen[rows])
            self._compare(keys.take(rows), after, held.select(columns).take(places[rows]), piece)

    def _add(self, keys: pa.RecordBatch, wrong: Any, piece: LoggedRows, what: str) -> None:
        for row in np.flatnonzero(wrong)[:PROBLEMS_MAX].tolist():
            self.report.add(f"{_shown(keys, row, piece)} {what}")

    def _compare(self, keys: pa.RecordBatch, after: pa.RecordBatch, held: pa.RecordBatch, piece: LoggedRows) -> None:
        one, two = (digests(each.columns, each.num_rows).reshape(-1, 2) for each in (after, held))
        for row in np.flatnonzero((one != two).any(axis=1))[:PROBLEMS_MAX].tolist():
            masks = differing_columns(after.slice(row, 1), held.slice(row, 1), after.schema.names)
            differs = [name for name, mask in masks.items() if mask.any()]
            self.report.add(f"{_shown(keys, row, piece)} differs from the binlog in {', '.join(differs)}")

    def _look_for_unlogged(self, low: int, bound: int, words: Words) -> None:
        """Report rows that changed after the epoch from which the binlog is complete, but that are not in it."""
        if not self.report.is_whole:
            return
        for table in list(self._snapshot.by_name.values()):
            if is_system_table(table.name):
                continue
            key = list(table.definition.primary_key)
            start = self._starts.get(table.name, self._start)
            for batch in snapshot_reads.scan(self._snapshot, table, key, None, table.numbers_of(None)):
                recent = np.flatnonzero(batch.epochs() > start)
                if not recent.size:
                    continue
                offsets = np.ascontiguousarray(batch.offsets[recent])
                keys = decode_entries(table.format, batch.entries, offsets, recent.size, key)
                found, places = self._identity(table.name, keys)
                lacking = np.flatnonzero(~_among(found, words) & (places >= low) & (places <= bound - 1))
                if start and not self._logs_empty:
                    # An older row may have got its epoch from an update that changed nothing, which is not logged.
                    self.report.unjudged += lacking.size
                    continue
                piece = LoggedRows(0, table.name, keys, None)
                for row in lacking[:PROBLEMS_MAX].tolist():
                    self.report.add(f"{_shown(keys, row, piece)} was changed, and the binlog does not have the change")


def _among(found: Words, words: Words) -> Any:
    """Return whether each of `found` is in the sorted `words`. Shapes: (found,) in and out."""
    if not words.size:
        return np.zeros(found.size, dtype=bool)
    return words[np.minimum(np.searchsorted(words, found), words.size - 1)] == found


def _of_tables(runs: list[tuple[int, str]], tables: frozenset[str] | None) -> Callable[[Words], Any]:
    """Return a function that takes numbers of changes and returns whether each is of these tables. Shapes: (changes,)
    in and out.
    """

    def is_chosen(numbers: Words) -> Any:
        if tables is None:
            return np.ones(numbers.size, dtype=bool)
        starts = np.array([start for start, _ in runs], dtype=np.int64)
        named = np.array([name in tables for _, name in runs], dtype=bool)
        return named[np.searchsorted(starts, numbers, side="right") - 1] if runs else np.zeros(numbers.size, dtype=bool)

    return is_chosen


def _shared(after: pa.RecordBatch, table: Table) -> list[str]:
    names = {column.name for column in table.definition.columns}
    return [name for name in after.schema.names if name in names]


def _shown(keys: pa.RecordBatch, row: int, piece: LoggedRows) -> str:
    values = [column[row].as_py() for column in keys.columns]
    return f"{piece.table}, key {values[0] if len(values) == 1 else tuple(values)!r}"
