"""First copy of a replica from a backup, then catch up."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemark as tm
from tidemark.replication.binlog.position import base_of

COLUMNS = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(40)), tm.Column("note", tm.Text, storage="disk")]
SMALL = {"data_memory": "16 MiB", "redo_log": "8 MiB", "undo_log": "4 MiB", "background": False}


def rows(db: tm.Database) -> dict[int, tuple[str, str]]:
    return {row.id: (row.v, row.note) for row in db["shop.item"].scan()}


def put(db: tm.Database, first: int, count: int) -> None:
    db["shop.item"].write_many([(key, f"v{key}", "n" * key) for key in range(first, first + count)])
    db.sync()


@pytest.mark.parametrize("logs", [False, True], ids=["no binlog", "binlog of its own"])
def test_replica_restored_from_a_backup_continues_after_its_epoch(tmp_path: Path, logs: bool) -> None:
    """Story: a replica with its own binlog had the index rows for the source's files, which it does not have."""
    with tm.open(tmp_path / "a", server_id=1, log_bin="binlog", **SMALL) as source:
        source.create_table("shop.item", COLUMNS, primary_key="id")
        put(source, 0, 50)
        source.backup(tmp_path / "backups")
        put(source, 40, 30)
        source["shop.item"].delete(3)
        source.add_column("shop.item", tm.Column("price", tm.Int32, nullable=True))
        put_wide = [(key, "w", "x", key) for key in range(100, 110)]
        source["shop.item"].write_many(put_wide)
        source.sync()
        report = tm.restore(tmp_path / "backups", tmp_path / "b", apply_status=True)
        assert report["server_id"] == 1
        options = {**SMALL, "server_id": 2, **({"log_bin": "own"} if logs else {})}
        with tm.open(tmp_path / "b", **options) as replica:
            assert len(rows(replica)) == 50
            with tm.Channel(source, replica) as channel:
                assert channel.apply_all() > 0
                assert rows(replica) == rows(source) and len(rows(replica)) == 79
                put_wide = [(key, "again", "y", key) for key in range(105, 115)]
                source["shop.item"].write_many(put_wide)
                source.sync()
                channel.apply_all()
            assert rows(replica) == rows(source)
            assert len(replica["mysql.ndb_binlog_index"]) == 0 or logs
            if replica.binlog is not None:
                counters = replica.binlog.counters()
                assert counters["incidents"] == 1  # a replica of this one lacks the rows of the backup
                assert {base_of(row.File) for row in replica["mysql.ndb_binlog_index"].scan()} == {"own"}
            assert replica.check()["is_sound"]
