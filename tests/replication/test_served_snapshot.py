"""A snapshot and its place in the binlog are one thing: rows of the snapshot and what follows give the store."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import tidemark as tm
from tests.replication.history import History
from tests.replication.site import WHOLE, numbers_in, open_site, starts_in, transactions_in
from tests.seeds import fresh_seeds
from tidemark.engine.access.batch_operations import decode_entries
from tidemark.engine.access.snapshot_reads import scan
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.mysql_source.gtids import Gtids
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.mysql_source.snapshot import SECONDS_MAX, SNAPSHOTS_MAX, ServedSnapshot, ServedSnapshots

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture
def db() -> Iterator[Any]:
    db = open_site(**WHOLE, log_gtids=True, max_binlog_size="4 KiB", sync_binlog=0)
    yield db
    db.close()


def served(db: Any) -> ServedSnapshots:
    return ServedSnapshots(db.parts.store, db.binlog)


def rows_of(snapshot: ServedSnapshot, name: str) -> dict[int, dict[str, Any]]:
    table = snapshot.rows.by_name.get(name)
    if table is None:
        return {}
    found = scan(snapshot.rows, table, None, None, range(len(table.fragments)))
    batches = (decode_entries(table.format, each.entries, each.offsets, each.count, None) for each in found)
    return {row["id"]: row for batch in batches for row in batch.to_pylist()}


def followed(files: Any, rows: dict[int, dict[str, Any]], place: Any, name: str) -> dict[int, dict[str, Any]]:
    """Apply strictly what follows a place."""
    rows = dict(rows)
    for each in transactions_in(files, start=place):
        for row in each.rows:
            if row.table == name:
                if row.before is not None:
                    assert rows.pop(row.before["id"]) == row.before
                if row.after is not None:
                    assert row.after["id"] not in rows
                    rows[row.after["id"]] = row.after
    return rows


@pytest.mark.parametrize("seed", [3, *fresh_seeds(2)])
def test_rows_of_a_snapshot_and_what_follows_its_place_are_the_store(db: Any, seed: int) -> None:
    history = History(db, random.Random(seed))
    snapshots, gtids = served(db), Gtids(db.binlog.writer)
    taken = []
    for _ in range(8):
        for _ in range(history.rng.randrange(4)):
            history.commit()
            if history.rng.random() < 0.3:
                db.sync()
        taken.append(snapshots.begin())
        rows = rows_of(taken[-1], "d.memory")
        assert rows == {key: {"id": key, **row} for key, row in history.tables["d.memory"].items()}
        assert taken[-1].executed is not None and gtids.place_after(taken[-1].executed) == taken[-1].place
    history.run(6)
    starts = starts_in(db.parts.files)
    for each in taken:
        ((_, number),) = each.executed.by_uuid[gtids.uuid]
        assert sum(start < each.place for start in starts) == number
        rows = rows_of(each, "d.memory")
        assert followed(db.parts.files, rows, each.place, "d.memory") == {
            row.id: row._asdict() for row in db["d.memory"].scan()
        }
        each.close()
        each.close()
    numbers_in(db.parts.files)


def test_snapshot_is_exact_while_threads_commit() -> None:
    """Story: a sync does not end the open epoch, so a position taken after it lacked the last rows."""
    db = open_site(**WHOLE, log_gtids=True, redo_log="16 MiB")
    db.create_table("d.t", [tm.Column("id", tm.Int64)], "id")
    snapshots = served(db)
    is_over = threading.Event()

    def commit(first: int) -> None:
        for number in range(first, 2_000, 2):  # as many as the log has room for
            if is_over.is_set():
                return
            db["d.t"].insert((number,))

    def close_epochs() -> None:
        for _ in range(200):
            if is_over.is_set():
                return
            db.sync()

    threads = [threading.Thread(target=commit, args=(first,)) for first in (0, 1)]
    threads.append(threading.Thread(target=close_epochs))
    for each in threads:
        each.start()
    taken = [snapshots.begin() for _ in range(10)]
    is_over.set()
    for each in threads:
        each.join()
    db.sync()
    whole = {row.id: {"id": row.id} for row in db["d.t"].scan()}
    for each in taken:
        assert followed(db.parts.files, rows_of(each, "d.t"), each.place, "d.t") == whole
        each.close()
    db.close()


def test_place_is_durable(db: Any) -> None:
    db.create_table("d.t", [tm.Column("id", tm.Int64)], "id")
    db["d.t"].insert((1,))
    snapshot = served(db).begin()
    left = db.parts.files.crash(random.Random(1), "drop")
    again = open_site(left, **WHOLE, log_gtids=True)
    assert snapshot.executed is not None and snapshot.executed <= Gtids(again.binlog.writer).executed()
    assert {row.id for row in again["d.t"].scan()} == {1}
    again.close()
    snapshot.close()


def test_at_most_sixteen_are_open_and_each_for_an_hour(db: Any) -> None:
    snapshots = served(db)
    taken = [snapshots.begin() for _ in range(SNAPSHOTS_MAX)]
    with pytest.raises(Refused, match="16 snapshots are open; end one") as refused:
        snapshots.begin()
    assert refused.value.code[0] == 1226
    taken.pop().close()
    db.parts.store.clock.advance(SECONDS_MAX / 2)
    late = snapshots.begin()
    db.parts.store.clock.advance(SECONDS_MAX / 2 + 1)
    with pytest.raises(Refused, match="open for more than 3600 s and is closed; begin again"):
        taken[0].check()
    late.check()
    assert db.parts.store.snapshots.counters()["open"] == 1
    snapshots.close()
    assert db.parts.store.snapshots.counters()["open"] == 0


def test_snapshot_without_gtids_has_a_place_alone() -> None:
    db = open_site(MemoryFiles(), **WHOLE)
    snapshot = served(db).begin()
    assert snapshot.executed is None and snapshot.place == db.binlog.writer.end
    snapshot.close()
    db.close()
    with pytest.raises(tm.StoreClosed):
        served(db).begin()
