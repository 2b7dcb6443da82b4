"""NDB's testSystemRestart on a group of synchronous replicas, each test by its cases' names
(docs/internals/node-group-scenarios.md).
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.node_group.scenarios import DEATH, NAME, Writers, group_of, row, soaked, stopped_at
from tests.node_group.site import PATIENCE_MS
from tests.seeds import fresh_seeds
from tests.waiting import wait_until
from tidemark.replication.node_group.stream import GroupStream
from tidemark.replication.node_group.view_file import ViewFile


@pytest.mark.parametrize("case", ["SR2", *soaked("SR1")])
def test_sr1(tmp_path: Path, case: str) -> None:
    """SR1, SR2 (short local checkpoints), basic: load; restart; verify; update; restart; verify; scan update; delete
    half; restart; verify. The first restart is in order, the others are crashes.
    """
    options = {"checkpoint_interval_ms": 200} if case == "SR2" else {}
    with group_of(tmp_path, 2, with_arbitrator=True, **options) as group:
        group.load(range(400))
        group.stop_all()
        group.start_all()
        group.verify()
        group.load(range(0, 400, 3), 1)
        group.crash_all()
        group.start_all()
        group.verify()
        group.scan_update()
        group.delete(range(0, 400, 2))
        group.crash_all()
        group.start_all()
        group.verify()


def test_sr3_stop_one_node_before_each_phase(tmp_path: Path) -> None:
    """SR3, Bug 25984: a node stops before each of load, update and delete, so that each has missed other changes when
    all are restarted at once; the node that missed nothing leads.
    """
    with group_of(tmp_path, 4, with_arbitrator=True) as group:
        group.close(4)
        group.load(range(400))
        group.drop(3)
        group.scan_update()
        group.load(range(50), 5)
        group.close(2)
        group.wait_view(1)
        group.delete(range(100, 300))
        group.crash_all()
        group.start_all(4, 3, 2, 1)
        group.verify()


@pytest.mark.parametrize("parts", [4, *soaked(1)])
def test_sr4_one_node_away_while_rows_change_by_parts(tmp_path: Path, parts: int) -> None:
    """SR4, SR5 (a crash), SR10, SR11 to SR15, "to": local checkpoints as often as possible, one node stops, rows change
    part by part, the group dies; it is restarted and checked after inserts and after deletes.
    """
    with group_of(tmp_path, 3, checkpoint_interval_ms=100) as group:
        group.load(range(400))
        group.drop(group.rng.choice(group.numbers))
        for part in range(parts):
            size = 400 // parts
            group.load(range(part * size, part * size + size), part + 1)
            group.load(range(1_000 + part * 50, 1_050 + part * 50))
        group.crash_all()
        group.start_all()
        group.verify()
        for part in range(parts):
            group.delete(range(part * 100, part * 100 + 90))
        group.crash_all()
        group.start_all()
        group.verify()


def test_sr6_nodes_lose_their_file_system(tmp_path: Path) -> None:
    """SR6, MixedModeRestart, MixedModeRestart4Node, Bug 28770: of four nodes that are restarted one has lost its disk,
    one has lost the first copies of sysfile and view, one was away before, one is whole.
    """
    with group_of(tmp_path, 4, with_arbitrator=True) as group:
        group.load(range(300))
        group.drop(3)
        group.scan_update()
        group.crash_all()
        group.lose_disk(4)
        for name in ("sysfile.0", "node/view.0"):
            path = tmp_path / "2" / name
            assert path.exists()
            path.write_bytes(b"\0" * path.stat().st_size)
        group.start_all()
        group.verify()


def test_sr7_last_node_starts_when_the_others_are_there(tmp_path: Path) -> None:
    """SR7, PartialSR, Bug 46412: a part of the group died earlier; all but one node start; the last one joins after
    that.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(300))
        group.drop(2)
        group.load(range(100, 400), 1)
        group.crash(3, 1)
        group.begin(3)
        group.begin(1)
        group.wait_view(1, 3)
        group.delete(range(100))
        group.start(2)
        group.verify()


def test_sr8_last_node_starts_while_the_others_restart(tmp_path: Path, monkeypatch: Any) -> None:
    """SR8, Bug 22696: the last node starts while the others have not opened a view yet."""
    with group_of(tmp_path, 3) as group:
        group.load(range(300))
        group.crash_all()
        with stopped_at(monkeypatch, ViewFile, "write", 4) as stop:
            group.begin(2)
            group.begin(1)
            stop.wait()
            group.begin(3)
        group.wait_whole()
        group.verify()


def test_sr9_transaction_prepared_before_a_local_checkpoint_and_committed_after_it(tmp_path: Path) -> None:
    """SR9: ten inserts and ten updates are done, all nodes make local checkpoints, then the transaction commits; crash
    of all.
    """
    with group_of(tmp_path, 2, with_arbitrator=True) as group:
        group.load(range(100))
        txn = group.client.transaction()
        made = [row(key, 9) for key in [*range(1_000, 1_010), *range(10)]]
        txn.write_many(NAME, made)
        for number in group.nodes:
            group.db(number).checkpoint()
        txn.commit()
        group.rows.update({each[0]: each for each in made})
        group.crash_all()
        group.start_all()
        group.verify()


@pytest.mark.parametrize("seed", [1, *soaked(*fresh_seeds(2))])
@pytest.mark.parametrize("case", ["SR_DD_3b", *soaked("SR_DD_1b", "SR_DD_2b")])
def test_sr_dd_one_node_crashes(tmp_path: Path, case: str, seed: int) -> None:
    """SR_DD_1b, 2b, 3b and their _LCP: one node crashes while disk rows are loaded upward, loaded and cleared, or
    deleted, updated and inserted again; it comes back; then the other one crashes, and only this one has the rows.
    """
    interval = 100 if seed % 2 else 60_000
    with group_of(tmp_path, 2, seed, with_arbitrator=True, checkpoint_interval_ms=interval) as group:
        rng = group.rng
        group.load(range(150))
        for victim in (2, 1):
            crash_at = rng.randrange(4)
            for step in range(5):
                if case == "SR_DD_1b":
                    group.load(range(len(group.rows), len(group.rows) + 60), step)
                elif case == "SR_DD_2b":
                    group.delete(list(group.rows))
                    group.load(range(rng.randrange(40, 200)), step)
                else:
                    gone = rng.sample(sorted(group.rows), 30)
                    group.delete(gone)
                    group.scan_update()
                    group.load(gone, step)
                if step == crash_at:
                    group.drop(victim)
            group.start(victim)
            group.verify()
        group.crash_all()
        group.start_all()
        group.scan_update()
        group.verify()


def test_one_node_with_clean_filesystem(tmp_path: Path) -> None:
    """OneNodeWithCleanFilesystem: the node with the newest rows has lost its disk, and the other nodes have older rows.
    In whatever order they start, they do not continue without what was acknowledged; after the start of another node
    that has it they do.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(100))
        group.drop(3)
        group.load(range(100, 150))
        group.crash(2, 1)
        group.lose_disk(2)
        group.begin(3)
        group.begin(2)
        for _ in range(4):
            with pytest.raises(tm.PeerTimeout):
                group.nodes[3].wait_member(200)
            with pytest.raises(tm.NotPrimary), group.nodes[3].reading():
                pass
        assert not any(node.status().get("is_leading") for node in group.nodes.values())
        for number in (2, 3):  # no other node is there to which they could announce that they leave
            group.nodes.pop(number).close(leave=False)


def test_one_node_with_clean_filesystem_and_another_that_has_the_rows(tmp_path: Path) -> None:
    """As above with an arbitrator: node 1 has everything acknowledged, and continues with the arbitrator's vote."""
    with group_of(tmp_path, 3, with_arbitrator=True) as group:
        group.load(range(100))
        group.drop(3)
        group.load(range(100, 150))
        group.crash(2, 1)
        group.lose_disk(2)
        group.start_all(3, 2, 1)
        group.verify()


def test_stale_node_takeover_during_sr(tmp_path: Path) -> None:
    """StaleNodeTakeoverDuringSR, Bug 18385, Bug 21536, Bug 27434: a node without which the group continued starts first
    and alone. It serves nothing and leads nothing until the others are there; then it gets what it missed.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(100))
        group.drop(1)
        group.delete(range(50))
        group.load(range(60, 200), 2)
        group.crash(3, 2)
        stale = group.begin(1)
        with pytest.raises(tm.PeerTimeout):
            stale.wait_member(1_500)
        with pytest.raises(tm.NotPrimary), stale.reading():
            pass
        group.begin(3)
        group.begin(2)
        group.wait_whole()
        group.verify()


def test_bug_21536_commit_that_was_not_acknowledged_is_cut(tmp_path: Path) -> None:
    """Bug 21536, 18385: a node with a *newer* log than the leading one. The primary has logged a commit the others
    never got; they continued without the primary, and then everything dies. The commit is gone, whichever node starts
    first.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(100))
        with group.connect(1) as db:
            txn = db.transaction()
            txn.insert(NAME, row(7_777, 1))
            group.nodes[1].parts.life.carrier.close()
            with pytest.raises((tm.PrimaryLost, tm.OutcomeUnknown)):
                txn.commit()
        group.load(range(50, 120), 3)
        group.wait_view(2, 3)
        group.nodes.pop(1).close(leave=False)
        group.crash(3, 2)
        group.start_all(1, 2, 3)
        group.verify()
        group.load([7_777], 4)
        group.verify()


def test_kill_master_nodes(tmp_path: Path) -> None:
    """KillMasterNodes, RestartOneNode, Bug 36246, 36247: one primary after the other dies under writers; all are
    restarted.
    """
    with group_of(tmp_path, 3) as group:
        with Writers(group, "write", "mixed") as writers:
            for _ in range(3):
                victim = group.primary()
                group.drop(victim)
                writers.wait()
                group.start(victim)
                group.wait_whole()
        group.crash_all()
        group.start_all()
        group.verify()


def test_bug_29167_nodes_die_as_what_they_synced_is_not_acknowledged(tmp_path: Path, monkeypatch: Any) -> None:
    """Bug 29167: nodes died between the save of a checkpoint and the copies of the sysfile. Here every node dies when a
    commit is synced at some and acknowledged by none: the commit is at every node or at none, as the client was
    informed.
    """
    with group_of(tmp_path, 3) as group:
        group.load(range(100))
        stream = group.nodes[2].parts.life.stream
        reported: list[BaseException | None] = []

        def commit() -> None:
            try:
                with group.connect() as db:
                    txn = db.transaction()
                    txn.insert(NAME, row(500, 1))
                    txn.commit()
                reported.append(None)
            except (tm.Error, OSError) as error:
                reported.append(error)

        with stopped_at(monkeypatch, GroupStream, "synced_through", 1, lambda each: each is stream) as stop:
            thread = threading.Thread(target=commit)
            thread.start()
            stop.wait()
            group.crash(3, 1)
            stop.go(tm.StoreFailed(DEATH))
            node = group.nodes.pop(2)
            wait_until(lambda: node.parts.error is not None)
            node.close(leave=False)
        group.start_all()
        thread.join(PATIENCE_MS / 1_000)
        assert reported, "the client was told nothing"
        found = group.shown(1)
        if reported[0] is None:
            assert 500 in found
        elif isinstance(reported[0], tm.PrimaryLost):
            assert 500 not in found
        if 500 in found:
            group.rows[500] = row(500, 1)
        group.verify()


def test_bug_45154_table_made_again_with_fewer_fragments_while_a_node_was_away(tmp_path: Path) -> None:
    """Bug 45154: disk table with many fragments, load, two local checkpoints, drop, made again with half the fragments,
    load, three scan updates, crash of all; one node has missed the drop, and comes back with the extents of the old
    table.
    """
    with group_of(tmp_path, 2, with_arbitrator=True) as group:
        group.load(range(300))
        for number in (1, 2):
            group.db(number).checkpoint()
        group.drop(2)
        columns = list(group.client[NAME].definition.columns)
        group.client.drop_table(NAME)
        group.client.create_table(NAME, columns, "id", tm.HashPartition(1), tablespace="main")
        group.rows.clear()
        group.load(range(200), 1)
        for _ in range(3):
            group.scan_update()
        group.start(2)
        group.verify()
        group.crash_all()
        group.start_all()
        group.verify()


def test_bug_46651_column_added_while_a_node_was_away_then_crash(tmp_path: Path) -> None:
    """Bug 46651, MTR_AddNodesAndRestart1, 2: a column is added, rows are written with it, one node has never run yet,
    one was away; a crash; the local checkpoint has the old definition, the log the new one.
    """
    with group_of(tmp_path, 3, started=2, with_arbitrator=True) as group:
        group.load(range(200))
        group.client.checkpoint()
        group.drop(2)
        group.client.add_column(NAME, tm.Column("more", tm.Int32, nullable=True))
        group.run(lambda txn: txn.update_where(NAME, {"more": 5}, tm.col("id") < 50))
        group.rows = {key: (*each, 5 if key < 50 else None) for key, each in group.rows.items()}
        group.crash(1)
        group.start_all()
        group.verify()
        group.crash_all()
        group.start_all()
        group.verify()


@pytest.mark.parametrize("disk_is_lost", [True, *soaked(False)])
def test_initial_node_restart_does_not_change_epochs(tmp_path: Path, disk_is_lost: bool) -> None:
    """InsertRestartGci, InitialNodeRestartUpdate, Bug 56770: rows of many epochs, the epoch of each remembered; it is
    the same after a restart of the group from the log, from a local checkpoint, and after a copy, with and without the
    old disk.
    """
    with group_of(tmp_path, 2, with_arbitrator=True) as group:
        for first in range(0, 300, 30):
            group.load(range(first, first + 30), first)
            group.client.sync()
        epochs = group.epochs(1)
        assert len(set(epochs.values())) >= 10, "rows of too few epochs"
        assert group.epochs(2) == epochs
        group.crash_all()
        group.start_all()
        assert group.epochs(1) == group.epochs(2) == epochs, "from the log"
        group.client.checkpoint()
        group.crash_all()
        group.start_all()
        assert group.epochs(1) == group.epochs(2) == epochs, "from a local checkpoint"
        for number in (2, 1):
            group.drop(number)
            if disk_is_lost:
                group.lose_disk(number)
            group.start(number)
            assert group.epochs(number) == epochs, "from a copy"
        group.load(range(90), 1_000)
        assert group.epochs(1) == group.epochs(2)
        assert sum(epochs[place] == epoch for place, epoch in group.epochs(1).items()) == 210
        group.verify()


def events(group: Any, count: int) -> None:
    """Run events of Bug 48436: local checkpoint, crash in a restart, crash again, whole restart, primary stopped in a
    local checkpoint.
    """
    for turn in range(count):
        what = group.rng.choice(["checkpoint", "crash in restart", "crash", "whole restart", "primary in checkpoint"])
        group.load(range(turn * 40, turn * 40 + 80), turn)
        if what == "checkpoint":
            group.db(group.rng.choice(group.numbers)).checkpoint()
        elif what == "crash":
            victim = group.rng.choice(group.numbers)
            group.drop(victim)
            group.load(range(turn * 40, turn * 40 + 20), turn + 1)
            group.start(victim)
        elif what == "crash in restart":
            group.crash_all()
            for number in group.numbers:
                group.begin(number)
            for number in group.numbers:
                group.nodes.pop(number).close(leave=False)
            group.start_all()
        elif what == "whole restart":
            group.stop_all()
            group.start_all()
        else:
            victim = group.primary()
            thread = threading.Thread(target=checkpoint, args=(group.db(victim),))
            thread.start()
            group.drop(victim)
            thread.join(PATIENCE_MS / 1_000)
            group.start(victim)
        group.wait_whole()


def checkpoint(db: Any) -> None:
    """Make a local checkpoint, which may fail with its store."""
    try:
        db.checkpoint()
    except tm.Error:
        pass


@pytest.mark.parametrize("seed", [3, *soaked(*fresh_seeds(2))])
def test_bug_48436_random_events_then_whole_restart(tmp_path: Path, seed: int) -> None:
    """Bug 48436, 35801548, 54611, RestartMix: up to five random events, then everything is restarted."""
    with group_of(tmp_path, 3, seed) as group:
        events(group, 3)
        group.crash_all()
        group.start_all()
        group.verify()


@pytest.mark.soak
@pytest.mark.parametrize("seed", fresh_seeds(4))
def test_bug_48436_many_events(tmp_path: Path, seed: int) -> None:
    """As above, five events in each of four rounds."""
    with group_of(tmp_path, 3, seed) as group:
        for _ in range(4):
            events(group, 5)
            group.crash_all()
            group.start_all()
            group.verify()
