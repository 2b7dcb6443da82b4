"""log --binlog and --relay: the columns of SHOW BINLOG EVENTS with row counts; torn ends are not taken for damage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.support import flip, json_lines, refused, run
from tests.replication.stage import rows_of, write_epoch
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.files.directory import PosixFiles
from tidemark.replication.binlog.writer import BinlogWriter


def write(store: Path, folder: str = "binlog", base: str = "binlog") -> None:
    """Write two files: a statement, an epoch, ROTATE; an epoch, STOP."""
    files = PosixFiles(store)
    at = ""
    for name in folder.split("/"):
        at = f"{at}/{name}" if at else name
        if not files.exists(at):
            files.make_directory(at)
    writer = BinlogWriter(files, ManualClock(), folder, base)
    writer.statement("CREATE TABLE `d`.`t` (`id` INT PRIMARY KEY)", "d")
    write_epoch(writer, 5, rows_of(5))
    writer.rotate()
    write_epoch(writer, 6, rows_of(6))
    writer.close()
    files.close_all()


@pytest.fixture
def logged(store: Path) -> Path:
    write(store)
    return store


def test_events_have_the_columns_of_show_binlog_events_and_follow_each_other(logged: Path) -> None:
    events = json_lines("log", logged, "--binlog")
    assert [each["event"] for each in events if each["file"] == "binlog.000001"] == [
        *("Format_desc", "Previous_gtids", "Anonymous_Gtid", "Query"),
        *("Anonymous_Gtid", "Query", "Table_map", "Table_map", "Write_rows", "Write_rows", "Query", "Rotate"),
    ]
    assert list(events[0]) == ["kind", "file", "position", "event", "server_id", "end_position", "info"]
    for one, two in zip(events, events[1:], strict=False):
        assert two["position"] == (one["end_position"] if one["event"] != "Rotate" else 4)
    infos = [each["info"] for each in events]
    assert "use `d`; CREATE TABLE `d`.`t` (`id` INT PRIMARY KEY)" in infos
    assert infos[0].startswith("Server ver: 8.0") and "binlog.000002;pos=4" in infos
    maps = [each["info"] for each in events if each["event"] == "Table_map"]
    assert any(info.endswith("(mysql.ndb_apply_status)") for info in maps)
    written = [each for each in events if each["event"] == "Write_rows"]
    assert [each["rows"] for each in written] == [1, len(rows_of(5)), 1, len(rows_of(6))]
    assert ["STMT_END_F" in each["info"] for each in written] == [False, True] * 2


def test_limit_file_and_place_choose_what_is_shown(logged: Path) -> None:
    whole = json_lines("log", logged, "--binlog")
    second = [each for each in whole if each["file"] == "binlog.000002"]
    assert json_lines("log", logged, "--binlog", "--limit", 3) == whole[:3]
    assert json_lines("log", logged, "--binlog", "--file", "binlog.000002") == second
    place = whole[4]["position"]
    assert json_lines("log", logged, "--binlog", "--from", f"binlog.000001:{place}") == whole[4:]
    assert json_lines("log", logged, "--binlog", "--from", place, "--file", "binlog.000001", "--limit", 2) == whole[4:6]
    assert json_lines("log", logged, "--binlog", "--from", "binlog.000002") == second
    rows = next(each for each in second if each["event"] == "Write_rows")
    first, *_ = json_lines("log", logged, "--binlog", "--from", f"binlog.000002:{rows['position']}")
    assert first["rows"] is None, "its TABLE_MAP lies before"


def test_lines_for_people_name_what_they_show(logged: Path) -> None:
    text = run("log", logged, "--binlog", "--limit", 1).stdout
    assert text.startswith("event  file binlog.000001  position 4  event Format_desc  server_id 1  end_position 1")


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["--binlog", "--file", "binlog.000009"], 1, "binlog.000009"),
        (["--binlog", "--file", "other.000001"], 1, "no binlog log here"),
        (["--binlog", "--from", "binlog.000001:99999999"], 1, "nothing at 99999999"),
        (["--binlog", "--from", "binlog.000001:x"], 2, "FILE:POSITION"),
        (["--binlog", "--from", "77"], 2, "FILE:POSITION"),
        (["--binlog", "--from", "binlog.000001:4", "--file", "binlog.000002"], 1, "is not"),
        (["--redo", "--file", "binlog.000001"], 2, "--file"),
        (["--redo", "--from", "binlog.000001:4"], 2, "LSN"),
        (["--binlog", "--channel", "a"], 2, "--channel"),
        (["--relay"], 1, "no relay log here"),
        (["--relay", "--channel", "a"], 1, "of channel a"),
        ([], 2, "--binlog"),
    ],
)
def test_what_cannot_be_shown_is_reported_in_one_line(logged: Path, arguments: list[str], code: int, word: str) -> None:
    result = run("log", logged, *arguments)
    assert result.exit_code == code and word in result.stderr, result.output


def test_store_without_binlog_says_so(store: Path) -> None:
    assert refused("log", store, "--binlog") == "Error: Rejected: there is no binlog log here"


def test_end_within_an_event_of_the_file_in_use_is_no_damage_but_anywhere_else_it_is(logged: Path) -> None:
    folder = logged / "binlog"
    second = folder / "binlog.000002"
    whole = second.read_bytes()
    second.write_bytes(whole[:-30])
    result = run("log", logged, "--binlog", "--json")
    assert result.exit_code == 1 and "BinlogDamaged" in result.stderr
    assert json.loads(result.stdout.splitlines()[-1])["kind"] == "damage"
    torn = bytearray(whole[:-30])
    torn[4 + 17] |= 1  # in use, as a crash leaves it
    second.write_bytes(torn)
    last = json_lines("log", logged, "--binlog")[-1]
    assert last["kind"] == "torn end" and last["file"] == "binlog.000002"
    second.write_bytes(torn + bytes(300))  # a crash left the file longer than what was written
    assert json_lines("log", logged, "--binlog")[-1]["kind"] == "torn end"
    first = folder / "binlog.000001"
    flip(first, first.stat().st_size // 2, 0xFF)
    result = run("log", logged, "--binlog")
    assert result.exit_code == 1 and "damage  file binlog.000001" in result.stdout


def test_relay_logs_are_shown_by_channel_with_the_positions_of_the_source(store: Path) -> None:
    """Story: the command looked into a folder of each channel. The relay logs are in one, by names of channels."""
    for channel in ("east", "west"):
        write(store, "relay", channel)
        (store / "relay/history").unlink()  # a relay log has none
    moved = store / "relay" / "west.000001"
    assert {each["channel"] for each in json_lines("log", store, "--relay")} == {"east", "west"}
    west = json_lines("log", store, "--relay", "--channel", "west")
    assert {each["channel"] for each in west} == {"west"} and west[0]["file"] == "west.000001"
    assert json_lines("log", store, "--relay", "--file", "west.000001") == [
        each for each in west if each["file"] == "west.000001"
    ]
    # Bytes of a source are at other positions in a relay file, and contain their original positions.
    octets = moved.read_bytes()
    begin = west[2]["position"]
    moved.write_bytes(octets[:begin] + octets[begin : west[3]["end_position"]] * 2 + octets[begin:])
    again = json_lines("log", store, "--relay", "--channel", "west", "--file", "west.000001")
    assert [each["end_position"] for each in again[2:4]] == [each["end_position"] for each in again[4:6]]
    assert again[4]["position"] == again[3]["end_position"]
    shutil.rmtree(store / "relay")


def test_damage_within_the_file_in_use_is_no_torn_end(logged: Path) -> None:
    """Story: any damage in the file in use was shown as its torn end, with exit code 0, though events followed."""
    second = logged / "binlog" / "binlog.000002"
    places = [each["position"] for each in json_lines("log", logged, "--binlog") if each["file"] == second.name]
    flip(second, 4 + 17)  # in use
    flip(second, places[2] + 20, 0xFF)
    result = run("log", logged, "--binlog", "--json")
    last = json.loads(result.stdout.splitlines()[-1])
    assert result.exit_code == 1 and (last["kind"], last["position"]) == ("damage", places[2])
