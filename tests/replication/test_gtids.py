"""Numbers of transactions: dense in file order, one history until something breaks it, and the places of sets."""

from __future__ import annotations

import errno
import random
import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.site import numbers_in, open_site, starts_in, transactions_in
from tests.seeds import fresh_seeds
from tidemark.engine.base.clock import ManualClock
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog import history
from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source.gtid_sets import GtidSet
from tidemark.replication.mysql_source.gtids import Gtids
from tidemark.replication.mysql_source.packets import Refused

NUMBERED = {"log_gtids": True, "log_updated_only": False, "log_update_as_write": False}
SMALL = {"data_memory": "4 MiB", "redo_log": "1 MiB", "transaction_memory": "256 KiB", "transaction_limit": "256 KiB"}
COLUMNS = [tm.Column("id", tm.Int64)]

pytestmark = pytest.mark.usefixtures("quiet")


def work(db: Any, table: str, ids: range) -> None:
    if table not in db:
        db.create_table(table, COLUMNS, "id")
    for number in ids:
        db[table].insert((number,))
        db.sync()


def test_numbers_are_dense_in_file_order_over_files_and_openings() -> None:
    files = MemoryFiles()
    for turn in range(3):
        db = open_site(files, **NUMBERED, max_binlog_size="4 KiB")
        work(db, "d.t", range(turn * 20, turn * 20 + 20))
        gtids = Gtids(db.binlog.writer)
        found = numbers_in(files)
        assert [number for _, number in found] == list(range(1, len(found) + 1))
        assert len(found) == len(starts_in(files)) >= 21
        assert str(gtids.executed()) == f"{gtids.uuid}:1-{len(found)}" and not gtids.purged()
        assert {server for server, _ in found} == {gtids.uuid}
        db.close()
        files = files.kill()
    assert len(files.list("binlog")) > 5


def test_numbers_move_no_position() -> None:
    sizes = []
    for options in ({}, NUMBERED):
        db = open_site(**{**NUMBERED, "log_gtids": False, **options})
        work(db, "d.t", range(5))
        db.binlog.rotate()
        work(db, "d.t", range(5, 9))
        sizes.append([each.position for each in starts_in(db.parts.files) if each.file.endswith("1")])
        db.close()
    assert sizes[0] == sizes[1] and len(sizes[0]) > 5


def test_option_counts_from_the_next_file_and_a_time_without_it_ends_the_history() -> None:
    files = MemoryFiles()
    db = open_site(files, **{**NUMBERED, "log_gtids": False})
    work(db, "d.t", range(3))
    db.binlog.set_option("log_gtids", True)
    gtids = Gtids(db.binlog.writer)
    work(db, "d.t", range(3, 6))
    first = gtids.uuid
    ((low, high),) = gtids.executed().by_uuid[first]
    assert low == 1 and high > 1 << 40, "changes from before the numbers count as purged"
    assert gtids.purged() == GtidSet.of([(first, 1, high - 3)])
    with pytest.raises(Refused, match="purged required binary logs"):
        gtids.place_after(GtidSet())
    db.binlog.set_option("log_gtids", False)
    with pytest.raises(Refused, match="log_gtids was turned off"):
        gtids.executed()
    work(db, "d.t", range(6, 8))
    db.binlog.set_option("log_gtids", True)
    assert gtids.uuid != first and not gtids.executed() <= GtidSet.of([(first, 1, 1 << 62)])
    db.close()
    # And over openings, also if the last one without numbers wrote nothing.
    db = open_site(files.kill(), **NUMBERED)
    second = Gtids(db.binlog.writer).uuid
    for turn in range(2):
        db.close()
        db = open_site(db.parts.files.kill(), **{**NUMBERED, "log_gtids": False})
        work(db, "d.t", range(20, 22 - 2 * turn))
    db.close()
    db = open_site(db.parts.files.kill(), clock=ManualClock(seed=77), **NUMBERED)
    assert Gtids(db.binlog.writer).uuid not in (first, second)
    numbers_in(db.parts.files)
    db.close()


def test_rolled_back_transaction_gives_its_number_back() -> None:
    """Story: a full disk takes back an epoch. Its number must go to the next transaction, or the set has a hole."""
    disk = FaultFiles(MemoryFiles())
    db = open_site(disk, **NUMBERED)
    work(db, "d.t", range(2))
    refusals = 0
    for number in range(2, 8):
        if number % 2:
            disk.faults.add(Rule("pwrite", "binlog/binlog.0*", error=errno.ENOSPC))
        db["d.t"].insert((number,))
        try:
            db.sync()
        except tm.StorageFull:
            refusals += 1
            db.sync()
    assert refusals == 3
    assert [number for _, number in numbers_in(disk)] == list(range(1, len(starts_in(disk)) + 1))
    db.close()


@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(1)])
def test_place_after_a_set_is_the_first_transaction_that_it_lacks(seed: int) -> None:
    rng = random.Random(seed)
    files = MemoryFiles()
    db = open_site(files, **NUMBERED, max_binlog_size="4 KiB", sync_binlog=0)
    work(db, "d.t", range(40))
    gtids = Gtids(db.binlog.writer)
    own, other = gtids.uuid, uuid.UUID(int=5)
    starts, end = starts_in(files), db.binlog.writer.end
    count = len(starts)
    for number in range(count + 1):
        place = gtids.place_after(GtidSet.of([(own, 1, number), (other, 1, 99)] if number else []))
        assert place == (end if number == count else starts[number])
        assert gtids.domain_place(f"0-1-{number}" if number else "") == place
    for _ in range(50):
        has = {number for number in range(1, count + 1) if rng.random() < 0.9}
        lacking = sorted(set(range(1, count + 1)) - has)
        place = gtids.place_after(GtidSet.of([(own, each, each) for each in has]))
        assert place == (starts[lacking[0] - 1] if lacking else end)
    with pytest.raises(Refused, match="more GTIDs than the master has") as refused:
        gtids.place_after(GtidSet.of([(own, 1, count + 1)]))
    assert refused.value.code[0] == 1236
    db.binlog.purge(to=starts[count // 2].file)
    before = gtids.purged()
    ((_, gone),) = before.by_uuid[own]
    assert 0 < gone <= count // 2 and starts[gone].position < 500
    assert gtids.place_after(before) == starts[gone] == gtids.domain_place(f"0-1-{gone}")
    with pytest.raises(
        Refused, match=rf"source purged required binary logs.*the missing transactions are '{own}:{gone}'"
    ):
        gtids.place_after(GtidSet.of([(own, 1, gone - 1), (own, gone + 1, count)]))
    for text in ("", f"0-1-{gone - 1}", "0-1-0"):
        with pytest.raises(Refused, match="Could not find GTID state requested by slave"):
            gtids.domain_place(text)
    db.close()


def test_positions_of_mariadb() -> None:
    db = open_site(**NUMBERED, server_id=7)
    gtids = Gtids(db.binlog.writer)
    assert gtids.domain_position() == "" and gtids.domain_place("") == gtids.place_after(GtidSet())
    work(db, "d.t", range(3))
    starts = starts_in(db.parts.files)
    for number, start in enumerate(starts):
        assert gtids.domain_position(start) == (f"0-7-{number}" if number else "")
    assert gtids.domain_position() == f"0-7-{len(starts)}"
    assert gtids.domain_place("3-9-12, 0-7-2") == starts[2]  # another domain is another server's
    for text in ("0-8-2", f"0-7-{len(starts) + 1}"):
        with pytest.raises(Refused, match=f"start from GTID {text}, which is not in the master's binlog"):
            gtids.domain_place(text)
    for text in ("0-7", "0-7-x", "0-7-2-1", "0--7-2", f"{1 << 32}-7-2", f"0-7-{1 << 64}", "0-7-1,0-7-2", "0-7-١"):
        with pytest.raises(Refused, match="Could not parse GTID list"):
            gtids.domain_place(text)
    for place in (Position("binlog.000009", 4), Position("other", 4)):
        assert gtids.domain_position(place) == ""
    db.close()


def test_only_synced_transactions_are_said_to_be_executed() -> None:
    disk = MemoryFiles()
    db = open_site(disk, **NUMBERED, sync_binlog=0)
    work(db, "d.t", range(5))
    executed = Gtids(db.binlog.writer).executed()
    left = disk.crash(random.Random(1), "drop")
    again = open_site(left, **NUMBERED)
    assert executed <= Gtids(again.binlog.writer).executed()
    again.close()


# --- what ends a history --------------------------------------------------------------------------
def opened(path: Path, **options: Any) -> Any:
    return tm.open(path, **{**SMALL, "server_id": 1, "log_bin": "binlog", "background": False, **NUMBERED, **options})


def begun(path: Path) -> tuple[uuid.UUID, GtidSet, str]:
    """Make a store with a history; return its UUID, its set and its position of MariaDB."""
    with opened(path) as db:
        work(db, "d.t", range(4))
        gtids = Gtids(db.binlog.writer)
        return gtids.uuid, gtids.executed(), gtids.domain_position()


def judge(db: Any, was: tuple[uuid.UUID, GtidSet, str]) -> None:
    """Check that the earlier history is over: its replicas are refused, and no number of it is given again."""
    server, executed, position = was
    work(db, "d.after", range(100, 103))
    gtids = Gtids(db.binlog.writer)
    ((_, high),) = executed.by_uuid[server]
    assert gtids.uuid != server
    ((low, last),) = gtids.executed().by_uuid[gtids.uuid]
    ((_, gone),) = gtids.purged().by_uuid[gtids.uuid]
    assert low == 1 and high < gone < last
    for asked in (executed, GtidSet(), executed | GtidSet.of([(gtids.uuid, 1, gone - 1)])):
        with pytest.raises(Refused, match="source purged required binary logs") as refused:
            gtids.place_after(asked)
        assert refused.value.code[0] == 1236
    for text in (position, "", f"0-1-{gone}"):
        with pytest.raises(Refused, match="Could not find GTID state"):
            gtids.domain_place(text)
    copied = gtids.executed()  # of a replica that was copied now
    work(db, "d.after", range(103, 105))
    assert gtids.place_after(copied) == gtids.domain_place(f"0-1-{last}")
    numbers = [number for each, number in numbers_in(db.parts.files) if each == gtids.uuid]
    assert numbers == list(range(gone + 1, gone + 1 + len(numbers)))


def test_opening_again_continues_the_history(tmp_path: Path) -> None:
    server, executed, _ = begun(tmp_path / "shop")
    (tmp_path / "shop").rename(tmp_path / "moved")
    for name in (tmp_path / "moved").rglob("*"):
        name.chmod(0o700 if name.is_dir() else 0o600)
    with opened(tmp_path / "moved") as db:
        gtids = Gtids(db.binlog.writer)
        assert gtids.uuid == server and gtids.executed() == executed
        assert gtids.place_after(executed) == db.binlog.writer.end


def test_copied_store_begins_another_history_and_the_first_one_goes_on(tmp_path: Path) -> None:
    was = begun(tmp_path / "shop")
    shutil.copytree(tmp_path / "shop", tmp_path / "copy")
    with opened(tmp_path / "copy") as db:
        judge(db, was)
        assert not [each.incident for each in transactions_in(db.parts.files) if each.incident]
    with opened(tmp_path / "shop") as db:
        assert Gtids(db.binlog.writer).uuid == was[0]


def test_older_folder_begins_another_history(tmp_path: Path) -> None:
    """Story: a folder was put back from a copy. Its replica had more transactions, waited until the store had as many
    again, and continued with other rows under numbers that it knew.
    """
    begun(tmp_path / "shop")
    shutil.copytree(tmp_path / "shop", tmp_path / "kept")
    with opened(tmp_path / "shop") as db:
        work(db, "d.t", range(10, 14))
        gtids = Gtids(db.binlog.writer)
        was = gtids.uuid, gtids.executed(), gtids.domain_position()
    shutil.rmtree(tmp_path / "shop")
    shutil.copytree(tmp_path / "kept", tmp_path / "shop")
    with opened(tmp_path / "shop") as db:
        judge(db, was)


def test_older_binlog_begins_another_history(tmp_path: Path) -> None:
    begun(tmp_path / "shop")
    shutil.copytree(tmp_path / "shop/binlog", tmp_path / "kept")
    with opened(tmp_path / "shop") as db:
        work(db, "d.t", range(10, 14))
        gtids = Gtids(db.binlog.writer)
        was = gtids.uuid, gtids.executed(), gtids.domain_position()
    shutil.rmtree(tmp_path / "shop/binlog")
    shutil.copytree(tmp_path / "kept", tmp_path / "shop/binlog")
    with opened(tmp_path / "shop") as db:
        judge(db, was)


def test_restored_backup_begins_another_history(tmp_path: Path) -> None:
    was = begun(tmp_path / "shop")
    with opened(tmp_path / "shop") as db:
        db.backup(tmp_path / "backups")
    tm.restore(tmp_path / "backups", tmp_path / "restored")
    with opened(tmp_path / "restored") as db:
        judge(db, was)


@pytest.mark.parametrize("pattern", ["binlog", "binlog/*", "binlog/binlog.*", "binlog/history"])
def test_binlog_begun_anew_begins_another_history(tmp_path: Path, pattern: str) -> None:
    was = begun(tmp_path / "shop")
    for each in list((tmp_path / "shop").glob(pattern)):
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    with opened(tmp_path / "shop") as db:
        judge(db, was)


def test_changes_without_a_binlog_begin_another_history(tmp_path: Path) -> None:
    was = begun(tmp_path / "shop")
    with opened(tmp_path / "shop", log_bin=None, log_gtids=False) as db:
        db["d.t"].insert((77,))
    with opened(tmp_path / "shop") as db:
        judge(db, was)


def test_damaged_history_file_begins_another_history(tmp_path: Path) -> None:
    was = begun(tmp_path / "shop")
    path = tmp_path / "shop/binlog/history"
    content = path.read_bytes()
    with path.open("r+b") as file:  # in place: the same file
        file.write(content.replace(b"-", b"+", 1))
    with opened(tmp_path / "shop") as db:
        judge(db, was)


def test_store_that_went_back_begins_another_history() -> None:
    disk = MemoryFiles()
    db = open_site(disk, **NUMBERED)
    work(db, "d.t", range(4))
    kept = disk.kill()
    work(db, "d.t", range(4, 8))
    gtids = Gtids(db.binlog.writer)
    was = gtids.uuid, gtids.executed(), gtids.domain_position()
    # The binlog of the later day beside the store of the earlier one.
    newer = disk.snapshot()
    older = kept.snapshot()
    mixed = MemoryFiles.from_snapshot(
        {**older, **{name: each for name, each in newer.items() if name.startswith("binlog/")}}
    )
    db = open_site(mixed, clock=ManualClock(seed=5), **NUMBERED)
    judge(db, was)
    db.close()


def test_store_from_before_the_binlog_begins_above_everything() -> None:
    db = open_site(log_bin=None)
    work(db, "d.t", range(3))
    db.close()
    db = open_site(db.parts.files.kill(), **NUMBERED)
    gtids = Gtids(db.binlog.writer)
    with pytest.raises(Refused, match="source purged required binary logs"):
        gtids.place_after(GtidSet())
    db.close()


def test_clock_that_went_back_gives_no_number_twice() -> None:
    clock = ManualClock(seed=9, start_us=1_000_000)
    files = MemoryFiles()
    for turn in range(3):
        db = open_site(files, clock=clock, **NUMBERED)
        work(db, "d.t", range(turn * 3, turn * 3 + 3))
        db.binlog.writer.begin_history(True)
        work(db, f"d.u{turn}", range(3))
        db.close()
        files = files.kill()
    seen = numbers_in(files)
    numbers = [number for _, number in seen]
    assert len(set(numbers)) == len(numbers) and len({server for server, _ in seen}) == 4


def test_full_disk_at_the_beginning_of_a_history_continues_the_earlier_one() -> None:
    memory = MemoryFiles()
    disk = FaultFiles(memory)
    db = open_site(disk, **NUMBERED)
    work(db, "d.t", range(3))
    writer = db.binlog.writer
    before = writer.served()
    for has_gtids in (True, False):
        disk.faults.add(Rule("pwrite", "binlog/binlog.index_new", error=errno.ENOSPC))
        with pytest.raises(tm.StorageFull):
            writer.begin_history(has_gtids)
        assert writer.served() == before
    work(db, "d.t", range(3, 5))
    assert [number for _, number in numbers_in(disk)] == list(range(1, len(starts_in(disk)) + 1))
    db.close()
    db = open_site(memory.kill(), clock=ManualClock(seed=3), **NUMBERED)
    assert before.history is not None and Gtids(db.binlog.writer).uuid != before.history.uuid
    numbers_in(db.parts.files)
    db.close()


def test_node_of_a_group_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tm.Unsupported, match="leave log_gtids off"):
        tm.NodeGroup(tmp_path, 1, "1=127.0.0.1:7301", b"sixteen bytes or more", server_id=1, log_gtids=True)


def test_history_file_of_any_content_is_read_or_over() -> None:
    files = MemoryFiles()
    files.make_directory("binlog")
    clock = ManualClock(seed=4)
    assert history.read(files, "binlog") is None and not history.is_there(files, "binlog")
    made = history.begin(files, "binlog", clock, 1, "")
    assert history.read(files, "binlog") == made == (made.source, 1, "")
    later = history.begin(files, "binlog", clock, history.first_after(1 << 50, clock))
    assert history.read(files, "binlog") == later == (later.source, (1 << 50) + 2, later.source.hex()[:8])
    good = bytes(files.snapshot()["binlog/history"])
    for place in range(len(good)):
        for changed in (good[:place], good[:place] + bytes((good[place] ^ 1,)) + good[place + 1 :]):
            disk = MemoryFiles.from_snapshot({"binlog/history": changed})
            assert history.read(disk, "binlog") is None
    without = history.begin(files, "binlog", clock, 0, later.timeline)
    assert history.read(files, "binlog") == without == (without.source, 0, later.timeline)


def test_sets_before_files_are_read_back() -> None:
    source = uuid.UUID(int=3).bytes
    for number in (1, 7, (1 << 62) + 5):
        made = e.PreviousGtids.through(source, number)
        raw = e.frame(made, 100, timestamp_s=1, server_id=1)
        assert e.parse(raw, Position("f", 100))[1] == made
        assert made.number_of(source) == made.number_of() == number and made.number_of(bytes(16)) is None
        assert made.sets == GtidSet.of([(uuid.UUID(int=3), 1, number)]).pack()
    assert e.PreviousGtids.through(source, 0).sets == GtidSet().pack() == bytes(8)
    assert e.PreviousGtids(made.sets[:-8] + bytes(8)).number_of() is None  # ends before it begins
    for other in ([(uuid.UUID(int=3), 2, 5)], [(uuid.UUID(int=3), 1, 2), (uuid.UUID(int=4), 1, 2)]):
        assert e.PreviousGtids(GtidSet.of(other).pack()).number_of() is None
    assert len(raw) == b.HEADER_BYTES + b.PREVIOUS_GTIDS.itemsize + b.CHECKSUM_BYTES
