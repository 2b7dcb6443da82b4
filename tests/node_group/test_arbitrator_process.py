"""The arbitrator as a process: its vote outlives a kill, and two nodes continue by it; without its disk it refuses to
vote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidemark as tm
from tests.cli.processes import Command
from tests.node_group.carriers import SECRET, End, Site, free_address
from tests.node_group.machines import STORE, GroupNode
from tests.other_user import write_secret
from tests.waiting import wait_until
from tidemark.cli.commands import commands
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import SyncFailed
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.node_group.arbitrator import NO_RECORD
from tidemark.replication.node_group.arbitrator_process import ArbitratorProcess
from tidemark.replication.node_group.carrier import Secrets
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.messages import Accept, Accepted, Ping, Pong, Prepare, Promise, Refused
from tidemark.replication.node_group.view import ARBITRATOR, Ballot, Record, View, first_view
from tidemark.replication.node_group.view_file import ViewFile, read_record

SECRETS = Secrets(SECRET)


@pytest.fixture
def group() -> GroupConfiguration:
    return GroupConfiguration({1: free_address(), 2: free_address()}, free_address())


@pytest.fixture
def nodes(group: GroupConfiguration) -> Iterator[list[GroupNode]]:
    made: list[GroupNode] = []
    yield made
    for each in made:
        each.crash()


def started(folder: Path, group: GroupConfiguration) -> Command:
    """Start `tidemark arbitrator` as a process, in an empty directory or with what an earlier process left there."""
    write_secret(folder / "secret", SECRET + b"\n")
    given = ["arbitrator", "votes", "--group", group, "--secret-file", "secret", "--json", "--new-group"]
    return Command(folder, *given)


def opened(node: GroupNode, *members: int) -> bool:
    return node.machine.may_commit() and node.machine.view.numbers == frozenset(members)


def make_pair(first: GroupNode) -> None:
    """Let the first node make the group, and the second one join it after a commit: before that it has nothing to
    join.
    """
    wait_until(lambda: opened(first, 1))
    first.commit(0)
    wait_until(lambda: opened(first, 1, 2))


def test_two_nodes_and_an_arbitrator_that_is_killed_make_views_and_outlive_each_other(
    tmp_path: Path, group: GroupConfiguration, nodes: list[GroupNode]
) -> None:
    arbitrator = started(tmp_path, group)
    try:
        assert json.loads(arbitrator.readline()) == {"arbitrator": f"127.0.0.1:{group.arbitrator[1]}", "tls": False}
        first, second = GroupNode(group, 1, SECRETS, is_first=True), GroupNode(group, 2, SECRETS)
        nodes += [first, second]
        make_pair(first)
        through = [first.commit(payload) for payload in range(50)][-1]
        wait_until(lambda: first.acknowledged == through)
        arbitrator.kill()
        through = [first.commit(payload) for payload in range(50)][-1]
        wait_until(lambda: first.acknowledged == through)
        # Its promises and votes are in its directory: with the restarted arbitrator the remaining node has a majority.
        arbitrator = started(tmp_path, group)
        first.crash()
        wait_until(lambda: opened(second, 2))
        assert [each.tolist() for each in second.log.entries] == [each.tolist() for each in first.log.entries]
        through = second.commit(7)
        wait_until(lambda: second.acknowledged == through)
        nodes[0] = again = GroupNode(group, 1, SECRETS, incarnation=2)
        wait_until(lambda: opened(second, 1, 2))
        wait_until(lambda: len(again.log.entries) == through)
        done = arbitrator.stop()
        assert done.code == 0, done.errors
        stopped = json.loads(done.output.splitlines()[-1])
        assert stopped["has_record"] and stopped["store"] == STORE.hex() and stopped["nodes"]["2"]["connected"]
        assert not second.failed and not again.failed
    finally:
        arbitrator.kill()


class Asker:
    """Node 1 as the test plays it, at the addresses of a group."""

    def __init__(self, group: GroupConfiguration, store: bytes = STORE) -> None:
        site = Site(())
        site.peers = group.peers
        self.end: End = site.end(1, store=store.hex())
        self.end.wait_for(ARBITRATOR)

    def ask(self, message: Any, kind: type) -> Any:
        """Send a message until an answer of this kind comes, and return the answer."""
        before = len(self.end.messages(kind))

        def is_answered() -> bool:
            self.end.carrier.send(ARBITRATOR, message)
            return len(self.end.messages(kind)) > before

        wait_until(is_answered)
        return self.end.messages(kind)[-1]

    def close(self) -> None:
        """Close the carrier."""
        self.end.carrier.close()


def test_vote_is_on_disk_before_it_is_sent_and_read_again(tmp_path: Path, group: GroupConfiguration) -> None:
    base = group.first_view()
    alone = View(1, (group.member(1),), 1, base.arbitrator)
    with tm.Arbitrator(tmp_path / "votes", group, SECRET, is_new=True) as arbitrator:
        asker = Asker(group)
        assert asker.ask(Prepare(base, Ballot(3, 1)), Promise).ballot == Ballot(3, 1)
        assert asker.ask(Accept(base, Ballot(3, 1), alone), Accepted) == Accepted(0, Ballot(3, 1))
        with pytest.raises(tm.Locked):
            tm.Arbitrator(tmp_path / "votes", group, SECRET, listen=("127.0.0.1", 0))
        assert not arbitrator.wait(0)
    asker.close()
    with tm.Arbitrator(tmp_path / "votes", str(group), SECRET, is_new=True) as arbitrator:
        asker = Asker(group)
        reported = asker.ask(Prepare(base, Ballot(4, 1)), Promise)
        assert (reported.accepted_ballot, reported.accepted) == (Ballot(3, 1), alone)
        assert arbitrator.status()["has_record"]
        asker.close()
        stranger = Asker(group, bytes(reversed(STORE)))
        assert "another store" in stranger.ask(Ping(0, 1, False, False, False), Refused).reason
        stranger.close()


@pytest.mark.parametrize("is_new", [False, True])
def test_lost_disk_has_no_vote_though_its_start_says_new(
    tmp_path: Path, group: GroupConfiguration, is_new: bool
) -> None:
    """A script that always starts it with --new-group must not make an arbitrator vote that has lost its votes."""
    both = View(4, (group.member(1), group.member(2)), 1, group.first_view().arbitrator)
    with tm.Arbitrator(tmp_path / "votes", group, SECRET, is_new=is_new) as arbitrator:
        asker = Asker(group)
        assert asker.ask(Prepare(both, Ballot(9, 1)), Refused).reason == NO_RECORD
        assert asker.ask(Ping(4, 1, True, True, False), Refused).reason == NO_RECORD
        assert not asker.end.messages(Promise) and not asker.end.messages(Pong)
        assert arbitrator.status()["view"] == 0 and not arbitrator.status()["has_record"]
        if is_new:
            asker.ask(Prepare(first_view("elsewhere:1"), Ballot(1, 1)), Refused)
            wait_until(lambda: "given another group" in asker.end.messages(Refused)[-1].reason)
        asker.close()


def test_lost_disk_begins_with_the_view_of_the_side_an_operator_names(
    tmp_path: Path, group: GroupConfiguration, nodes: list[GroupNode]
) -> None:
    with tm.Arbitrator(tmp_path / "votes", group, SECRET, is_new=True):
        nodes += [GroupNode(group, 1, SECRETS, is_first=True), GroupNode(group, 2, SECRETS)]
        make_pair(nodes[0])
    with tm.Arbitrator(tmp_path / "other disk", group, SECRET, living=2) as arbitrator:
        wait_until(lambda: arbitrator.status()["has_record"])
        assert arbitrator.status()["members"] == [1, 2]
        nodes[0].crash()
        wait_until(lambda: opened(nodes[1], 2))
    with pytest.raises(tm.Rejected, match="its disk is not lost"):
        tm.Arbitrator(tmp_path / "other disk", group, SECRET, living=2)


def test_disk_that_fails_ends_it_before_anything_is_reported(group: GroupConfiguration) -> None:
    files = MemoryFiles()
    kept = ViewFile(files, STORE)
    kept.write(Record(STORE, ARBITRATOR, group.first_view()))
    kept.close()
    faulty = FaultFiles(files, [Rule("fdatasync", nth=3, error=5)])  # opening makes two
    process = ArbitratorProcess(faulty, group, SECRETS, SystemClock())
    process.start()
    asker = Asker(group)
    asker.end.carrier.send(ARBITRATOR, Prepare(group.first_view(), Ballot(3, 1)))
    wait_until(lambda: asker.end.gone == [ARBITRATOR])
    with pytest.raises(SyncFailed):
        process.wait(60)
    assert not asker.end.messages(Promise)
    process.close()
    asker.close()


def test_directories_that_are_not_an_arbitrators_are_refused(tmp_path: Path, group: GroupConfiguration) -> None:
    with tm.open(tmp_path / "store"):
        pass
    with pytest.raises(tm.Rejected, match="holds a store"):
        tm.Arbitrator(tmp_path / "store", group, SECRET)
    files = MemoryFiles()
    ViewFile(files, STORE).write(Record(STORE, 2, group.first_view()))
    with pytest.raises(tm.ForeignFile, match="of node 2"):
        ArbitratorProcess(files, group, SECRETS, SystemClock())
    alone = GroupConfiguration({1: free_address()})
    with pytest.raises(tm.SchemaInvalid, match="no arbitrator"):
        tm.Arbitrator(tmp_path / "votes", alone, SECRET)
    with pytest.raises(tm.SchemaInvalid, match="the group has no node 7"):
        tm.Arbitrator(tmp_path / "votes", group, SECRET, living=7)
    with pytest.raises(tm.PeerError, match="cannot listen"):
        with tm.Arbitrator(tmp_path / "a", group, SECRET), tm.Arbitrator(tmp_path / "b", group, SECRET):
            pass
    assert read_record(files) is not None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--group", "1=a:1"], "--secret-file"),
        (["--group", "1=a:1,arbitrator=b:2"], "--secret-file"),
        (["--group", "1=a:1", "--secret-file", "secret"], "the group has no arbitrator"),
        (["--group", "one=a:1", "--secret-file", "secret"], "not a number of a node"),
        (["--group", "1=a:1,arbitrator=b:2", "--secret-file", "secret", "--tls-ca", "secret"], "--tls-cert"),
        (["--group", "1=a:1,arbitrator=b:2", "--secret-file", "short"], "16 bytes or more"),
        (["--group", "1=a:1,arbitrator=b:2", "--new-group", "--living", "1"], "--new-group or --living"),
    ],
)
def test_command_that_cannot_be_says_why_in_one_line_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_secret(Path("secret"), SECRET)
    write_secret(Path("short"), b"short")
    found = CliRunner().invoke(commands, ["arbitrator", "votes", *arguments])
    assert found.exit_code and said in found.output.splitlines()[-1]
    assert not Path("votes").exists()
