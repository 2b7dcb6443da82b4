"""The binlog that a store writes, read by other tools: mysqlbinlog, and servers of MariaDB and MySQL fed through it."""

from __future__ import annotations

import logging
import random

import pytest

from tests.replication.history import History
from tests.replication.mysql_rig import SERVERS
from tests.replication.site import open_site
from tests.replication.test_stock_tools import STATUS_SQL, files_of

SEED = 77_001
LARGE = {"page_buffer": "512 KiB", "undo_log": "8 MiB", "redo_log": "8 MiB", "max_binlog_size": "16 KiB"}


@pytest.fixture(scope="module", params=SERVERS)
def server(request):
    with SERVERS[request.param]() as found:
        found.sql(STATUS_SQL)
        yield found


@pytest.mark.parametrize("number", [0, 7])
def test_server_fed_with_a_store_s_binlog_ends_with_equal_tables(server, tmp_path, number, caplog):
    """This includes schema statements: the server makes tables, columns and indexes from them."""
    caplog.set_level(logging.CRITICAL)
    print("seed", SEED + number)
    db = open_site(**LARGE, log_apply_status=True)
    db.create_replication_table().insert((b"d", b"%", 0, number, None))
    history = History(db, random.Random(SEED + number), with_disk=True)
    history.run(40)
    db.create_index("d.memory", "by_number", ["number"])
    db.checkpoint()
    history.run(20)
    history.commit()
    db = open_site(db.parts.files.kill(), **LARGE)
    history.db = db
    history.run(20)
    assert len(db.binlog.writer.index.names) > 2
    latest = db.status()["binlog"]["latest_trans_epoch"]
    paths = files_of(db, tmp_path)
    server.mysqlbinlog("--verify-binlog-checksum", "-vv", "--base64-output=DECODE-ROWS", *paths)
    server.sql("DROP DATABASE IF EXISTS d; CREATE DATABASE d; DELETE FROM mysql.ndb_apply_status;")
    server.feed(paths, *(["--database=d"] if number == 7 else []), is_idempotent=number == 0)
    for name, columns in (("d.memory", "id, number, name, text"), ("d.disk", "id, number, comment")):
        said = server.sql(f"SELECT {columns} FROM {name} ORDER BY id")
        rows = [[None if cell == "NULL" else cell for cell in line.split("\t")] for line in said.splitlines()]
        wanted = [
            [None if v is None else str(v) for v in row.values()] for _, row in sorted(history.tables[name].items())
        ]
        assert rows == wanted
    if number == 0:
        (epoch,) = server.sql("SELECT epoch FROM mysql.ndb_apply_status WHERE server_id = 1").split()
        assert int(epoch) == latest
