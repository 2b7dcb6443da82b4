"""Retention breaks no chain, whatever it keeps, and a crash in it leaves no backup that lacks a file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

import tidemark as tm
from tests.backup.support import archived, content, content_of, restored, take
from tests.backup.test_damage import PowerOff, off
from tests.shares import some
from tests.store.support import open_memory
from tidemark.backup import drill
from tidemark.cli.commands import commands
from tidemark.control_socket import ask
from tidemark.recovery.backup.manifest import find_backups
from tidemark.recovery.backup.retention import prune
from tidemark.recovery.backup.verify import verify
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles

FULL_ONES = (1, 4)


def chain(place: MemoryFiles, with_archive: bool = False) -> dict[int, object]:
    """Seven backups, two of them full; what each restores to."""
    rng = random.Random(17)
    db = open_memory()
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id", tm.HashPartition(3))
    archive = archived(db, place) if with_archive else None
    wanted: dict[int, object] = {}
    for number in range(1, 8):
        db["test.t"].write_many([(rng.randrange(100), number) for _ in range(rng.choice([0, 3, 40]))])
        wanted[number] = content(db)
        take(db, place, incremental=number not in FULL_ONES)
        if archive is not None:
            archive.copy()
    db.close()
    return wanted


@pytest.mark.parametrize("keep", [1, 2, 4, 6, 9])
def test_what_is_kept_restores_and_nothing_else_is_left(keep: int) -> None:
    place = MemoryFiles()
    wanted = chain(place, with_archive=True)
    before = sum(len(text) for text in place.snapshot().values())
    report = prune(place, keep)
    found = find_backups(place)
    assert [each.number for each in found.manifests] == report.kept == list(range(7, 7 - min(keep, 7), -1))
    assert found.unfinished == [] and verify(place).problems == []
    places = [level for each in found.manifests for _, level in each.files()]
    needed = {name for each in places for name in (each.name, each.level_name)}
    assert {name for name in place.snapshot() if name.endswith((".parquet", ".level"))} == needed
    assert before - sum(len(text) for text in place.snapshot().values()) >= report.freed_bytes
    for manifest in found.manifests[:3]:
        files = MemoryFiles.from_snapshot(place.snapshot())
        got = content_of(restored(files, until=manifest.epoch, number=manifest.number))
        assert got == wanted[manifest.number]
    if keep <= 3:
        assert report.files > 0 and report.segments > 0


def test_power_lost_at_any_call_leaves_every_backup_whole() -> None:
    place = MemoryFiles()
    chain(place, with_archive=True)
    contents = place.snapshot()
    plan = FaultFiles(MemoryFiles.from_snapshot(contents))
    prune(plan, 2)
    rng = random.Random(19)
    print("seed 19")
    for call in some(range(1, plan.calls + 1), 0.3):
        inner = MemoryFiles.from_snapshot(contents)
        with pytest.raises(PowerOff):
            prune(FaultFiles(inner, [Rule("*", nth=call, stall=off)]), 2)
        for policy in CRASH_POLICIES:
            left = inner.crash(rng, policy)
            assert verify(left).problems == [], f"call {call}, {policy}"
            assert {each.number for each in find_backups(left).manifests} >= {6, 7}
            prune(left, 2)
            assert verify(left).problems == []


def test_backup_that_is_only_shown_does_not_stand_in_for_those_that_go() -> None:
    """Story: a backup was killed before the last sync of its manifest. The next process kept that backup and removed
    the others. Power was lost: the manifest was gone, and no backup was left.
    """
    db, place = open_memory(), MemoryFiles()
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db["test.t"].insert_many([(key, key) for key in range(50)])
    take(db, place)
    db["test.t"].write_many([(key, -key) for key in range(70)])
    with pytest.raises(PowerOff):
        take(db, FaultFiles(place, [Rule("rename", "2/manifest.new", stall=off)]))
    killed = place.kill()
    killed.rename("2/manifest.new", "2/manifest")
    assert [each.number for each in find_backups(killed).manifests] == [2, 1]
    want = content(db)
    for call in range(1, 100):
        disk = killed.kill()
        try:
            prune(FaultFiles(disk, [Rule("*", nth=call, stall=off)]), 1)
        except PowerOff:
            left = disk.image(lambda piece: False)
            assert verify(left).problems == [] and find_backups(left).manifests
        else:
            lost = disk.image(lambda piece: False)
            assert [each.number for each in find_backups(lost).manifests] == [2]
            assert content_of(restored(lost)) == want
            break
    db.close()


def test_damaged_manifest_stops_it_before_anything_goes() -> None:
    place = MemoryFiles()
    chain(place)
    contents = dict(place.snapshot())
    contents["5/manifest"] = contents["5/manifest"][:-8]
    files = MemoryFiles.from_snapshot(contents)
    before = files.digest()
    with pytest.raises(tm.Rejected, match=r"\[5\]"):
        prune(files, 1)
    assert files.digest() == before


def test_unfinished_backup_is_left_for_the_next_one() -> None:
    place = MemoryFiles()
    chain(place)
    left = {"8/1-0-ff.level": b"half", "1-test.t/8/0-ff.parquet": b"half"}
    files = MemoryFiles.from_snapshot({**place.snapshot(), **left})
    prune(files, 1)
    assert all(map(files.exists, left))


def run(*arguments: object) -> str:
    result = CliRunner().invoke(commands, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_commands_from_backup_to_drill(tmp_path: Path) -> None:
    store, place = tmp_path / "store", tmp_path / "place"
    with tm.open(store, background=False) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
        db["test.t"].insert_many([(key, key) for key in range(100)])
    assert "full" in run("backup", store, place)
    with tm.open(store, background=False) as db:
        db["test.t"].delete_many(list(range(10)))
    assert "incremental" in run("backup", store, place, "--incremental")
    assert "100" in run("backup", "list", place)
    assert "sound: 2 backups" in run("backup", "verify", place)
    assert "could reach" in run("restore", place, "--plan")
    assert "incremental" in run("restore", place, "--list")
    run("restore", place, tmp_path / "copy")
    with tm.open(tmp_path / "copy", background=False) as copy:
        assert len(copy["test.t"]) == 90
    for _ in range(2):
        assert '"is_sound": true' in run("backup", "drill", place, tmp_path / "scratch", "--json")
    assert "removed" in run("backup", "prune", place, "--keep", 1)
    result = CliRunner().invoke(commands, ["restore", str(place), str(tmp_path / "copy")])
    assert result.exit_code == 1 and "not empty" in result.output
    rows = next(each for each in place.rglob("*.parquet"))
    rows.write_bytes(rows.read_bytes()[:-1])
    assert CliRunner().invoke(commands, ["backup", "verify", str(place)]).exit_code == 1
    with pytest.raises(tm.Damaged):
        drill(place, tmp_path / "scratch")


def test_owner_of_an_open_store_makes_backup_and_archive_for_the_command(tmp_path: Path) -> None:
    store, place = tmp_path / "store", tmp_path / "place"
    with tm.open(store) as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        db["test.t"].insert_many([(key,) for key in range(100)])
        run("archive", store, place)
        assert "100 rows" in run("backup", store, place)
        with pytest.raises(tm.PeerError, match="arguments"):
            ask(store, "backup", 5.0, wherever="x")
        with pytest.raises(tm.PeerError, match="arguments"):
            ask(store, "status", 5.0, place="x")


def test_replica_continues_from_the_row_a_restore_writes(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", background=False, server_id=3, log_bin="binlog") as db:
        db.create_table("test.t", [tm.Column("id", tm.Int64)], "id")
        db["test.t"].insert((1,))
        epoch = db.backup(tmp_path / "place")["epoch"]
    report = tm.restore(tmp_path / "place", tmp_path / "copy", apply_status=True)
    assert (report["server_id"], report["epoch"]) == (3, epoch)
    with tm.open(tmp_path / "copy", background=False, server_id=4, log_bin="binlog") as copy:
        row = copy["mysql.ndb_apply_status"].get(3)
        assert (row.epoch, row.log_name, row.start_pos) == (epoch, "", 0)
        assert len(copy["test.t"]) == 1
    with tm.open(tmp_path / "other", background=False) as db:
        db.backup(tmp_path / "unnumbered")
    with pytest.raises(tm.Rejected, match="server_id"):
        tm.restore(tmp_path / "unnumbered", tmp_path / "never", apply_status=True)
    assert not (tmp_path / "never").exists()
