"""Nodes of a group are restarted with a newer program, one after the other (docs/internals/node-group.md)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, SECRET, Site
from tests.node_group.test_node import COLUMNS
from tests.ports import free_ports
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def newer(site: Site, number: int, calls: str) -> Iterator[None]:
    """Run a node as a process of a newer program. It is a member when the block starts, and leaves in order."""
    command = [sys.executable, "-m", "tests.node_group.newer_program", str(site.root / str(number)), str(number)]
    process = subprocess.Popen(
        [*command, site.text, calls], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        assert process.stdout.readline() == "member\n"
        yield
        process.stdin.close()
        assert process.wait(200) == 0


def rows(calls: str) -> list[int]:
    """Return the keys that a node shows. A node that a busy machine kept silent for half a second is out of its view
    for a moment, and a scan ends with NotPrimary.
    """
    found: list[int] = []

    def is_read() -> bool:
        try:
            found[:] = db["t"].scan(["id"]).to_arrow()["id"].to_pylist()
        except tm.NotPrimary as error:
            print("read again:", error)
            return False
        return True

    with tm.connect([calls], SECRET, timeout_ms=PATIENCE_MS) as db:
        wait_until(is_read)
    return sorted(found)


def test_group_goes_over_to_a_newer_program_node_by_node(tmp_path: Path) -> None:
    places = [f"127.0.0.1:{port}" for port in free_ports(2)]
    site = Site(tmp_path, 2, with_arbitrator=True)
    site.start(1)
    site.start(2)
    with site.nodes[1].connect(PATIENCE_MS) as db:
        db.create_table("t", COLUMNS, "id")
        db["t"].insert((1, 0, None))
        site.close(2)
        db["t"].insert((2, 0, None))
        with newer(site, 2, places[1]):
            # A newer member follows an older primary.
            db["t"].insert((3, 0, None))
            assert rows(places[1]) == [1, 2, 3]
            site.close(1)
            with tm.connect([places[1]], SECRET, timeout_ms=PATIENCE_MS) as other:
                other.run(lambda txn: txn.insert("t", (4, 0, None)), retries=20)
            # An older member that follows a newer primary reports what it lacks, and its store is not harmed.
            node = site.begin(1)
            wait_until(lambda: node.parts.error is not None)
            with pytest.raises(tm.VersionTooNew, match="use a newer Tidemark"):
                node.status()
            site.close(1)
            with newer(site, 1, places[0]):
                assert rows(places[0]) == rows(places[1]) == [1, 2, 3, 4]
    site.end()
