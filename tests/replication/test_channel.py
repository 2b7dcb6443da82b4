"""Channels: every epoch once and in order, whatever the link, the disks and the processes do meanwhile."""

from __future__ import annotations

import pytest

from tests.replication.channel_rig import REPLICA, SOURCE, Replica, Source, Store, apply_all, run
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import (
    BinlogDamaged,
    EpochGap,
    InvalidName,
    PeerRefused,
    PositionLost,
    Rejected,
    SchemaInvalid,
)
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.applier.apply_status import StatusRow
from tidemark.replication.binlog.position import Position
from tidemark.replication.channel.channel import ChannelOptions, ReplicaChannel, check_name
from tidemark.replication.channel.receiver import LocalReceiver
from tidemark.replication.channel.relay_log import RelayLog
from tidemark.replication.wire.handshake import Site
from tidemark.replication.wire.messages import Events, Heartbeat, Start

SEED = 9_210_533


def test_every_epoch_is_applied_once_in_order():
    source, replica = Source(), Replica()
    assert (replica.channel.source_id, replica.channel.received_epoch) == (0, 0)
    source.write(*range(1, 10))
    run(source, replica)
    assert (replica.channel.source_id, replica.channel.received_epoch) == (1, 9)
    source.write(*range(10, 20))
    run(source, replica)
    assert replica.store.epochs == list(range(1, 20))
    last = source.rows[-1]
    assert replica.store.status[1] == StatusRow(1, 19, last["File"], last["Position"], last["next_position"])
    assert replica.channel.lag() == {"epochs": 0, "seconds": 0.0}


def test_receiver_and_applier_run_apart():
    source, replica = Source(), Replica()
    source.write(*range(1, 6))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    assert replica.store.log == [] and replica.channel.lag()["epochs"] == 5
    assert replica.channel.apply_next().epoch == 1
    assert replica.channel.lag()["epochs"] == 4
    assert apply_all(replica.channel) == 4
    assert replica.channel.apply_next() is None and not receiver.receive_next()


def test_lag_is_that_of_what_was_applied_last():
    source, replica = Source(), Replica()
    source.write(1)
    run(source, replica)
    commit_us = replica.channel.progress.applied_commit_us
    source.write(2)
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    replica.channel.heard(Heartbeat(2, commit_us + 3_500_000, Position(*source.writer.end)))
    assert replica.channel.lag() == {"epochs": 1, "seconds": 3.5}
    apply_all(replica.channel)
    assert replica.channel.lag() == {"epochs": 0, "seconds": 0.0}


def test_restarted_replica_counts_what_its_relay_log_still_has():
    source, replica = Source(), Replica()
    source.write(*range(1, 9))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    for _ in range(3):
        replica.channel.apply_next()
    replica.restart(replica.files.kill())
    replica.channel.apply_next()
    assert replica.channel.lag()["epochs"] == 4
    assert replica.store.epochs == [1, 2, 3, 4]


def test_replica_without_relay_log_continues_after_what_is_applied():
    source, replica = Source(), Replica()
    source.write(*range(1, 9))
    run(source, replica)
    replica.restart(MemoryFiles())
    source.write(9, 10)
    run(source, replica)
    assert replica.store.epochs == list(range(1, 11))


def test_relay_log_that_ends_before_what_is_applied_is_fetched_anew():
    """The store is durable, the relay log lost its end: the applied position is past everything in the relay log."""
    source, replica = Source(), Replica()
    source.write(*range(1, 4))
    run(source, replica)
    early = replica.files.snapshot()
    source.write(*range(4, 9))
    run(source, replica)
    replica.restart(MemoryFiles.from_snapshot(early))
    assert replica.channel.apply_next() is None
    source.write(9)
    run(source, replica)
    assert replica.store.epochs == list(range(1, 10))


def test_store_older_than_its_relay_log_fetches_anew():
    """The other way round: a store that went back needs what its relay log has purged."""
    source, replica = Source(), Replica()
    source.write(*range(1, 30))
    receiver = replica.receiver(source)
    receiver.receive_next()
    replica.channel.apply_next()
    back, log = dict(replica.store.status), list(replica.store.log)
    run(source, replica)
    assert len(replica.channel.relay.runs()) < 3
    replica.restart(replica.files.kill())
    replica.store.status, replica.store.log = back, log
    with pytest.raises(EpochGap, match="start the receiver"):
        replica.channel.apply_next()
    run(source, replica)
    assert replica.store.epochs == list(range(1, 30))


def test_epoch_that_was_received_again_is_skipped():
    source, replica = Source(), Replica()
    source.write(*range(1, 6))
    run(source, replica)
    status = replica.store.status[1]
    replica.store.status[1] = status._replace(log_name="", end_pos=0)
    replica.channel.discard_relay()
    relay = RelayLog(replica.files, ManualClock(), "main", 2)
    relay.expect(1)
    binlog = source.binlog()
    at, data = binlog.read(Position("binlog.000001", 4), 1 << 20)
    relay.append(Events(at, data))
    relay.sync()
    relay.close()
    run(source, replica)
    assert replica.store.epochs == list(range(1, 6))
    assert replica.channel.progress.passed_over == 5


def test_epoch_that_failed_comes_again():
    source, replica = Source(), Replica()
    source.write(1, 2)
    replica.store.fails_with = Rejected("no such table")
    with pytest.raises(Rejected):
        run(source, replica)
    with pytest.raises(Rejected):
        replica.channel.apply_next()
    replica.store.fails_with = None
    assert replica.channel.apply_next().epoch == 1
    run(source, replica)
    assert replica.store.epochs == [1, 2]


def test_source_that_says_something_is_missing_stops_the_applier():
    source, replica = Source(), Replica()
    source.write(1)
    source.writer.incident("the log was full")
    source.write(2)
    with pytest.raises(EpochGap, match="the log was full"):
        run(source, replica)
    with pytest.raises(EpochGap):
        replica.channel.apply_next()
    assert replica.store.epochs == [1]


def test_schema_changes_come_in_their_place():
    source, replica = Source(), Replica()
    source.write(1)
    source.writer.statement("CREATE TABLE d.u (id INT PRIMARY KEY)", "d")
    source.write(2)
    run(source, replica)
    assert replica.store.statements == ["CREATE TABLE d.u (id INT PRIMARY KEY)"]
    assert [each for each, _ in replica.store.log] == [1, 2]


def test_schema_changes_of_skipped_servers_and_filtered_tables_are_left_out():
    source, replica = Source(), Replica(replicate_ignore=("d.secret%", "other"))
    for text in (
        "CREATE TABLE d.secret_1 (id INT PRIMARY KEY)",
        "CREATE TABLE other.t (id INT PRIMARY KEY)",
        "CREATE TABLE d.open (id INT PRIMARY KEY)",
        "OPTIMIZE TABLE d.x",
    ):
        source.writer.statement(text, "d")
    run(source, replica)
    assert replica.store.statements == ["CREATE TABLE d.open (id INT PRIMARY KEY)", "OPTIMIZE TABLE d.x"]
    assert replica.channel.progress.filtered == 2
    ignoring = Replica(ignore_server_ids=(1,))
    run(source, ignoring)
    assert ignoring.store.statements == []


def test_filtered_rows_move_the_position_and_are_not_seen():
    source, replica = Source(), Replica(replicate_do=("shop",))
    source.write(1, 2)
    run(source, replica)
    assert replica.store.log == [(1, []), (2, [])]
    taken = Replica(replicate_do=("d.t",))
    run(source, taken)
    assert [len(ids) for _, ids in taken.store.log] == [3, 3]


@pytest.mark.parametrize("pattern", ["", "a.b.c", 5])
def test_patterns_that_cannot_be_are_refused(pattern):
    with pytest.raises(SchemaInvalid, match="replicate_do"):
        Replica(replicate_do=(pattern,))


# --- allowed sources ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "peer", [Site(2, "ef" * 16, 1), Site(0, "ef" * 16, 1), Site(9, REPLICA.store, 1)], ids=["same id", "zero", "itself"]
)
def test_source_that_is_none_is_refused(peer):
    source, replica = Source(), Replica()
    with pytest.raises(PeerRefused):
        LocalReceiver(replica.channel, peer, source.binlog(), source.clock).receive_next()


def test_server_id_0_does_not_replicate():
    replica = Replica()
    with pytest.raises(Rejected, match="server_id 0"):
        ReplicaChannel(replica.files, ManualClock(), Site(0, "cd" * 16, 1), replica.store, replica.store)


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "x" * 65, "a.b", "é", "a\n", None])
def test_names_of_channels_never_become_paths(name):
    with pytest.raises(InvalidName):
        check_name(name)


def test_another_source_needs_an_empty_relay_log():
    source, replica = Source(), Replica()
    source.write(1)
    run(source, replica)
    stranger = LocalReceiver(replica.channel, Site(7, "77" * 16, 1), source.binlog(), source.clock)
    with pytest.raises(PeerRefused, match="server 1"):
        stranger.receive_next()


def test_channels_of_one_store_have_relay_logs_of_their_own():
    source, replica = Source(), Replica()
    source.write(1, 2)
    other = ReplicaChannel(replica.files, ManualClock(), REPLICA, Store2(), Store2(), ChannelOptions("other"))
    run(source, replica)
    receiver = LocalReceiver(other, SOURCE, source.binlog(), source.clock)
    while receiver.receive_next():
        pass
    replica.channel.reset()
    assert apply_all(other) == 2


class Store2:
    """A store that takes everything and remembers nothing."""

    def start(self):
        pass

    def apply(self, transaction):
        pass

    def rows(self):
        return []


# --- start positions ------------------------------------------------------------------------------
def test_failed_middle_of_a_chain_is_left_out():
    """A→B→C becomes A→C: C knows from B what it has of A, and where that ends in A's binlog."""
    source, replica = Source(), Replica()
    source.write(*range(1, 8))
    replica.store.status = {3: StatusRow(3, 900, "b.000001", 4, 900), 1: StatusRow(1, 5)}
    assert replica.channel.begin(SOURCE) == Start(epoch=5)
    run(source, replica)
    assert replica.store.epochs == [6, 7]


def test_failed_source_of_the_new_one_reports_where_to_continue():
    """C followed B (server 3), which failed; A (server 1) has B's changes too, as its binlog index shows."""
    source, replica = Source(), Replica(failed_source=3)
    source.write(*range(1, 8))
    for row in list(source.rows):
        source.rows.append(row | {"orig_server_id": 3, "orig_epoch": row["epoch"] * 10})
    replica.store.status = {3: StatusRow(3, 40, "b.000001", 4, 900)}
    assert replica.channel.begin(SOURCE) == Start(epoch=40, origin=3)
    run(source, replica)
    assert replica.store.epochs == [4, 5, 6, 7], "what came with epoch 40 comes again, for others stand in it"


def test_unknown_failed_source_is_refused():
    replica = Replica(failed_source=3)
    with pytest.raises(PeerRefused, match="server 3"):
        replica.channel.begin(SOURCE)


def test_source_that_purged_what_is_needed_is_distinguished():
    source, replica = Source(), Replica()
    source.write(*range(1, 9))
    run(source, replica)
    source.write(*range(9, 30))
    source.writer.index.purge_to(source.writer.index.names[-1])
    with pytest.raises(PositionLost):
        run(source, replica)
    assert replica.store.epochs == list(range(1, 9))


def test_source_that_went_back_is_a_gap_and_nothing_of_it_is_applied():
    """F88: the source is restored from an older copy and gives the same numbers to other epochs."""
    source, replica = Source(file_bytes=1 << 20), Replica()
    source.write(1, 2)
    older = source.files.snapshot()
    source.write(3, 4)
    run(source, replica)
    for names in ((), (5,), (5, 6, 7, 8, 9)):
        again = Source(MemoryFiles.from_snapshot(older), file_bytes=1 << 20)
        again.epochs, again.rows = list(source.epochs[:2]), list(source.rows[:2])
        again.write(*names)
        with pytest.raises(EpochGap):
            run(again, replica)
    assert replica.store.epochs == [1, 2, 3, 4]


def test_reset_forgets_what_was_applied_and_may_keep_it():
    source, replica = Source(), Replica()
    source.write(1, 2)
    run(source, replica)
    replica.channel.reset()
    assert replica.store.status == {} and replica.channel.status()["applied"] == 0
    run(source, replica)
    assert replica.store.epochs == [1, 2, 1, 2]
    keeping = Replica(clear_apply_status=False)
    run(source, keeping)
    keeping.channel.reset()
    assert keeping.store.status[1].epoch == 2


def test_damaged_relay_log_names_its_place_and_its_reset_repairs_it():
    source, replica = Source(), Replica(relay_file_bytes=1_500)
    source.write(*range(1, 12))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    for _ in range(2):
        replica.channel.apply_next()
    disk = replica.files.snapshot()
    name = replica.channel.relay.runs()[1].name
    data = bytearray(disk[f"relay/{name}"])
    data[-30] ^= 1
    disk[f"relay/{name}"] = bytes(data)
    replica.restart(MemoryFiles.from_snapshot(disk))
    with pytest.raises(BinlogDamaged) as raised:
        apply_all(replica.channel)
    assert raised.value.evidence["file"] == name and raised.value.evidence["position"] > 100
    replica.channel.discard_relay()
    run(source, replica)
    assert replica.store.epochs == list(range(1, 12))


def test_damaged_end_of_a_relay_log_that_its_source_has_purged_is_reported_lost():
    """F68. Story: only damage in the newest file was tested: it was cut, and fetched again from a source that had
    it.
    """
    source, replica = Source(), Replica(relay_file_bytes=1 << 20)
    source.write(*range(1, 12))
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    for _ in range(3):
        replica.channel.apply_next()
    disk = replica.files.snapshot()
    name = f"relay/{replica.channel.relay.runs()[-1].name}"
    disk[name] = disk[name][:-200] + bytes([disk[name][-200] ^ 1]) + disk[name][-199:]
    replica.restart(MemoryFiles.from_snapshot(disk))
    source.write(*range(12, 40))
    source.writer.index.purge_to(source.writer.index.names[-1])
    with pytest.raises(PositionLost):
        run(source, replica)
    apply_all(replica.channel)
    assert replica.store.epochs == list(range(1, 11)), "what was whole before the damage"


# --- applied changes that a crash takes back ---------------------------------------------------------
def test_statements_are_executed_once_and_their_relay_files_go_when_a_row_says_so():
    """Story: statements left no row in ndb_apply_status. A restart executed all statements again that no epoch
    followed, and what they had made was in the way. And a relay file with an epoch and later statements was purged all
    the same; after a restart the row named a place before the relay log, and the applier stopped with EpochGap.
    """
    source, replica = Source(), Replica(relay_file_bytes=1_000)
    source.write(1)
    for number in range(12):
        source.writer.statement(f"CREATE TABLE d.u{number} (id INT PRIMARY KEY)", "d")
    run(source, replica)
    assert len(replica.store.statements) == 12
    replica.restart(replica.files)
    source.write(2)
    run(source, replica)
    assert replica.store.epochs == [1, 2] and len(replica.store.statements) == 12
    assert len(replica.channel.relay.runs()) == 1


@pytest.mark.parametrize("applies_first", [False, True])
def test_relay_files_of_filtered_statements_go_when_a_row_names_their_end(applies_first):
    """Story: a filtered statement left no row in ndb_apply_status, and its relay file was purged all the same. After a
    restart the row named a position before the relay log, and an applier without its receiver stopped with EpochGap.
    """
    source, replica = Source(), Replica(relay_file_bytes=1_000, replicate_ignore=("d.u%",))
    source.write(1)
    for number in range(12):
        source.writer.statement(f"CREATE TABLE d.u{number} (id INT PRIMARY KEY)", "d")
    run(source, replica)
    assert replica.channel.progress.filtered == 12 and len(replica.channel.relay.runs()) == 1
    replica.restart(replica.files)
    if applies_first:
        assert apply_all(replica.channel) <= 12
    source.write(2)
    run(source, replica)
    assert replica.store.epochs == [1, 2] and replica.store.statements == []


class Forgetting(Store):
    """A store with positions that become durable only on request."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = {}

    def make_durable(self) -> None:
        self.kept = dict(self.status)

    def lose_power(self) -> None:
        self.status = dict(self.kept)


def test_relay_log_that_begins_anew_begins_after_what_is_durable():
    """Story: a replica with commits that are durable with their epoch had no relay log, fetched from the place after a
    row that was not durable, and lost power. Epochs between the row it came back with and the new relay log were
    missing.
    """
    source, replica = Source(), Replica()
    replica.store = Forgetting()
    replica.channel = replica.new_channel()
    source.write(1, 2)
    run(source, replica)
    replica.channel.discard_relay()
    source.write(3)
    receiver = replica.receiver(source)
    while receiver.receive_next():
        pass
    replica.store.lose_power()
    assert replica.store.status[1].epoch == 2
    replica.restart(replica.files)
    assert apply_all(replica.channel) == 1 and replica.store.epochs == [1, 2, 3]
