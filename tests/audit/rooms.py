"""Rooms of the program that are mutated, and the tests that must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Room:
    """Modules by their files, and what pytest is given."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = (
    Room(
        "commit",
        (
            "engine/txn/transaction.py",
            "engine/txn/transactions.py",
            "engine/txn/resources.py",
            "engine/txn/locks.py",
            "engine/txn/epoch.py",
        ),
        (
            *("tests/store", "tests/engine", "tests/log/test_group_commit.py", "tests/access/test_changes.py"),
            *(
                "tests/spool/test_large.py",
                "tests/node_group/test_epochs.py",
                "tests/snapshot",
                "tests/log/test_tail.py",
            ),
        ),
    ),
    Room(
        "log",
        (
            *("engine/log/redo.py", "engine/log/reader.py", "engine/log/group.py", "engine/log/geometry.py"),
            "engine/log/ring.py",
            *("engine/log/tail.py", "engine/log/follower.py", "engine/disk/undo.py", "engine/disk/undo_reader.py"),
            *("engine/disk/undo_ring.py", "engine/log/leaders.py", "engine/files/durable_files.py"),
        ),
        (
            *("tests/log", "tests/store", "tests/recovery", "tests/engine", "tests/node_group/test_partner.py"),
            *("tests/node_group/test_node_restart_cases.py", "tests/node_group/test_node_restart_crashes.py"),
        ),
    ),
    Room(
        "restart",
        (
            *("recovery/system_restart/catch_up.py", "recovery/system_restart/disk.py"),
            *("recovery/system_restart/indexes.py", "recovery/system_restart/load.py"),
            *("recovery/system_restart/replay.py", "recovery/system_restart/restart.py"),
            *("engine/store/replay.py", "engine/store/disk_replay.py"),
            *(
                "recovery/system_restart/spool.py",
                "recovery/system_restart/through.py",
                "recovery/system_restart/sysfile.py",
            ),
        ),
        ("tests/recovery", "tests/log", "tests/spool", "tests/store", "tests/schema"),
    ),
    Room(
        "wire",
        (
            *("replication/wire/wire.py", "replication/wire/admission.py", "replication/wire/server.py"),
            "replication/wire/link.py",
            *("replication/wire/frames.py", "replication/wire/handshake.py", "replication/wire/pieces.py"),
        ),
        (
            *("tests/replication/test_wire_server.py", "tests/replication/test_link.py"),
            *("tests/replication/test_admission.py", "tests/replication/test_secrets.py"),
            *("tests/replication/test_frames.py", "tests/replication/test_sessions.py", "tests/remote"),
            *("tests/node_group/test_carrier.py", "tests/replication/test_channel_network.py"),
            "tests/node_group/test_conversation.py",
        ),
    ),
    Room(
        "sessions",
        (
            *("replication/wire/sessions.py", "replication/channel/endpoint.py", "replication/channel/source.py"),
            *("tidemark/remote/executor.py", "tidemark/remote/serving.py", "tidemark/session.py"),
        ),
        (
            *("tests/replication/test_sessions.py", "tests/replication/test_source.py", "tests/remote"),
            *("tests/replication/test_attached.py", "tests/replication/test_channel.py", "tests/store/test_store.py"),
            *("tests/replication/test_channel_moves.py", "tests/replication/test_wait_applied.py"),
            "tests/replication/test_channel_network.py",
        ),
    ),
    Room(
        "applier",
        (
            *("replication/applier/applier.py", "replication/applier/batch.py", "replication/applier/epoch_state.py"),
            *("replication/applier/held_rows.py", "replication/applier/intake.py", "replication/applier/judges.py"),
            *("replication/applier/key_set.py", "replication/applier/marks.py", "replication/applier/one_pass.py"),
            *("replication/applier/apply_status.py", "replication/applier/replay.py", "replication/applier/stops.py"),
            *("replication/applier/setups.py", "replication/applier/transactions.py", "replication/channel/channel.py"),
        ),
        ("tests/applier", "tests/replication", "tests/conformance", "tests/backup/test_binlog.py"),
    ),
)
