"""A primary whose disk is full hands over to a member with room, and joins again when it has room too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, Site, site_of
from tests.node_group.test_full_log import COLUMNS, TEXT
from tests.node_group.test_node import equal
from tests.waiting import wait_until
from tidemark.engine.files.directory import PosixFiles
from tidemark.replication.node_group import store_thread, stream

OPTIONS: dict[str, Any] = {"redo_log": "4 MiB", "lock_timeout_ms": 300, "checkpoint_interval_ms": 0}


@contextmanager
def full_disks(monkeypatch: pytest.MonkeyPatch, site: Site, *numbers: int) -> Iterator[set[int]]:
    """Let no file of these nodes' stores be created or extended, as on a full disk; yield the numbers, which may be
    changed. Attempts follow each other quickly.
    """
    full, create = set(numbers), PosixFiles.create
    places = {str(site.root / str(number)): number for number in site.nodes}

    def refuse(files: Any, name: str, *given: Any, **named: Any) -> Any:
        if places.get(files.directory) in full:
            raise tm.StorageFull(f"write of {name}: No space left on device; free space", file=name)
        return create(files, name, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(PosixFiles, "create", refuse)
        patch.setattr(stream, "HAND_OVER_SECONDS", 0.5)
        patch.setattr(store_thread, "SPACE_SECONDS", 0.2)
        yield full


def write_until(db: Any, is_over: Any) -> list[tm.Error]:
    """Write rows of 7 KB until it is over; return what was refused."""
    refused: list[tm.Error] = []
    for key in range(100_000):
        if is_over():
            return refused
        try:
            db.run(lambda txn, row=(key % 300, key, TEXT): txn.write("t", row), retries=0)
        except tm.Retryable as error:
            refused.append(error)
    raise AssertionError("it is never over")


def test_primary_whose_disk_is_full_hands_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """Story: no commit of the group succeeded for as long as the disk of its primary was full, although two healthy
    members were there, and the error advised to call checkpoint() twice.
    """
    with site_of(tmp_path, 3, **OPTIONS) as site, site.nodes[2].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        with full_disks(monkeypatch, site, 1) as full:
            shown: list[str] = []

            def has_left() -> bool:
                status = site.nodes[1].status()
                if status["disk_full"]:
                    shown.append(status["disk_full"])
                return site.nodes[2].status()["members"] == [2, 3]

            refused = write_until(db, has_left)
            assert any("the disk has no room for local checkpoints" in each for each in shown)
            assert all("checkpoint()" not in each.message for each in refused)
            assert any("another" in each.getMessage() or "joins again" in each.getMessage() for each in caplog.records)
            db.run(lambda txn: txn.write("t", (1, -1, TEXT)), retries=20)
            # It tries to join, and has no room for its copy.
            wait_until(lambda: "copy" in site.nodes[1].status()["disk_full"])
            assert site.nodes[1].status()["state"] == "joining"
            full.clear()
            site.wait_view(1, 2, 3)
        assert site.primary() == 2 and site.nodes[1].status()["disk_full"] == ""
        assert db["t"].get(1).n == -1
        equal(site)


def test_full_disks_of_all_members_move_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other node would do better."""
    with site_of(tmp_path, 1, of=2, **OPTIONS) as site:
        site.start(2, redo_log="16 MiB")  # it would be left out if its log were full first
        with site.nodes[2].connect(PATIENCE_MS) as db, full_disks(monkeypatch, site, 1, 2) as full:
            db.create_table("t", COLUMNS, "id")
            view = site.nodes[1].status()["view"]
            with pytest.raises(tm.StorageFull):
                site.db(2).checkpoint()
            shortage = site.db(1).parts.store.resources.shortage
            refused = write_until(db, lambda: shortage.refused_s > 1.5)
            assert any("no local checkpoint can free it" in each.message for each in refused)
            assert site.nodes[1].status()["view"] == view and site.primary() == 1
            assert site.nodes[1].status()["disk_full"] and site.nodes[2].status()["disk_full"]
            full.clear()
            write_until(db, lambda: not site.nodes[1].status()["disk_full"])
            db.run(lambda txn: txn.write("t", (1, -1, TEXT)), retries=20)
            assert site.nodes[1].status()["view"] == view
        equal(site)


def test_tablespace_that_cannot_grow_makes_the_primary_hand_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes of disk columns alone are refused; nothing is logged, so the log never becomes full."""
    from tidemark.engine.disk import space

    far = tm.Column("far", tm.VarBinary(8_000), nullable=True, storage="disk")
    grow = space.grow_data_file
    with site_of(tmp_path, 3, **OPTIONS) as site, site.nodes[2].connect(PATIENCE_MS) as db:
        db.create_tablespace("main", "1 MiB")
        db.create_table("t", [tm.Column("id", tm.Int64), far], "id", tablespace="main")
        place = str(tmp_path / "1")

        full = {place}

        def refuse(files: Any, *given: Any) -> Any:
            if files.directory in full:
                raise tm.StorageFull("write of main.data: No space left on device; free space")
            return grow(files, *given)

        monkeypatch.setattr(stream, "HAND_OVER_SECONDS", 0.5)
        monkeypatch.setattr(space, "grow_data_file", refuse)
        for key in range(2_000):
            try:
                db.run(lambda txn, key=key: txn.insert("t", (key, b"x" * 8_000)), retries=0)
            except tm.Retryable:
                if site.nodes[2].status()["members"] == [2, 3]:
                    break
        db.run(lambda txn: txn.insert("t", (-1, b"x" * 8_000)), retries=20)
        full.clear()
        site.wait_view(1, 2, 3)
        equal(site)
