"""Random work on a table during open snapshots, each with a copy of the dict of its epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.index.stored import NAME, Indexed, columns
from tests.snapshot import walk
from tidemark.engine.access import index_scans, snapshot_reads

HIDDEN = [tm.FRAGMENT, tm.ROWID, tm.EPOCH, tm.AUTHOR]
PADS = 6


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers return to Python every few rows, so that writers run in between."""
    for name, value in {"SCAN_BATCH_ROWS": 23, "CALL_SLOTS": 40, "CALL_ROWS": 11}.items():
        monkeypatch.setattr(snapshot_reads, name, value)
    monkeypatch.setattr(snapshot_reads.DiskRows, "rows", 9)
    for name, value in {"CALL_VERSIONS": 13, "GATHER_ROWS_FIRST": 4, "GATHER_WORDS_FIRST": 64}.items():
        monkeypatch.setattr(snapshot_reads, name, value)
    for name, value in {"CALL_ENTRIES": 7, "BATCH_ROWS_FIRST": 5, "BATCH_ROWS_MAX": 20}.items():
        monkeypatch.setattr(index_scans, name, value)


@dataclass
class Taken:
    """A snapshot, and the rows it must show."""

    snapshot: Any
    rows: dict[int, tuple[Any, ...]]
    hidden: set[tuple[int, ...]]
    indexes: list[str] = field(default_factory=list)


class Watched(Indexed):
    """Rows are wide, so that pages empty and are used again; `between` is called when a reader returns to Python."""

    def __init__(self, seed: int, on_disk: bool = False, partition: Any = None, **options: Any) -> None:
        room = {"redo_log": "64 MiB", "undo_log": "64 MiB", "page_buffer": "1 MiB", **options}
        super().__init__(seed, on_disk, partition, **room)
        self.taken: list[Taken] = []

    def columns_of(self, on_disk: bool) -> list[tm.Column]:
        made = columns(on_disk)
        return [*made[:6], *(tm.Column(f"pad{i}", tm.Binary(255)) for i in range(PADS)), *made[6:]]

    def value(self, name: str) -> Any:
        if name.startswith("pad"):
            return bytes([self.rng.randrange(256)]) * 255
        return super().value(name)

    def change(self, txn: Any, rows: dict[int, tuple[Any, ...]]) -> None:
        draw = self.rng.random()
        if draw < 0.06:  # pages are emptied and given back
            first = self.rng.randrange(self.keys)
            gone = [key for key in sorted(rows) if first <= key < first + 70]
            txn.delete_many(NAME, gone)
            for key in gone:
                del rows[key]
        elif draw < 0.12:
            fresh = [self.row(each) for each in range(self.keys) if each not in rows][:40]
            txn.insert_many(NAME, fresh)
            rows.update({row[0]: row for row in fresh})
        else:
            super().change(txn, rows)

    # --- snapshots ------------------------------------------------------------------------------
    def take(self) -> Taken:
        hidden = self.db[NAME].scan(columns=HIDDEN).to_arrow().to_pydict()
        snapshot = self.db.snapshot()
        one = Taken(
            snapshot,
            dict(self.rows),
            set(zip(*hidden.values(), strict=True)),
            [each["name"] for each in self.db.indexes(NAME)],
        )
        self.taken.append(one)
        return one

    def drop_one(self) -> None:
        if self.taken:
            self.taken.pop(self.rng.randrange(len(self.taken))).snapshot.close()

    def verify_store(self) -> None:
        """Walk the version store: it has what every open snapshot must show, and keeps no row that no
        snapshot needs.
        """
        mem = self.db.parts.store.mem
        assert walk.open_epochs(mem) == [each.snapshot.epoch for each in self.taken]
        for each in self.taken:
            table = each.snapshot.by_name[NAME]
            assert walk.shown(mem, table, each.snapshot.epoch) == {one[:3] for one in each.hidden}
        oldest = min((each.snapshot.epoch for each in self.taken), default=None)
        if oldest is None:
            assert self.db.status()["snapshots"]["used_bytes"] == 0
        else:
            first = next(walk.versions(mem), None)
            assert first is None or first.ended > oldest

    # --- looking --------------------------------------------------------------------------------
    def look(self, one: Taken, between: Callable[[], None] = lambda: None) -> None:
        """Any reading call of a snapshot against its dict."""
        looks = [self.all_rows, self._keys, self.numbers, self.hidden, self._partitions, self._formats]
        if one.indexes:
            looks += [self._index, self._index]
        look = self.rng.choice(looks)
        try:
            look(one, between)
        except tm.SnapshotTooOld:
            if not (self.on_disk and walk.has_lost(self.db.parts.store.mem, one.snapshot.epoch)):
                raise

    def _names(self) -> list[str]:
        return self.names[:-2] if self.on_disk and self.rng.random() < 0.4 else self.names

    def _read(self, scan: Any, between: Callable[[], None]) -> Iterator[tuple[Any, ...]]:
        for number, row in enumerate(scan):
            if number % 19 == 0:
                between()
            yield tuple(row)

    def all_rows(self, one: Taken, between: Callable[[], None]) -> None:
        table, names = one.snapshot[NAME], self._names()
        found = list(self._read(table.scan(columns=names), between))
        assert {row[0]: row for row in found} == {key: row[: len(names)] for key, row in one.rows.items()}
        assert len(found) == len(one.rows) == len(table)
        where = tm.col("n") > 0
        wanted = {key: row[: len(names)] for key, row in one.rows.items() if row[2] is not None and row[2] > 0}
        limit = self.rng.choice([None, self.rng.randint(0, 30)])
        chosen = list(self._read(table.scan(names, limit, where=where), between))
        assert all(wanted[row[0]] == row for row in chosen)
        assert len({row[0] for row in chosen}) == len(chosen)
        assert len(chosen) == min(len(wanted), len(wanted) if limit is None else limit)

    def _keys(self, one: Taken, between: Callable[[], None]) -> None:
        table = one.snapshot[NAME]
        keys = [self.rng.randrange(-3, self.keys + 3) for _ in range(40)]
        for key in keys[:15]:
            row = table.get(key)
            assert (None if row is None else tuple(row)) == one.rows.get(key)
            assert (key in table) == (key in one.rows)
        between()
        names = self._names()
        found = table.get_many(keys, names).to_pylist()
        assert [tuple(row.values()) for row in found] == [
            one.rows[key][: len(names)] for key in keys if key in one.rows
        ]

    def numbers(self, one: Taken, _: Callable[[], None]) -> None:
        table = one.snapshot[NAME]
        flags = [row[3] for row in one.rows.values()]
        numbers = [row[2] for row in one.rows.values() if row[2] is not None]
        assert table.count() == len(one.rows) and table.count("n") == len(numbers)
        assert table.sum("flag") == (sum(flags) if flags else None)
        assert table.min("n") == min(numbers, default=None) and table.max("n") == max(numbers, default=None)
        some = [flag for flag in flags if flag > 0]
        assert table.sum("flag", tm.col("flag") > 0) == (sum(some) if some else None)
        both = table.aggregate(rows=("count",), mean=("mean", "flag"))
        assert both == (len(flags), sum(flags) / len(flags) if flags else None)

    def hidden(self, one: Taken, _: Callable[[], None]) -> None:
        found = one.snapshot[NAME].scan(columns=HIDDEN).to_arrow().to_pydict()
        rows = list(zip(*found.values(), strict=True))
        assert set(rows) == one.hidden and len(rows) == len(one.hidden)

    def _partitions(self, one: Taken, between: Callable[[], None]) -> None:
        table = one.snapshot[NAME]
        names = list(table.definition.partition.names)
        found: list[int] = []
        for name in names:
            found += [row[0] for row in self._read(table.scan(["id"], partitions=[name]), between)]
        assert sorted(found) == sorted(one.rows)
        assert sum(table.scan(partitions=[name]).count() for name in names) == len(one.rows)

    def _formats(self, one: Taken, _: Callable[[], None]) -> None:
        table = one.snapshot[NAME]
        wanted = sorted((row[0], row[1], row[3]) for row in one.rows.values() if row[1] is not None)
        columns, where = ["id", "owner", "flag"], tm.col("owner").is_not_null()
        arrow = table.to_arrow(columns, where)
        assert sorted(zip(*arrow.to_pydict().values(), strict=True)) == wanted
        pandas = table.to_pandas(columns, where)
        assert sorted(pandas.itertuples(index=False, name=None)) == wanted
        assert sorted(table.scan(columns, where=where).to_numpy().tolist()) == wanted
        try:
            streamed = pa.RecordBatchReader.from_stream(table).read_all()
        except pa.ArrowInvalid as error:  # how Arrow passes on what a stream raised
            raise tm.SnapshotTooOld(str(error)) from error
        assert sorted(streamed.column("id").to_pylist()) == sorted(one.rows)

    def _index(self, one: Taken, between: Callable[[], None]) -> None:
        name, table = self.rng.choice(one.indexes), one.snapshot[NAME]
        by, rows = self.rng.choice(list(self.ranges(name, one.rows)))
        self.compare(name, rows, lambda **more: self._read(table.scan(**more), between), by)
        flags = [row[3] for row in rows.values() if row[3] >= 0]
        scan = table.scan(where=tm.col("flag") >= 0, index=name, **by)
        assert scan.aggregate(s=("sum", "flag"), n=("count",)) == (sum(flags) if flags else None, len(flags))
