"""diff and check --binlog: exit codes, JSON, repair; on closed stores, backups, and stores another process has open."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, held_open, run


def found(result):
    return json.loads(result.stdout)


@pytest.fixture
def twin(store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(store, tmp_path / "twin"))


def name_in(store: Path) -> str:
    with tm.open(store, **SMALL) as db:
        return next(name for name in db.tables() if len(db[name]))


def change(store: Path) -> str:
    """Change one value of a row of a store, and delete another row."""
    name = name_in(store)
    with tm.open(store, **SMALL) as db:
        keys = sorted(row.id for row in db[name].scan())
        db[name].update(keys[0], {"owner": "somebody else"})
        db[name].delete(keys[1])
    return name


def test_diff_of_equal_copies_ends_with_0_and_of_others_with_1_and_the_differences(store, twin):
    assert document("diff", store, twin)["is_equal"]
    name = change(twin)
    result = run("diff", store, twin, "--json")
    assert result.exit_code == 1
    differs = found(result)["differences"]
    assert [(each["table"], each["column"], each["only"]) for each in differs] == [
        (name, None, "a"),
        (name, "owner", None),
    ]
    assert differs[1]["b"] == "somebody else"
    shown = run("diff", store, twin)
    assert shown.exit_code == 1
    assert "somebody else" in shown.stdout and shown.stdout.splitlines()[-1] == "different"
    limited = run("diff", store, twin, "--limit", 1, "--json")
    assert (limited.exit_code, len(found(limited)["differences"])) == (1, 1)
    assert run("diff", store, twin, "--table", name, "--by", "key").exit_code == 1


def test_diff_that_cannot_be_made_ends_with_2(store, tmp_path):
    for arguments in ((store, tmp_path / "nothing"), (store, store, "--table", "no.such")):
        result = run("diff", *arguments)
        assert result.exit_code == 2 and result.stdout == ""
        assert result.stderr.startswith(("Error: ", "note: ")) and "Error: " in result.stderr
        result = run("diff", *arguments, "--json")
        assert result.exit_code == 2 and set(found(result)) == {"error"}
    assert run("diff", store).exit_code == 2


def test_repair_makes_the_other_copy_equal_and_says_what_it_did(store, twin):
    change(twin)
    result = run("diff", store, twin, "--repair", "a", "--json")
    assert result.exit_code == 0
    report = found(result)
    assert report["repaired"] == {"inserted": 1, "updated": 1, "deleted": 0, "skipped": 0}
    assert report["is_equal"] and document("diff", store, twin)["is_equal"]


def test_backups_and_stores_open_in_another_process_are_compared(store, twin, tmp_path):
    document("backup", store, tmp_path / "place")
    change(store)
    document("backup", store, tmp_path / "place", "--incremental")
    assert document("diff", store, tmp_path / "place")["is_equal"]
    older = run("diff", store, f"{tmp_path / 'place'}#1", "--json")
    assert older.exit_code == 1 and len(found(older)["differences"]) == 2
    document("checkpoint", store)
    with held_open(store):
        result = run("diff", store, tmp_path / "place", "--json")
        assert result.exit_code == 0, result.output
        assert found(result)["a"]["what"].startswith("local checkpoint") and "open elsewhere" in result.stderr


def test_binlog_is_compared_with_the_store_by_what_its_files_say(tmp_path):
    path = tmp_path / "site"
    with tm.open(path, **SMALL, server_id=7, log_bin="mine") as db:
        db.create_table("d.t", [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)], "id")
        db["d.t"].insert_many([(key, key) for key in range(20)])
        db.sync()
    with tm.open(path, data_memory="64 MiB", server_id=7, log_bin="mine"):
        assert document("check", path, "--binlog")["is_sound"]  # answered by its owner
    report = document("check", path, "--binlog")
    assert report["is_sound"] and (report["changes"], report["keys"]) == (20, 20)
    with tm.open(path, **SMALL, server_id=7, log_bin="mine") as db:
        txn = db.parts.store.transactions.begin(0x8000_007F)
        from tidemark.engine.access import row_operations

        row_operations.delete(txn, db["d.t"].table, 3)
        txn.commit(True)
    result = run("check", path, "--binlog")
    assert result.exit_code == 1 and "d.t, key 3 is missing" in result.stdout
    assert run("check", path, "--binlog", "--replication").exit_code == 2


def test_store_without_binlog_has_nothing_to_compare(store):
    result = run("check", store, "--binlog")
    assert result.exit_code == 1 and "no binlog" in result.stderr
