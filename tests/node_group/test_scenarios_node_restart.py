"""NDB's testNodeRestart on a group of synchronous replicas, each test by its cases' names
(docs/internals/node-group-scenarios.md).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.scenarios import DEATH, NAME, Group, Writers, group_of, row, soaked, stopped_at
from tests.node_group.site import PATIENCE_MS
from tests.seeds import fresh_seeds
from tests.waiting import wait_until
from tidemark.recovery.local_checkpoint.writer import LocalCheckpoint
from tidemark.recovery.node_restart.joiner import Joiner
from tidemark.recovery.node_restart.source import Source
from tidemark.replication.node_group.stream import GroupStream

WRITERS = ("write", "hot", "mixed")


def die(group: Group, number: int, stop: Any) -> None:
    """Let the process of a node die at the place where it is stopped."""
    stop.go(tm.StoreFailed(DEATH))
    node = group.nodes.pop(number)
    wait_until(lambda: node.parts.error is not None)
    node.close(leave=False)


@pytest.mark.parametrize("seed", [1, *soaked(*fresh_seeds(2))])
def test_restart_random_node(tmp_path: Path, seed: int) -> None:
    """RestartRandomNode, RestartRandomNodeError, RestartRandomNodeInitial, ForceStopAndRestart under PkRead,
    PkReadPkUpdate, ReadUpdateScan and MixedPkRead: any node, the primary too, stops, dies or loses its disk while
    others write and read.
    """
    with group_of(tmp_path, 3, seed) as group:
        group.load(range(300))
        ways = ["stop", "die", "initial"]
        group.rng.shuffle(ways)
        with Writers(group, *WRITERS) as writers:
            for way in ways:
                victim = group.rng.choice(group.numbers)
                if way == "stop":
                    group.close(victim)
                else:
                    group.drop(victim)
                if way == "initial":
                    group.lose_disk(victim)
                writers.wait()
                group.start(victim)
                writers.wait()
        group.wait_whole()
        group.verify()


def test_restart_nf_during_nr(tmp_path: Path, monkeypatch: Any) -> None:
    """RestartNFDuringNR, RestartMasterNodeError, Bug 27003, 27283: while a node is copied another one fails, first a
    member, then the primary it is copied from; in the end the joiner itself.
    """
    with group_of(tmp_path, 4, with_arbitrator=True) as group:
        group.load(range(1_000))
        group.drop(4)
        group.load(range(500, 1_500), 1)
        with Writers(group, "write", "hot") as writers:
            with stopped_at(monkeypatch, Joiner, "apply_slice", 2) as stop:
                group.begin(4)
                stop.wait()
                group.drop(3)
                writers.wait()
                group.drop(1)
            group.wait_view(2, 4)
            writers.wait()
            with stopped_at(monkeypatch, Joiner, "apply_slice", 1) as stop:
                group.begin(1)
                stop.wait()
                writers.wait()
                die(group, 1, stop)
            writers.wait()
            group.start_all()
        group.verify()


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Joiner, "apply_slice"),
        (Source, "end_copy"),
        *soaked((Joiner, "begin_copy"), (Joiner, "apply_group"), (Joiner, "end_copy"), (Source, "begin_copy")),
    ],
)
def test_copy_crashes_at_each_step(tmp_path: Path, monkeypatch: Any, owner: Any, name: str) -> None:
    """Bug 20185 and the crashes NDB has hooks for: the joiner at the first row (5002, 5042), when the copy begins
    (5026, 5045), when the stream has reached it, and at its end; the live node before the scan (5045) and after it
    (5043).
    """
    with group_of(tmp_path, 2, with_arbitrator=True) as group:
        group.load(range(400))
        group.drop(2)
        group.delete(range(0, 400, 3))
        group.load(range(1, 400, 3), 2)
        with Writers(group, "hot"):
            with stopped_at(monkeypatch, owner, name) as stop:
                group.begin(2)
                stop.wait()
                if owner is Joiner:
                    die(group, 2, stop)
                else:
                    stop.go(tm.PeerError(DEATH))
        if owner is Joiner:
            group.start(2)
        group.wait_whole()
        group.verify()


def test_two_master_node_failure(tmp_path: Path) -> None:
    """TwoNodeFailure, TwoMasterNodeFailure, FiftyPercentFail, MNF, MultiCrashTest: two of four at once, the primary
    among them, then the next primary and another one.
    """
    with group_of(tmp_path, 4, with_arbitrator=True) as group:
        with Writers(group, "write", "mixed") as writers:
            first = group.primary()
            victims = [first, group.rng.choice([each for each in group.numbers if each != first])]
            for _ in range(2):
                group.crash(*victims)
                writers.wait()
                for number in victims:
                    group.begin(number)
                group.wait_whole()
                writers.wait()
                victims = [
                    group.primary(),
                    *[each for each in group.numbers if each not in (first, group.primary())][:1],
                ]
        group.verify()


@pytest.mark.soak
def test_fifty_percent_stop_and_wait(tmp_path: Path) -> None:
    """FiftyPercentStopAndWait, StopOnError: half of four stop in order; the others run on for long; both come back."""
    with group_of(tmp_path, 4, with_arbitrator=True, redo_log="4 MiB") as group:
        group.load(range(200))
        group.close(2)
        group.close(1)
        for mark in range(4):
            group.load(range(mark * 100, mark * 100 + 300), mark)
            group.client.checkpoint()
        group.delete(range(0, 600, 2))
        group.start_all()
        group.verify()


@pytest.mark.soak
def test_restart_all_nodes(tmp_path: Path) -> None:
    """RestartAllNodes, RestartAllNodesAbort, RestartAllNodesError9999: one after the other, then all at once in order,
    then a crash of all at once.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(200))
        for number in (1, 2, 3):
            group.close(number)
            group.load(range(number * 50, number * 50 + 50), number)
            group.start(number)
        group.wait_whole()
        group.verify()
        group.stop_all()
        group.start_all()
        group.scan_update()
        group.crash_all()
        group.start_all()
        group.verify()


def test_restart_node_during_lcp(tmp_path: Path, monkeypatch: Any) -> None:
    """RestartNodeDuringLCP, MasterFailSlowLCP, LCPTakeOver, NodeFailLcpStall, Bug 36199, 43888: a member dies in the
    middle of its local checkpoint, then the primary in the middle of its own; the next one makes one at once.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(300))
        for number in (2, 1):
            lcp = group.db(number).parts.lcp

            def checkpoint(number: int = number) -> None:
                with pytest.raises(tm.Error):
                    group.db(number).checkpoint()

            with stopped_at(
                monkeypatch, LocalCheckpoint, "write_fragment", 2, lambda each, lcp=lcp: each is lcp
            ) as stop:
                thread = threading.Thread(target=checkpoint)
                thread.start()
                stop.wait()
                group.scan_update()
                group.db(number).parts.store.failure.latch(tm.StoreFailed(DEATH))
                stop.go()
                thread.join()
                group.nodes.pop(number).close(leave=False)
            group.load(range(250, 350), number)
            group.client.checkpoint()
            group.start(number)
            group.wait_whole()
            group.verify()


def test_lcp_fs_err(tmp_path: Path) -> None:
    """TestLCPFSErr, Bug 16961443: the disk refuses a file of a local checkpoint. The node ends with that error."""
    with group_of(tmp_path, 3) as group:
        group.load(range(300))
        kept = group.db(2).checkpoint()["lcp_id"]
        group.scan_update()
        files, node = group.db(2).parts.files, group.nodes.pop(2)
        real = files.raw_pwrite

        def refused(file: Any, *arguments: Any) -> Any:
            if not file.name.startswith("lcp/"):
                return real(file, *arguments)
            raise OSError(5, "input/output error")

        files.raw_pwrite = refused
        for work in (node.parts.store.db.checkpoint, node.status):
            with pytest.raises(tm.IoFailed, match="lcp/"):
                work()
            wait_until(node.parts.ended.is_set)
        group.wait_view(1, 3)
        group.load(range(100, 400), 5)
        node.close(leave=False)
        group.start(2)
        assert group.db(2).restart_report["lcp_id"] == kept, "not by the local checkpoint before"
        group.verify()


def test_full_db(tmp_path: Path) -> None:
    """FullDb, SR_FULLDB: memory is full when a node restarts, when a node joins empty, and when all nodes restart. Each
    node must fit its rows into the same amount of memory again; then rows are deleted and others take their room.
    """
    with group_of(tmp_path, 2, data_memory="4 MiB", redo_log="16 MiB", with_arbitrator=True) as group:
        made: list[Any] = []
        with pytest.raises(tm.MemoryExhausted):
            while True:
                group.rows.update({each[0]: each for each in made})
                made = [row(key, 0) for key in range(len(group.rows), len(group.rows) + 500)]
                group.client[NAME].insert_many(made)
        group.drop(2)
        group.start(2)
        group.verify()
        group.drop(2)
        group.lose_disk(2)
        group.start(2)
        group.verify()
        group.crash_all()
        group.start_all()
        group.delete(range(1_000))
        group.load(range(200_000, 200_500), 3)
        group.verify()


def test_late_commit(tmp_path: Path, monkeypatch: Any) -> None:
    """LateCommit, GCP, Bug 34216, 36245: a transaction has done its operations when a member dies; it stays open while
    that node is copied and longer, then commits. Another one commits between two slices; one is rolled back.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(600))
        open_txns = [group.client.transaction() for _ in range(3)]
        for number, txn in enumerate(open_txns):
            changed = [row(key, 7) for key in range(number * 200, number * 200 + 50)]
            txn.write_many(NAME, changed)
            txn.delete_many(NAME, list(range(number * 200 + 50, number * 200 + 60)))
            if number < 2:
                group.rows.update({each[0]: each for each in changed})
                for key in range(number * 200 + 50, number * 200 + 60):
                    del group.rows[key]
        group.drop(3)
        group.load(range(1_000, 1_100))
        with stopped_at(monkeypatch, Joiner, "apply_slice", 2) as stop:
            group.begin(3)
            stop.wait()
            open_txns[0].commit()
            open_txns[2].rollback()
        group.wait_whole()
        open_txns[1].commit()
        group.verify()


def test_commit_ack(tmp_path: Path, monkeypatch: Any) -> None:
    """CommitAck, Bug 44952, 48474: a member has applied a group, and dies before it acknowledges it; the primary dies
    after a group is sent and before it is acknowledged. The commit ends, and its outcome holds at every node.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(50))
        stream = group.nodes[3].parts.life.stream
        ended = []

        def commit() -> None:
            group.load([77], 7)
            ended.append(77)

        with stopped_at(monkeypatch, GroupStream, "synced_through", 1, lambda each: each is stream) as stop:
            thread = threading.Thread(target=commit)
            thread.start()
            stop.wait()
            assert not ended, "acknowledged without a member"
            die(group, 3, stop)
            thread.join(PATIENCE_MS / 1_000)
        assert ended and group.shown(2)[77] == row(77, 7)
        group.start(3)
        stream = group.nodes[1].parts.life.stream
        with stopped_at(monkeypatch, GroupStream, "wait", 1, lambda each: each is stream) as stop:
            thread = threading.Thread(target=lambda: group.load([78], 8))
            thread.start()
            stop.wait()
            group.nodes[1].parts.life.node.store.failure.latch(tm.StoreFailed(DEATH))
            stop.go()
            group.nodes.pop(1).close(leave=False)
            thread.join(PATIENCE_MS / 1_000)
        assert not thread.is_alive()
        group.start(1)
        group.wait_whole()
        group.verify()


def test_mix_read_unlock_restart(tmp_path: Path) -> None:
    """MixReadUnlockRestart, multiTCtakeover, CommittedRead, Bug 24717, 25364: many transactions hold shared and
    exclusive locks and changes when the primary dies. All are lost and report it; the next primary has none of their
    locks, and no reader ever sees their changes.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(100))
        txns = [group.client.transaction() for _ in range(20)]
        for number, txn in enumerate(txns):
            txn.get(NAME, 50 + number, lock="shared")
            txn.update(NAME, number, {"n": 1_000})
            assert group.shown(2)[number] == row(number, 0), "uncommitted"
        group.drop(group.primary())
        group.wait_view(2, 3)
        for txn in txns:
            with pytest.raises((tm.PrimaryLost, tm.TransactionEnded)):
                txn.get(NAME, 1)
                txn.commit()
        group.scan_update()
        group.start(1)
        group.verify()


def test_pnr_big_table_with_hot_delete_insert(tmp_path: Path) -> None:
    """pnr, pnr_lcp, Bug 40312, 18044717: a large table is copied, with local checkpoints at the source, while a few
    rows are deleted and inserted all the time.
    """
    with group_of(tmp_path, 2, with_arbitrator=True, redo_log="16 MiB") as group:
        group.load(range(6_000))
        group.drop(2)
        group.load(range(0, 6_000, 2), 1)
        with Writers(group, "hot", "hot", "mixed") as writers:
            for is_initial in (False, True):
                if is_initial:
                    group.drop(2)
                    group.lose_disk(2)
                group.begin(2)
                group.client.checkpoint()
                group.wait_whole()
                writers.wait()
        group.verify()


@pytest.mark.soak
def test_node_fail_gcp_open(tmp_path: Path, monkeypatch: Any) -> None:
    """NodeFailGCPOpen, Bug 36276, 29364: a node dies while an epoch with groups is open and its closing is being sent;
    first a member, then the primary. The epoch ends at the others with the same groups.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(100))
        stream = group.nodes[1].parts.life.stream
        for victim in (3, 1):
            with stopped_at(monkeypatch, GroupStream, "closings", 3, lambda each: each is stream) as stop:
                stop.wait()
                if victim == 3:
                    group.drop(3)
                else:
                    group.nodes[1].parts.life.node.store.failure.latch(tm.StoreFailed(DEATH))
                stop.go()
                if victim == 1:
                    group.nodes.pop(1).close(leave=False)
            group.load(range(50, 150), victim)
            group.start(victim)
            group.wait_whole()
            group.verify()


@pytest.mark.soak
def test_delete_restart(tmp_path: Path) -> None:
    """DeleteRestart: load many rows, delete them, restart a node, again and again. Memory and extents are free again
    each time, at the restarted node and at the other one.
    """
    with group_of(tmp_path, 2, with_arbitrator=True, data_memory="16 MiB", redo_log="16 MiB") as group:
        group.load(range(10))
        used: dict[int, list[Any]] = {1: [], 2: []}
        for _ in range(3):
            group.load(range(1_000, 4_000), 3)
            group.delete(range(1_000, 4_000))
            group.drop(2)
            group.load(range(4_000, 4_500), 1)
            group.delete(range(4_000, 4_500))
            group.start(2)
            for number, found in used.items():
                found.append(group.db(number).status()["memory"]["used_bytes"])
        assert used[2][1] >= used[2][2] and used[1][1] >= used[1][2], used
        group.verify()


@pytest.mark.parametrize("case", ["PLCP_R1", *soaked("PLCP_RW1", "PLCP_IW1")])
def test_plcp_node_restart_while_rows_are_deleted(tmp_path: Path, case: str) -> None:
    """PLCP_R1, RW1, IW1, I1, I2: rows of whole pages are deleted while a node restarts (R) or joins empty (I); with W
    the deleter waits until the node is a member; then single rows per page are inserted again.
    """
    with group_of(tmp_path, 2, with_arbitrator=True, redo_log="16 MiB") as group:
        group.load(range(3_000))
        group.client.checkpoint()
        group.drop(2)
        if "I" in case:
            group.lose_disk(2)
        group.delete(range(2_000, 3_000))
        if "W" in case:
            group.start(2)
        else:
            group.begin(2)
        for first in range(0, 2_000, 200):
            group.delete(range(first, first + 180))
        group.wait_whole()
        group.load(range(0, 3_000, 50), 4)
        group.verify()
        group.drop(2)
        group.load(range(1, 3_000, 50), 5)
        group.start(2)
        group.verify()


def test_nr_disk_data_undo_log_local_lcp(tmp_path: Path) -> None:
    """NR_Disk_data_undo_log_local_lcp: far more disk rows change while a node is away than its UNDO log has room for
    images of. No local checkpoint is made in a copy: the node ends with the error that names the log, and comes back
    after its directory is emptied; or it is copied whole at once, which needs no images.
    """
    with group_of(tmp_path, 2, with_arbitrator=True, undo_log="1 MiB", redo_log="16 MiB") as group:
        group.load(range(6_000), 1)
        group.client.checkpoint()
        group.drop(2)
        for first in range(0, 6_000, 100):
            group.load(range(first, first + 100), 2)
            if first % 400 == 0:
                group.client.checkpoint()
        node = group.begin(2)
        wait_until(lambda: node.parts.error is not None or node.parts.serves())
        if node.parts.error is not None:
            with pytest.raises(tm.Error, match="UNDO"):
                node.status()
            group.nodes.pop(2).close(leave=False)
            group.lose_disk(2)
            group.start(2)
        group.verify()


def test_long_keys_of_many_bytes_are_copied_in_case_1(tmp_path: Path) -> None:
    """Bug 16895311: a key of long UTF-8 that compares equal but has other bytes kept the old bytes when it was copied
    onto its own slot. Here only 0.0 and -0.0 are such keys; texts of four bytes a character are equal only if their
    bytes are.
    """
    with group_of(tmp_path, 2, with_arbitrator=True) as group:
        db = group.client
        db.create_table("test.words", [tm.Column("word", tm.VarChar(700)), tm.Column("n", tm.Int64)], "word")
        db.create_table("test.zero", [tm.Column("x", tm.Float64), tm.Column("n", tm.Int64)], "x", tm.HashPartition(1))
        words = ["\N{GRINNING FACE}" * 150 + str(each) for each in range(40)]
        db["test.words"].insert_many([(word, 0) for word in words])
        db["test.zero"].insert((0.0, 1))
        for _ in range(2):
            group.drop(2)
            db["test.words"].delete_many(words[:20])
            db["test.words"].insert_many([(word, 1) for word in reversed(words[:20])])
            db["test.zero"].delete(0.0)
            db["test.zero"].insert((-0.0, 2))
            db["test.zero"].update(0.0, {"n": 3})
            db["test.zero"].write((0.0, 4))
            group.start(2)
            group.verify()


@pytest.mark.soak
@pytest.mark.parametrize("seed", fresh_seeds(1))
def test_nf_hammer(tmp_path: Path, seed: int) -> None:
    """NF_Hammer, Terror, NR_Mix: nodes fail and come back, one or two at once, under writers."""
    with group_of(tmp_path, 4, seed, with_arbitrator=True) as group:
        with Writers(group, *WRITERS, "write") as writers:
            for _ in range(12):
                for number in group.rng.sample(sorted(group.nodes), group.rng.randint(1, 2)):
                    group.drop(number)
                    if group.rng.random() < 0.2:
                        group.lose_disk(number)
                writers.wait()
                group.start_all()
        group.verify()
