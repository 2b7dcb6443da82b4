"""A replica that can no longer follow its source is copied again in the same directory.

Story: the source had purged what the replica lacked. The error said to copy the replica anew. `copy=True` did nothing,
without a word, since the replica had been copied once: with its tables there, after they were dropped, and after
`reset()`. Only a new directory helped.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.test_channel_crash import CHANNEL, make_source, replica, set_up
from tests.replication.test_channel_crash import change as change_rows
from tests.replication.test_channel_crash import rows as rows_of
from tests.replication.test_channel_network import SECRET, site
from tests.replication.test_channel_stores import PASSES_ON, applied, make_table, put, rows
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.replication.channel.first_copy import is_interrupted

SEED = 31_415


pytestmark = pytest.mark.usefixtures("quiet")


def purged(source: tm.Database) -> None:
    """Change rows of the source in several binlog files, and purge all but the newest."""
    for key in range(100, 104):
        source["shop.item"].write({"id": key, "v": "later"})
        source.sync()
        source.binlog.rotate()
    source["shop.item"].delete(1)
    source.sync()
    source.binlog.purge(bytes_max=1)


class Sites:
    """A source and a replica that has followed it, over a link or within the process."""

    def __init__(self, is_linked: bool) -> None:
        self.a, self.b = site(1), site(2)
        self.serving = tm.serve(self.a, "127.0.0.1:0", SECRET) if is_linked else None
        make_table(self.a)
        put(self.a, 1, 2)
        with self.channel() as channel:
            self.follow(channel)
        assert rows(self.b) == {1: "x", 2: "x"}

    def channel(self, **options: Any) -> tm.Channel:
        if self.serving is None:
            return tm.Channel(self.a, self.b, **options)
        return tm.Channel(self.serving.address, self.b, secret=SECRET, **options)

    def follow(self, channel: tm.Channel) -> None:
        """Apply everything that the source has."""
        channel.start()
        self.a.wait_applied(self.a.sync(), 60_000, at=[2])
        channel.stop()
        channel.check_running()

    def lose(self) -> None:
        """Purge what the replica lacks, and see the channel end."""
        purged(self.a)
        with self.channel() as channel, pytest.raises(tm.PositionLost, match="make the channel with copy=True"):
            if self.serving is None:
                channel.apply_all()
            else:
                channel.start(applier=False)
                assert channel.receiving.thread is not None
                channel.receiving.thread.join(60)
                channel.check_running()

    def is_equal(self) -> bool:
        return rows(self.a) == rows(self.b)

    def close(self) -> None:
        if self.serving is not None:
            self.serving.close()
        self.b.close()
        self.a.close()


@pytest.fixture(params=[False, True], ids=["within", "linked"])
def sites(request: pytest.FixtureRequest) -> Any:
    made = Sites(request.param)
    yield made
    made.close()


def drop(sites: Sites) -> None:
    sites.b.drop_table("shop.item")


def reset(sites: Sites) -> None:
    with sites.channel() as channel:
        channel.reset()


def clear(sites: Sites) -> None:
    """Reset the channel so far that nothing says where it was."""
    reset(sites)
    sites.b["mysql.ndb_apply_status"].delete_many([row.server_id for row in sites.b["mysql.ndb_apply_status"].scan()])


def drop_and_clear(sites: Sites) -> None:
    drop(sites)
    clear(sites)


@pytest.mark.parametrize("before", [lambda _: None, drop, reset, clear, drop_and_clear])
def test_replica_that_lost_its_position_is_copied_in_its_directory(
    sites: Sites, before: Callable[[Sites], None]
) -> None:
    sites.b.create_table("shop.own", [tm.Column("id", tm.Int64)], "id")
    sites.b["shop.own"].insert((7,))
    sites.lose()
    before(sites)
    with sites.channel(copy=True) as channel:
        assert sites.is_equal(), "the copy is there when the call returns"
        put(sites.a, 3)
        sites.follow(channel)
        assert sites.is_equal() and 3 in rows(sites.b)
    before = applied(sites.b)
    with sites.channel(copy=True, progress=lambda *_: pytest.fail("copied again")):
        assert applied(sites.b) == before
    assert [row.id for row in sites.b["shop.own"].scan()] == [7]


def test_replica_whose_tables_were_dropped_gets_them_again(sites: Sites) -> None:
    """Story: the position was not lost. The channel ran, and the tables stayed missing."""
    drop(sites)
    with sites.channel(copy=True) as channel:
        assert sites.is_equal()
        put(sites.a, 3)
        sites.follow(channel)
        assert sites.is_equal()


def test_rows_that_were_written_at_the_replica_are_not_replaced(sites: Sites) -> None:
    sites.lose()
    sites.b["shop.item"].insert({"id": 50, "v": "own"})
    with pytest.raises(tm.Rejected, match=r"shop\.item of the replica has rows that were written here \(1 in all\)"):
        sites.channel(copy=True)
    assert 50 in rows(sites.b) and set(applied(sites.b)) == {1}
    drop(sites)
    with sites.channel(copy=True):
        assert sites.is_equal()


def test_incident_of_the_source_is_passed_by_a_copy(tmp_path: Path) -> None:
    """Story: rows that were there before the binlog began are an incident, at which a channel without a copy stops. The
    error's advice, a copy, did nothing in the same directory.
    """
    options: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "background": False}
    with tm.open(tmp_path / "a", server_id=1, **options) as a:
        make_table(a)
        put(a, 1)
    with tm.open(tmp_path / "a", server_id=1, log_bin="binlog", **options) as a:
        put(a, 2)
        with tm.open(tmp_path / "b", server_id=2, **options) as b, tm.serve(a, "127.0.0.1:0", SECRET) as serving:
            with tm.Channel(serving.address, b, secret=SECRET, skip_start=False) as channel:
                assert channel.applying.thread is not None
                channel.applying.thread.join(60)
                with pytest.raises(tm.EpochGap, match="make the channel with copy=True"):
                    channel.check_running()
            with tm.Channel(serving.address, b, secret=SECRET, copy=True, skip_start=False) as channel:
                assert rows(b) == rows(a) == {1: "x", 2: "x"}
                put(a, 3)
                a.wait_applied(a.sync(), 60_000, at=[2])
                channel.check_running()
            assert rows(b) == rows(a)


def test_copy_of_one_site_of_a_circle_drops_nothing_at_the_other() -> None:
    a, b = site(1, **PASSES_ON), site(2, **PASSES_ON)
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as there:
        there.apply_all()
    with tm.Channel(b, a) as back:
        back.apply_all()
    purged(a)
    with tm.Channel(a, b, copy=True) as there, tm.Channel(b, a) as back:
        for _ in range(2):
            there.apply_all()
            back.apply_all()
        assert rows(a) == rows(b) and len(rows(a)) == 4
        b["shop.item"].insert({"id": 60, "v": "from b"})
        b.sync()
        back.apply_all()
        assert 60 in rows(a)
    b.close()
    a.close()


def test_schema_change_that_comes_back_in_a_circle_is_not_made_again() -> None:
    """Story: a table was dropped and created again at one site of a circle. Its own DROP TABLE came back from the other
    site, which had logged it under its own id, and dropped the new table with its rows.
    """
    a, b = site(1, **PASSES_ON), site(2, **PASSES_ON)
    make_table(a)
    put(a, 1)
    with tm.Channel(a, b) as there, tm.Channel(b, a) as back:
        there.apply_all()
        back.apply_all()
        a.drop_table("shop.item")
        a.sync()
        there.apply_all()
        b.sync()
        make_table(a)
        put(a, 5)
        steps = list(iter(back.apply_next, None))
        assert [(step.source_id, step.outcome) for step in steps if step.statement] == [(1, "filtered")]
        assert rows(a) == {5: "x"}
        there.apply_all()
        assert rows(b) == {5: "x"}
    b.close()
    a.close()


def test_power_loss_at_every_write_of_a_second_copy_leaves_what_was_there_or_starts_again() -> None:
    print("seed", SEED)
    rng = random.Random(SEED)
    source = make_source()
    trace = TraceFiles(MemoryFiles())
    db = replica(trace, log_bin=None)
    set_up(db)
    for _ in range(4):
        change_rows(source, rng)
    with tm.Channel(source, db, **CHANNEL) as channel:
        channel.apply_all()
    db.sync()
    old = rows_of(db)
    for _ in range(30):
        change_rows(source, rng)
    source.sync()
    source.binlog.rotate()
    change_rows(source, rng)
    source.sync()
    source.binlog.purge(bytes_max=1)
    begin = len(trace.events)
    tm.Channel(source, db, copy=True, **CHANNEL).close()
    assert rows_of(db) == rows_of(source)
    calls = {id(event): number for number, event in enumerate(trace.events)}
    kinds = {"old": 0, "interrupted": 0, "whole": 0}
    for disk, _, event in crash_points(trace.events):
        if event is not None and calls[id(event)] < begin:
            continue
        for choice in choices(disk.pieces(), rng, 2):
            again = replica(image_of(disk, choice, rng), log_bin=None)
            if is_interrupted(again.parts.store):
                kinds["interrupted"] += 1
                assert 1 not in applied(again), "its position is there, and the copy is not"
                with pytest.raises(tm.Rejected, match="copy=True"):
                    tm.Channel(source, again)
            elif rows_of(again) == rows_of(source):
                kinds["whole"] += 1
            else:
                kinds["old"] += 1
                assert rows_of(again) == old
            with tm.Channel(source, again, copy=True, **CHANNEL) as channel:
                channel.apply_all()
            assert rows_of(again) == rows_of(source) and not is_interrupted(again.parts.store)
            again.close()
    print(kinds)
    assert all(kinds.values())
    source.close()
    db.close()
