"""Statements of schema changes in a real MariaDB and a real MySQL, which then have the tables that they define."""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.replication.mariadb_rig import Server
from tests.replication.mysql_rig import SERVERS
from tests.replication.support import EXTREMES
from tests.replication.test_schema_events import PARTITIONS, Recorder, base_columns
from tests.store.support import open_memory
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.schema.column import ABSENT, Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog.writer import BinlogWriter
from tidemark.replication.injector.schema_events import statements_of
from tidemark.replication.sql.emit import table_name
from tidemark.replication.sql.parse import parse
from tidemark.replication.sql.statements import CreateTable


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with SERVERS[request.param]() as running:
        yield running


@pytest.fixture
def site() -> Iterator[tuple[tm.Database, Recorder]]:
    with open_memory(MemoryFiles(), redo_log="32 MiB") as db:
        yield db, Recorder(db)


def execute(server: Server, recorder: Recorder, folder: Path) -> None:
    """Execute the changes through a binlog of ours and mysqlbinlog, as a server is fed."""
    folder.mkdir(exist_ok=True)
    files = PosixFiles(folder)
    if not files.exists("binlog"):
        files.make_directory("binlog")
    writer = BinlogWriter(files, ManualClock())
    for logged in recorder.changes:
        for database, text in statements_of(logged):
            writer.statement(text, database)
    writer.close()
    files.close_all()
    recorder.changes.clear()
    newest = sorted((folder / "binlog").glob("binlog.*[0-9]"))[-1]
    server.feed([newest])


def shown(server: Server, name: str) -> TableDefinition:
    """Return a table as the server has it, read by our own parser."""
    text = server.sql(f"SHOW CREATE TABLE {table_name(name)}").split("\t", 1)[1]
    # The batch mode of the client writes it in one line.
    text = re.sub(r"\\(.)", lambda each: {"n": "\n", "t": "\t", "0": "\0"}.get(each[1], each[1]), text)
    (made,) = parse(text, name.partition(".")[0])
    assert isinstance(made, CreateTable)
    return made.definition


def as_server_has(column: Column) -> tuple[Any, ...]:
    """Return a column as the server has it: a Timestamp is a DATETIME, a UUID BINARY(16), JSON a text. A nullable
    column without default has NULL, and LOBs have no default.
    """
    others = {"Timestamp": tm.DateTime, "UUID": tm.Binary(16), "JSON": tm.Text}
    kind = others.get(repr(column.type), column.type)
    default = ABSENT if column.type.is_lob else column.default
    if kind != column.type and default not in (None, ABSENT):
        default = default.bytes if isinstance(default, uuid.UUID) else default.replace(tzinfo=None)
    if default is None:
        default = ABSENT
    return column.name, kind, column.nullable, default


def compare(server: Server, definition: TableDefinition, has_partitions: bool = True) -> None:
    there = shown(server, definition.name)
    assert list(map(as_server_has, there.columns)) == list(map(as_server_has, definition.columns))
    assert there.primary_key == definition.primary_key
    assert sorted(there.indexes, key=repr) == sorted(definition.indexes, key=repr)
    if has_partitions:
        pairs = [getattr(each.partition, "partitions", ()) for each in (there, definition)]
        assert pairs[0] == pairs[1]
        assert there.partition.fragments == definition.partition.fragments


def test_columns_of_every_type_with_defaults(
    server: Server, site: tuple[tm.Database, Recorder], tmp_path: Path
) -> None:
    db, recorder = site
    columns = [tm.Column("id", tm.Int64)]
    for number, (kind, values) in enumerate(EXTREMES.items()):
        # SHOW CREATE TABLE prints raw bytes, six digits of a FLOAT, and no letters outside utf8mb3.
        default = b"z" if isinstance(values[-1], bytes) else "ü'" if isinstance(values[-1], str) else values[-1]
        default = kind.members[-1] if isinstance(kind, tm.Enum) else default
        default = {tm.Float32: 0.5, tm.UUID: uuid.UUID(bytes=b"z" * 16)}.get(kind, default)
        columns.append(tm.Column(f"c{number}", kind, default=default))
    db.create_table("every.type", columns, "id")
    execute(server, recorder, tmp_path)
    compare(server, db["every.type"].definition, has_partitions=False)
    db.create_table("every.added", base_columns(), "id")
    for column in columns[1:20]:
        db.add_column("every.added", column)
        db.add_column("every.added", tm.Column("n" + column.name, column.type, nullable=True))
    for column in columns[1:20]:
        db.set_default("every.added", "n" + column.name, column.default)
        db.set_default("every.added", column.name)
    execute(server, recorder, tmp_path)
    compare(server, db["every.added"].definition, has_partitions=False)


@pytest.mark.parametrize("partition", PARTITIONS, ids=range(len(PARTITIONS)))
def test_every_change_of_tables_partitioned_in_every_way(
    server: Server, site: tuple[tm.Database, Recorder], tmp_path: Path, partition: Any
) -> None:
    db, recorder = site
    has_sql = not (partition.KIND == "hash" and partition.modulo is None)
    name = f"p{PARTITIONS.index(partition)}.`t ü"
    db.create_table(name, base_columns(), ["id", "part"], partition)
    db.create_index(name, "by name", ["name", "part"])
    db.add_column(name, tm.Column("added", tm.Timestamp, nullable=True))
    db.add_column(name, tm.Column("text", tm.Text, default="it's */ here"))
    db.add_column(name, tm.Column("short", tm.VarChar(9), default="x"))
    db.widen_column(name, "short", tm.VarChar(90))
    if isinstance(partition, tm.ListPartition):
        db.add_partition(name, "more", [9, 8] if len(partition.columns) == 1 else [(9, 9), (8, 8)])
        db.drop_partition(name, "p")
    if isinstance(partition, tm.RangePartition):
        db.add_partition(name, "more", (9, tm.MAXVALUE))
        db.drop_partition(name, "p")
    execute(server, recorder, tmp_path)
    compare(server, db[name].definition, has_sql)
    db.rename_column(name, "part", "piece")
    db.rename_column(name, "id", "number")
    execute(server, recorder, tmp_path)
    compare(server, db[name].definition, has_sql)
    # A server cannot have both: while the index exists it keeps the table unpartitioned.
    db.create_index(name, "one", "name", unique=True, ordered=True)
    execute(server, recorder, tmp_path)
    compare(server, db[name].definition, has_partitions=False)
    if isinstance(partition, tm.ListPartition):
        db.add_partition(name, "last", [70] if len(partition.columns) == 1 else [(70, 7)])
    db.drop_index(name, "one")
    db.drop_index(name, "by name")
    db.drop_column(name, "name")
    db.rename(name, "other.t")
    execute(server, recorder, tmp_path)
    compare(server, db["other.t"].definition, has_sql)
    db.drop_table("other.t")
    execute(server, recorder, tmp_path)
    assert server.sql("SHOW TABLES IN other") == ""


def test_rows_that_are_there_get_the_default_of_a_column_that_is_added(
    server: Server, site: tuple[tm.Database, Recorder], tmp_path: Path
) -> None:
    """Story: defaults of LOBs, of infinity and of -0.0 were left out or lost their sign, because a server has no such
    literals. The rows that the server had became '', which is no JSON, and 0, while the store has the defaults.
    """
    db, recorder = site
    db.create_table("old.t", base_columns(), "id")
    execute(server, recorder, tmp_path)
    server.sql("INSERT INTO old.t VALUES (1, 1, 'x')")
    text, octets, document = "it's */ \\ \U0001f40b", bytes(range(256)), {"a": ["it's", None]}
    for name, kind, value in (
        ("a", tm.Text, text),
        ("b", tm.Blob, octets),
        ("c", tm.JSON, document),
        ("d", tm.Float64, -0.0),
    ):
        db.add_column("old.t", tm.Column(name, kind, default=value))
    execute(server, recorder, tmp_path)
    found = server.sql("SELECT HEX(a), HEX(b), HEX(c), ATAN2(d, -1) < 0 FROM old.t").split()
    texts = [text.encode(), octets, b'{"a":["it\'s",null]}']
    # MariaDB has no -0.0 as a default.
    assert found == [*(each.hex().upper() for each in texts), "0" if server.client == "mariadb" else "1"]
    compare(server, db["old.t"].definition)
    for value in (math.inf, math.nan):
        db.add_column("old.t", tm.Column(repr(value), tm.Float64, default=value))
        with pytest.raises(AssertionError, match=rf"1067 .*Invalid default value for '{value!r}'"):
            execute(server, recorder, tmp_path)
        recorder.changes.clear()
