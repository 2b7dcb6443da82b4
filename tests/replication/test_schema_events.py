"""Schema changes as they are replicated: each has a statement, and a site that executes it gets the same definition."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import tidemark as tm
from tests.replication.support import EXTREMES
from tests.store.support import open_memory
from tidemark.engine.base.errors import (
    IndexExists,
    InvariantBroken,
    NoSuchColumn,
    NoSuchTable,
    NoSuchTablespace,
    SchemaInvalid,
    TableExists,
    Unsupported,
)
from tidemark.engine.log.row_changes import SchemaChange
from tidemark.engine.schema.column import ABSENT
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.store.schema_changes import as_new
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.system_restart.replay import definition_in
from tidemark.replication.applier.schema_statements import apply_statement
from tidemark.replication.injector.schema_events import (
    SchemaOperation,
    alteration,
    schema_row,
    statement_of,
    statements_of,
    write_schema_row,
)
from tidemark.replication.settings.system_tables import MADE_BY_NAME, make
from tidemark.replication.sql.parse import parse

# NaN, and a value of each type that text must not lose.
# The log has whole definitions: no defaults of 70,000 characters.
DEFAULTS = [
    (kind, value[:99] if kind.is_lob and isinstance(value, (str, bytes)) else value)
    for kind, values in EXTREMES.items()
    for value in (values[0], values[-1])
]
DEFAULTS += [(tm.Float64, float("nan")), (tm.VarChar(60), "/* tidemark */ '*/ \\"), (tm.Text, "*/ /* tidemark x */")]


Logged = partial(SchemaChange, txid=0)


class Recorder:
    """Records every schema change of a store, in the order of its log."""

    def __init__(self, db: tm.Database) -> None:
        self.changes: list[SchemaChange] = []
        self._known: dict[int, TableDefinition] = {}
        store = db.parts.store
        logged = store.schema.log

        def log_schema(change: dict[str, Any], *more: Any) -> None:
            logged(change, *more)
            authors = [author for author in store.schema.authors.values() if author]
            self.changes.append(self._followed({**change, "author": authors[0]} if authors else change))

        store.schema.log = log_schema  # type: ignore[method-assign]

    def _followed(self, change: dict[str, Any]) -> SchemaChange:
        if "drop" in change:
            return Logged(change, self._known.pop(change["drop"]), None)
        if not {"create", "alter"} & set(change):
            return Logged(change, None, None)
        after = definition_in(change)
        before = self._known.get(after.table_id)
        self._known[after.table_id] = after
        return Logged(change, before, after)


def said(definition: TableDefinition) -> Any:
    """Return everything in which two sites with the same table agree."""
    names = sorted((index.name, index.columns, index.is_unique, index.is_ordered) for index in definition.indexes)
    return as_new(definition).to_json(), names


def definitions(db: tm.Database) -> dict[str, Any]:
    return {name: said(db[name].definition) for name in db.tables()}


@contextmanager
def two_sites() -> Iterator[tuple[tm.Database, Recorder, tm.Database]]:
    roomy = {"redo_log": "32 MiB"}
    with open_memory(MemoryFiles(), **roomy) as source, open_memory(MemoryFiles(), **roomy) as replica:
        yield source, Recorder(source), replica


def replicate(recorder: Recorder, replica: tm.Database) -> list[str]:
    """Execute all changes, each statement twice: a crash may come before its position is durable."""
    texts = []
    for logged in recorder.changes:
        for database, text in statements_of(logged):
            apply_statement(replica.parts.store, database, text)
            assert apply_statement(replica.parts.store, database, text) == 0, text
            texts.append(text)
    recorder.changes.clear()
    return texts


def base_columns() -> list[tm.Column]:
    return [tm.Column("id", tm.Int64), tm.Column("part", tm.Int32), tm.Column("name", tm.VarChar(20), nullable=True)]


SEEN = tm.Column("it's * \\", tm.Timestamp, nullable=True)
NARROW = tm.Column("n", tm.Int32, default=3)
CHANGES: list[tuple[str, Callable[[tm.Database], Any]]] = [
    ("drop", lambda db: db.drop_table("d.t")),
    ("rename", lambda db: db.rename("d.t", "e.`u")),
    ("add", lambda db: db.add_column("d.t", tm.Column("c d", tm.Timestamp, nullable=True))),
    ("add text", lambda db: db.add_column("d.t", tm.Column("c", tm.Text, default="it's */ \\ /* new"))),
    ("add enum", lambda db: db.add_column("d.t", tm.Column("c", tm.Enum("a", "*/'"), default="*/'"))),
    ("drop column", lambda db: db.drop_column("d.t", "name")),
    ("rename column", lambda db: db.rename_column("d.t", "part", "piece")),
    ("widen", lambda db: db.widen_column("d.t", "name", tm.VarChar(90))),
    ("widen to text", lambda db: db.widen_column("d.t", "name", tm.Text)),
    ("widen with other bytes", lambda db: (db.add_column("d.t", NARROW), db.widen_column("d.t", "n", tm.Int64))),
    (
        "widen with indexes",
        lambda db: (
            db.create_index("d.t", "one_name", ["name", "part"], unique=True, ordered=True),
            db.widen_column("d.t", "name", tm.VarChar(90)),
            db.add_column("d.t", NARROW),
            db.create_index("d.t", "by_n", "n"),
            db.widen_column("d.t", "n", tm.Int64, nullable=True),
        ),
    ),
    ("null too", lambda db: (db.add_column("d.t", NARROW), db.widen_column("d.t", "n", tm.Int32, nullable=True))),
    ("default", lambda db: db.set_default("d.t", "name", "it's")),
    ("default null", lambda db: db.set_default("d.t", "name", None)),
    ("check", lambda db: db.add_check("d.t", "it's *", tm.col("name") != "/* '\\ */")),
    ("drop check", lambda db: (db.add_check("d.t", "c", tm.col("part") > 0), db.drop_check("d.t", "c"))),
    ("expiry", lambda db: (db.add_column("d.t", SEEN), db.set_expiry("d.t", "it's * \\ + 5 min"))),
    ("no expiry", lambda db: (db.add_column("d.t", SEEN), *(db.set_expiry("d.t", each) for each in (SEEN.name, None)))),
    ("index", lambda db: db.create_index("d.t", "by_name", ["name", "part"])),
    ("unique", lambda db: db.create_index("d.t", "one_name", "name", unique=True)),
    ("unique, ordered", lambda db: db.create_index("d.t", "one_name", "name", unique=True, ordered=True)),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[name for name, _ in CHANGES])
def test_change_travels_and_arrives_the_same(name: str, change: Callable[[tm.Database], Any]) -> None:
    with two_sites() as (source, recorder, replica):
        partition = tm.RangePartition("part", [("p", 10), ("q", tm.MAXVALUE)])
        source.create_table("d.t", base_columns(), ["id", "part"], partition)
        replicate(recorder, replica)
        change(source)
        assert len(replicate(recorder, replica)) >= 1
        assert definitions(replica) == definitions(source)


def test_columns_of_every_type_and_default_arrive_the_same() -> None:
    with two_sites() as (source, recorder, replica):
        for number, (kind, value) in enumerate(DEFAULTS):
            name = f"main.t{number}"
            source.create_table(name, [tm.Column("id", tm.Int64), tm.Column("c", kind, default=value)], "id")
            source.add_column(name, tm.Column("d", kind, default=value))
            source.add_column(name, tm.Column("e", kind, nullable=True))
            source.set_default(name, "e", value)
            source.set_default(name, "e")
            source.set_default(name, "e", value)
            replicate(recorder, replica)
            assert said(replica[name].definition) == said(source[name].definition), (kind, value)
            source.drop_table(name)


PARTITIONS = [
    tm.HashPartition(3),
    tm.HashPartition(2, columns="part"),
    tm.HashPartition(2, modulo="part"),
    tm.LinearHash(4, modulo="id"),
    tm.KeyPartition(5, "part", linear=True),
    tm.KeyPartition(2),
    tm.RangePartition(["part", "id"], [("p", (1, 5)), ("q", (2, tm.MAXVALUE))]),
    tm.ListPartition("part", {"p": [1, -2], "q": [3]}),
    tm.ListPartition(["part", "id"], {"p": [(1, 2), (0, 4)], "q": [(3, 3)]}),
]


@pytest.mark.parametrize("partition", PARTITIONS, ids=repr)
def test_partitions_of_every_kind_arrive_the_same_and_so_do_their_changes(partition: Any) -> None:
    with two_sites() as (source, recorder, replica):
        source.create_table("t", base_columns(), ["id", "part"], partition)
        if isinstance(partition, tm.RangePartition):
            source.add_partition("t", "r", (9, 9))
            source.drop_partition("t", "p")
        if isinstance(partition, tm.ListPartition):
            source.add_partition("t", "r", [9, 8] if len(partition.columns) == 1 else [(9, 9), (8, 8)])
            source.drop_partition("t", "p")
        # A server cannot have both this index and the partitions: from here on it keeps the table unpartitioned.
        source.create_index("t", "one", "name", unique=True)
        if isinstance(partition, (tm.RangePartition, tm.ListPartition)):
            many = len(partition.columns) > 1
            bound: Any = (20, 20) if many else 20
            source.add_partition("t", "s", bound if isinstance(partition, tm.RangePartition) else [bound])
        source.rename_column("t", "part", "piece")
        source.drop_index("t", "one")
        replicate(recorder, replica)
        assert definitions(replica) == definitions(source)


def test_disk_columns_and_tables_with_a_history_arrive_as_new_ones() -> None:
    with two_sites() as (source, recorder, replica):
        source.create_tablespace("main", size="256 KiB", page_size="4 KiB", extent="64 KiB")
        source.create_table("t", [*base_columns(), tm.Column("d", tm.Text, storage="disk")], "id")
        assert [statements_of(each) for each in recorder.changes][0] == ()
        replicate(recorder, replica)
        assert definitions(replica) == definitions(source)
        assert replica["t"].definition.tablespace == "main"
        source.add_column("t", tm.Column("e", tm.Int8, default=3))
        source.drop_column("t", "name")
        late = source["t"].definition
        recorder.changes = [Logged({"create": {}}, None, replace(late, name="main.copy"))]
        replicate(recorder, replica)
        copy = replica["copy"].definition
        assert said(copy)[1] == [] and copy.version == 1 and copy.dropped == ()
        assert [column.added for column in copy.columns] == [0] * len(copy.columns)


def test_random_history_arrives_the_same_also_when_every_statement_comes_twice() -> None:
    seed = 20_261_123
    print("seed", seed)
    draw = random.Random(seed)
    with two_sites() as (source, recorder, replica):
        for number in range(120):
            names = source.tables()
            table = draw.choice(names) if names else None
            act = draw.randrange(11)
            try:
                if table is None or act == 0:
                    partition = draw.choice(PARTITIONS)
                    source.create_table(f"d{number % 3}.t{number}", base_columns(), ["id", "part"], partition)
                elif act == 1 and len(names) > 3:
                    source.drop_table(table)
                elif act == 2:
                    source.rename(table, f"d{draw.randrange(3)}.r{number}")
                elif act in (3, 4):
                    kind, value = draw.choice(DEFAULTS)
                    source.add_column(table, tm.Column(f"c{number}", kind, default=value))
                elif act == 5:
                    source.drop_column(table, draw.choice(source[table].definition.columns).name)
                elif act == 6:
                    column = draw.choice(source[table].definition.columns).name
                    source.rename_column(table, column, f"n{number}")
                elif act == 7:
                    column = draw.choice(source[table].definition.columns)
                    source.set_default(table, column.name, draw.choice([ABSENT, None, "x", 1]))
                elif act == 8:
                    column = draw.choice(source[table].definition.columns)
                    chosen = draw.random() < 0.5, draw.random() < 0.5
                    source.create_index(table, f"i{number}", column.name, chosen[0], ordered=chosen[1])
                elif act == 9 and source[table].definition.indexes:
                    source.drop_index(table, draw.choice(source[table].definition.indexes).name)
                else:
                    source.add_partition(table, f"p{number}", draw.choice([number + 100, [number + 100]]))
            except tm.Rejected:
                continue
            for logged in recorder.changes:
                if logged.before is not None and logged.after is not None and statement_of(logged) is not None:
                    assert alteration(logged.before, logged.after).table == logged.before.name
            replicate(recorder, replica)
            assert definitions(replica) == definitions(source), number


# --- what is sent -----------------------------------------------------------------------------------
def test_what_is_a_sites_own_does_not_travel() -> None:
    with two_sites() as (source, recorder, _):
        for name in MADE_BY_NAME:
            make(source.parts.store, name)
        source.create_replication_table()
        source.create_table("mysql.own", base_columns(), "id")
        source.create_tablespace("ts", size="256 KiB", page_size="4 KiB", extent="64 KiB")
        source.add_datafile("ts", "256 KiB")
        source.drop_tablespace("ts")
        assert len(recorder.changes) == 10
        assert [statements_of(each) for each in recorder.changes] == [()] * 10
        recorder.changes.clear()
        source.rename("mysql.own", "d.shared")
        source.rename("d.shared", "mysql.own")
        first, second = (statement_of(each) for each in recorder.changes)
        assert first is not None and first.operation == SchemaOperation.CREATE_TABLE
        assert second is not None and second.text == "DROP TABLE `d`.`shared`"


def test_statement_comes_with_the_database_it_needs_and_the_site_that_made_the_change() -> None:
    with two_sites() as (source, recorder, replica):
        source.create_table("shop.t", base_columns(), "id")
        source.rename("shop.t", "shop.u")
        source.rename("shop.u", "store.u")
        pairs = [statements_of(each) for each in recorder.changes]
        assert pairs[0][0] == ("", "CREATE DATABASE IF NOT EXISTS `shop`")
        assert [len(each) for each in pairs] == [2, 1, 2]
        assert pairs[2] == (
            ("", "CREATE DATABASE IF NOT EXISTS `store`"),
            ("shop", "ALTER TABLE `shop`.`u` RENAME TO `store`.`u`"),
        )
        echo = Recorder(replica)
        for database, text in pairs[0]:
            apply_statement(replica.parts.store, database, text, author=7)
        (logged,) = echo.changes
        made = statement_of(logged)
        assert made is not None and made.author == 7
        assert statements_of(logged) == () and len(statements_of(logged, log_replica_updates=True)) == 2
        replica.create_table("shop.own", base_columns(), "id")
        assert len(statements_of(echo.changes[-1])) == 2, "made here, whatever was applied before"


def test_author_of_a_schema_change_survives_a_restart_in_the_log() -> None:
    files = MemoryFiles()
    with open_memory(files) as db:
        apply_statement(db.parts.store, "d", "create table t (id int primary key)", author=300)
        assert db.parts.store.schema.authors == {}
    with open_memory(MemoryFiles(files.disk)) as db:
        assert db.tables() == ["d.t"] and db.check()["is_sound"]


def test_record_without_a_known_statement_is_no_silent_gap() -> None:
    definition = TableDefinition(3, 1, "d.t", tuple(base_columns()), ("id",))
    with pytest.raises(InvariantBroken, match="report this"):
        statement_of(Logged({"alter": {}}, definition, replace(definition, version=2, primary_key=("part",))))
    assert statement_of(Logged({"alter": {}}, definition, replace(definition, version=2))) is None


# --- what arrives -----------------------------------------------------------------------------------
@contextmanager
def site(*statements: str) -> Iterator[tm.Database]:
    with open_memory(MemoryFiles()) as db:
        for text in statements:
            apply_statement(db.parts.store, "d", text)
        yield db


TABLE = "create table t (id int, a varchar(9), primary key (id), key by_a (a))"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("create table t (id int, a varchar(10), primary key (id))", TableExists),
        ("create table t (id int, a varchar(9), primary key (id, a))", TableExists),
        ("alter table t add a varchar(8)", SchemaInvalid),
        ("alter table t add index by_a (id)", IndexExists),
        ("alter table t modify a int", SchemaInvalid),
        ("alter table t modify a varchar(9) not null", Unsupported),
        ("alter table t modify id double not null", SchemaInvalid),
        ("alter table t add partition (partition p values less than (5))", Unsupported),
        ("alter table t add (x int)", Unsupported),
        ("alter table u drop a", NoSuchTable),
        ("alter table u rename to v", NoSuchTable),
        ("alter table t rename column x to y", NoSuchColumn),
        ("alter table t rename to mysql.t", Unsupported),
        ("rename table t to v, u to t, v to u", Unsupported),
        ("create unique index one on t (nothing)", NoSuchColumn),
        ("alter table t order by id", Unsupported),
    ],
)
def test_what_differs_or_is_not_understood_stops_and_leaves_nothing(text: str, error: type[tm.Error]) -> None:
    with site(TABLE) as db:
        before = definitions(db)
        with pytest.raises(error) as caught:
            apply_statement(db.parts.store, "d", text)
        assert definitions(db) == before and "\n" not in caught.value.message
        assert db.parts.store.schema.authors == {}


@pytest.mark.parametrize(
    "text",
    [
        "create table if not exists t (id bigint primary key)",
        "drop table if exists nobody",
        "drop table nobody",
        "alter table t drop column nothing",
        "alter table t drop index nothing",
        "alter table t modify a varchar(5)",  # the column takes more already
        "create database x",
        "drop table mysql.ndb_apply_status",
        "create table mysql.anything (id int primary key)",
    ],
)
def test_what_is_present_already_or_irrelevant_is_skipped(text: str) -> None:
    with site(TABLE) as db:
        before = definitions(db)
        assert apply_statement(db.parts.store, "d", text) == 0
        assert definitions(db) == before and "mysql.anything" not in db


def test_create_that_was_interrupted_before_its_indexes_gets_them_when_it_comes_again() -> None:
    with site("create table t (id int, a varchar(9), primary key (id))") as db:
        db["d.t"].insert((1, "x"))
        assert apply_statement(db.parts.store, "d", TABLE) == 1
        assert [index["name"] for index in db.indexes("d.t")] == ["by_a"]
        assert apply_statement(db.parts.store, "d", TABLE) == 0


def test_statement_of_many_changes_continues_where_it_was_interrupted() -> None:
    text = "alter table t add b int default 3, rename to u, add index by_b (b)"
    with site(TABLE, "alter table t add b int default 3, rename to u") as db:
        assert apply_statement(db.parts.store, "d", text) == 1
        assert [index["name"] for index in db.indexes("d.u")] == ["by_a", "by_b"]
        assert apply_statement(db.parts.store, "d", text) == 0


def test_table_for_a_tablespace_that_is_not_here_says_what_to_do() -> None:
    with two_sites() as (source, recorder, replica):
        source.create_tablespace("fast", size="256 KiB", page_size="4 KiB", extent="64 KiB")
        column = tm.Column("d", tm.Int64, storage="disk")
        source.create_table("t", [tm.Column("id", tm.Int64), column], "id", tablespace="fast")
        with pytest.raises(NoSuchTablespace, match="make it here"):
            replicate(recorder, replica)
        assert replica.tables() == []


# --- mysql.ndb_schema -------------------------------------------------------------------------------
def test_city_of_the_manual_is_the_row_of_a_change_every_site_has_received() -> None:
    with open_memory(MemoryFiles()) as db:
        recorder = Recorder(db)
        db.create_table("ndbworld.City", base_columns(), "id")
        made = statement_of(recorder.changes[0])
        assert made is not None
        made = replace(made, text="alter table City engine=ndb", operation=SchemaOperation.ALTER_TABLE)
        row = schema_row(made, epoch=77, node_id=4)
        assert (row.epoch, row.id, row.version, row.type) == (77, 1, 1, 3)
        # As a cluster shows it after every server has acknowledged the change.
        write_schema_row(db.parts.store, replace(row, epoch=0, id=0, version=0, type=7))
        (found,) = db["mysql.ndb_schema"].scan(where=tm.col("name") == b"City")
        assert found == (b"ndbworld", b"City", bytes(32), b"alter table City engine=ndb", 4, 0, 0, 0, 7)


def test_newest_change_of_a_table_replaces_the_row_of_the_one_before() -> None:
    with open_memory(MemoryFiles()) as db:
        recorder = Recorder(db)
        db.create_table("d.t", base_columns(), "id")
        db.add_column("d.t", tm.Column("x", tm.Int8, nullable=True))
        db.rename("d.t", "d.u")
        db.create_table("d." + "ü" * 40, base_columns(), "id")
        for epoch, logged in enumerate(list(recorder.changes)):
            made = statement_of(logged)
            if made is not None:
                write_schema_row(db.parts.store, schema_row(made, epoch, 1))  # the fourth name has more than 63 bytes
        (row,) = db["mysql.ndb_schema"].scan()
        assert (row.db, row.name, row.epoch, row.version, row.type) == (b"d", b"t", 2, 3, 10)
        assert [each.__class__.__name__ for each in parse(row.query.decode(), "d")] == ["RenameTable"]
