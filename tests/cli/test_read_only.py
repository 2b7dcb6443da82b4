"""scan, dump and tables of stores that another process has open, and --read-only: the last local checkpoint."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, held_open, json_lines, refused, run
from tests.cli.test_store_commands import contents

NOTE = r"note: {}; local checkpoint 1 is shown, the state at the end of epoch \d+/\d+"
# `make_store` deletes row 5 and changes 3 and 4 after its local checkpoint.
KEYS = list(range(10))


def epoch_of(store: Path) -> str:
    with tm.open(store, read_only=True, data_memory="64 MiB") as view:
        return f"{view.epoch >> 32}/{view.epoch & 0xFFFF_FFFF}"


@pytest.mark.parametrize("background", [True, False])
def test_scan_and_dump_of_an_open_store_show_its_checkpoint_and_say_so(
    store: Path, tmp_path: Path, background: bool
) -> None:
    with held_open(store, background) as process:
        # With a timer the owner has made its own local checkpoint, with what `make_store` did after the first one.
        note = NOTE.format(f"process {process.pid} has the store open")
        if background:
            note = note.replace("local checkpoint 1", "local checkpoint 2")
        keys = [key for key in KEYS if key != 5 or not background]
        result = run("scan", store, "test.account", "--columns", "id,balance", "--json")
        assert result.exit_code == 0
        assert re.fullmatch(note + "\n", result.stderr) and f" {epoch_of(store)}\n" in result.stderr
        rows = json_lines("scan", store, "test.account", "--columns", "id,balance")
        assert sorted(row["id"] for row in rows) == keys
        assert {row["id"]: row["balance"] for row in rows}[3] == (7.0 if background else 1.5)
        target = tmp_path / "out.parquet"
        result = run("dump", store, "test.account", target)
        assert result.exit_code == 0 and target.exists()
        assert re.match(note, result.stderr) and f"{len(keys)} rows written" in result.stdout
        result = run("dump", store, "test.account")
        assert len(list(csv.reader(io.StringIO(result.stdout)))) == len(keys) + 1


def test_tables_of_an_open_store_whose_owner_does_not_answer(store: Path) -> None:
    with held_open(store, background=False) as process:
        result = run("tables", store, "--json")
        assert re.fullmatch(NOTE.format(f"process {process.pid} has the store open") + "\n", result.stderr)
        assert '"name": "account", "rows": 10' in result.stdout


def test_read_only_option_reads_a_closed_store_and_changes_no_byte(store: Path) -> None:
    before = contents(store)
    rows = json_lines("scan", store, "test.account", "--read-only")
    assert sorted(row["id"] for row in rows) == KEYS
    assert [each["rows"] for each in document("tables", store, "--read-only")] == [10]
    result = run("dump", store, "test.account", "--read-only")
    assert len(result.stdout.splitlines()) == 11
    assert re.fullmatch(NOTE.format("read-only") + "\n", result.stderr)
    assert contents(store) == before
    # Without the option the store is restarted and shows what its log holds; no note is printed.
    plain = run("scan", store, "test.account", "--json")
    assert len(plain.stdout.splitlines()) == 9 and plain.stderr == ""
    assert contents(store) != before


def test_open_store_without_a_checkpoint_is_locked_in_one_line(tmp_path: Path) -> None:
    store = tmp_path / "young"
    with tm.open(store, **SMALL) as db:
        db.create_table("test.account", [tm.Column("id", tm.Int64)], "id")
    with held_open(store, background=False) as process:
        for command in ("scan", "dump"):
            text = refused(command, store, "test.account")
            assert f"Locked: process {process.pid} has the store open" in text
            assert "no local checkpoint yet" in text and "make one" in text
        assert "FileMissing: the store has no local checkpoint yet" in refused("tables", store, "--read-only")


def test_load_into_an_open_store_is_locked_still(store: Path, tmp_path: Path) -> None:
    source = tmp_path / "more.csv"
    source.write_text("id,owner\n77,x\n", encoding="utf-8")
    with held_open(store, background=False) as process:
        assert f"process {process.pid}" in refused("load", store, "test.account", source)


def test_damaged_checkpoint_and_little_memory_are_one_line(store: Path) -> None:
    text = refused("scan", store, "test.account", "--read-only", "--data-memory", "7 MB")
    assert "SchemaInvalid: option data_memory" in text
    data = next((store / "lcp").glob("1-1-*.data"))
    data.write_bytes(data.read_bytes()[:-8])
    assert "LcpDamaged: no local checkpoint is intact" in refused("scan", store, "test.account", "--read-only")
    assert run("scan", store, "test.account").exit_code == 0
