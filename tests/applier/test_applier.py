"""Epoch transactions into a store: what is applied, in which order, exactly once, and what stops it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

import tidemark as tm
from tests.applier.logs import (
    COLUMNS,
    NAME,
    OWN,
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
from tidemark.engine.base.errors import (
    DuplicateKey,
    NoSuchColumn,
    NoSuchTable,
    PeerError,
    Rejected,
    TypeMismatch,
    Unsupported,
    ValueOutOfRange,
)
from tidemark.replication.applier.stops import Stop
from tidemark.replication.applier.transactions import EpochTransaction, Loss, Statement
from tidemark.replication.settings.any_value import FLAG_READ, FLAG_REFLECT, FLAG_REFRESH
from tidemark.replication.settings.conflict_function import Role

SEED = 20_261_121


def test_epochs_are_applied_with_their_positions() -> None:
    log, db = Log(), make_store()
    applier = applier_of(db)
    log.epoch(5, (1, "a", 1), (2, "b", 2))
    log.begin(6)
    log.update(((1, "a", 1), (1, "A", 9)))
    log.delete((2, "b", 2))
    end = log.commit()
    done = apply_all(applier, log)
    assert [(each.epoch, each.rows, each.is_passed_over) for each in done] == [(5, 2, False), (6, 2, False)]
    assert rows_in(db) == {1: (1, "A", 9)}
    (status,) = db["mysql.ndb_apply_status"].scan()
    assert tuple(status) == (SOURCE, 6, end.file, done[0].next.position, end.position)
    assert done[-1].next == end
    assert done[1].own_epoch == db.parts.store.epochs.current


def test_changes_of_one_row_are_applied_in_their_order() -> None:
    log, db = Log(), make_store()
    for _ in range(3):
        log.begin(5)
        log.insert((1, "a", 1))
        log.update(((1, "a", 1), (1, "b", 2)), ((1, "b", 2), (1, "c", 3)))
        log.delete((1, "c", 3))
        log.insert((1, "d", 4), (2, "x", 0), (1, "e", 5), (1, "f", 6))
        log.commit()
        break
    apply_all(applier_of(db), log)
    assert rows_in(db) == {1: (1, "f", 6), 2: (2, "x", 0)}


@pytest.mark.parametrize("options", [{}, {"allow_batching": False}, {"batch_bytes": 1}, {"batch_bytes": 333}])
def test_random_epochs_without_function_leave_the_rows_of_a_dict(options: dict[str, Any]) -> None:
    """Tables without a function take every change: writes replace, and missing rows are no error."""
    print("seed", SEED)
    r = random.Random(SEED)
    log, db = Log(), make_store()
    rows: dict[int, tuple[Any, ...]] = {}

    def drawn(key: int) -> tuple[Any, ...]:
        return (key, r.choice([None, "", "x" * r.randrange(20)]), r.randrange(1 << 64))

    for epoch in range(1, 12):
        log.begin(epoch)
        for _ in range(r.randrange(1, 12)):
            keys = [r.randrange(8) for _ in range(r.randrange(1, 12))]
            marks = {"transaction_ids": [r.randrange(1, 4) for _ in keys]}
            new = [drawn(key) for key in keys]
            kind = r.randrange(3)
            if kind == 0:
                log.insert(*new, **marks)
                rows.update({row[0]: row for row in new})
            elif kind == 1:
                log.update(*(((row[0], "old", 0), row) for row in new), **marks)
                rows.update({row[0]: row for row in new if row[0] in rows})
            else:
                log.delete(*new, **marks)
                for key in keys:
                    rows.pop(key, None)
        log.commit()
    apply_all(applier_of(db, **options), log)
    assert rows_in(db) == rows


def test_own_events_and_those_of_ignored_servers_are_left_out_but_positions_of_the_ignored_count() -> None:
    log, db = Log(), make_store()
    applier = applier_of(db, ignored=frozenset({4}))
    log.begin(5)
    log.position(OWN, 77, logger_id=SOURCE)
    log.position(4, 88, logger_id=4)
    log.position(OWN, 99, logger_id=OWN)
    log.insert((1, "own", 0), server_ids=OWN)
    log.insert((2, "ignored", 0), server_ids=4)
    log.insert((3, "other", 0), server_ids=6)
    log.commit()
    apply_all(applier, log)
    assert rows_in(db) == {3: (3, "other", 0)}
    assert positions_in(db) == {SOURCE: 5, OWN: 77, 4: 88}
    assert applier.mre.value == 88
    assert applier_of(db, ignored=frozenset({4})).mre.value == 88, "as by the rows after a restart"
    assert applier_of(db).mre.value == 77


def test_epoch_seen_again_is_skipped_or_refused() -> None:
    log, db = Log(), make_store()
    log.epoch(5, (1, "a", 1))
    log.epoch(6, (2, "b", 2))
    apply_all(applier_of(db), log)
    db[NAME].delete(1)
    again = applier_of(db)
    done = apply_all(again, log)
    assert [each.is_passed_over for each in done] == [True, True]
    assert rows_in(db) == {2: (2, "b", 2)} and done[-1].next == log.writer.end
    with pytest.raises(PeerError) as stopped:
        apply_all(again, log)
    assert stop_of(stopped.value) is Stop.OUT_OF_ORDER
    assert positions_in(db) == {SOURCE: 6}


def test_epoch_left_out_after_an_error_is_refused_unless_it_may_be_skipped() -> None:
    for may_skip in (False, True):
        log, db = Log(), make_store()
        applier = applier_of(db, allow_skip_epoch=may_skip)
        log.table("d.gone", COLUMNS, ("id",))
        log.begin(5)
        log.insert((1, "a", 1), name="d.gone")
        log.commit()
        second = log.epoch(6, (2, "b", 2))
        units = list(log.units())
        with pytest.raises(NoSuchTable):
            applier.apply(units[0])
        if may_skip:
            assert applier.apply(units[1]).next == second
        else:
            with pytest.raises(PeerError):
                applier.apply(units[1])
        assert positions_in(db) == ({SOURCE: 6} if may_skip else {})


def bad_transactions() -> dict[str, tuple[Any, type[Exception], Stop]]:
    def unknown_table(log: Log) -> None:
        log.table("d.gone", COLUMNS, ("id",))
        log.insert((1, "a", 1), name="d.gone")

    def unknown_column(log: Log) -> None:
        log.table(NAME, (*COLUMNS, tm.Column("more", tm.Int8, nullable=True)), ("id",))
        log.insert((9, "a", 1, None))

    def other_type(log: Log) -> None:
        log.table(NAME, (COLUMNS[0], tm.Column("name", tm.Date, nullable=True), COLUMNS[2]), ("id",))
        log.insert((9, __import__("datetime").date(2020, 1, 1), 1))

    def too_long(log: Log) -> None:
        log.table(NAME, (COLUMNS[0], tm.Column("name", tm.VarChar(99), nullable=True), COLUMNS[2]), ("id",))
        log.insert((9, "a" * 40, 1))

    def no_key(log: Log) -> None:
        log.table(NAME, (*COLUMNS[:2], COLUMNS[2]), ("stamp",))
        log.update(((9, "a", 1), (9, "b", 1)), binlog_type=8)

    def moved_key(log: Log) -> None:
        log.update(((9, "a", 1), (8, "a", 1)))

    return {
        "unknown table": (unknown_table, NoSuchTable, Stop.OTHER),
        "unknown column": (unknown_column, NoSuchColumn, Stop.OTHER),
        "other type": (other_type, TypeMismatch, Stop.OTHER),
        "value too long": (too_long, ValueOutOfRange, Stop.OTHER),
        "no key": (no_key, PeerError, Stop.CORRUPT_EVENT),
        "key moved": (moved_key, Unsupported, Stop.OTHER),
    }


@pytest.mark.parametrize("what", bad_transactions())
def test_bad_event_stops_with_its_place_and_leaves_no_trace(what: str) -> None:
    make, error, stop = bad_transactions()[what]
    log, db = Log(), make_store()
    applier = applier_of(db)
    log.epoch(4, (0, "before", 0))
    log.begin(5)
    log.insert((1, "a", 1))
    make(log)
    log.insert((2, "b", 2), name=NAME) if what in ("unknown table", "key moved") else None
    log.commit()
    counters = dict(status_of(applier))
    with pytest.raises(error) as stopped:
        apply_all(applier, log)
    assert stop_of(stopped.value) is stop
    assert stopped.value.evidence["file"] == "binlog.000001" and stopped.value.evidence["position"] > 0
    assert rows_in(db) == {0: (0, "before", 0)} and positions_in(db) == {SOURCE: 4}
    assert status_of(applier) == counters
    assert not db.parts.store.locks.by_slot, "the transaction has ended"


def test_stopped_epoch_is_applied_when_its_table_is_there() -> None:
    log, db = Log(), make_store()
    applier = applier_of(db)
    log.table("d.late", COLUMNS, ("id",))
    log.begin(5)
    log.insert((1, "a", 1), name="d.late")
    log.commit()
    (unit,) = log.units()
    with pytest.raises(NoSuchTable):
        applier.apply(unit)
    db.create_table("d.late", COLUMNS, "id")
    assert not applier.apply(unit).is_passed_over
    assert rows_in(db, "d.late") == {1: (1, "a", 1)}


def test_transaction_without_the_epoch_of_its_server_is_refused() -> None:
    log, db = Log(), make_store()
    log.writer.begin((), None)
    log.insert((1, "a", 1))
    log.commit()
    log.begin(5, server_id=SOURCE + 1)
    log.commit()
    for unit in log.units():
        with pytest.raises(PeerError) as stopped:
            applier_of(db).apply(unit)
        assert stop_of(stopped.value) is Stop.CORRUPT_EVENT
    assert rows_in(db) == {} and positions_in(db) == {}


def test_resolve_column_that_is_not_sent_stops() -> None:
    log, db = Log(), make_store(function="NDB$OLD(stamp)")
    log.begin(5)
    log.update(((1, "a", 1), (1, "b", 2)), binlog_type=9)
    log.commit()
    with pytest.raises(PeerError) as stopped:
        apply_all(applier_of(db), log)
    assert stop_of(stopped.value) is Stop.CORRUPT_EVENT


def test_transactional_function_stops_at_rows_without_transaction_ids() -> None:
    log, db = Log(), make_store(function="NDB$EPOCH_TRANS()")
    log.begin(5)
    log.insert((1, "a", 1), transaction_ids=12)
    log.insert((2, "a", 1))
    log.commit()
    with pytest.raises(PeerError) as stopped:
        apply_all(applier_of(db), log)
    assert stop_of(stopped.value) is Stop.CORRUPT_EVENT
    assert rows_in(db) == {}


def test_function_with_roles_stops_at_a_site_without_one() -> None:
    log, db = Log(), make_store(function="NDB$EPOCH2()")
    log.epoch(5, (1, "a", 1))
    applier = applier_of(db)
    with pytest.raises(Rejected) as stopped:
        apply_all(applier, log)
    assert stop_of(stopped.value) is Stop.CONFIGURATION
    applier.tables.site = replace(applier.tables.site, role=Role.PRIMARY)
    applier.start()
    apply_all(applier, log)
    assert rows_in(db) == {1: (1, "a", 1)}


def test_flags_are_counted_and_a_tracked_read_changes_nothing_but_its_row_s_epoch() -> None:
    log, db = Log(), make_store()
    applier = applier_of(db)
    log.epoch(4, (1, "a", 1))
    log.begin(5)
    log.insert((2, "b", 2), conflict_flags=FLAG_REFRESH)
    log.insert((3, "c", 3), (4, "d", 4), conflict_flags=FLAG_REFLECT)
    log.update(((1, "old", 0), (1, "new", 0)), conflict_flags=FLAG_READ)
    log.commit()
    first, second = log.units()
    applier.apply(first)
    db.parts.clockwork.advance_epoch()
    before = db[NAME].to_arrow(columns=["id", tm.EPOCH]).to_pydict()
    applier.apply(second)
    after = db[NAME].to_arrow(columns=["id", tm.EPOCH]).to_pydict()
    assert rows_in(db)[1] == (1, "a", 1)
    assert dict(zip(*after.values(), strict=True))[1] > dict(zip(*before.values(), strict=True))[1]
    status = status_of(applier)
    assert status["refresh_op_count"] == 1 and status["reflected_op_prepare_count"] == 2


def test_column_the_source_lacks_takes_its_default_and_stays_in_updates() -> None:
    log, db = Log(), make_store()
    db.add_column(NAME, tm.Column("more", tm.Int32, nullable=True, default=8))
    applier = applier_of(db)
    log.epoch(5, (1, "a", 1), (2, "b", 2))
    first = apply_all(applier, log)[-1]
    db[NAME].update(1, {"more": 9})
    log.begin(6)
    log.update(((1, "a", 1), (1, "A", 1)), ((2, "b", 2), (2, "B", 2)))
    log.commit()
    apply_all(applier, log, first.next)
    assert rows_in(db) == {1: (1, "A", 1, 9), 2: (2, "B", 2, 8)}


def test_table_changed_between_epochs_is_read_anew() -> None:
    log, db = Log(), make_store()
    applier = applier_of(db)
    log.epoch(5, (1, "a", 1))
    after = apply_all(applier, log)[-1].next
    db.add_column(NAME, tm.Column("more", tm.Int32, nullable=True))
    log.table(NAME, (*COLUMNS, tm.Column("more", tm.Int32, nullable=True)), ("id",))
    log.epoch(6, (2, "b", 2, 3))
    apply_all(applier, log, after)
    assert rows_in(db) == {1: (1, "a", 1, None), 2: (2, "b", 2, 3)}


def test_statements_losses_and_transactions_are_distinguished_in_their_order() -> None:
    log = Log()
    log.epoch(1, (1, "a", 1))
    log.writer.statement("CREATE TABLE x (a INT PRIMARY KEY)", "d")
    log.writer.incident("a gap")
    log.writer.rotate()
    end = log.epoch(2, (2, "b", 2))
    found = list(log.units())
    assert [type(each) for each in found] == [EpochTransaction, Statement, Loss, EpochTransaction]
    assert found[1].text.startswith("CREATE") and found[1].database == "d" and found[1].source_id == SOURCE
    assert found[2].message == "a gap"
    assert found[1].start == found[0].finish() and found[2].start == found[1].next and found[3].finish() == end
    assert [each.epoch for each in apply_all(applier_of(make_store()), log, found[2].next)] == [2]


def test_transaction_that_is_not_whole_yet_waits_for_the_rest() -> None:
    log, db = Log(), make_store()
    log.epoch(5, (1, "a", 1))
    begun = log.writer.end
    log.epoch(6, *((number, "x", number) for number in range(50)))
    from tidemark.replication.applier.transactions import LogFolder, transactions
    from tidemark.replication.binlog.position import Position

    applier = applier_of(db)
    short = Position(begun.file, begun.position + 200)
    units = transactions(LogFolder(log.files), None, begun)
    applier.apply(next(units))
    events = [read.next for read in _events(log, begun)]
    for cut in events[:-1]:
        for unit in transactions(LogFolder(log.files), begun, cut):
            with pytest.raises(PeerError):
                applier.apply(unit)
    assert rows_in(db) == {1: (1, "a", 1)} and positions_in(db) == {SOURCE: 5} and short
    apply_all(applier, log, begun)
    assert len(rows_in(db)) == 50 and positions_in(db) == {SOURCE: 6}


def _events(log: Log, start: Any) -> Any:
    from tidemark.replication.binlog.reader import BinlogReader

    return list(BinlogReader(log.files, start=start).events(log.writer.end))


def unique_store(function: str | None = None) -> tm.Database:
    db = make_store(function=function)
    db.create_index(NAME, "by_name", ["name"], unique=True)
    return db


def test_values_of_a_unique_index_that_change_hands_within_an_epoch_are_no_conflict() -> None:
    """The rows of an epoch come one after the other, though the source has changed them together."""
    for options in ({}, {"allow_batching": False}):
        log, db = Log(), unique_store()
        log.epoch(5, (1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "d", 4))
        log.begin(6)
        log.update(((1, "a", 1), (1, "b", 10)), ((2, "b", 2), (2, "c", 20)), ((3, "c", 3), (3, "a", 30)))
        log.update(((1, "b", 10), (1, "b", 11)))
        log.insert((5, "d", 5), (6, "e", 6))
        log.delete((4, "d", 4))
        log.commit()
        apply_all(applier_of(db, **options), log)
        assert rows_in(db) == {
            1: (1, "b", 11),
            2: (2, "c", 20),
            3: (3, "a", 30),
            5: (5, "d", 5),
            6: (6, "e", 6),
        }
        assert db.check()["is_sound"]


def test_value_of_a_unique_index_twice_at_the_end_of_an_epoch_stops() -> None:
    log, db = Log(), unique_store()
    applier = applier_of(db)
    after = log.epoch(5, (1, "a", 1), (2, "b", 2), (3, "c", 3))
    apply_all(applier, log)
    log.begin(6)
    log.insert((9, "z", 9))
    log.update(((1, "a", 1), (1, "b", 1)), ((2, "b", 2), (2, "c", 2)))
    log.update(((2, "c", 2), (2, "b", 3)))
    log.commit()
    with pytest.raises(DuplicateKey) as stopped:
        apply_all(applier, log, after)
    assert stopped.value.evidence["file"] == "binlog.000001"
    assert rows_in(db) == {1: (1, "a", 1), 2: (2, "b", 2), 3: (3, "c", 3)} and positions_in(db) == {SOURCE: 5}


@pytest.mark.parametrize("options", [{}, {"allow_batching": False}])
def test_rows_that_conflict_with_a_value_at_the_end_of_an_epoch_are_removed_and_no_others(
    options: dict[str, Any],
) -> None:
    """Story: a row of this site had the value, and the applier stopped at the source's row for good."""
    log, db = Log(), unique_store()
    applier = applier_of(db, **options)
    after = log.epoch(5, (1, "a", 1), (2, "b", 2), (3, "c", 3))
    apply_all(applier, log)
    db[NAME].insert_many([(8, "x", 8), (9, "y", 9)])
    log.begin(6)
    log.update(((1, "a", 1), (1, "b", 1)), ((2, "b", 2), (2, "y", 2)))
    log.delete((3, "c", 3))
    log.insert((4, "c", 4))
    log.commit()
    apply_all(applier, log, after)
    assert rows_in(db) == {1: (1, "b", 1), 2: (2, "y", 2), 4: (4, "c", 4), 8: (8, "x", 8)}
    assert db.check()["is_sound"]


VALUE_FUNCTIONS = (
    "NDB$OLD(stamp)",
    "NDB$MAX(stamp)",
    "NDB$MAX_DELETE_WIN(stamp)",
    "NDB$MAX_INS(stamp)",
    "NDB$MAX_DEL_WIN_INS(stamp)",
    "TM$GREATEST(stamp)",
)


def test_unique_key_that_exists_at_the_end_of_an_epoch_is_a_conflict_of_a_function() -> None:
    log, db = Log(), unique_store("NDB$MAX(stamp)")
    applier = applier_of(db)
    log.epoch(5, (1, "a", 1), (2, "b", 2))
    log.begin(6)
    log.update(((1, "a", 1), (1, "b", 9)), ((2, "b", 2), (2, "c", 9)))
    log.insert((3, "c", 1), (4, "d", 1))
    log.commit()
    apply_all(applier, log)
    assert rows_in(db) == {1: (1, "b", 9), 2: (2, "c", 9), 4: (4, "d", 1)}
    assert status_of(applier)["conflict_fn_max"] == 1


@pytest.mark.parametrize("function", VALUE_FUNCTIONS)
def test_row_of_this_site_keeps_its_unique_key_and_all_rows_that_follow_from_it_stay(function: str) -> None:
    """Rows 1 to 3 pass their values on in a circle, but a row of this site has the value that row 2 should get."""
    log, db = Log(), unique_store(function)
    applier = applier_of(db)
    after = log.epoch(5, (1, "a", 1), (2, "b", 2), (3, "c", 3), (4, "d", 4))
    apply_all(applier, log)
    db[NAME].insert((9, "x", 9))
    log.begin(6)
    log.update(((1, "a", 1), (1, "b", 10)), ((2, "b", 2), (2, "x", 20)), ((3, "c", 3), (3, "a", 30)))
    log.update(((3, "a", 30), (3, "a", 31)))
    log.update(((4, "d", 4), (4, "c", 40)))
    log.commit()
    apply_all(applier, log, after)
    old = {1: (1, "a", 1), 2: (2, "b", 2), 3: (3, "c", 3), 4: (4, "d", 4), 9: (9, "x", 9)}
    assert rows_in(db) == old
    assert sum(value for name, value in status_of(applier).items() if name.startswith("conflict_fn_")) == 5
    assert db.check()["is_sound"]


@pytest.mark.parametrize("options", [{}, {"allow_batching": False}])
@pytest.mark.parametrize(
    ("function", "before", "after", "is_accepted"),
    [
        ("NDB$OLD(stamp)", 10, 11, True),
        ("NDB$OLD(stamp)", 1, 11, False),
        ("NDB$MAX(stamp)", 0, 11, True),
        ("NDB$MAX(stamp)", 10, 10, False),
        ("NDB$MAX_INS(stamp)", 10, 9, False),
        ("TM$GREATEST(stamp)", 10, 11, True),
        ("TM$GREATEST(stamp)", 10, 9, False),
    ],
)
def test_later_change_of_a_row_that_waits_is_judged_by_what_the_first_one_makes_of_it(
    function: str, before: int, after: int, is_accepted: bool, options: dict[str, Any]
) -> None:
    log, db = Log(), unique_store(function)
    applier = applier_of(db, **options)
    log.epoch(5, (1, "a", 1), (2, "b", 2))
    log.begin(6)
    log.update(((1, "a", 1), (1, "b", 10)))
    log.update(((1, "b", before), (1, "b", after)))
    log.update(((2, "b", 2), (2, "c", 20)))
    log.commit()
    apply_all(applier, log)
    assert rows_in(db) == {1: (1, "b", after if is_accepted else 10), 2: (2, "c", 20)}
    conflicts = sum(value for name, value in status_of(applier).items() if name.startswith("conflict_fn_"))
    assert conflicts == (not is_accepted)


@pytest.mark.parametrize("function", ["NDB$OLD(stamp)", "NDB$MAX_INS(stamp)"])
def test_row_that_waits_may_be_deleted_and_inserted_again(function: str) -> None:
    log, db = Log(), unique_store(function)
    applier = applier_of(db)
    log.epoch(5, (1, "a", 1), (2, "b", 2), (3, "c", 3))
    log.begin(6)
    log.update(((1, "a", 1), (1, "b", 10)), ((3, "c", 3), (3, "a", 11)))
    log.delete((1, "b", 10))
    log.insert((1, "c", 12), (4, "b", 13))
    log.delete((2, "b", 2))
    log.commit()
    apply_all(applier, log)
    assert rows_in(db) == {1: (1, "c", 12), 3: (3, "a", 11), 4: (4, "b", 13)}
    assert db.check()["is_sound"]


def test_conflicts_of_unique_keys_past_the_memory_for_rows_that_wait_stop_nothing() -> None:
    """Story: rows that wait take memory. A site with many rows of its own must refuse as many of the source."""
    log = Log()
    db = make_store(function="NDB$OLD(stamp)", transaction_memory="1 MiB")
    db.create_index(NAME, "by_name", ["name"], unique=True)
    applier = applier_of(db, batch_bytes=4_000)
    db[NAME].insert_many([(number, f"n{number}", 0) for number in range(1_000)])
    log.begin(6)
    log.insert((5_000, "n1", 1), (5_001, "free", 1))
    log.update(((5_001, "free", 1), (5_001, "n2000", 2)))
    for number in range(0, 1_000, 50):
        log.insert(*((1_000 + each, f"n{each}", 1) for each in range(number, number + 50)))
    log.insert((6_000, "n2001", 1))
    log.commit()
    apply_all(applier, log)
    assert sorted(rows_in(db)) == [*range(1_000), 5_001, 6_000]
    assert rows_in(db)[5_001] == (5_001, "n2000", 2)
    assert status_of(applier)["conflict_fn_old"] == 1_001


@pytest.mark.parametrize("function", [None, *VALUE_FUNCTIONS])
@pytest.mark.parametrize("options", [{}, {"allow_batching": False}, {"batch_bytes": 100}])
def test_random_exchanges_of_unique_values_leave_the_rows_of_a_dict(
    options: dict[str, Any], function: str | None
) -> None:
    """With a function too: no row is in conflict, as this site has no changes of its own."""
    print("seed", SEED)
    r = random.Random(SEED)
    log, db = Log(), unique_store(function)
    rows: dict[int, tuple[Any, ...]] = {}
    for epoch in range(1, 15):
        log.begin(epoch)
        before = dict(rows)
        rows = {}
        names = r.sample([f"n{number}" for number in range(9)], 9)
        for key in r.sample(range(9), r.randrange(3, 10)):
            rows[key] = (key, names.pop() if r.random() < 0.9 else None, epoch)
        for key in r.sample(range(9), 9):
            old, new = before.get(key), rows.get(key)
            if old and new:
                log.update((old, new), binlog_type=7 if function else r.choice((6, 7, 8, 9)))
            elif old:
                log.delete(old)
            elif new:
                log.insert(new)
        log.commit()
    applier = applier_of(db, **options)
    apply_all(applier, log)
    assert rows_in(db) == rows
    assert not any(value for name, value in status_of(applier).items() if name.startswith("conflict_fn_"))
    assert db.check()["is_sound"]
