"""A group is founded once: a node that knows no group asks the others, and a second group ends before it does harm."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import OPTIONS, PATIENCE_MS, SECRET, Site, site_of
from tests.node_group.test_node import COLUMNS, equal, ids_at
from tests.waiting import wait_until


def test_node_with_a_lost_directory_that_is_to_found_joins_its_group(tmp_path: Path) -> None:
    """Story: a node whose directory was lost, started by the command of its first start, founded a second group, and
    acknowledged commits of the same clients. It asks the others first, and joins.
    """
    with site_of(tmp_path, 3) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
            site.drop(1)
            shutil.rmtree(tmp_path / "1")
            site.wait_view(2, 3)
            site.start(1, found=True)
            site.wait_view(1, 2, 3)
            db["t"].insert((2, 2, None))
        assert ids_at(site, 1) == [1, 2]
        equal(site)


def test_all_nodes_that_are_to_found_make_one_group(tmp_path: Path) -> None:
    """Story: three nodes started by one script, each with `--found`, were three groups."""
    site = Site(tmp_path, 3)
    try:
        for number in (3, 1, 2):
            site.begin(number, found=True)
        site.wait_view(1, 2, 3)
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
        equal(site)
    finally:
        site.end()


def test_nothing_is_founded_while_a_node_does_not_answer(tmp_path: Path) -> None:
    """It may run with a group that cannot be reached. A host that refuses the connection runs no node."""
    site = Site(tmp_path, 3)
    host, port = site.group.address_of(3)
    with socket.create_server((host, port)):  # takes connections, and answers nothing
        node = site.begin(1)
        wait_until(lambda: "may run with a group" in node.status()["refused"])
        with pytest.raises(tm.PeerRefused, match="node 3 at .*--found-alone"):
            node.wait_member(1)
        assert not (tmp_path / "1" / "node" / "view.0").exists(), "it has no part in a group yet"
        site.close(1)
        try:
            site.start(1, found="alone")
            assert site.nodes[1].status()["members"] == [1]
        finally:
            site.end()


def test_founded_group_ends_when_a_node_of_an_older_one_is_heard(tmp_path: Path) -> None:
    """All processes are down, and the first that starts has lost its directory: no other can tell it of their group.
    When they start, theirs is the group, and the second one takes no more commits.
    """
    with site_of(tmp_path, 3) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
        client = tm.connect([site.nodes[1].address, site.nodes[2].address, site.nodes[3].address], SECRET)
        assert client["t"].get(1).n == 1
        calls = {number: node.address for number, node in site.nodes.items()}
        for number in (1, 2, 3):
            site.drop(number)
        shutil.rmtree(tmp_path / "1")
        second = site.start(1, found=True, calls=calls[1])
        with second.connect(PATIENCE_MS) as db:
            assert db.tables() == []
        site.begin(2, calls=calls[2])
        site.begin(3, calls=calls[3])
        wait_until(lambda: second.parts.error is not None)
        with pytest.raises(tm.PeerRefused, match="founded a second one"):
            second.status()
        client["t"].insert((2, 2, None))
        client.close()
        site.close(1)
        again = site.begin(1, found=True)
        wait_until(lambda: again.parts.error is not None)  # before it serves: it asks the others first
        assert isinstance(again.parts.error, tm.PeerRefused) and again.address == ""
        site.close(1)
        shutil.rmtree(tmp_path / "1")
        site.start(1, found=True)
        site.wait_view(1, 2, 3)
        assert ids_at(site, 1) == [1, 2]
        equal(site)


def test_client_refuses_another_group_than_the_one_it_has_spoken_to(tmp_path: Path) -> None:
    """Story: a client went on in a second group at the address of a node that had lost its directory."""
    with site_of(tmp_path, 1, of=2) as site:
        address = site.nodes[1].address
        client = tm.connect(address, SECRET, timeout_ms=PATIENCE_MS)
        client.create_table("t", COLUMNS, "id")
        site.close(1)
        shutil.rmtree(tmp_path / "1")
        site.start(1, calls=address)
        for call in (client.tables, client.transaction, lambda: client["t"].get(1), client.where):
            with pytest.raises(tm.PeerRefused, match="another group"):
                call()
        with tm.connect(address, SECRET, timeout_ms=PATIENCE_MS) as other:
            assert other.tables() == []
        client.close()


def test_client_does_not_go_back_to_an_older_view(tmp_path: Path) -> None:
    """A copy of the group's store founds a group again. To a client of the first one it is another group."""
    with site_of(tmp_path, 2) as site:
        address = site.nodes[1].address
        client = tm.connect(address, SECRET, timeout_ms=3_000)  # as long as it looks for its own group
        assert client.where()["view"] > 1
        for number in (2, 1):
            site.close(number)
        shutil.rmtree(tmp_path / "1" / "node")
        site.start(1, calls=address)
        with tm.connect(address, SECRET, timeout_ms=PATIENCE_MS) as other:
            assert other.where()["view"] == 1
        with pytest.raises(tm.PeerRefused, match="founded again"):
            client.tables()
        client.close()


def test_client_does_not_choose_between_two_groups(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with site_of(tmp_path / "one", 1) as one, site_of(tmp_path / "other", 1) as other:
        both = [one.nodes[1].address, other.nodes[1].address]
        with pytest.raises(tm.PeerRefused, match="another group"):
            tm.connect(both, SECRET, timeout_ms=PATIENCE_MS)


def test_arbitrator_that_knows_a_group_keeps_a_node_from_founding_one(tmp_path: Path) -> None:
    """It names the group, of which the other node still has the rows."""
    with site_of(tmp_path, 2, with_arbitrator=True) as site:
        with site.nodes[2].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
        site.drop(1)
        site.wait_view(2)
        site.drop(2)
        shutil.rmtree(tmp_path / "1")
        node = site.begin(1, found=True)
        wait_until(lambda: node.parts.life is not None)
        assert node.status()["state"] == "joining"
        site.start(2)
        site.wait_view(1, 2)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            assert "t" in db
        equal(site)


def test_found_takes_no_other_word(tmp_path: Path) -> None:
    unknown: Any = "Alone"
    with pytest.raises(tm.SchemaInvalid, match="found must be"):
        tm.NodeGroup(tmp_path / "1", 1, "1=127.0.0.1:7301", SECRET, found=unknown, **OPTIONS)
