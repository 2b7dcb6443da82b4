"""What people read at the end of commands: no zeros of parts that are not in use, times, and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

import tidemark as tm
from tests.cli.support import SMALL, document, make_store, refused, run
from tidemark.cli.channel_commands import reached_line
from tidemark.cli.output import completed_tables


def test_status_leaves_out_what_is_not_in_use(store: Path) -> None:
    """Story: a store without replication printed 45 zeros of it, and `0.9120679997067782` ms."""
    shown = run("status", store).stdout
    assert "Ndb_" not in shown and "\nreplication" not in shown and "\ntablespaces" not in shown
    for part in ("\ntransactions", "\nlog", "\nepoch", "test.account", "phases"):
        assert part in shown, part
    for word in shown.split():
        whole, point, rest = word.partition(".")
        assert not (point and whole.isdigit() and rest.isdigit() and len(rest) > 3), word
    assert len(document("status", store)["replication"]["variables"]) > 20
    with tm.open(store, server_id=1, log_bin="binlog", **SMALL | {"background": True}) as db:
        db["test.account"].insert({"id": 70, "owner": "x"})
        shown = run("status", store).stdout
    assert "\nbinlog" in shown and "\nreplication" in shown


def test_restore_looks_at_its_directory_first_and_ends_in_one_line(tmp_path: Path) -> None:
    """Story: the whole plan was printed, then that the directory was not empty."""
    with tm.open(make_store(tmp_path / "store"), **SMALL) as db:
        db.backup(tmp_path / "place")
        epoch = db.backup(tmp_path / "place")["epoch"]
    full = run("restore", tmp_path / "place", tmp_path / "store")
    assert full.exit_code == 1 and full.stdout == ""
    assert "Rejected: the directory is not empty" in full.stderr
    done = run("restore", tmp_path / "place", tmp_path / "new")
    last = done.stdout.splitlines()[-1]
    assert done.exit_code == 0 and last.startswith(f"restored 10 rows of 2 tables into {tmp_path / 'new'}")
    assert f"epoch {epoch} (" in last and ", verified, in " in last
    text = refused("restore", tmp_path / "place", tmp_path / "other", "--until", "2020-01-01T00:00:00Z")
    assert "2020-01-01T00:00:00+00:00 is before the oldest backup, of epoch" in text and ", made 20" in text
    assert "epoch 1 is before the oldest backup" in refused("restore", tmp_path / "place", tmp_path / "o", "--until", 1)
    made = tm.ValueOutOfRange
    with pytest.raises(made) as raised:
        tm.restore(tmp_path / "place", tmp_path / "other", 1)
    assert isinstance(raised.value.evidence["oldest_wall_us"], int)
    assert not (tmp_path / "other").exists()


def test_log_that_is_empty_says_so(tmp_path: Path) -> None:
    tm.open(tmp_path / "store", **SMALL).close()
    for what in ("--redo", "--undo", "--lcp"):
        result = run("log", tmp_path / "store", what)
        assert result.exit_code == 0 and result.stdout == "" and result.stderr.startswith("note: the "), result.stderr
    assert "note: the REDO log has no groups" in run("log", tmp_path / "store", "--redo", "--from", 0).stderr
    assert run("log", tmp_path / "store", "--redo", "--limit", 0).stderr == ""


def test_replication_that_ends_says_how_far_it_came() -> None:
    lag = {"epochs": 0, "seconds": 0.0}
    found = {"applied": 3, "applied_to": "binlog.000001:77", "applied_epoch": (5 << 32) + 2, "lag": lag}
    said = reached_line("a:1", found)
    assert said == "3 transactions of a:1 applied, to binlog.000001:77, epoch 5/2, nothing is left to apply"
    found["lag"] = {"epochs": 2, "seconds": 1.25}
    assert reached_line("a:1", found).endswith(", lag 1.2 s")
    server = {"transactions": 1, "file": "", "position": 0, "seconds_behind": 0.0}
    assert reached_line("mysql://h/", server) == (
        "1 transaction of mysql://h/ applied, to its beginning, nothing is left to apply"
    )


def test_shell_completes_tables(store: Path, tmp_path: Path) -> None:
    context = click.Context(click.Command("scan"))
    context.params["store"] = store
    argument = click.Argument(["table"])
    assert (
        completed_tables(context, argument, "") == ["test.account"] and completed_tables(context, argument, "x") == []
    )
    for other in (tmp_path, tmp_path / "none", None):
        context.params["store"] = other
        assert completed_tables(context, argument, "") == []


def test_python_calls_check_a_target_without_a_trace(tmp_path: Path) -> None:
    from tidemark.backup import check_target

    check_target(tmp_path / "none")
    (tmp_path / "full").mkdir()
    check_target(tmp_path / "full")
    (tmp_path / "full" / "mine.txt").write_text("x")
    with pytest.raises(tm.Rejected, match=r"not empty: it has mine\.txt"):
        check_target(tmp_path / "full")
    with pytest.raises(tm.Rejected, match="is a file"):
        check_target(tmp_path / "full" / "mine.txt")
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert json.dumps([each.name for each in tmp_path.iterdir()]) == '["full"]'
