"""Stores, runs of the command line, and stores held open by another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import tidemark as tm
from tests.waiting import wait_until
from tidemark.cli.commands import commands
from tidemark.recovery.crash_harness.forks import FORKS

ROOT = Path(__file__).resolve().parents[2]
SMALL: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "4 MiB", "background": False}
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(40)),
    tm.Column("balance", tm.Float64, nullable=True),
    tm.Column("note", tm.Text, nullable=True),
    tm.Column("price", tm.Decimal(10, 2), default=0),
    tm.Column("state", tm.Enum("open", "shut"), default="open"),
]


def run(*arguments: object) -> Result:
    """Run `tidemark` in this process; its output is kept apart from its errors."""
    return CliRunner().invoke(commands, [str(each) for each in arguments])


def document(*arguments: object) -> Any:
    """Return the JSON document that a command prints, which must succeed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def json_lines(*arguments: object) -> list[Any]:
    """Return the JSON lines that a command prints, which must succeed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def refused(*arguments: object) -> str:
    """Return the one line of a command that must fail with exit code 1."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    return result.stderr.strip()


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= bits
    path.write_bytes(content)


def make_store(directory: Path, **options: Any) -> Path:
    """Make a closed store: a local checkpoint, then an update of each kind, a delete, and a system table."""
    with tm.open(directory, **{**SMALL, **options}) as db:
        handle = db.create_table("test.account", COLUMNS, "id")
        handle.insert_many(
            [
                {"id": key, "owner": f"owner {key}", "balance": key / 2, "note": None if key % 2 else "n" * key}
                for key in range(10)
            ]
        )
        db.checkpoint()
        handle.update(3, {"balance": 7.0})
        handle.update(4, {"note": "two\nlines"})
        handle.delete(5)
        pairs = db.create_table("mysql.pair", [tm.Column("a", tm.VarChar(9)), tm.Column("b", tm.Int32)], ["a", "b"])
        pairs.insert(("left", 2))
    return directory


def _hold(directory: str, background: bool, pipe: Connection) -> None:
    with tm.open(directory, data_memory="64 MiB", background=background) as db:
        if background and db.restart_report["groups"]:
            # The owner writes what it replayed into a local checkpoint of its own, at once.
            wait_until(lambda: db.status()["lcp"]["completed"] > 0)
        pipe.send("open")
        with suppress(EOFError):
            pipe.recv()


@contextmanager
def held_open(directory: Path, background: bool = True) -> Iterator[BaseProcess]:
    """Let another process hold the store open until the block ends."""
    pipe, theirs = FORKS.Pipe()
    process = FORKS.Process(target=_hold, args=(str(directory), background, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert pipe.recv() == "open"
        yield process
        if process.is_alive():  # not killed by the test
            pipe.close()
            process.join()
            assert process.exitcode == 0
    finally:
        pipe.close()
        process.kill()
        process.join()
