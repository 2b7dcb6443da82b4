"""log: the REDO log and local checkpoints as text and JSON, whole, damaged, and while another process writes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, flip, held_open, json_lines, make_store, refused, run
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.log.geometry import FOLDER
from tidemark.recovery.verification.log_listing import StoreListing


def kinds(entries: list[dict[str, object]]) -> list[object]:
    return [entry["kind"] for entry in entries]


def test_redo_lists_every_change_with_its_place_and_values(store: Path) -> None:
    entries = json_lines("log", store, "--redo")
    inserted = [entry for entry in entries if entry["kind"] == "insert" and entry["table"] == "test.account"]
    assert sorted(entry["key"] for entry in inserted) == list(range(10))
    with tm.open(store, **SMALL) as db:
        places = {row[0]: row[1:] for row in db["test.account"].scan(["id", tm.ROWID, tm.FRAGMENT])}
    for entry in inserted:
        if entry["key"] in places:
            assert (entry["rowid"], entry["fragment"]) == places[entry["key"]]
        assert entry["values"]["owner"] == f"owner {entry['key']}"
    updated = {entry["key"]: entry["values"] for entry in entries if entry["kind"] == "update"}
    assert updated[3] == {"id": 3, "balance": 7.0, "price": "0.00", "state": "open"}
    assert updated[4]["note"] == "two\nlines"
    (deleted,) = [entry for entry in entries if entry["kind"] == "delete"]
    assert "values" not in deleted
    assert deleted["rowid"] == next(entry["rowid"] for entry in inserted if entry["key"] == 5)
    (pair,) = [entry for entry in entries if entry.get("table") == "mysql.pair"]
    assert pair["key"] == ["left", 2]
    assert kinds(entries).count("schema") == 2


def test_redo_groups_follow_one_another_without_a_gap(store: Path) -> None:
    groups = [entry for entry in json_lines("log", store, "--redo") if entry["kind"] == "group"]
    assert [group["sequence"] for group in groups] == list(range(1, len(groups) + 1))
    for one, two in zip(groups, groups[1:], strict=False):
        assert one["lsn"] + one["bytes"] == two["lsn"]
    assert sum(group["transactions"] for group in groups) == kinds(json_lines("log", store, "--redo")).count(
        "transaction"
    )


def test_redo_from_an_lsn_decodes_tables_made_before_it(store: Path) -> None:
    whole = json_lines("log", store, "--redo")
    update = next(place for place, entry in enumerate(whole) if entry["kind"] == "update")
    group = max(place for place in range(update) if whole[place]["kind"] == "group")
    for lsn in (whole[group]["lsn"], whole[group]["lsn"] - 1):
        assert json_lines("log", store, "--redo", "--from", lsn) == whole[group:]
    assert json_lines("log", store, "--redo", "--from", 1 << 40) == []


def test_limit_counts_lines(store: Path) -> None:
    assert len(json_lines("log", store, "--redo", "--limit", 3)) == 3
    assert len(run("log", store, "--lcp", "--limit", 5).stdout.splitlines()) == 5
    assert run("log", store, "--redo", "--limit", 0).stdout == ""


def test_redo_for_people_shows_epochs_and_rowids_in_parts(store: Path) -> None:
    text = run("log", store, "--redo").stdout
    assert "  epoch 1/0  " in text and "  rowid 0:0  " in text
    assert "key (left, 2)  (a=left, b=2)" in text
    assert "note=two\\nlines" in text


def test_lcp_lists_control_files_blocks_and_rows(store: Path) -> None:
    entries = json_lines("log", store, "--lcp")
    assert entries[0]["kind"] == "control" and entries[0]["tables"] == ["test.account"]
    rows = {entry["key"]: entry["values"]["balance"] for entry in entries if entry["kind"] == "row"}
    assert rows == {key: key / 2 for key in range(10)}
    files = {entry["file"]: entry for entry in entries if entry["kind"] in ("data file", "copies file")}
    assert len(files) == 5
    for name, entry in files.items():
        assert entry["bytes"] == (store / name).stat().st_size


def test_lcp_lists_old_rows_that_commits_copied(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **SMALL) as db:
        handle = db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("v", tm.Int64)], "id")
        handle.insert_many([(key, 0) for key in range(100)])
        # Fragments that are not scanned yet are changed while the first one is scanned.
        db.checkpoint(lambda done, total, unit: handle.write_many([(key, done) for key in range(100)]))
    entries = json_lines("log", tmp_path / "store", "--lcp")
    found = [entry for entry in entries if entry["kind"] in ("row", "old row")]
    assert {"row", "old row"} == set(kinds(found))
    assert {entry["key"]: entry["values"]["v"] for entry in found} == dict.fromkeys(range(100), 0)


def test_log_of_a_dropped_table_is_still_decoded(store: Path) -> None:
    with tm.open(store, **SMALL) as db:
        db.drop_table("mysql.pair")
    entries = json_lines("log", store, "--redo")
    assert any(entry.get("table") == "mysql.pair" and entry["key"] == ["left", 2] for entry in entries)
    assert [each["name"] for each in document("info", store)["tables"]] == ["test.account"]


def test_operations_of_an_unknown_table_are_listed_by_number(tmp_path: Path) -> None:
    with tm.open(tmp_path / "store", **SMALL) as db:
        handle = db.create_table("t", [tm.Column("id", tm.Int64)], "id")
        handle.insert_many([(key,) for key in range(3)])
        db.drop_table("t")
        db.checkpoint()
        db.checkpoint()
        db.create_table("u", [tm.Column("id", tm.Int64)], "id")
    whole = json_lines("log", tmp_path / "store", "--redo", "--from", 0)
    place = next(place for place, entry in enumerate(whole) if entry["kind"] == "insert")
    group = max(at for at in range(place) if whole[at]["kind"] == "group")
    assert [entry["table"] for entry in whole if entry["kind"] == "insert"] == ["main.t"] * 3
    # The kept log starts after all this; sectors before it still hold the groups, but no record defines the table.
    assert json_lines("log", tmp_path / "store", "--redo")[0]["lsn"] > whole[place]["lsn"]
    later = json_lines("log", tmp_path / "store", "--redo", "--from", whole[group]["lsn"])
    found = [entry for entry in later if entry["kind"] == "insert"]
    assert sum(entry["rows"] for entry in found) == 3
    assert all(entry["table"] == "#1" and "values" not in entry for entry in found)


def test_log_needs_to_know_what_and_from_is_for_redo(store: Path) -> None:
    assert run("log", store).exit_code == 2
    assert run("log", store, "--lcp", "--from", 0).exit_code == 2
    assert run("log", store, "--redo", "--from", -1).exit_code == 2


# --- damage ---------------------------------------------------------------------------------------
def test_damaged_group_ends_the_listing_with_an_error(store: Path) -> None:
    groups = [entry for entry in json_lines("log", store, "--redo") if entry["kind"] == "group"]
    flip(store / FOLDER / "0000.redo", groups[2]["lsn"] + 200)
    result = run("log", store, "--redo", "--json")
    assert result.exit_code == 1
    assert "RedoDamaged: REDO group 3" in result.stderr and len(result.stderr.splitlines()) == 1
    assert result.stdout.count('"kind": "group"') == 2


def test_damaged_block_is_reported_and_the_other_files_are_listed(store: Path) -> None:
    flip(store / "lcp" / "1-1-0.data", -1)
    result = run("log", store, "--lcp")
    assert result.exit_code == 1
    assert "damage  file lcp/1-1-0.data" in result.stdout
    assert result.stdout.count("data file ") == 4 and "copies file" in result.stdout
    (store / "lcp" / "control-1").write_bytes(b"nothing")
    result = run("log", store, "--lcp")
    assert (result.exit_code, result.stdout) == (1, "damage  file lcp/control-1  text not intact\n")


def test_missing_file_of_a_local_checkpoint_is_damage(store: Path) -> None:
    (store / "lcp" / "1-1-2.data").unlink()
    result = run("log", store, "--lcp", "--json")
    assert result.exit_code == 1 and '"kind": "damage", "file": "lcp/1-1-2.data"' in result.stdout


# --- next to an owner -----------------------------------------------------------------------------
@pytest.mark.parametrize("background", [True, False])
def test_log_of_an_open_store_says_so_and_changes_nothing(store: Path, background: bool) -> None:
    closed = json_lines("log", store, "--redo")
    with held_open(store, background) as process:
        lock = (store / "LOCK").read_bytes()
        for what in ("--redo", "--lcp"):
            result = run("log", store, what)
            assert result.exit_code == 0
            assert result.stderr.startswith(f"note: process {process.pid} has the store open")
            assert result.stdout
        shown = json_lines("log", store, "--redo")
        # With a timer the owner has made its first local checkpoint and cut the log before the older one.
        older = document("info", store)["local_checkpoints"][-1]
        start = older["start_lsn"] if background else 0
        assert [entry for entry in shown if entry in closed] == [entry for entry in closed if entry["lsn"] >= start]
        assert (store / "LOCK").read_bytes() == lock


def test_listing_takes_groups_written_while_it_reads(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with tm.open(tmp_path / "store", **SMALL) as db:
        handle = db["test.account"]
        listing = StoreListing(PosixFiles(tmp_path / "store"))
        seen = []
        for entry in listing.redo():
            if entry["kind"] == "group":
                seen.append(entry["sequence"])
                if len(seen) < 40:
                    handle.update(1, {"balance": float(len(seen))})
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) >= 40


def write_a_lap(db: tm.Database) -> None:
    """Write more than the log holds, with local checkpoints that allow it to be overwritten."""
    capacity_bytes = db.status()["log"]["capacity_bytes"]
    stop = db.status()["log"]["head_lsn"] + capacity_bytes
    while db.status()["log"]["head_lsn"] < stop:
        for _ in range(4):
            db["test.account"].update(2, {"note": "n" * 30_000})
        db.checkpoint()


def test_log_overwritten_while_it_is_listed_continues_after_the_gap(tmp_path: Path) -> None:
    make_store(tmp_path / "store", redo_log="1 MiB")
    with tm.open(tmp_path / "store", **SMALL) as db:
        entries = StoreListing(PosixFiles(tmp_path / "store")).redo()
        assert next(entries)["sequence"] == 1
        write_a_lap(db)
        db["test.account"].update(1, {"balance": 77.0})
        rest = list(entries)
    assert "retired" in kinds(rest)
    assert rest[-1]["kind"] == "update" and rest[-1]["values"]["balance"] == 77.0
    sequences = [entry["sequence"] for entry in rest if entry["kind"] == "group"]
    assert sequences == sorted(set(sequences))


def test_log_from_before_what_is_kept_shows_what_is_left(tmp_path: Path) -> None:
    make_store(tmp_path / "store", redo_log="1 MiB")
    with tm.open(tmp_path / "store", **SMALL) as db:
        write_a_lap(db)
        write_a_lap(db)
        db["test.account"].update(1, {"balance": 77.0})
    kept = json_lines("log", tmp_path / "store", "--redo")
    left = json_lines("log", tmp_path / "store", "--redo", "--from", 0)
    assert left[-len(kept) :] == kept
    assert len(left) > len(kept)


def test_info_of_a_log_that_is_overwritten_meanwhile_looks_again(tmp_path: Path) -> None:
    make_store(tmp_path / "store", redo_log="1 MiB")
    with tm.open(tmp_path / "store", **SMALL) as db:
        db["test.account"].update(1, {"balance": 77.0})
        listing = StoreListing(PosixFiles(tmp_path / "store"))
        write_a_lap(db)
        db.create_table("made.since", [tm.Column("id", tm.Int64)], "id")
        assert [each.name for each in listing.tables()] == ["test.account", "mysql.pair", "made.since"]


def test_data_file_retired_while_it_is_listed_is_no_damage(tmp_path: Path) -> None:
    make_store(tmp_path / "store")
    with tm.open(tmp_path / "store", **SMALL) as db:
        entries = StoreListing(PosixFiles(tmp_path / "store")).local_checkpoints()
        first = next(entries)
        db.checkpoint()
        db.checkpoint()
        rest = kinds(list(entries))
    assert first["lcp_id"] == 1
    assert "retired" in rest and "damage" not in rest


def test_listing_needs_no_lock_and_makes_no_file(store: Path) -> None:
    (store / "LOCK").unlink()
    assert json_lines("log", store, "--redo")
    assert not (store / "LOCK").exists()
    assert "there is no store" in refused("log", store / "redo", "--redo")
