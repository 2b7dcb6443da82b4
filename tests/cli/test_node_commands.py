"""`tidemark node` and `tidemark status` as operators of a node group use them."""

from __future__ import annotations

import logging
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.cli.support import document, run
from tests.node_group.site import SECRET, Site, site_of
from tests.ports import free_port
from tidemark.nodes import FOLDER
from tidemark.recovery.node_restart.messages import VARIANTS


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_bytes(SECRET)
    return path


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("data_memory=lots", "option data_memory is 'lots'"),
        ("data_memry=64", "there is no option 'data_memry'; did you mean data_memory?"),
        ("lock_timeout_ms=soon", "option lock_timeout_ms is 'soon'; give an integer"),
        ("listen=1", "there is no option 'listen'; the options are data_memory, redo_log,|did you mean"),
        ("found=1", "there is no option 'found'"),
        ("server_id=x", "server_id"),
    ],
)
def test_option_that_does_not_fit_is_one_line(tmp_path: Path, secret: Path, option: str, said: str) -> None:
    """Story: `-o data_memory=...` and `-o listen=...` ended with a traceback of a TypeError, because the command gives
    arguments of those names itself.
    """
    group = f"1=127.0.0.1:{free_port()}"
    result = run("node", tmp_path / "n1", "--node", 1, "--group", group, "--secret-file", secret, "-o", option)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit), result.output
    assert re.search(said, result.output), result.output
    assert not (tmp_path / "n1").exists()


def test_log_lines_of_a_node_have_time_and_level(tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a node was silent for minutes while it compiled, and warnings stood on standard error without a time."""
    before = threading.Event.wait

    def signal_once_member(event: threading.Event, timeout: float | None = None) -> bool:
        if timeout == 0.2 and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGTERM)
        return before(event, timeout)

    monkeypatch.setattr(threading.Event, "wait", signal_once_member)
    given = ("--group", f"1=127.0.0.1:{free_port()}", "--secret-file", secret, "--found", "-o", "data_memory=64 MiB")
    result = run("node", tmp_path / "n1", "--node", 1, *given, "-o", "redo_log=8 MiB", "-o", "undo_log=4 MiB")
    assert result.exit_code == 0, result.output
    assert "node 1 stopped" in result.stdout
    first = result.stderr.splitlines()[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} INFO node 1 gets its compiled code before .*", first)
    assert not logging.getLogger("tidemark").handlers


def shown(site: Site, number: int) -> dict[str, Any]:
    return dict(document("status", site.root / str(number)))


def test_status_of_a_running_node_shows_its_group(tmp_path: Path) -> None:
    """Story: `tidemark status` of a node showed its store alone; of a node that was joining it opened the store."""
    with site_of(tmp_path, 2) as site:
        with site.nodes[1].connect() as db:
            db.create_table("t", [tm.Column("id", tm.Int64)], "id")
        one, two = shown(site, 1), shown(site, 2)
        assert one["group"]["members"] == two["group"]["members"] == [1, 2]
        assert (one["group"]["primary"], one["group"]["is_leading"], two["group"]["is_leading"]) == (1, True, False)
        assert one["group"]["lag"].keys() == {"2"} and two["group"]["lag"].keys() <= {"2"}
        assert one["group"]["restart"] is None and one["group"]["channel"] is None
        assert two["group"]["restart"]["variant"] in VARIANTS and two["group"]["restart"]["is_done"] is True
        assert one["tables"].keys() == two["tables"].keys() >= {"t"} or "main.t" in one["tables"]
        assert "members" in run("status", site.root / "1").stdout


def test_status_of_a_node_that_waits_for_its_group_leaves_its_store_alone(tmp_path: Path) -> None:
    site = Site(tmp_path, 2)
    try:
        site.begin(2)
        found = shown(site, 2)
        assert found.keys() == {"group"} and found["group"]["state"] == "joining"
    finally:
        site.end()
    assert not (site.root / "2" / FOLDER / "control.sock").exists()
