"""A real MariaDB and faults: resets, silence, kills of either side, passwords, TLS. Skipped without MariaDB."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidemark as tm
from tests.ingest.rig import (
    OPTIONS,
    TABLES,
    USER,
    Source,
    assert_same,
    following,
    make_tables,
    take_in,
)
from tests.waiting import wait_until
from tidemark.replication.ingest.address import Tls
from tidemark.replication.ingest.applier import Applier
from tidemark.replication.ingest.source_position import read_source_position


def test_position_that_the_server_has_purged_is_lost(db: tm.Database, source: Source) -> None:
    make_tables(source, 10)
    take_in(db, source)
    source.sql("FLUSH BINARY LOGS; FLUSH BINARY LOGS;")
    # A purged file stays while the thread of the dead link still has it open; a new file lets that thread notice.
    while "master.000001" in source.sql("SHOW BINARY LOGS"):
        source.sql("FLUSH BINARY LOGS; PURGE BINARY LOGS TO 'master.000003';")
    with pytest.raises(tm.PositionLost):
        take_in(db, source)


def test_binlog_that_was_reset_is_another_one_whatever_its_length(db: tm.Database, source: Source) -> None:
    """Both have files of the same name, and the position is between transactions in both."""
    make_tables(source, 10)
    take_in(db, source)
    found = read_source_position(db.parts.store, "main")
    assert found is not None and found.file_created_s
    source.sql("DO SLEEP(1); DROP TABLE d.a, d.b, e.c; RESET MASTER;")
    make_tables(source, 10)
    end = source.sql("SHOW MASTER STATUS").split("\t")[:2]
    replace(found, file=end[0], position=int(end[1])).save(db.parts.store)
    with pytest.raises(tm.PositionLost, match="was reset"):
        take_in(db, source)
    source.sql("RESET MASTER;")
    with pytest.raises(tm.PositionLost, match="copy anew"):
        take_in(db, source)


def test_password_and_tls_are_asked_for_and_verified(db: tm.Database, source: Source, tmp_path: Path) -> None:
    import trustme

    make_tables(source, 5)
    source.sql(f"ALTER USER {USER}@localhost REQUIRE SSL;")
    with pytest.raises(tm.PeerUnauthenticated) as caught:
        take_in(db, source, source.over_network("wrong", Tls(str(source.authority))))
    assert "\n" not in caught.value.message and "wrong" not in caught.value.message
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    with pytest.raises(tm.PeerUnauthenticated, match="certificate"):
        take_in(db, source, source.over_network(tls=Tls(str(stranger))))
    take_in(db, source, source.over_network(tls=Tls(str(source.authority))))
    assert_same(db, source, *TABLES)


def test_dump_that_the_server_ends_is_begun_again(
    db: tm.Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.replication.ingest.ingest.PAUSE_LONGEST_S", 0.1)
    make_tables(source, 10)
    with following(db, source) as running:
        # Before the first connection an unreachable server is an error, which a busy machine did meet.
        wait_until(lambda: running.status()["state"] == "streaming")
        for number in range(3):
            source.sql(f"INSERT INTO d.a SELECT seq + 1000 * {number + 1}, seq, 'x' FROM seq_1_to_300;")
            wait_for(db, source, running)
            source.sql(
                "SET @id = (SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%' LIMIT 1);"
                "EXECUTE IMMEDIATE CONCAT('KILL ', @id); FLUSH BINARY LOGS; UPDATE d.a SET n = n + 1;"
            )
        wait_for(db, source, running)
        assert running.status()["reconnects"] >= 3
    assert_same(db, source, *TABLES)


def test_full_store_ends_the_ingest_and_a_busy_one_is_tried_again(
    db: tm.Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(source, 10)
    take_in(db, source)
    source.sql("UPDATE d.a SET n = 0;")
    real, errors = Applier.flush, [tm.LockTimeout("row is locked; try again"), tm.MemoryExhausted("full; add some")]

    def flush(self: Applier) -> None:
        if errors and not self.is_idle:
            raise errors.pop(0)
        real(self)

    monkeypatch.setattr(Applier, "flush", flush)
    with pytest.raises(tm.MemoryExhausted):
        take_in(db, source)
    take_in(db, source)
    assert not errors
    assert_same(db, source, *TABLES)


def test_server_that_falls_silent_is_connected_anew(
    db: tm.Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only missing heartbeats show it: nothing ends the connection."""
    monkeypatch.setattr("tidemark.replication.ingest.client.HEARTBEAT_S", 0.5)
    monkeypatch.setattr("tidemark.replication.ingest.client.CONNECT_TIMEOUT_S", 2)
    monkeypatch.setattr("tidemark.replication.ingest.ingest.PAUSE_LONGEST_S", 0.1)
    make_tables(source, 10)
    with following(db, source) as running:
        wait_for(db, source, running)
        source.pause(True)
        try:
            wait_until(lambda: running.status()["reconnects"] > 0)
        finally:
            source.pause(False)
        source.sql("UPDATE d.a SET n = n + 1;")
        wait_for(db, source, running)
    assert_same(db, source, *TABLES)


def test_server_of_these_tests_has_a_temporary_folder_of_its_own(server: Source) -> None:
    """Story: another server that started removed this one's temporary tables from /tmp, and this one died in a
    query.
    """
    assert server.sql("SELECT @@tmpdir;").strip() == str(server.folder)


def test_copy_refuses_tables_that_are_there_and_begins_anew_after_its_own_end(
    db: tm.Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(source, 100)
    db.create_table("d.a", [tm.Column("id", tm.Int32)], "id")
    with pytest.raises(tm.TableExists):
        take_in(db, source)
    db.drop_table("d.a")
    real = type(db).create_table
    monkeypatch.setattr(
        type(db), "create_table", lambda self, name, *a: 1 / 0 if name == "d.b" else real(self, name, *a)
    )
    with pytest.raises(ZeroDivisionError):
        take_in(db, source)
    found = read_source_position(db.parts.store, "main")
    assert found is not None and found.state == "copying" and "d.a" in db
    monkeypatch.undo()
    # A table that was made in the store meanwhile does not belong to the copy.
    source.sql("CREATE TABLE d.mine (id INT PRIMARY KEY);")
    db.create_table("d.mine", [tm.Column("id", tm.Int32)], "id")
    with pytest.raises(tm.TableExists, match=r"d\.mine"):
        take_in(db, source)
    take_in(db, source, tables=["d.a", "d.b", "e.%"])
    assert "d.mine" in db
    assert_same(db, source, *TABLES)


def test_follower_commits_what_comes_and_survives_kills_of_the_server(
    db: tm.Database, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark.replication.ingest.ingest.PAUSE_LONGEST_S", 0.2)
    make_tables(source, 10)
    with following(db, source) as running:
        # Before the first connection an unreachable server is an error, which a busy machine did meet.
        wait_until(lambda: running.status()["state"] == "streaming")
        for number in range(3):
            source.sql(f"INSERT INTO d.a SELECT seq + 1000 * {number + 1}, seq, 'x' FROM seq_1_to_500;")
            source.kill()
            source.start_again()
            source.sql(f"UPDATE d.a SET n = n + 1; INSERT INTO e.c (j) VALUES ('{number}');")
        wait_for(db, source, running)
        assert running.status()["reconnects"] >= 3
    assert_same(db, source, *TABLES)


def wait_for(db: tm.Database, source: Source, running: Any) -> None:
    """Wait until the ingest has reached the end of the server's binlog."""
    end = source.sql("SHOW MASTER STATUS").split("\t")[:2]

    def is_there() -> bool:
        status = running.status()
        assert status["state"] != "stopped", status
        return [status["file"], str(status["position"])] == end

    wait_until(is_there)


CHILD = """
import sys
import tidemark as tm
from tidemark.replication.ingest.address import Address
from tests.ingest.rig import OPTIONS, options_of
from tidemark.sites.mysql_ingest import ingest
with tm.open(sys.argv[1], **{**OPTIONS, "durability": "commit"}) as db:
    print("open", flush=True)
    ingest(db, Address("localhost", socket=sys.argv[2]), options_of(once=False)).run()
"""


@pytest.mark.parametrize("seed", [1])
def test_ingest_killed_at_random_instants_ends_equal(tmp_path: Path, source: Source, seed: int) -> None:
    """Equal rows prove that no transaction is missing or applied twice, because the ingest stops at a row that is
    missing or already there.
    """
    draw = random.Random(seed)
    make_tables(source, 200)
    store = tmp_path / "s"
    for round_number in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(store), source.address.socket], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "open\n"
        for step in range(draw.randint(3, 12)):
            source.sql(work(draw, round_number * 100 + step))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    with tm.open(store, **OPTIONS) as db:
        assert isinstance(db, tm.Database)
        take_in(db, source)
        print(f"seed {seed}")
        tables = list(db.tables())
        assert set(TABLES) <= set(tables)
        assert_same(db, source, *tables)
        assert db.check()["is_sound"]


def work(draw: random.Random, number: int) -> str:
    first = 10_000 + number * 100
    return draw.choice(
        [
            f"INSERT INTO d.a SELECT {first} + seq, seq, 'w' FROM seq_1_to_{draw.randint(1, 90)};",
            f"UPDATE d.a SET n = n + {number} WHERE id % {draw.randint(2, 9)} = 0;",
            f"BEGIN; INSERT INTO d.b VALUES ('k{number}', {number}, {number});"
            f" DELETE FROM d.a ORDER BY id DESC LIMIT 20;"
            f" INSERT INTO e.c (j) VALUES ('{number}'); COMMIT;",
            f"UPDATE d.a SET id = id + 1000000 WHERE id % 11 = {number % 11};",
            f"CREATE TABLE d.t{number} (id INT PRIMARY KEY, v INT, KEY v (v)); INSERT INTO d.t{number} VALUES (1, 1);",
            f"ALTER TABLE e.c ADD COLUMN x{number} INT DEFAULT {number}; INSERT INTO e.c (j) VALUES ('a{number}');",
        ]
    )


def test_command_line_copies_follows_and_says_where_it_stands(tmp_path: Path, source: Source) -> None:
    import json

    from click.testing import CliRunner

    from tidemark.cli.commands import commands

    make_tables(source, 20)
    url = f"mysql://root@localhost/?socket={source.address.socket}"
    store = str(tmp_path / "s")
    called = CliRunner().invoke(commands, ["replicate", url, store, "--copy", "--once", "--json"])
    assert called.exit_code == 0, called.output
    source.sql("DELETE FROM d.a WHERE id > 5;")
    called = CliRunner().invoke(commands, ["replicate", url, store, "--once", "--json"])
    assert called.exit_code == 0, called.output
    said = json.loads(called.output.strip().splitlines()[-1])
    assert said["file"] == "master.000001" and said["changed_rows"] == 15 and said["state"] == "stopped"
    with tm.open(store, data_memory="128 MiB") as db:
        assert isinstance(db, tm.Database)
        assert_same(db, source, *TABLES)
    refused = CliRunner().invoke(commands, ["replicate", "mysql://root:secret@h/", store])
    assert refused.exit_code == 1 and "secret" not in refused.output
    other = f"mysql://{USER}@localhost:{source.port}/"
    refused = CliRunner().invoke(commands, ["replicate", other, store], env={"TIDEMARK_MYSQL_PASSWORD": "no"})
    assert refused.exit_code == 1 and len(refused.output.strip().splitlines()) == 1 and USER in refused.output
