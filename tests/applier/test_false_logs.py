"""Well-formed logs with false contents: correct sizes and checksums, wrong data.

Whatever an event says, the applier applies it, or stops with an error of ours that names file and position and leaves
nothing of the epoch transaction in the store. The true log is applied afterwards.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.applier.logs import (
    COLUMNS,
    NAME,
    SOURCE,
    Log,
    applier_of,
    apply_all,
    make_store,
    positions_in,
    rows_in,
    status_of,
)
from tests.conformance.judgements import stop_of
from tidemark.engine.base.errors import Error, NotNullViolation, PeerError, Retryable
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.applier.stops import Stop
from tidemark.replication.applier.transactions import EpochTransaction, LogFolder, transactions
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

FILE = "binlog/binlog.000001"
HEADER, CHECKSUM = 19, 4
ROUNDS = 120
_HEADER = struct.Struct("<IBIIIH")
Events = list[tuple[tuple[int, ...], bytes]]


def parsed(data: bytes) -> tuple[bytes, Events]:
    """Return the magic bytes, and (header fields, body without checksum) of each event."""
    found, at = [], 4
    while at < len(data):
        header = _HEADER.unpack_from(data, at)
        found.append((header, data[at + HEADER : at + header[3] - CHECKSUM]))
        at += header[3]
    return data[:4], found


def joined(magic: bytes, events: Events) -> bytes:
    """Return the file again, with correct sizes, positions and checksums."""
    made = bytearray(magic)
    for (stamp, kind, server_id, _, _, flags), body in events:
        size = HEADER + len(body) + CHECKSUM
        head = _HEADER.pack(stamp, kind, server_id, size, len(made) + size, flags)
        sealed = head[:-2] + struct.pack("<H", flags & ~1) + body if kind == 15 else head + body
        made += head + body + zlib.crc32(sealed).to_bytes(4, "little")
    return bytes(made)


def true_log() -> Log:
    log = Log()
    log.begin(4)
    log.insert((0, "before", 0), transaction_ids=3)
    log.commit()
    log.begin(5)
    log.position(3, 77)
    log.insert((1, "a", 1), (2, None, 2), (3, "c" * 20, 1 << 63), transaction_ids=4)
    log.update(((0, "before", 0), (0, "after", 9)), transaction_ids=5)
    log.update(((1, "a", 1), (1, "b", 1)), transaction_ids=6)
    log.delete((2, None, 2), transaction_ids=7)
    log.commit()
    return log


TRUE_ROWS = {0: (0, "after", 9), 1: (1, "b", 1), 3: (3, "c" * 20, 1 << 63)}


def applied(db: tm.Database, applier: Any, data: bytes) -> None:
    files = MemoryFiles.from_snapshot({FILE: data, "binlog/binlog.index": b"binlog.000001\n"})
    for each in transactions(LogFolder(files), Position("binlog.000001", 4), Position("binlog.000001", len(data))):
        if isinstance(each, EpochTransaction):
            before = rows_in(db), positions_in(db), status_of(applier)
            try:
                applier.apply(each)
            except BaseException:
                assert (rows_in(db), positions_in(db), status_of(applier)) == before, (
                    "a stopped transaction left a trace"
                )
                raise


def mutated(r: random.Random, events: Events) -> None:
    """Change one event: its bytes, length, kind, server, or position among the others."""
    of_rows = [at for at, (header, _) in enumerate(events) if header[1] in (19, 30, 31, 32)]
    at = r.choice(of_rows if r.random() < 0.85 else range(1, len(events)))
    header, body = events[at]
    draw = r.random()
    if draw < 0.6 and body:
        changed = bytearray(body)
        for _ in range(r.choice([1, 1, 1, 2, 4])):
            changed[r.randrange(len(body))] = r.choice([0, 1, 255, 128, r.randrange(256)])
        events[at] = (header, bytes(changed))
    elif draw < 0.75:
        cut = r.randrange(len(body) + 1)
        events[at] = (header, body[:cut] + r.randbytes(r.randrange(4)) + (body[cut:] if r.random() < 0.5 else b""))
    elif draw < 0.85:
        kind = r.choice([30, 31, 32, 23, 24, 25, 19, 2, 29, 26, 200])
        events[at] = ((header[0], kind, *header[2:]), body)
    elif draw < 0.92:
        events[at] = ((*header[:2], r.choice([0, 1, 3, 99, (1 << 32) - 1]), *header[3:]), body)
    elif draw < 0.96:
        del events[at]
    else:
        events.insert(at, events[r.choice(of_rows)])


@pytest.mark.parametrize("function", [None, "NDB$EPOCH_TRANS()", "NDB$OLD(stamp)"])
def test_changed_events_are_applied_or_stop_with_their_place_and_leave_no_trace(function: str | None) -> None:
    seed = 20_261_121
    r = random.Random(f"{seed} {function}")
    data = true_log().files.snapshot()[FILE]
    stopped = 0
    for number in range(ROUNDS):
        magic, events = parsed(data)
        mutated(r, events)
        db = make_store(function=function)
        applier = applier_of(db)
        try:
            applied(db, applier, joined(magic, events))
        except Error as error:
            stopped += 1
            assert not isinstance(error, Retryable), f"seed {seed}, {number}: {error!r}"
            assert {"file", "position"} <= set(error.evidence), f"seed {seed}, {number}: {error!r} {error.evidence}"
        assert not db.parts.store.locks.by_slot, f"seed {seed}, {number}: a transaction is left open"
        db.close()
    assert stopped > ROUNDS // 4


def test_true_log_is_applied_where_a_lying_one_has_stopped() -> None:
    data = true_log().files.snapshot()[FILE]
    magic, events = parsed(data)
    last = max(at for at, (header, _) in enumerate(events) if header[1] == 32)
    events[last] = (events[last][0], events[last][1][:-1])
    db = make_store()
    applier = applier_of(db)
    with pytest.raises(Error):
        applied(db, applier, joined(magic, events))
    assert rows_in(db) == {0: (0, "before", 0)} and positions_in(db) == {SOURCE: 4}
    files = MemoryFiles.from_snapshot({FILE: data, "binlog/binlog.index": b"binlog.000001\n"})
    units = list(transactions(LogFolder(files), Position("binlog.000001", 4), Position("binlog.000001", len(data))))
    applier.apply(units[1])
    assert rows_in(db) == TRUE_ROWS and positions_in(db) == {SOURCE: 5, 3: 77}
    db.close()


# --- each false content by name -------------------------------------------------------------------
def null_in_a_column_that_takes_none(log: Log) -> None:
    log.table(NAME, (*COLUMNS[:2], tm.Column("stamp", tm.UInt64, nullable=True)), ("id",))
    log.insert((9, "a", None))


def other_key(log: Log) -> None:
    log.table(NAME, (tm.Column("id", tm.VarChar(20)), *COLUMNS[1:]), ("id",))
    log.insert(("nine", "a", 1))


def narrow_number(log: Log) -> None:
    log.table(NAME, (*COLUMNS[:2], tm.Column("stamp", tm.Int64)), ("id",))
    log.insert((9, "a", -1))


def position_of_another_kind(log: Log) -> None:
    from tests.applier.logs import batch_of
    from tests.replication.stage import STATUS

    rows = [(3, 8, "", 0, 0)]
    log.writer.append(batch_of(STATUS, e.UPDATE, rows, rows, as_called=True))


FALSE_LOGS: dict[str, tuple[Callable[[Log], None], type[Error]]] = {
    "null": (null_in_a_column_that_takes_none, NotNullViolation),
    "key of another type": (other_key, Error),
    "number out of range": (narrow_number, Error),
    "position that is an update": (position_of_another_kind, PeerError),
}


@pytest.mark.parametrize("false_log", FALSE_LOGS)
def test_false_log_stops_with_its_place_and_leaves_no_trace(false_log: str) -> None:
    make, error = FALSE_LOGS[false_log]
    log, db = Log(), make_store()
    log.epoch(4, (0, "before", 0))
    log.begin(5)
    log.insert((1, "a", 1))
    make(log)
    log.commit()
    with pytest.raises(error) as stopped:
        apply_all(applier_of(db), log)
    assert stopped.value.evidence["file"] == "binlog.000001" and stopped.value.evidence["position"] > 0
    assert rows_in(db) == {0: (0, "before", 0)} and positions_in(db) == {SOURCE: 4}
    db.close()


def test_epochs_that_go_back_stop_and_those_of_another_server_name_their_place() -> None:
    log, db = Log(), make_store()
    applier = applier_of(db)
    log.epoch(9, (1, "a", 1))
    log.epoch(8, (2, "b", 2))
    with pytest.raises(PeerError) as stopped:
        apply_all(applier, log)
    assert stop_of(stopped.value) is Stop.OUT_OF_ORDER
    assert {"file", "position"} <= set(stopped.value.evidence)
    assert positions_in(db) == {SOURCE: 9} and rows_in(db) == {1: (1, "a", 1)}
    assert [row[0] for row in db[NDB_APPLY_STATUS].scan()] == [SOURCE]
    db.close()


@pytest.mark.parametrize("statement", [b"DROP TABLE `d`.`t`", b"ROLLBACK"])
def test_statement_among_the_rows_of_an_epoch_stops_the_applier(statement: bytes) -> None:
    """Story: the applier skipped a schema change within an epoch transaction, and applied one that a ROLLBACK ended."""
    magic, events = parsed(true_log().files.snapshot()[FILE])
    places = [place for place, (_, body) in enumerate(events) if body.endswith(b"\0COMMIT")]
    header, body = events[places[-1]]
    changed = (header, body[: -len(b"COMMIT")] + statement)
    lying = [*events[: places[-1]], changed, *events[places[-1] + (statement == b"ROLLBACK") :]]
    db = make_store()
    applier = applier_of(db)
    with pytest.raises(PeerError, match="holds the statement") as caught:
        applied(db, applier, joined(magic, lying))
    assert stop_of(caught.value) is Stop.CORRUPT_EVENT and rows_in(db) == {0: (0, "before", 0)}
    applied(db, applier_of(db), joined(magic, events))
    assert rows_in(db) == TRUE_ROWS
