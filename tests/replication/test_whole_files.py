"""Rows that a peer of MySQL would take for another change: refused at the start, and wherever a dump meets them."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import tidemark as tm
from tests.replication.mysql_dump_rig import dump_of, messages_of
from tests.replication.site import WHOLE, epochs_in, open_site
from tests.shares import share
from tidemark.engine import types as t
from tidemark.engine.applied.noted_rows import refresh_rows, tag
from tidemark.engine.base.errors import Rejected
from tidemark.engine.schema.column import Column
from tidemark.recovery.crash_harness.crash_states import choices, crash_points, image_of
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.trace import TraceFiles
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.mysql_source.packets import Refused
from tidemark.replication.settings.any_value import REFRESH

COLUMNS = [Column("id", t.Int64), Column("v", t.Int64)]


@pytest.fixture
def opened() -> Any:
    made = []

    def some(files: Any = None, **options: Any) -> Any:
        made.append(open_site(files, **options))
        return made[-1]

    yield some
    for db in made:
        db.close()


def table_in(db: Any, name: str = "d.t", binlog_type: int | None = None) -> Any:
    if binlog_type is not None:
        if "mysql.ndb_replication" not in db.tables(system=True):
            db.create_replication_table()
        database, _, table = name.partition(".")
        db["mysql.ndb_replication"].insert((database.encode(), table.encode(), 0, binlog_type, None))
    return db.create_table(name, COLUMNS, "id")


def update(db: Any, name: str = "d.t") -> None:
    """Insert a row and change all of it that is not its key: logged as a write, it looks like an insert."""
    db[name].insert((len(db[name]), 1))
    db.sync()
    db[name].update(len(db[name]) - 1, {"v": 2})
    db.sync()


def refused(db: Any, **given: Any) -> str:
    with dump_of(db, **given) as dump, pytest.raises(Refused) as error:
        list(dump.messages())
    assert error.value.code[0] == 1236
    return error.value.message


def marks_in(db: Any) -> list[str]:
    return sorted(name for name in db.parts.files.list("binlog") if name.endswith(".whole"))


OPTIONS = [
    {},
    {"log_updated_only": False},
    {"log_update_as_write": False},
    {"log_update_as_write": False, "log_update_as_minimal": True},
    {**WHOLE, "log_update_as_minimal": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_update_logged_as_a_write_or_in_part_is_refused_by_table_and_position(opened: Any, options: Any) -> None:
    """Story: with the default options an update is an INSERT of key and changed columns. Replicas stopped with 1062,
    and tools reported an insert. Where all columns change, nothing in the file tells the two apart.
    """
    db = opened(**options)
    db.binlog.check_whole()  # a store without tables
    table_in(db)
    update(db)
    db["d.t"].delete(0)
    db.sync()
    with pytest.raises(Rejected, match="table d.t logs updates as writes or in part") as error:
        db.binlog.check_whole()
    for name in ("log_update_as_write", "log_updated_only", "log_update_as_minimal"):
        on = options.get(name, name != "log_update_as_minimal")
        assert (f"{name}=False" in error.value.message) == on
    text = refused(db)
    assert "table d.t" in text and "binlog.000001:" in text and "log_update_as_write" in text


def test_files_from_before_the_options_were_turned_off_are_refused_and_later_ones_served(opened: Any) -> None:
    """Story: the options were turned off and the store opened again. The older files still had updates as writes."""
    files = MemoryFiles()
    db = opened(files)
    table_in(db)
    update(db)
    db.close()
    files = files.kill()
    db = opened(files, **WHOLE)
    db.binlog.check_whole()
    update(db)
    text = refused(db)
    assert "table d.t" in text and "binlog.000001:" in text
    file = db.binlog.writer.end.file
    assert messages_of(db, file=file)
    files = files.kill()  # without a goodbye
    db = opened(files, **WHOLE)
    update(db)
    assert file in db.binlog.writer.index.names[:-1]
    assert len(messages_of(db, file=file)) > 20
    assert "binlog.000001:" in refused(db)


def test_store_that_logs_whole_rows_from_its_beginning_is_served_from_there_after_a_crash(opened: Any) -> None:
    files = MemoryFiles()
    for number in range(4):
        db = opened(files, **WHOLE)
        if not number:
            table_in(db)
        update(db)
        db.binlog.rotate()
        update(db)
        assert messages_of(db)
        files = files.kill()
    names = db.binlog.writer.index.names
    assert len(names) == 8


def test_files_of_a_version_without_marks_are_refused(opened: Any) -> None:
    files = MemoryFiles()
    db = opened(files, **WHOLE)
    table_in(db)
    update(db)
    assert marks_in(db) == ["binlog.000001.whole"]
    db.close()
    files = files.kill()
    files.unlink("binlog/binlog.000001.whole")
    db = opened(files, **WHOLE)
    assert "table d.t" in refused(db)


def test_table_that_gets_such_a_type_later_ends_the_dump_that_follows(opened: Any) -> None:
    db = opened(**WHOLE)
    table_in(db)
    update(db)
    with dump_of(db, is_non_blocking=False, wait=lambda seconds: None) as dump:
        sent = dump.messages()
        while dump.at != db.binlog.writer.end:
            next(sent)
        table_in(db, "d.later", binlog_type=3)
        update(db)
        place = db.binlog.writer.end.position
        update(db, "d.later")
        with pytest.raises(Refused, match="table d.later logs updates as writes or in part at binlog.000001:") as error:
            list(sent)
        _, _, found = error.value.message.partition("binlog.000001:")
        assert int(found.partition(";")[0]) > place
    with pytest.raises(Rejected, match="table d.later"):
        db.binlog.check_whole()
    assert marks_in(db) == []


def test_row_that_is_only_sent_again_is_never_shown_as_an_insert(opened: Any) -> None:
    """Story: row events of version 1 have no flags. A row that a conflict made the primary send again was an insert to
    peers of MySQL, which stopped with 1062.
    """
    for is_old in (False, True):
        db = opened(**WHOLE, log_bin_use_v1_row_events=is_old)
        table_in(db)
        update(db)
        assert len(messages_of(db)) > 5 and marks_in(db) == ["binlog.000001.whole"]
        with db.transaction() as txn:
            tag(txn, REFRESH, 0)
            refresh_rows(txn, db.parts.store.tables.named("d.t"), pa.record_batch({"id": pa.array([0], pa.int64())}))
        db.sync()
        if is_old:
            text = refused(db)
            assert "table d.t" in text and "log_bin_use_v1_row_events" in text and marks_in(db) == []
            continue
        assert marks_in(db) == ["binlog.000001.whole"]
        shown = [e.parse(each, Position("served", 0))[1] for each in messages_of(db)]
        assert [each.kind for each in shown if isinstance(each, e.Rows)] == [e.WRITE, e.UPDATE]


def test_rows_that_are_not_whole_are_never_served_after_a_power_loss_at_any_write(opened: Any) -> None:
    """The mark of whole rows goes, durably, before the first row that is not whole."""
    rng = random.Random(7)
    trace = TraceFiles(MemoryFiles())
    db = open_site(trace, **WHOLE)
    table_in(db)
    update(db)
    begun = len(trace.events)
    table_in(db, "d.later", binlog_type=2)
    update(db, "d.later")
    db.binlog.rotate()
    update(db, "d.later")
    db.close()
    calls = {id(event): number for number, event in enumerate(trace.events)}
    served, stopped = 0, 0
    for disk, _, event in crash_points(trace.events):
        if event is None or calls[id(event)] < begun or rng.random() >= share(0.5):
            continue
        for choice in choices(disk.pieces(), rng, 2):
            db = open_site(image_of(disk, choice, rng), **WHOLE)
            has_rows = any(row.table == "d.later" for each in epochs_in(db.parts.files) for row in each.rows)
            if has_rows:
                assert "logs updates as writes or in part" in refused(db)
                stopped += 1
            else:
                messages_of(db)
                served += 1
            db.close()
    print("served", served, "stopped", stopped)
    assert served and stopped


def test_marks_go_with_their_files(opened: Any) -> None:
    files = MemoryFiles()
    db = opened(files, **WHOLE)
    table_in(db)
    for _ in range(3):
        update(db)
        db.binlog.rotate()
    update(db)
    assert len(marks_in(db)) == 4
    db.binlog.purge(to=db.binlog.writer.end.file)
    assert marks_in(db) == [f"{db.binlog.writer.end.file}.whole"]
    db.close()
    files = files.kill()
    files.close(files.create("binlog/binlog.000001.whole"))
    db = opened(files, **WHOLE)
    assert "binlog.000001.whole" not in marks_in(db)
    assert messages_of(db)


def test_store_that_logs_updates_as_writes_is_not_served_to_mysql(opened: Any) -> None:
    db = opened()
    table_in(db)
    users = [tm.MysqlUser("repl", b"sixteen bytes or more")]
    with pytest.raises(Rejected, match="table d.t logs updates as writes") as error:
        tm.serve_mysql(db, "127.0.0.1:0", users)
    assert "open the store with log_update_as_write=False, log_updated_only=False" in error.value.message
    assert db.endpoint.servings == [] and db.binlog.pins == {}
