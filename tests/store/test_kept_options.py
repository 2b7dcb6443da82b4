"""What a store keeps of the options of its last opening, and what an opening takes that names none."""

from __future__ import annotations

import errno
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import document, refused, run
from tidemark.database import check_store
from tidemark.engine.base.options import LASTING, Options
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.kept_options import NAME, UNNAMED, keep_options, kept_options

SMALL: dict[str, Any] = {"redo_log": "4 MiB", "background": False}
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("text", tm.Text)]


def opened_with(path: Path, **options: Any) -> Options:
    with tm.open(path, **{"background": False, **options}) as db:
        return db.parts.store.options


def fill(path: Path) -> None:
    """Make a store with more rows than 16 MiB hold."""
    with tm.open(path, data_memory="64 MiB", **SMALL) as db:
        db.create_table("t", COLUMNS, "id").insert_many({"id": range(5_000), "text": ["x" * 4_000] * 5_000})
        db.checkpoint()


def test_opening_that_names_no_options_has_those_of_the_last(tmp_path: Path) -> None:
    first = opened_with(tmp_path / "s", **SMALL, data_memory="32 MiB", durability="epoch", transaction_memory="2 MiB")
    again = opened_with(tmp_path / "s")
    assert all(getattr(again, name) == getattr(first, name) for name in LASTING)
    assert opened_with(tmp_path / "s", data_memory=48 << 20).durability == "epoch"
    kept = opened_with(tmp_path / "s")
    assert (kept.data_memory, kept.transaction_memory, kept.durability) == ("48 MiB", "2 MiB", "epoch")


def test_numbers_of_a_site_stay_its_own_whoever_opens_its_store(tmp_path: Path) -> None:
    """Story: a command opened the store of a site without the options that divide numbers, and gave another site's."""
    store = tmp_path / "s"
    key = tm.Column("id", tm.Int64, default=tm.autoincrement)
    with tm.open(store, **SMALL, autoincrement_step=2, autoincrement_offset=2) as db:
        assert db.create_table("t", [key, COLUMNS[1]], "id").insert({"text": "a"}) == 2
    (tmp_path / "more.csv").write_text("text\nb\nc\n")
    document("load", store, "t", tmp_path / "more.csv")
    with tm.open(store, **SMALL) as db:
        db["t"].insert({"text": "d"})
        assert sorted(row.text for row in db["t"]) == ["a", "b", "c", "d"] and all(row.id % 2 == 0 for row in db["t"])


def test_options_of_the_process_are_each_openings_own(tmp_path: Path) -> None:
    given: dict[str, Any] = {"lock_timeout_ms": 7, "idle_transaction_ms": 7, "slow_operation_ms": 7}
    opened_with(tmp_path / "s", **SMALL, **given)
    again, default = opened_with(tmp_path / "s"), Options()
    assert all(getattr(again, name) == getattr(default, name) for name in given)
    assert not (tmp_path / "s" / NAME).exists()  # nothing to keep was named


def test_store_that_was_filled_opens_by_every_way_without_its_size(tmp_path: Path) -> None:
    """Story: a store filled with data_memory="2 GiB" opened neither by `tm.open(path)` nor by a command."""
    store = tmp_path / "s"
    fill(store)
    (tmp_path / "options.json").write_text(json.dumps({"data_memory": "16 MiB"}))
    with tm.open(store) as db:
        assert len(db["t"]) == 5_000
    with tm.open(store, read_only=True) as view:
        assert len(view["t"]) == 5_000
    assert check_store(store)["is_sound"]
    assert tm.diff(store, store)["is_equal"]
    for command in ("tables", "status", "checkpoint", "report", "doctor"):
        assert run(command, store).exit_code == 0, command
    assert run("scan", store, "t", "--limit", 1, "--checkpoint").exit_code == 0
    assert document("info", store)["options"]["data_memory"] == "64 MiB"


def test_size_that_is_too_small_is_refused_with_one_that_does_and_is_not_kept(tmp_path: Path) -> None:
    store = tmp_path / "s"
    fill(store)
    with pytest.raises(tm.LimitExceeded, match='open it with data_memory="32 MiB"') as refusal:
        tm.open(store, data_memory="16 MiB", background=False)
    assert refusal.value.evidence["data_memory_bytes"] == 16 << 20
    assert 'open it with --data-memory "32 MiB"' in refused("tables", store, "--data-memory", "16 MiB")
    assert opened_with(store, data_memory="32 MiB").data_memory == "32 MiB"
    assert opened_with(store).data_memory == "32 MiB"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"7",
        b"[" * 50_000,
        b'{"data_memory": "2 GB"}',
        b'{"data_memory": null}',
        b'{"durability": ["epoch"]}',
        b'{"transaction_memory": "2 GiB", "transaction_limit": "1 GiB"}',
        None,
    ],
)
def test_file_that_is_invalid_is_passed_over_with_a_line_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    opened_with(tmp_path / "s", **SMALL, data_memory="32 MiB")
    (tmp_path / "s" / NAME).unlink()
    if content is None:
        (tmp_path / "s" / NAME).mkdir()
    else:
        (tmp_path / "s" / NAME).write_bytes(content)
    with caplog.at_level(logging.WARNING, "tidemark.restart"):
        assert opened_with(tmp_path / "s") == Options(background=False)
    assert f"{NAME} is passed over" in caplog.text


def test_names_of_another_version_are_passed_over(tmp_path: Path) -> None:
    opened_with(tmp_path / "s", **SMALL)
    (tmp_path / "s" / NAME).write_text(json.dumps({"data_memory": "32 MiB", "hue": 7, "create": False}))
    found = opened_with(tmp_path / "s")
    assert (found.data_memory, found.create) == ("32 MiB", True)


def test_after_a_crash_the_options_are_those_before_or_the_new_ones() -> None:
    before, new = {"data_memory": "32 MiB"}, {"data_memory": "64 MiB", "durability": "epoch"}
    for name in (UNNAMED, None):  # with and without what an earlier crash has left
        files = MemoryFiles()
        keep_options(files, Options(**before), before)  # type: ignore[arg-type]
        if name is not None:
            files.close(files.create(name, 512))
        for step in ("unlink", "create", "pwrite", "fdatasync", "rename", "sync_directory"):
            disk = files.kill()
            faulty: Any = FaultFiles(disk, [Rule(step, error=errno.EIO)])
            try:
                keep_options(faulty, Options(**new), new)  # type: ignore[arg-type]
            except tm.Error:
                pass
            for survives in (lambda piece: False, lambda piece: True):
                assert kept_options(disk.kill().image(survives)) in (before, new), (name, step)
    keep_options(files, Options(**new), new)  # type: ignore[arg-type]
    assert kept_options(files.kill().image(lambda piece: False)) == new


def test_full_disk_keeps_the_options_before_and_the_store_opens(caplog: pytest.LogCaptureFixture) -> None:
    files = MemoryFiles()
    faulty: Any = FaultFiles(files, [Rule("pwrite", error=errno.ENOSPC)])
    with caplog.at_level(logging.WARNING, "tidemark.restart"):
        keep_options(faulty, Options(data_memory="32 MiB"), {"data_memory": "32 MiB"})
    assert "are not kept" in caplog.text and kept_options(files) == {}


def test_size_over_the_memory_of_the_machine_warns_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: 1 TiB was taken without a word on a machine of 24 GiB."""
    monkeypatch.setattr("tidemark.database.machine_bytes", lambda: 20_000_000)
    with pytest.warns(
        tm.MemoryWarning, match="33,554,432 bytes .32 MiB., and the machine has 20,000,000 bytes"
    ) as seen:
        opened_with(tmp_path / "s", **SMALL, data_memory="32 MiB")
    assert len(seen) == 1 and seen[0].filename == __file__
    monkeypatch.setattr("tidemark.database.machine_bytes", lambda: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened_with(tmp_path / "s")


def test_init_takes_options_that_last_and_refuses_others_with_the_reason(tmp_path: Path) -> None:
    """Story: `init -o durability=epoch` was accepted and had no effect later."""
    given = ("-o", "data_memory=32 MiB", "-o", "durability=epoch", "-o", "redo_log=4 MiB", "-o", "undo_log=4 MiB")
    document("init", tmp_path / "s", *given)
    found = opened_with(tmp_path / "s")
    assert (found.data_memory, found.durability, found.undo_log) == ("32 MiB", "epoch", "4 MiB")
    for name, value in {"lock_timeout_ms": 5, "background": "on", "server_id": 3, "archive": "a"}.items():
        text = refused("init", tmp_path / "new", "-o", f"{name}={value}")
        assert f"option {name} does not last" in text and "each opening gives its own" in text
    assert not (tmp_path / "new").exists()


def test_restored_store_keeps_the_options_of_the_restore(tmp_path: Path) -> None:
    with tm.open(tmp_path / "s", data_memory="32 MiB", **SMALL) as db:
        db.create_table("t", COLUMNS, "id").insert((1, "x"))
        db.backup(tmp_path / "backups")
    tm.restore(tmp_path / "backups", tmp_path / "again", data_memory="48 MiB", redo_log="4 MiB")
    assert opened_with(tmp_path / "again").data_memory == "48 MiB"


def test_memory_for_snapshots_grows_with_the_memory_for_rows() -> None:
    """Story: with 1 GiB for rows, one update of a million rows ended a snapshot, whose memory was 64 MiB."""
    derived = {"16 MiB": 64 << 20, "256 MiB": 64 << 20, "1 GiB": 256 << 20, "8 GiB": 2 << 30}
    for data_memory, wanted in derived.items():
        assert Options(data_memory=data_memory).snapshot_memory_bytes == wanted
    assert Options(data_memory="8 GiB", snapshot_memory="1 MiB").snapshot_memory_bytes == 1 << 20
