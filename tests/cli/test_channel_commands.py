"""`serve` and `replicate` as processes, and the tutorial of two sites exactly as written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import tidemark as tm
from tests.cli.processes import Command
from tests.cli.support import ROOT, run
from tests.other_user import write_secret


def check_runs(command: list[str], folder: Path, said: Path | None = None) -> None:
    """Run a command of a user in a folder; `said` has what else it printed."""
    where: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    done = subprocess.run(command, **where, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr + (said.read_text() if said else "")


@pytest.fixture
def served(tmp_path: Path):
    """Serve a store from another process, with some rows older than its binlog; yield its address."""
    with tm.open(tmp_path / "source") as db:
        columns = [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(9))]
        db.create_table("shop.item", columns, primary_key="id")
        db["shop.item"].insert_many([(each, "x") for each in range(500)])
    write_secret(tmp_path / "secret", b"sixteen bytes or more\n")
    arguments = ["serve", "source", "--listen", "127.0.0.1:0", "--server-id", "1", "--secret-file", "secret", "--json"]
    command = Command(tmp_path, *arguments, "--calls", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    try:
        yield json.loads(command.readline()), command
    finally:
        command.kill()


def test_store_is_served_copied_and_followed_by_processes_that_end_whole(tmp_path: Path, served):
    said, command = served
    address = said["serving"]
    with tm.connect(said["calls"], b"sixteen bytes or more") as remote:
        remote["shop.item"].insert((1_000, "y"))
        assert len(remote["shop.item"]) == 501
    with urlopen(f"http://{said['metrics']}/metrics") as answer:
        assert b'tidemark_table_rows{table="shop.item"} 501.0' in answer.read()
    follow = ["replicate", address, "copy", "--server-id", "2", "--secret-file", "secret", "--once", "--json"]
    done = Command(tmp_path, *follow, "--copy").done()
    assert done.code == 0, done.errors
    shown = json.loads(done.output)
    assert shown["source_server_id"] == 1 and shown["lag"]["epochs"] == 0 and shown["receiver"]["error"] is None
    same = ["replicate", address, "same", "--server-id", "1", "--secret-file", "secret", "--once"]
    done = Command(tmp_path, *same).done()
    assert done.code == 1 and done.errors.count("Error: PeerRefused") == 1
    done = Command(tmp_path, *follow, "--copy").done()
    assert done.code == 0, done.errors
    done = command.stop()
    assert done.code == 0, done.errors
    last = json.loads(done.output.splitlines()[-1])
    assert last["stopped"] is True and last["replicas"] == []
    with tm.open(tmp_path / "copy", server_id=2) as db:
        assert len(db["shop.item"]) == 501
        assert db["mysql.ndb_apply_status"][1].epoch >= shown["applied_epoch"]
    assert Command(tmp_path, "check", "source").done().code == 0


def test_secret_is_a_new_file_of_its_owner_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        made = run("secret", tmp_path / "secret")
    finally:
        os.umask(before)
    assert made.exit_code == 0, made.output
    text = (tmp_path / "secret").read_text()
    assert len(bytes.fromhex(text)) == 32 and text.endswith("\n")
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    again = run("secret", tmp_path / "secret")
    assert again.exit_code == 2 and "File exists" in again.output
    assert (tmp_path / "secret").read_text() == text


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("serve store --server-id 1", 2, "--secret-file"),
        ("serve store --secret-file secret", 1, "server_id"),
        # Story: this one was a TypeError.
        ("replicate a:1 store --secret-file secret -o skip_start=on", 1, "no option 'skip_start'"),
        ("serve store --server-id 1 --secret-file short", 1, "16 bytes"),
        ("serve store --server-id 1 --secret-file secret --tls-cert secret", 2, "--tls-key"),
        ("serve store --server-id 1 --secret-file secret --tls-cert secret --tls-key secret", 2, "TLS"),
        ("serve store --server-id 1 --secret-file secret --listen nowhere", 1, "host:port"),
        ("serve store --server-id 1 --mysql 127.0.0.1:0", 2, "--mysql-user NAME:FILE"),
        ("serve store --server-id 1 --secret-file secret --mysql-user repl:secret", 2, "--mysql HOST:PORT"),
        ("serve store --server-id 1 --mysql 127.0.0.1:0 --mysql-user repl", 2, "NAME:FILE, got 'repl'"),
        ("serve store --server-id 1 --mysql 127.0.0.1:0 --mysql-user a:secret --mysql-read b", 2, "--mysql-read b"),
        ("serve store --server-id 1 --mysql 127.0.0.1:0 --mysql-user a:short", 1, "16 to 256 bytes"),
        ("serve store --server-id 1 --mysql 0.0.0.0:0 --mysql-user a:secret", 1, "needs tls"),
        ("serve empty --server-id 1 --secret-file secret", 1, "no store"),
        ("serve store --server-id 1 --secret-file secret -o log_bon=x", 1, "log_bin"),
        ("replicate 127.0.0.1:1 store --server-id 2", 2, "--secret-file"),
        ("replicate 127.0.0.1:1 store --secret-file secret", 1, "server_id"),
        ("replicate 127.0.0.1:1 store --secret-file secret --from-now", 2, "mysql://"),
        ("replicate 127.0.0.1:1 store --secret-file secret --tolerant", 2, "mysql://"),
        ("replicate mysql://root@h/ store --secret-file secret", 2, "--secret-file"),
        ("replicate mysql://root@h/ store --other-source h:1", 2, "fail-over"),
        ("replicate 127.0.0.1:1 store --server-id 2 --secret-file secret --failover-after-ms 9", 1, "all three"),
        ("replicate 127.0.0.1:1 store --server-id 2 --secret-file secret --copy", 1, "no link"),
    ],
)
def test_wrong_usage_is_one_line_with_what_to_do(line, code, said, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if line.startswith("serve store"):
        tm.open("store").close()
    Path("empty").mkdir()
    write_secret(Path("secret"), b"sixteen bytes or more\n")
    write_secret(Path("short"), b"short\n")
    called = run(*line.split())
    assert called.exit_code == code, called.output
    lines = [line for line in called.output.splitlines() if line.startswith("Error:")]
    assert len(lines) == 1 and said in lines[0]


def test_store_is_served_to_clients_of_mysql_alone(tmp_path: Path):
    import pymysql

    whole = {"log_update_as_write": False, "log_updated_only": False}
    with tm.open(tmp_path / "source", server_id=1, log_bin="binlog", **whole) as db:
        db.create_table("shop.item", [tm.Column("id", tm.Int64), tm.Column("v", tm.VarChar(9))], "id")
        db["shop.item"].insert((1, "x"))
    write_secret(tmp_path / "secret", b"sixteen bytes or more\n")
    arguments = ["serve", "source", "--server-id", "1", "--mysql", "127.0.0.1:0", "--mysql-user", "reader:secret"]
    options = ["-o", "log_update_as_write=off", "-o", "log_updated_only=off"]
    command = Command(tmp_path, *arguments, "--mysql-read", "reader", "--mysql-flavor", "mariadb", *options, "--json")
    try:
        said = json.loads(command.readline())
        assert said["serving"] == said["mysql"] and said["calls"] is None
        port = int(said["mysql"].rpartition(":")[2])
        given: dict[str, Any] = {"user": "reader", "password": b"sixteen bytes or more", "ssl_disabled": True}
        with pymysql.connect(host="127.0.0.1", port=port, **given) as client, client.cursor() as cursor:
            assert "MariaDB" in client.get_server_info()
            cursor.execute("SELECT * FROM shop.item")
            assert cursor.fetchall() == ((1, "x"),)
    finally:
        command.kill()


def test_tutorial_of_two_sites_runs(tmp_path: Path):
    text = (ROOT / "docs" / "tutorials" / "two-sites.md").read_text(encoding="utf-8")
    code = text.split("```python\n")[1].split("```")[0]
    shell = text.split("```sh\n")[1].split("```")[0].replace("tidemark ", "run ").replace("7306", "0")
    check_runs([sys.executable, "-c", code], tmp_path)
    # Its commands, with a free port, which the first one prints.
    secret, serve, replicate = (line.removeprefix("run ") for line in shell.splitlines() if line.startswith("run "))
    # No shell function: its process is killed.
    tidemark = f"'{sys.executable}' -c 'from tidemark.cli import main; main()'"
    script = f"""
        set -e
        {tidemark} {secret}
        {tidemark} {serve.replace(" &", " > said &")}
        source=$!
        while ! grep -q serving said; do kill -0 $source; sleep 0.1; done
        {tidemark} {replicate.replace("127.0.0.1:0", '"$(cut -d" " -f5 said)"')}
        kill $source
        wait $source
    """
    check_runs(["bash", "-c", script], tmp_path, tmp_path / "said")
    with tm.open(tmp_path / "third site", server_id=3) as db:
        assert sorted(row.id for row in db["shop.item"].scan()) == [1, 2]
