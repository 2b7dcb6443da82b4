"""Our files read by other tools: mysqlbinlog, servers of MariaDB and MySQL, and mysql-replication."""

from __future__ import annotations

import datetime
import decimal
import json
import struct
import uuid

import pytest

from tests.replication.mariadb_rig import mysqlbinlog
from tests.replication.mysql_rig import SERVERS, MySqlServer
from tests.replication.offline_reader import events_of
from tests.replication.site import WHOLE, open_site
from tests.replication.stage import batch_of, status_of, writer_on
from tests.replication.support import every_type, extreme_rows
from tidemark.engine import types as t
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.images import BinlogOptions
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import ParsedMaps, StatementMaps, present
from tidemark.replication.binlog.row_plan import BodyReader, TablePlans
from tidemark.replication.binlog.scan import read_format
from tidemark.replication.binlog.table_map import table_map
from tidemark.replication.sql.column_types import to_sql

# The statement of the manual, "NDB Cluster Replication Schema and Tables", word for word; a server without this engine
# takes its default one.
STATUS_TABLE_SQL = """\
CREATE TABLE `ndb_apply_status` (
    `server_id`   INT(10) UNSIGNED NOT NULL,
    `epoch`       BIGINT(20) UNSIGNED NOT NULL,
    `log_name`    VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_bin NOT NULL,
    `start_pos`   BIGINT(20) UNSIGNED NOT NULL,
    `end_pos`     BIGINT(20) UNSIGNED NOT NULL,
    PRIMARY KEY (`server_id`) USING HASH
) ENGINE=NDBCLUSTER   DEFAULT CHARSET=latin1;
"""
STATUS_SQL = f"USE mysql; DROP TABLE IF EXISTS ndb_apply_status; {STATUS_TABLE_SQL}"


def plans_of(name):
    return TablePlans(RowFormat(every_type(name=name)))


def create_sql(definition):
    columns = ", ".join(
        f"`{column.name}` {to_sql(column.type)} {'NULL' if column.nullable else 'NOT NULL'}"
        for column in definition.columns
    )
    return f"CREATE TABLE {definition.name} ({columns}, PRIMARY KEY ({', '.join(definition.primary_key)}));\n"


def literal(kind, value):
    """Return a value in SQL."""
    if value is None:
        return "NULL"
    if isinstance(kind, (t.Char, t.VarChar)) or kind == t.Text or isinstance(kind, t.Enum):
        return f"CONVERT(x'{value.encode().hex()}' USING utf8mb4)"
    if kind == t.JSON:
        octets = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
        return f"CONVERT(x'{octets.hex()}' USING utf8mb4)"
    if isinstance(value, uuid.UUID):
        return f"x'{value.hex}'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float):
        return f"{value!r}e0" if "e" not in repr(value) else repr(value)
    if isinstance(value, datetime.datetime):
        return f"'{value.replace(tzinfo=None).isoformat(sep=' ')}'"
    if isinstance(value, (datetime.date, datetime.time)):
        return f"'{value.isoformat()}'"
    return f"{value:f}" if isinstance(value, decimal.Decimal) else str(value)


def sql_rows():
    """Return rows of every type that SQL can express: it has no zero with a sign."""
    return [tuple(0.0 if str(value) == "-0.0" else value for value in row) for row in extreme_rows()]


def insert_sql(definition, row):
    values = (literal(column.type, value) for column, value in zip(definition.columns, row, strict=True))
    return f"INSERT INTO {definition.name} VALUES ({', '.join(values)});\n"


def changed_rows(rows):
    """Return rows for updates: every second column takes the value of the next row."""
    return [
        (
            row[0],
            *(
                other if place % 2 else value
                for place, (value, other) in enumerate(zip(row[1:], after[1:], strict=True))
            ),
        )
        for row, after in zip(rows, [*rows[1:], rows[0]], strict=True)
    ]


def write_history(plans, binlog_type, statements=(), rows=None):
    """Write inserts, updates and deletes of rows of every type; return the files and the final rows."""
    files = MemoryFiles()
    writer = writer_on(files, file_bytes=600_000, images=BinlogOptions(transaction_id=True))
    for text in statements:
        writer.statement(text, "d")
    rows = extreme_rows() if rows is None else rows
    count = len(rows)
    ids = list(range(100, 100 + count))
    writer.begin([plans], status_of(1))
    writer.append(batch_of(plans, e.WRITE, new=rows, binlog_type=binlog_type, transaction_ids=ids))
    writer.commit()
    after = changed_rows(rows)
    writer.begin([plans], status_of(2))
    writer.append(
        batch_of(
            plans,
            e.UPDATE,
            old=rows,
            new=after,
            binlog_type=binlog_type,
            conflict_flags=[number % 2 * 4 for number in range(count)],
        )
    )
    writer.append(batch_of(plans, e.DELETE, old=after[-2:], binlog_type=binlog_type))
    writer.commit()
    writer.close()
    return files, rows, after


def contents(files, writer_names=None):
    return {name: content for name, content in files.snapshot().items() if name[-1].isdigit()}


def save(files, folder):
    paths = []
    for name, content in sorted(contents(files).items()):
        path = folder / name.rpartition("/")[2]
        path.write_bytes(content)
        paths.append(path)
    return paths


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with SERVERS[request.param]() as running:
        running.sql("CREATE DATABASE d; " + STATUS_SQL)
        yield running


def test_mysqlbinlog_reads_every_event_with_its_checksum_and_values(tmp_path):
    plans = plans_of("d.every")
    files, rows, _ = write_history(plans, 7, ["CREATE TABLE d.ü (a INT)"])
    paths = save(files, tmp_path)
    assert len(paths) > 1
    said = "".join(
        mysqlbinlog("--verify-binlog-checksum", "-vv", "--base64-output=DECODE-ROWS", path) for path in paths
    )
    assert said.count("### INSERT INTO `d`.`every`") == len(rows)
    assert said.count("### UPDATE `d`.`every`") == len(rows)
    assert said.count("### DELETE FROM `d`.`every`") == 2
    assert said.count("### INSERT INTO `mysql`.`ndb_apply_status`") == 2
    assert said.count("COMMIT") >= 2 and "CREATE TABLE d.ü (a INT)" in said
    assert "Extra row data format: 0" in said or "Extra row ndb info" in said
    for text in (
        "-99999999.99 /* DECIMAL(10,2) meta=2562",
        "'9999-12-31 23:59:59.999999' /* DATETIME(6) meta=6",
        "'0001:01:01' /* DATE",
        "'12:34:56.000789' /* TIME(6) meta=6",
        "-9223372036854775808 (9223372036854775808) /* LONGINT",
        "=255 /* ENUM(1 byte)",
        "=300 /* ENUM(2 bytes)",
        "VARSTRING(256) meta=256",
        "/* STRING(1020) meta=",
    ):
        assert text in said, text


def test_mysqlbinlog_finds_a_flipped_bit(tmp_path):
    files, _, _ = write_history(plans_of("d.every"), 7)
    path = save(files, tmp_path)[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(AssertionError):
        mysqlbinlog("--verify-binlog-checksum", path)


TEXTS = (t.Char, t.VarChar, t.LongText, t.Enum, t.Document)


def library_value(kind, value):
    """Return a value as mysql-replication gives it."""
    if value is None:
        return None
    if isinstance(kind, t.Binary):
        return value.rstrip(b"\0")
    if kind == t.UUID:
        return value.bytes.rstrip(b"\0")
    if kind == t.JSON:
        return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if isinstance(kind, t.Boolean):
        return int(value)
    if isinstance(kind, t.Floating) and kind.bits == 32:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if kind == t.Time:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return datetime.timedelta(seconds=seconds, microseconds=value.microsecond)
    if kind == t.Timestamp:
        return value.replace(tzinfo=None)
    return value


def library_row(columns, row):
    """Return a row as mysql-replication gives it, once its bytes are bytes."""
    return {column.name: library_value(column.type, value) for column, value in zip(columns, row, strict=True)}


def as_library_gives(columns, values):
    """Return the values of an event by column, with bytes where the library gives them as text."""
    kinds = {column.name: column.type for column in columns}
    return {
        name: value.encode() if isinstance(value, str) and not isinstance(kinds[name], TEXTS) else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("binlog_type", [7, 6, 2])
def test_mysql_replication_reads_the_same_values(binlog_type):
    plans = plans_of("d.every")
    columns = plans.definition.columns
    files, rows, after = write_history(plans, binlog_type)
    found = {"WriteRowsEvent": [], "UpdateRowsEvent": [], "DeleteRowsEvent": []}
    epochs = []
    for content in (content for _, content in sorted(contents(files).items())):
        for event in events_of(content):
            name = type(event).__name__
            if name in found and event.table == "every":
                found[name] += event.rows
            elif name == "WriteRowsEvent":
                epochs += [row["values"]["epoch"] for row in event.rows]
    assert epochs == [1, 2]
    inserted = [as_library_gives(columns, row["values"]) for row in found["WriteRowsEvent"][: len(rows)]]
    assert inserted == [library_row(columns, row) for row in rows]
    if binlog_type == 7:
        updates = [
            tuple(as_library_gives(columns, row[f"{side}_values"]) for side in ("before", "after"))
            for row in found["UpdateRowsEvent"]
        ]
        assert updates == [
            (library_row(columns, old), library_row(columns, new)) for old, new in zip(rows, after, strict=True)
        ]
        deleted = [as_library_gives(columns, row["values"]) for row in found["DeleteRowsEvent"]]
        assert deleted == [library_row(columns, row) for row in after[-2:]]


def rows_events(files, name, table):
    """Return (kind, body) of the row events of a table in a file, read like our own files."""
    from tidemark.replication.binlog.scan import header_at

    file = files.open(name)
    described, position = read_format(files, file, name)[1:]
    maps, parsed = StatementMaps(), ParsedMaps()
    parsed.is_mariadb = b"MariaDB" in described.server_version
    found = []
    end = files.size(file)
    while position < end:
        header = header_at(files, file, name, position, end)
        origin = Position(name, position)
        raw = files.pread(file, position, header.event_bytes)
        event = parsed.parse(header, raw, origin, described.checksum == b.CHECKSUM_CRC32)
        maps.observe(event)
        if isinstance(event, e.Rows) and maps.of(event, origin).name == table:
            found.append((event, maps.of(event, origin), maps))
        position += header.event_bytes
    return found


def server_rows(server, table):
    """Return the row events of a table in the server's own binlog, from the last FLUSH LOGS on."""
    server.sql("FLUSH BINARY LOGS")
    path = server.binlogs()[-2]
    files = MemoryFiles.from_snapshot({"master.1": path.read_bytes()})
    return rows_events(files, "master.1", table)


def test_row_bodies_and_table_map_are_the_server_s_byte_by_byte(server):
    definition = every_type(name="d.bodies")
    plans = TablePlans(RowFormat(definition))
    rows = sql_rows()
    server.sql(create_sql(definition) + "FLUSH BINARY LOGS;")
    server.sql("".join(insert_sql(definition, row) for row in rows))
    theirs = server_rows(server, "d.bodies")
    files, _, _ = write_history(plans, 7, rows=rows)
    ours = [
        event
        for name in sorted(contents(files))
        for event, _, _ in rows_events(files, name, "d.bodies")
        if event.kind == e.WRITE
    ]
    bodies = [b"".join(bytes(event.body) for event in events) for events in (ours, [each for each, _, _ in theirs])]
    if isinstance(server, MySqlServer):  # MySQL leaves the unused bits of the NULL bitmap 0, MariaDB and we set them
        reader = BodyReader([column.type for column in theirs[0][1].columns], (), range(len(definition.columns)))
        columns = [list(reader.chunks(body, Position("master.1", 0))) for body in bodies]
        assert len(bodies[0]) == len(bodies[1]) and columns[0][0].after == columns[1][0].after
    else:
        assert bodies[0] == bodies[1]
    assert {present(event) for event in ours} == {present(event) for event, _, _ in theirs}
    their_map, our_map = theirs[0][1], table_map(definition, theirs[0][1].table_id)
    assert our_map.columns == their_map.columns
    assert our_map.primary_key == their_map.primary_key
    assert b"".join(our_map.parts()) == b"".join(their_map.parts())


@pytest.mark.parametrize("binlog_type", [6, 7, 2, 3, 8, 9])
def test_server_fed_with_our_files_ends_with_equal_tables(server, tmp_path, binlog_type):
    table = f"d.fed{binlog_type}"
    plans = plans_of(table)
    definition = plans.definition
    files, _, after = write_history(plans, binlog_type, [create_sql(definition).rstrip(";\n")], sql_rows())
    paths = save(files, tmp_path)
    wanted = every_type(name=f"{table}_wanted")
    server.sql(create_sql(wanted) + "".join(insert_sql(wanted, row) for row in after[:-2]))
    # Updates logged as writes write existing rows; so does the row of ndb_apply_status with each epoch.
    is_idempotent = binlog_type in (2, 3)
    server.sql("DELETE FROM mysql.ndb_apply_status;")
    server.feed(paths, *([] if is_idempotent else ["--database=d"]), is_idempotent=is_idempotent)
    differing = f"SELECT COUNT(*) FROM (SELECT * FROM {table} EXCEPT SELECT * FROM {table}_wanted) x;"
    missing = f"SELECT COUNT(*) FROM (SELECT * FROM {table}_wanted EXCEPT SELECT * FROM {table}) x;"
    assert server.sql(differing + missing + f"SELECT COUNT(*) FROM {table};").split() == ["0", "0", str(len(after) - 2)]
    assert server.sql("SELECT epoch FROM mysql.ndb_apply_status").split() == (["2"] if is_idempotent else [])


def files_of(db, folder):
    """Write the binlog of a store into a folder, and close the store; return the paths."""
    content = db.parts.files.snapshot()
    paths = [folder / name for name in db.binlog.writer.index.names]
    for path in paths:
        path.write_bytes(content[f"binlog/{path.name}"])
    db.close()
    return paths


def fed(server, setup, mode, paths, *only):
    """Feed a server with files after `setup`; return the number of rows in d.t."""
    server.sql(f"DROP TABLE IF EXISTS d.t; {setup}")
    server.feed(paths, *only, is_idempotent=mode == "IDEMPOTENT")
    return int(server.sql("SELECT COUNT(*) FROM d.t"))


def test_server_fed_with_files_takes_them_in_the_ways_that_the_guide_names(server, tmp_path):
    """Story: `log_name` went out as utf8mb4, so that a server with the manual's table stopped with 1677 at the first
    epoch. The tests did not see it, because they had a table of their own.
    """
    db = open_site(**WHOLE)
    table = db.create_table("d.t", [Column("id", t.Int64)], "id")
    for number in range(3):
        table.insert({"id": number})
        epoch = db.sync()
    paths = files_of(db, tmp_path)
    no_table = "DROP TABLE IF EXISTS mysql.ndb_apply_status;"
    assert fed(server, STATUS_SQL, "IDEMPOTENT", paths) == 3
    assert server.sql("SELECT server_id, epoch, log_name FROM mysql.ndb_apply_status") == f"1\t{epoch}\t\n"
    assert fed(server, no_table, "STRICT", paths, "--database=d") == 3
    assert fed(server, no_table, "IDEMPOTENT", paths, "--database=d") == 3
    with pytest.raises(AssertionError, match=r"1062 .*Duplicate entry '1' for key '(ndb_apply_status.)?PRIMARY'"):
        fed(server, STATUS_SQL, "STRICT", paths)
    assert server.sql("SELECT COUNT(*) FROM d.t") == "0\n"  # the first epoch is that of the statement
    with pytest.raises(AssertionError, match=r"1146 .*Table 'mysql.ndb_apply_status' doesn't exist"):
        fed(server, no_table, "IDEMPOTENT", paths)
    server.sql(STATUS_SQL)


def test_server_fed_with_files_of_the_default_options_needs_idempotent(server, tmp_path):
    db = open_site()
    table = db.create_table("d.t", [Column("id", t.Int64), Column("a", t.Int64), Column("b", t.Int64)], "id")
    table.insert((1, 2, 3))
    db.sync()
    table.update(1, {"a": 20})
    db.sync()
    paths = files_of(db, tmp_path)
    for setup, only in ((STATUS_SQL, ()), ("DROP TABLE IF EXISTS mysql.ndb_apply_status;", ("--database=d",))):
        assert fed(server, setup, "IDEMPOTENT", paths, *only) == 1
        assert server.sql("SELECT * FROM d.t") == "1\t20\t3\n"
    with pytest.raises(AssertionError, match=r"1062 .*Duplicate entry '1' for key '(t.)?PRIMARY'"):
        fed(server, "", "STRICT", paths, "--database=d")
    server.sql(STATUS_SQL)


def test_server_s_own_file_is_read_with_types_the_store_has_no_twin_of(server):
    """Story: a file of MySQL with a POINT next to texts of several character sets was called damaged: unlike MariaDB,
    MySQL gives no character set for the POINT.
    """
    server.sql(
        "FLUSH BINARY LOGS; CREATE TABLE d.foreign_types (id INT PRIMARY KEY, m MEDIUMINT, u MEDIUMINT UNSIGNED,"
        " y YEAR, b BIT(11), s SET('x','y','z') CHARACTER SET utf8mb4, ts TIMESTAMP(3) NULL, t2 TIME(2),"
        " d1 DATETIME(1), g POINT, c3 CHAR(9) CHARACTER SET utf8mb3, e ENUM('a','b') CHARACTER SET utf8mb4,"
        " tt TINYTEXT CHARACTER SET utf8mb4, lat VARCHAR(5) CHARACTER SET latin1);"
        "SET time_zone='+00:00'; INSERT INTO d.foreign_types VALUES (1, -8388608, 16777215, 2155, b'10000000001',"
        " 'x,z', '2038-01-19 03:14:07.999', '23:59:59.99', '2024-02-29 00:00:00.1', POINT(1, 2), 'äöü', 'b',"
        " 'tiny', 'x'), (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    ((event, found, _),) = server_rows(server, "d.foreign_types")
    types = [column.type for column in found.columns]
    reader = BodyReader(types, (), range(len(types)), wanted=frozenset(range(len(types) - 1)))
    (chunk,) = reader.chunks(event.body, Position("master.1", 0))
    values = {found.columns[place].name: array.to_pylist() for place, array in chunk.after.items()}
    point = values.pop("g")
    assert point[0][4:5] == b"\1" and point[0][-16:] == struct.pack("<dd", 1, 2)
    assert values == {
        "id": [1, 2],
        "m": [-8388608, None],
        "u": [16777215, None],
        "y": [2155, None],
        "b": [0b10000000001, None],
        "s": [0b101, None],
        "ts": [datetime.datetime(2038, 1, 19, 3, 14, 7, 999_000, datetime.UTC), None],
        "t2": [datetime.time(23, 59, 59, 990_000), None],
        "d1": [datetime.datetime(2024, 2, 29, 0, 0, 0, 100_000), None],
        "c3": ["äöü", None],
        "e": ["b", None],
        "tt": ["tiny", None],
    }
    assert found.columns[5].type.members == ("x", "y", "z")


def test_position_of_files_for_tools_is_that_of_the_events(tmp_path):
    files, _, _ = write_history(plans_of("d.every"), 7)
    path = save(files, tmp_path)[0]
    start = Position(path.name, 4)
    said = mysqlbinlog("--base64-output=DECODE-ROWS", path)
    places = [int(line.split()[2]) for line in said.splitlines() if line.startswith("# at ")]
    from tidemark.replication.binlog.reader import BinlogReader

    reader = BinlogReader(files, start=start)
    ours = [read.at.position for read in reader.events(Position(path.name, files.size(f"binlog/{path.name}")))]
    assert places == ours
