"""Steps of a stream applied to a store: rows, positions, statements, and the points where a crash may come."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.ingest.recorded import DEFINITION, FILE, SERVER_ID, Stream
from tests.ingest.rig import OPTIONS
from tidemark.replication.binlog import events as e
from tidemark.replication.ingest import applier as applier_module
from tidemark.replication.ingest.address import Filter
from tidemark.replication.ingest.applier import Applier
from tidemark.replication.ingest.source_position import INGEST, INGEST_TABLE, SourcePosition, read_source_position


@pytest.fixture
def db(tmp_path: Path) -> Iterator[tm.Database]:
    with tm.open(tmp_path / "s", **OPTIONS) as opened:
        assert isinstance(opened, tm.Database)
        opened.create_table("d.t", DEFINITION.columns, DEFINITION.primary_key)
        opened.create_table(INGEST, INGEST_TABLE.columns, INGEST_TABLE.primary_key)
        SourcePosition("main", SERVER_ID, FILE, 4).save(opened.parts.store)
        yield opened


def applier_of(db: tm.Database, **given: Any) -> Applier:
    source_position = read_source_position(db.parts.store, "main")
    assert source_position is not None
    given.setdefault("wanted", Filter())
    return Applier(db.parts.store, db, source_position, **given)


def apply(db: tm.Database, stream: Stream, flushes: bool = True, **given: Any) -> Applier:
    applier = applier_of(db, **given)
    for step in stream.steps():
        applier.step(step)
    if flushes:
        applier.flush()
    return applier


def rows(db: tm.Database, table: str = "d.t") -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in db[table])


def source_position_of(db: tm.Database) -> SourcePosition:
    found = read_source_position(db.parts.store, "main")
    assert found is not None
    return found


def test_inserts_updates_and_deletes_arrive_with_position_and_counts(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 1), (2, "b", None), (3, None, 3)).commit()
    stream.begin().update(((1, "a", 1), (1, "ä", 2))).delete((3, None, 3)).commit()
    apply(db, stream)
    assert rows(db) == [(1, "ä", 2), (2, "b", None)]
    at = source_position_of(db)
    assert (at.file, at.position, at.transactions, at.changed_rows) == (FILE, stream.position, 2, 5)
    assert at.gtid.endswith(":2") and at.committed is not None and at.committed.year == 2023


def test_nothing_is_seen_of_a_transaction_before_its_end(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 1)).commit()
    end = stream.position
    apply(db, stream.begin().insert((2, "b", 2)))
    assert rows(db) == [(1, "a", 1)]
    assert source_position_of(db).position == end


def test_order_of_a_key_is_kept_within_and_between_events(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 0)).commit()
    stream.begin().update(((1, "a", 0), (1, "b", 1)), ((1, "b", 1), (1, "c", 2))).delete((1, "c", 2)).commit()
    stream.begin().insert((1, "d", 3)).update(((1, "d", 3), (1, "e", 4))).commit()
    apply(db, stream)
    assert rows(db) == [(1, "e", 4)]


def test_changed_keys_in_any_order_move_their_rows(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 1), (2, "b", 2), (3, "c", 3)).commit()
    # id = id + 1 from the highest on, then a key that passes another one, and one that does not change.
    stream.begin().update(*(((n, x, n), (n + 1, x, n)) for n, x in ((3, "c"), (2, "b"), (1, "a")))).commit()
    stream.begin().update(((4, "c", 3), (9, "c", 3)), ((3, "b", 2), (4, "b", 2)), ((2, "a", 1), (2, "z", 1))).commit()
    apply(db, stream)
    assert rows(db) == [(2, "z", 1), (4, "b", 2), (9, "c", 3)]


def test_images_of_few_columns_change_these_alone(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 1), (2, "b", 2)).commit().begin()
    stream.update(((1, "a", 1), (1, "a", 5)), columns=(("id",), ("n",)))
    stream.update(((2, "b", 2), (7, "b", 2)), columns=(("id",), ("id",)))
    stream.delete((1, "a", 5), columns=(("id",), ())).commit()
    stream.begin().insert((3, "c", 3), columns=((), ("id", "a"))).commit()
    apply(db, stream)
    assert rows(db) == [(3, "c", None), (7, "b", 2)]


def test_value_of_a_unique_key_passes_from_row_to_row(db: tm.Database) -> None:
    db.create_index("d.t", "u", ["a"], unique=True)
    stream = Stream().begin().insert((1, "x", 0), (2, "y", 0)).commit().begin()
    stream.update(((1, "x", 0), (1, "q", 0)), ((2, "y", 0), (2, "x", 0)), ((1, "q", 0), (1, "y", 0))).commit()
    apply(db, stream)
    assert rows(db) == [(1, "y", 0), (2, "x", 0)]


def test_undone_transaction_leaves_nothing_but_its_position(db: tm.Database) -> None:
    stream = Stream().begin().insert((1, "a", 1)).commit()
    apply(db, stream.begin().insert((2, "b", 2)).add(e.Query("ROLLBACK", "d")))
    assert rows(db) == [(1, "a", 1)] and source_position_of(db).position == stream.position
    assert source_position_of(db).transactions == 1


def test_large_transaction_is_applied_as_it_comes_and_seen_whole(
    db: tm.Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(applier_module, "WAITING_BYTES_MAX", 100)
    stream = Stream().begin().insert((1, "a", 1)).commit()
    before = stream.position
    stream.begin()
    for number in range(10, 60):
        stream.insert((number, "x" * 20, number))
    applier = apply(db, stream)
    assert rows(db) == [(1, "a", 1)] and source_position_of(db).position == before
    applier.roll_back()
    assert rows(db) == [(1, "a", 1)]
    again = Stream(position=before).begin()
    for number in range(10, 60):
        again.insert((number, "x" * 20, number))
    apply(db, again.commit())
    assert len(rows(db)) == 51 and source_position_of(db).transactions == 2


def test_large_transaction_undone_at_its_end_leaves_nothing(db: tm.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applier_module, "WAITING_BYTES_MAX", 100)
    stream = Stream().begin()
    for number in range(50):
        stream.insert((number, "x" * 20, number))
    apply(db, stream.add(e.Query("ROLLBACK", "d")).begin().insert((99, "z", 9)).commit())
    assert rows(db) == [(99, "z", 9)] and source_position_of(db).position == stream.position


@pytest.mark.parametrize("kind", ["insert", "update", "delete"])
def test_difference_between_the_sides_stops_with_its_place_and_leaves_nothing(db: tm.Database, kind: str) -> None:
    db["d.t"].insert((1, "here", 0))
    stream = Stream().begin().insert((5, "e", 5))
    if kind == "insert":
        stream.insert((1, "a", 1))
    elif kind == "update":
        stream.update(((2, "a", 1), (2, "b", 1)))
    else:
        stream.delete((2, "a", 1))
    with pytest.raises(tm.DuplicateKey if kind == "insert" else tm.RowNotFound) as caught:
        apply(db, stream.commit())
    assert caught.value.file == FILE and 4 < caught.value.position < stream.position
    assert rows(db) == [(1, "here", 0)] and source_position_of(db).position == 4
    apply(db, stream, tolerates=True)
    assert (5, "e", 5) in rows(db) and source_position_of(db).position == stream.position


def test_tables_that_are_not_wanted_are_skipped_whatever_they_hold(db: tm.Database) -> None:
    other = tm.Column("g", tm.Blob)
    definition = type(DEFINITION)(4, 1, "other.x", (tm.Column("id", tm.Int32), other), ("id",))
    stream = Stream().begin().insert((1, b"x"), definition=definition).insert((1, "a", 1)).commit()
    apply(db, stream, wanted=Filter(("d.%",)))
    assert rows(db) == [(1, "a", 1)] and source_position_of(db).position == stream.position
    with pytest.raises(tm.NoSuchTable, match="other.x"):
        apply(db, Stream(position=stream.position).begin().insert((2, b"x"), definition=definition).commit())


def test_rows_without_names_of_columns_stop(db: tm.Database) -> None:
    from dataclasses import replace

    steps = Stream().begin().insert((1, "a", 1)).steps()
    change: Any = steps[1]
    columns = tuple(replace(column, name=None) for column in change.map.columns)
    nameless = replace(change, map=replace(change.map, columns=columns))
    with pytest.raises(tm.Unsupported, match="binlog_row_metadata=FULL"):
        applier_of(db).step(nameless)


def test_number_that_is_no_truth_value_is_refused_in_a_bool_column(db: tm.Database) -> None:
    db.create_table("d.b", [tm.Column("id", tm.Int32), tm.Column("f", tm.Bool)], "id")
    served = type(DEFINITION)(5, 1, "d.b", (tm.Column("id", tm.Int32), tm.Column("f", tm.Int8)), ("id",))
    apply(db, Stream().begin().insert((1, 1), (2, 0), definition=served).commit())
    assert rows(db, "d.b") == [(1, True), (2, False)]
    at = source_position_of(db).position
    with pytest.raises(tm.ValueOutOfRange, match="Int8"):
        apply(db, Stream(position=at).begin().insert((3, 5), definition=served).commit())


def test_rows_of_a_server_that_have_expired_go_when_the_server_deletes_them(db: tm.Database) -> None:
    """The task of the store rests where a server fills its tables: what it deletes, the server may still change."""
    columns = (tm.Column("id", tm.Int32), tm.Column("day", tm.Date, nullable=True))
    db.create_table("d.e", columns, "id", expires="day + 30 d")
    definition = type(DEFINITION)(5, 1, "d.e", columns, ("id",))
    old = [(number, date(1980, 1, 1)) for number in range(3)]
    stream = Stream().begin().insert(*old, (9, date(9999, 1, 1)), definition=definition).commit()
    stream.begin().delete(old[0], definition=definition).commit()
    apply(db, stream)
    assert rows(db, "d.e") == [*old[1:], (9, date(9999, 1, 1))] and db.parts.clockwork.is_replica()
    assert db.expire() == 2 and [row[0] for row in rows(db, "d.e")] == [9]
    again = Stream(position=stream.position).begin().update((old[1], (1, None)), definition=definition).commit()
    with pytest.raises(tm.RowNotFound):
        apply(db, again)
