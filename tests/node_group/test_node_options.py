"""Options that all nodes of a group must share: a node with another value is refused, and the message names both."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.site import PATIENCE_MS, site_of
from tests.node_group.test_node import COLUMNS
from tidemark.replication.node_group.party import LISTENS, MESSAGES, NodeParty
from tidemark.replication.settings.options import BY_NAME, OF_SITE

OPTIONS: dict[str, Any] = {"server_id": 1, "log_orig": False, "conflict_role": "NONE"}
ONE = NodeParty("ab" * 16, 1, 5, LISTENS, "cd" * 8, OPTIONS, frozenset({0, 2}))
TWO = NodeParty("ab" * 16, 2, 5, MESSAGES, "ef" * 8, OPTIONS, frozenset({0, 1}))


def reported(party: NodeParty, **other: Any) -> dict[str, Any]:
    """Return what a party says in a frame of the handshake, as its peer decodes it."""
    content = {name: getattr(party, name) for name in party.fields}
    return dict(json.loads(json.dumps({**content, **other})))


def test_nodes_with_the_same_options_meet_and_an_arbitrator_has_none() -> None:
    assert ONE.peer_from(reported(TWO)).options == OPTIONS
    assert ONE.peer_from(reported(replace(TWO, node=0, options={}))).node == 0
    assert replace(ONE, node=0, options={}).peer_from(reported(TWO)).node == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({**OPTIONS, "server_id": 2}, "server_id is 2 at node 2 and 1 at node 1"),
        ({**OPTIONS, "log_orig": True}, "log_orig is True at node 2 and False at node 1"),
        ({"server_id": 1, "log_orig": False}, "conflict_role is None at node 2 and 'NONE' at node 1"),
        ({**OPTIONS, "log_new": 1}, "log_new is 1 at node 2 and None at node 1"),
    ],
)
def test_option_that_differs_is_named_with_both_values(options: dict[str, Any], text: str) -> None:
    with pytest.raises(tm.PeerRefused, match=text):
        ONE.peer_from(reported(TWO, options=options))


@pytest.mark.parametrize(
    "options",
    [
        {"server_id": [1]},
        {"server_id": None},
        {"a" * 80: 1},
        {"a": "b" * 80},
        {"a\n": 1},
        {str(n): n for n in range(50)},
    ],
)
def test_options_that_no_node_reports_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(tm.FrameRejected, match="the node in the handshake is invalid"):
        ONE.peer_from(reported(TWO, options=options))


def test_options_of_a_site_are_those_that_make_its_events() -> None:
    assert set(OF_SITE) <= BY_NAME.keys() and "log_bin" not in OF_SITE
    assert {"server_id", "log_updated_only", "log_replica_updates", "row_slice_id", "conflict_role"} <= set(OF_SITE)


def test_node_with_another_option_stays_out_of_its_group_until_it_has_the_same(tmp_path: Path) -> None:
    """A next primary with another server id, or other images, would have continued another site's binlog."""
    with site_of(tmp_path, 1, of=2, server_id=1) as site:
        for options in ({"server_id": 2}, {"log_replica_updates": True}, {"durability": "epoch"}):
            (name, value), *_ = options.items()
            node = site.begin(2, **options)
            with pytest.raises(tm.PeerRefused, match=f"{name} is .* at node .* and .* at node") as refused:
                node.wait_member(1_000)
            assert repr(value) in refused.value.message
            assert name in node.status()["refused"] and node.status()["state"] == "joining"
            site.close(2)
        with site.nodes[1].connect(PATIENCE_MS) as db:
            db.create_table("t", COLUMNS, "id")
            db["t"].insert((1, 1, None))
        site.start(2)
        assert site.nodes[2].status()["refused"] == ""
        with site.nodes[2].connect(PATIENCE_MS) as db:
            assert db["t"].get(1).n == 1
        site.close(2)
        node = site.begin(2, log_orig=True)  # with a store and a record of its own
        with pytest.raises(tm.PeerRefused, match="log_orig is"):
            node.wait_member(1_500)
        assert "log_orig" in site.nodes[1].status()["links"][2]["refused"]
        assert site.nodes[1].status()["state"] == "open"
