"""Timelines: what makes another future of a binlog gives its files other names, and peers by position stop there."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mysql_dump_rig import Replica, added_up, dump_of, header, messages_of
from tests.replication.site import open_site, transactions_in
from tests.replication.stage import end_of
from tests.replication.test_attached_back import older_store_newer_binlog
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import SchemaInvalid
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.program import PowerOff, power_off
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.position import Position, base_of, timeline_of
from tidemark.replication.mysql_source.dump import Dump
from tidemark.replication.mysql_source.packets import Refused

WHOLE = {"log_updated_only": False, "log_update_as_write": False}
SMALL = {"data_memory": "4 MiB", "redo_log": "1 MiB", "transaction_memory": "256 KiB", "transaction_limit": "256 KiB"}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(9))]
ENDED = "is of an earlier timeline of this binlog"

pytestmark = pytest.mark.usefixtures("quiet")


def opened(path: Path, **options: Any) -> Any:
    """Open a store on disk that is driven by hand, so that equal work has equal positions."""
    return tm.open(path, **{**SMALL, **WHOLE, "server_id": 1, "log_bin": "binlog", "background": False, **options})


def work(db: Any, ids: range, word: str) -> tuple[str, int]:
    """Insert rows, one in each epoch; return the end of the binlog."""
    if "d.t" not in db:
        db.create_table("d.t", COLUMNS, "id")
    for number in ids:
        db["d.t"].insert((number, word))
        db.sync()
    return db.binlog.writer.end


def refused(db: Any, **given: Any) -> str:
    with pytest.raises(Refused) as error:
        messages_of(db, **given)
    assert error.value.code == (1236, "HY000")
    return error.value.message


# --- what begins a timeline -------------------------------------------------------------------------
def _copied(path: Path, options: dict[str, Any]) -> Path:
    shutil.copytree(path, path.parent / "copy")
    return path.parent / "copy"


def _older(path: Path, options: dict[str, Any]) -> Path:
    shutil.rmtree(path)
    shutil.copytree(path.parent / "kept", path)
    return path


def _older_binlog(path: Path, options: dict[str, Any]) -> Path:
    shutil.rmtree(path / "binlog")
    shutil.copytree(path.parent / "kept/binlog", path / "binlog")
    return path


def _restored(path: Path, options: dict[str, Any]) -> Path:
    with opened(path, **options) as db:
        db.backup(path.parent / "backups")
    tm.restore(path.parent / "backups", path.parent / "restored")
    return path.parent / "restored"


def _begun_anew(path: Path, options: dict[str, Any]) -> Path:
    shutil.rmtree(path / "binlog")
    return path


def _without_binlog(path: Path, options: dict[str, Any]) -> Path:
    with opened(path, log_bin=None) as db:
        db["d.t"].insert((77, "unlogged"))
    return path


def _history_removed(path: Path, options: dict[str, Any]) -> Path:
    (path / "binlog/history").unlink()
    return path


Break = Callable[[Path, dict[str, Any]], Path]
BREAKS: list[Break] = [
    *(_copied, _older, _older_binlog, _restored, _begun_anew, _without_binlog, _history_removed),
]


@pytest.mark.parametrize("has_gtids", [False, True])
@pytest.mark.parametrize("ends", BREAKS)
def test_peer_by_position_of_another_future_is_refused_wherever_it_is(
    ends: Break, has_gtids: bool, tmp_path: Path
) -> None:
    """Story: an older folder was put back, and its binlog grew to the position at which a replica was. The replica
    continued without an error, with rows of one future before it and of the other one after it.
    """
    options = {"log_gtids": has_gtids}
    path = tmp_path / "store"
    with opened(path, **options) as db:
        work(db, range(4), "before")
    shutil.copytree(path, tmp_path / "kept")
    places = []
    with opened(path, **options) as db:
        for first in (10, 20):
            work(db, range(first, first + 4), "this one")
            db.binlog.rotate()
        known = list(db.binlog.writer.index.names)
        for name in known:  # every place between two events of this future
            position = 4
            for raw in messages_of(db, file=name)[1:]:
                if header(raw).type == b.ROTATE_EVENT:
                    break
                places.append((name, position))
                position += len(raw)
    path = ends(path, options)
    with opened(path, **options) as db:
        for first in (10, 20, 30):
            work(db, range(first + 50, first + 54), "other one")
            db.binlog.rotate()
        end = work(db, range(200, 203), "other one")
        names = db.binlog.writer.index.names
        timeline = timeline_of(end.file)
        assert re.fullmatch("[0-9a-f]{8}", timeline) and end.file.startswith(f"binlog-{timeline}.0")
        present = [name for name in names if timeline_of(name) == timeline]
        assert len(present) >= 4 and not set(present) & set(known)
        for file, position in [*random.Random(7).sample(places, 20), places[-1]]:
            for given in ({}, {"is_non_blocking": False}):
                said = refused(db, file=file, position=position, **given)
                assert f"{file} {ENDED}" in said if file in names else "Could not find first log file name" in said
        # The present timeline is followed from its start on, and from every file.
        for name in present:
            assert added_up(messages_of(db, file=name)) == end
        assert messages_of(db, file=end.file, position=end.position)
        # A tool that only reads may read what there is.
        assert added_up(messages_of(db, file=names[0], server_id=0)) == end
        assert ENDED in refused(db, file=names[0], server_id=0, is_non_blocking=False)
        assert added_up(messages_of(db)) == end


def test_peer_that_is_exactly_at_the_break_is_refused(tmp_path: Path) -> None:
    """A replica that has all of a copied store and nothing more may have more of the other future soon."""
    with opened(tmp_path / "store") as db:
        work(db, range(4), "before")
        replica = Replica()
        assert replica.follow(db)
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    with opened(tmp_path / "copy") as db:
        work(db, range(4, 8), "after")
        with pytest.raises(Refused, match=ENDED):
            replica.follow(db)
    with opened(tmp_path / "store") as db:
        work(db, range(4, 8), "after")
        assert replica.follow(db)
        assert len(replica.tables["d.t"]) == 8


def test_two_copies_have_no_file_name_in_common(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        work(db, range(4), "before")
    seen = set()
    for name in ("one", "two"):
        shutil.copytree(tmp_path / "store", tmp_path / name)
        with opened(tmp_path / name) as db:
            work(db, range(10, 12), name)
            seen.add(db.binlog.writer.end.file)
    assert len(seen) == 2


# --- what does not ----------------------------------------------------------------------------------
def test_openings_kills_numbers_and_other_names_of_the_folder_continue_a_timeline(tmp_path: Path) -> None:
    replica = Replica()
    path = tmp_path / "store"
    for turn, has_gtids in enumerate([True, True, False, False, True, False]):
        with opened(path, log_gtids=has_gtids) as db:
            work(db, range(turn * 10, turn * 10 + 4), "a row")
            assert replica.follow(db)
            db.binlog.set_option("log_gtids", not has_gtids)
            work(db, range(turn * 10 + 4, turn * 10 + 8), "a row")
            assert replica.follow(db)
            assert {timeline_of(name) for name in db.binlog.writer.index.names} == {""}
        path = path.rename(tmp_path / f"moved {turn}")
    assert len(replica.tables["d.t"]) == 48


def test_later_timeline_continues_like_the_first(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        work(db, range(4), "before")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    timelines, replica = set(), Replica()
    for turn, has_gtids in enumerate([False, False, True, False]):
        with opened(tmp_path / "copy", log_gtids=has_gtids) as db:
            if not turn:
                replica.file = db.binlog.writer.end.file
            end = work(db, range(turn * 10 + 10, turn * 10 + 14), "after")
            assert replica.follow(db)
            timelines.add(timeline_of(end.file))
    assert len(timelines) == 1 and "" not in timelines
    assert len(replica.tables["d.t"]) == 16


# --- a timeline that begins while peers follow --------------------------------------------------------
@pytest.mark.parametrize("reads", [False, True])
def test_dump_ends_where_the_next_timeline_begins(reads: bool) -> None:
    db = open_site(**WHOLE)
    before = work(db, range(3), "before")

    def dump() -> Dump:
        given = {"server_id": 0} if reads else {}
        return dump_of(db, file=before.file, **given)

    with dump() as running:
        messages = running.messages()
        next(messages)
        with db.binlog.turn:
            db.binlog.writer.begin_history(False, is_other_future=True)
        after = work(db, range(3, 6), "after")
        assert timeline_of(after.file) and not timeline_of(before.file)
        if reads:
            assert sum(b"after" in b"".join(each) for each in messages) == 3
        else:
            with pytest.raises(Refused, match=f"{before.file} {ENDED}"):
                list(messages)
    db.close()


# --- crashes ------------------------------------------------------------------------------------------
def test_crash_at_every_write_of_a_break_leaves_no_file_of_an_earlier_name_in_the_present_timeline() -> None:
    """Nothing after the break may be served under a name that the other future can have."""
    rng = random.Random(20_261_201)
    start, last = older_store_newer_binlog()
    ended, number = False, 0
    while not ended:
        number += 1
        left = start.kill()
        try:
            open_site(FaultFiles(left, [Rule("*", nth=number, once=False, stall=power_off)]), **WHOLE)
            ended = True
        except PowerOff:
            pass
        policy: Any = ("drop", "keep", "torn")[number // 3 % 3]
        if number % 3 == 1 or ended:
            db = open_site(left.crash(rng, policy), clock=ManualClock(seed=number + 99), **WHOLE)
            db["test.account"].insert((100, "c", 3.0, None))
            db.sync()
            names = db.binlog.writer.index.names  # type: ignore[union-attr]
            timelines = [timeline_of(name) for name in names]
            assert timelines[-1], (number, policy)
            assert timelines == sorted(timelines, key=timelines.index), "timelines follow one another"
            for name, timeline in zip(names, timelines, strict=True):
                if timeline == timelines[-1]:
                    assert messages_of(db, file=name)
                else:
                    assert ENDED in refused(db, file=name)
            said = transactions_in(db.parts.files)
            place = max(place for place, each in enumerate(said) if each.incident)
            start_of = Position(names[timelines.index(timelines[-1])], b.FIRST_POSITION)
            present = transactions_in(db.parts.files, start=start_of, end=end_of(db.parts.files))
            assert said[place + 1 :] == present, "all after the incident, and only this, is of the present timeline"
            assert present[0].epoch > last
    assert number > 60


def test_crash_at_every_write_of_an_opening_that_ends_a_timeline() -> None:
    """The file `history` is gone, as for a copy: each state begins another timeline with its first file."""
    whole = MemoryFiles()
    db = open_site(whole, **WHOLE)
    work(db, range(3), "before")
    db.close()
    start = MemoryFiles.from_snapshot(
        {name: each for name, each in whole.kill().snapshot().items() if name != "binlog/history"}
    )
    number, ended = 0, False
    while not ended:
        number += 1
        left = start.kill()
        try:
            open_site(FaultFiles(left, [Rule("*", nth=number, once=False, stall=power_off)]), **WHOLE)
            ended = True
        except PowerOff:
            pass
        policy: Any = ("drop", "keep", "torn")[number // 3 % 3]
        if number % 3 == 1 or ended:
            db = open_site(left.crash(random.Random(number), policy), clock=ManualClock(seed=number + 99), **WHOLE)
            work(db, range(10, 12), "after")
            names = db.binlog.writer.index.names  # type: ignore[union-attr]
            assert names[0] == "binlog.000001" and all(map(timeline_of, names[1:])) and len(names) > 1
            assert ENDED in refused(db, file=names[0])
            assert not any(each.incident for each in transactions_in(db.parts.files))
            assert sum(b"after" in raw for raw in messages_of(db, file=names[-1])) == 2
    assert number > 20


# --- names --------------------------------------------------------------------------------------------
def test_names_of_files_have_base_timeline_and_number() -> None:
    for name, base, timeline in (
        ("log.000001", "log", ""),
        ("log-1-5f3a9c1e.000002", "log-1", "5f3a9c1e"),
        ("log-5f3a9c1.000002", "log-5f3a9c1", ""),
        ("log-5F3A9C1E.000002", "log-5F3A9C1E", ""),
        ("", "", ""),
    ):
        assert (base_of(name), timeline_of(name)) == (base, timeline)
    assert Position("log-5f3a9c1e.000002", 4).is_start_after("log.000001")
    assert Position("log-00000000.000003", 4).is_start_after("log-5f3a9c1e.000002")
    assert not Position("log-5f3a9c1e.000003", 4).is_start_after("log.000001")
    index = BinlogIndex(MemoryFiles(), "binlog", "log-1")
    assert [index.number_of(f"log-1{each}.000007") for each in ("", "-5f3a9c1e", "-5f3a9c1", "-2-5f3a9c1e")] == [
        *(7, 7, None, None)
    ]


def test_base_name_that_looks_like_a_timeline_is_refused() -> None:
    with pytest.raises(SchemaInvalid, match="hexadecimal digits"):
        open_site(log_bin="log-5f3a9c1e")


def test_last_event_of_a_file_before_a_timeline_is_found() -> None:
    """Story: the name of the next file was longer than expected, so its ROTATE counted as missing."""
    db = open_site(**WHOLE)
    work(db, range(3), "before")
    for _ in range(2):
        db.binlog.writer.begin_history(False, is_other_future=True)  # type: ignore[union-attr]
        work(db, range(3, 4) if 3 not in db["d.t"] else range(4, 5), "after")
    found = [raw for raw in messages_of(db) if header(raw).type == b.ROTATE_EVENT and header(raw).timestamp_s]
    names = db.binlog.writer.index.names  # type: ignore[union-attr]
    assert [e.parse(raw, Position("f", 4))[1].name for raw in found] == names[1:]  # type: ignore[union-attr]
    db = open_site(db.parts.files.kill(), **WHOLE)
    rows = [row.after for each in transactions_in(db.parts.files) for row in each.rows]
    assert [row and row["id"] for row in rows] == [*range(5)]
    db.close()
