"""Reading commands: an open store is asked, a closed one is read from its files, which stay as they are."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, held_open, json_lines, refused, run
from tests.cli.test_store_commands import contents
from tests.waiting import wait_until
from tidemark import request_port
from tidemark.control_socket import NAME, ask
from tidemark.remote.owner import connect_owner

NOTE = r"note: {}; local checkpoint 1 is shown, the state at the end of epoch \d+/\d+"
# `make_store` deletes row 5 and changes 3 and 4 after its local checkpoint.
KEYS = list(range(10))
NOW = [key for key in KEYS if key != 5]
OPEN = {**SMALL, "background": True, "checkpoint_interval_ms": 3_600_000}


def epoch_of(store: Path) -> str:
    with tm.open(store, read_only=True, data_memory="64 MiB") as view:
        return f"{view.epoch >> 32}/{view.epoch & 0xFFFF_FFFF}"


# --- a store that is open -------------------------------------------------------------------------
def test_open_store_shows_what_is_there_now(store: Path, tmp_path: Path) -> None:
    """Story: `tables` of a store that a program wrote said 226 rows, `scan` printed the 3 of its local checkpoint."""
    with tm.open(store, **OPEN) as db:
        wait_until(lambda: db.status()["lcp"]["completed"] > 0)
        db["test.account"].insert({"id": 77, "owner": "new"})
        rows = json_lines("scan", store, "test.account", "--rowid")
        assert sorted(row["id"] for row in rows) == [*NOW, 77] and tm.ROWID in rows[0]
        assert [each["rows"] for each in document("tables", store)] == [10]
        assert sum(each["rows"] for each in document("partitions", store, "test.account")) == 10
        assert document("schema", store, "test.account")["columns"][0]["name"] == "id"
        found = json_lines("scan", store, "test.account", "--where", "owner = 'new'", "--columns", "id,owner")
        assert found == [{"id": 77, "owner": "new"}]
        assert json_lines("scan", store, "test.account", "--key", "3", "--columns", "balance") == [{"balance": 7.0}]
        result = run("dump", store, "test.account", tmp_path / "out.parquet")
        assert result.exit_code == 0 and result.stderr == "" and "10 rows written" in result.stdout
        assert len(list(csv.reader(io.StringIO(run("dump", store, "test.account").stdout)))) == 11
        old = run("scan", store, "test.account", "--checkpoint", "--json")
        assert sorted(json.loads(line)["id"] for line in old.stdout.splitlines()) == NOW
        assert re.fullmatch(NOTE.format("--checkpoint").replace("point 1", "point 2") + "\n", old.stderr)


def test_rows_of_an_open_store_are_of_one_instant(store: Path) -> None:
    with tm.open(store, **OPEN) as db, connect_owner(store) as owner:
        with owner.snapshot() as before:
            scan = iter(before["test.account"].scan(["id"]))
            first = next(scan)
            db["test.account"].delete_where(tm.col("id") >= 0)
            assert sorted([first.id, *(row.id for row in scan)]) == NOW
            assert len(before["test.account"]) == 9 and before["test.account"][3].balance == 7.0
        assert len(owner["test.account"]) == 0 and owner.tables() == ["test.account"]


def test_session_of_a_reader_changes_nothing(store: Path) -> None:
    with tm.open(store, **OPEN) as db, connect_owner(store) as owner:
        for change in (
            lambda: owner["test.account"].delete(3),
            lambda: owner.drop_table("test.account"),
            lambda: owner.create_table("t", [tm.Column("id", tm.Int64)], "id"),
            lambda: owner.transaction(),
            lambda: owner.checkpoint(),
            lambda: owner.sync(),
            lambda: owner["test.account"].insert_many([{"id": 99, "owner": "x"}]),
            lambda: owner.kill(1),
        ):
            with pytest.raises(tm.ReadOnly, match="serves reads alone"):
                change()
        assert sorted(row.id for row in db["test.account"]) == NOW and owner["test.account"].get(3).id == 3


def test_sessions_end_with_their_clients_and_with_the_store(store: Path) -> None:
    db = tm.open(store, **OPEN)
    with connect_owner(store) as first, connect_owner(store) as second, connect_owner(store) as third:
        first_shown, shown, _ = first.snapshot(), second.snapshot(), third.snapshot()
        assert db.status()["snapshots"]["open"] == 3
        first_shown.close()
        first.close()
        wait_until(lambda: db.status()["snapshots"]["open"] == 2)
        db.close()
        with pytest.raises(tm.PeerError, match="has closed it, or ended"):
            len(shown["test.account"])
    assert not (store / NAME).exists()
    assert not [each for each in threading.enumerate() if each.name == "tidemark-control-session"]


def test_one_session_too_many_is_refused_and_its_files_are_read(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_port, "SESSIONS_MAX", 1)
    with tm.open(store, **OPEN), connect_owner(store):
        with pytest.raises(tm.PeerError, match="1 sessions are served already"):
            connect_owner(store)
        assert ask(store, "status")["store"]["state"] == "open"
        result = run("scan", store, "test.account")
        assert result.exit_code == 0 and "and does not answer; local checkpoint" in result.stderr


def test_owner_that_does_not_answer_has_its_checkpoint_read(store: Path, tmp_path: Path) -> None:
    with held_open(store, background=False) as process:
        note = NOTE.format(f"process {process.pid} has the store open and does not answer")
        result = run("scan", store, "test.account", "--columns", "id,balance", "--json")
        assert result.exit_code == 0
        assert re.fullmatch(note + "\n", result.stderr) and f" {epoch_of(store)}\n" in result.stderr
        rows = json_lines("scan", store, "test.account", "--columns", "id,balance")
        assert sorted(row["id"] for row in rows) == KEYS and {row["id"]: row["balance"] for row in rows}[3] == 1.5
        result = run("dump", store, "test.account", tmp_path / "out.parquet")
        assert result.exit_code == 0 and re.match(note, result.stderr) and "10 rows written" in result.stdout
        result = run("tables", store, "--json")
        assert re.fullmatch(note + "\n", result.stderr) and '"name": "account", "rows": 10' in result.stdout


# --- a store that is closed -----------------------------------------------------------------------
def test_closed_store_shows_its_log_too_and_no_byte_changes(store: Path, tmp_path: Path) -> None:
    """Story: nine commands that only looked raised the incarnation from 4 to 13, and each wrote the files anew."""
    before = contents(store)
    rows = json_lines("scan", store, "test.account")
    assert sorted(row["id"] for row in rows) == NOW and {row["id"]: row["balance"] for row in rows}[3] == 7.0
    assert [each["rows"] for each in document("tables", store)] == [9]
    assert sum(each["rows"] for each in document("partitions", store, "test.account")) == 9
    assert document("schema", store)[0]["table"] == "test.account"
    result = run("dump", store, "test.account", tmp_path / "out.csv")
    assert result.stderr == "" and result.stdout.startswith("9 rows written")
    assert document("check", store, "--replication")["is_sound"] is not None
    old = run("scan", store, "test.account", "--checkpoint", "--json")
    assert sorted(json.loads(line)["id"] for line in old.stdout.splitlines()) == KEYS
    assert re.fullmatch(NOTE.format("--checkpoint") + "\n", old.stderr)
    assert contents(store) == before


def test_closed_store_with_disk_columns_is_read_whole_and_kept_from_writers_meanwhile(tmp_path: Path) -> None:
    store = tmp_path / "pages"
    with tm.open(store, **SMALL, undo_log="4 MiB") as db:
        db.create_tablespace("pages", "256 KiB", page_size="4 KiB", extent="64 KiB", limit="8 MiB")
        columns = [tm.Column("id", tm.Int64), tm.Column("text", tm.Text, storage="disk")]
        table = db.create_table("test.t", columns, "id", tablespace="pages")
        table.insert_many([(key, "a" * key) for key in range(200)])
        db.checkpoint()
        table.update(7, {"text": "changed since"})
    before = contents(store)
    rows = {row["id"]: row["text"] for row in json_lines("scan", store, "test.t")}
    assert len(rows) == 200 and rows[7] == "changed since" and rows[199] == "a" * 199
    assert contents(store) == before
    with tm.open(store, **SMALL) as db:
        assert db["test.t"][7].text == "changed since"


def test_store_that_a_process_opens_while_it_is_read_is_not_shown_from_its_files(store: Path) -> None:
    from tidemark.engine.base.options import Options
    from tidemark.read_only import open_closed

    opened: list[tm.Database] = []

    def open_meanwhile(*_: object) -> None:
        if not opened:
            opened.append(tm.open(store, **SMALL))

    try:
        with pytest.raises(tm.Locked):
            open_closed(store, Options.from_keywords({"data_memory": "64 MiB"}), open_meanwhile)
    finally:
        for db in opened:
            db.close()
    assert opened


# --- before the first local checkpoint ------------------------------------------------------------
def test_store_without_a_checkpoint_shows_its_log(tmp_path: Path) -> None:
    store = tmp_path / "young"
    with tm.open(store, **SMALL) as db:
        db.create_table("test.account", [tm.Column("id", tm.Int64)], "id")
        db["test.account"].insert_many([(1,), (2,)])
        with tm.open(store, read_only=True, data_memory="64 MiB") as view:
            assert sorted(row.id for row in view["test.account"]) == [1, 2] and view.status()["lcp"]["id"] == 0
            db["test.account"].insert((3,))
            assert view.refresh() >= 0 and 3 in view["test.account"]
            db.checkpoint()
            view.refresh()
            assert view.status()["lcp"]["id"] == 1
    shutil.rmtree(store / "lcp")
    (store / "lcp").mkdir()
    with held_open(store, background=False) as process:
        result = run("scan", store, "test.account", "--json")
        assert len(result.stdout.splitlines()) == 3
        assert f"process {process.pid} has the store open and does not answer; it has no local" in result.stderr


def test_young_store_with_disk_columns_is_locked_in_one_line(tmp_path: Path) -> None:
    store = tmp_path / "young"
    with tm.open(store, **SMALL, undo_log="4 MiB") as db:
        db.create_tablespace("pages", "256 KiB", page_size="4 KiB", extent="64 KiB", limit="8 MiB")
        columns = [tm.Column("id", tm.Int64), tm.Column("text", tm.Text, storage="disk")]
        db.create_table("test.account", columns, "id", tablespace="pages")
    with held_open(store, background=False) as process:
        for command in ("scan", "dump"):
            text = refused(command, store, "test.account")
            assert f"Locked: process {process.pid} has the store open" in text
            assert "no local checkpoint yet" in text and "make one" in text
        assert "FileMissing: the store has no local checkpoint yet" in refused("tables", store, "--checkpoint")


def test_load_into_an_open_store_is_locked_still(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "more.csv"
    source.write_text("id,owner\n77,x\n", encoding="utf-8")
    with held_open(store, background=False) as process:
        assert f"process {process.pid}" in refused("load", store, "test.account", source)


def test_damaged_checkpoint_and_little_memory_are_one_line(store: Path) -> None:
    text = refused("scan", store, "test.account", "--checkpoint", "--data-memory", "7 MB")
    assert "SchemaInvalid: option data_memory" in text
    data = next((store / "lcp").glob("1-1-*.data"))
    data.write_bytes(data.read_bytes()[:-8])
    assert "LcpDamaged: no local checkpoint is intact" in refused("scan", store, "test.account", "--checkpoint")
    assert run("scan", store, "test.account").exit_code == 0


def test_large_table_of_an_open_store_comes_in_pages(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **OPEN) as db:
        table = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("text", tm.VarChar(200))], "id")
        table.insert_many({"id": pa.array(range(60_000)), "text": pa.array(["x" * 150] * 60_000)})
        lines = run("scan", tmp_path / "store", "t", "--json").stdout.splitlines()
        assert len(lines) == 60_000 and len(set(lines)) == 60_000
        few = run("scan", tmp_path / "store", "t", "--json", "--limit", "3").stdout.splitlines()
        assert len(few) == 3
