"""`python -m tests.ingest.killed_changes FOLDER --server MySQL --kills 10 --seed 1`: SIGKILL of an ingest within schema
changes of a real server, and between a change and its position.

For each change: a store is copied from the server, the server makes the change and writes rows after it, and an ingest
that nothing disturbs shows how many steps the change has here. A step is an entry into or a return from a function.
Then copies of the first store are ingested and killed at a step that the seed draws. The next process must end with the
schema of the undisturbed ingest and the rows of the server. Exit code 1 at the first difference.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas  # noqa: F401 Arrow imports it in its first calls; those of a killed process should be the store's
import pyarrow.compute  # noqa: F401
import pytest

import tidemark as tm
from tests.ingest.rig import SOURCES, AnySource, assert_same, take_in
from tests.ingest.test_schema import described
from tests.kills.sites.site import get_ready
from tidemark.recovery.crash_harness.program import Violation
from tidemark.replication.ingest import schema
from tidemark.replication.ingest.applier import Applier
from tidemark.replication.ingest.client import libraries
from tidemark.replication.ingest.transactions import StatementText

OPTIONS: dict[str, Any] = {"data_memory": "64 MiB", "redo_log": "16 MiB", "background": False, "durability": "commit"}
# Where kills are: within the change here, between the change and its position, before the change.
PLACES = ("within", "after", "within", "after", "before")
ATTEMPTS = 5  # to reach a step: their number may differ a little
# This process has no threads, and no store open.
_FORK = multiprocessing.get_context("fork")
BOTH = ("MariaDB", "MySQL")


@dataclass(frozen=True)
class Change:
    """A change of the table `d.t`. columns: after CREATE TABLE. rows: SELECT list for numbers `seq` from 1 to 300.
    after: statements with rows after the change.
    """

    name: str
    columns: str
    rows: str
    change: str
    after: str
    servers: tuple[str, ...] = BOTH

    @property
    def before(self) -> str:
        """The statements before the copy."""
        rows = f"INSERT INTO d.t SELECT {self.rows} FROM seq_1_to_300"
        return f"CREATE TABLE d.t {self.columns}; SET SESSION sql_mode='NO_UNSIGNED_SUBTRACTION'; {rows};"


def _wider(kind: str, wider: str, value: str, last: str, rest: str = "") -> Change:
    """Return MODIFY of a column to a wider type. last: a value that only the wider type holds."""
    return Change(
        f"{kind} to {wider}{rest}",
        f"(id INT PRIMARY KEY, c {kind}, n INT{rest})",
        f"seq, {value}, seq",
        f"ALTER TABLE d.t MODIFY c {wider}",
        f"INSERT INTO d.t VALUES (1000, {last}, 1000); UPDATE d.t SET c = {last} WHERE id = 7; UPDATE d.t SET n = -n;"
        "DELETE FROM d.t WHERE id = 9;",
    )


def _key(kind: str, wider: str, value: str, last: str) -> Change:
    return Change(
        f"key {kind} to {wider}",
        f"(c {kind}, n INT, PRIMARY KEY (c))",
        f"{value}, seq",
        f"ALTER TABLE d.t MODIFY c {wider}",
        f"INSERT INTO d.t VALUES ({last}, 1); UPDATE d.t SET n = -n; DELETE FROM d.t WHERE n = -9;",
    )


def _index(what: str, keys: str, change: str, after: str = "") -> Change:
    return Change(
        what,
        f"(id INT PRIMARY KEY, c VARCHAR(20), n INT, {keys})",
        "seq, CONCAT('v', seq), seq",
        f"ALTER TABLE d.t {change}",
        f"INSERT INTO d.t (id, n) VALUES (1000, 1000); UPDATE d.t SET n = -n; {after}",
        ("MariaDB",) if "EXISTS" in change else BOTH,
    )


def _ranges(what: str, change: str, after: str = "") -> Change:
    return Change(
        what,
        "(id INT PRIMARY KEY, n INT) PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (100), PARTITION b VALUES"
        " LESS THAN (200), PARTITION c VALUES LESS THAN (1000))",
        "seq, seq",
        f"ALTER TABLE d.t {change}",
        f"UPDATE d.t SET n = -n; INSERT INTO d.t VALUES (500, 1); {after}",
    )


def _hashed(change: str, servers: tuple[str, ...] = BOTH) -> Change:
    return Change(
        change,
        "(id INT PRIMARY KEY, n INT) PARTITION BY HASH (id) PARTITIONS 4",
        "seq, seq",
        f"ALTER TABLE d.t {change}",
        "UPDATE d.t SET n = -n; INSERT INTO d.t VALUES (1000, 1); DELETE FROM d.t WHERE id = 5;",
        servers,
    )


CHANGES = (
    _wider("TINYINT", "SMALLINT", "seq % 256 - 128", "-32768"),
    _wider("TINYINT UNSIGNED", "SMALLINT", "seq % 256", "-32768"),
    _wider("TINYINT UNSIGNED", "BIGINT UNSIGNED", "seq % 256", "18446744073709551615"),
    _wider("SMALLINT", "INT", "-seq", "-2147483648"),
    _wider("SMALLINT UNSIGNED", "MEDIUMINT", "65535 - seq", "-8388608"),
    _wider("MEDIUMINT", "INT", "-seq", "-2147483648"),
    _wider("MEDIUMINT UNSIGNED", "INT UNSIGNED", "16777215 - seq", "4294967295"),
    _wider("MEDIUMINT UNSIGNED", "INT", "16777215 - seq", "-2147483648"),
    _wider("INT", "BIGINT", "seq - 2147483648", "-9223372036854775808"),
    _wider("INT NOT NULL", "BIGINT NOT NULL", "-seq", "9223372036854775807"),
    _wider("INT UNSIGNED", "BIGINT", "4294967295 - seq", "-9223372036854775808"),
    _wider("INT UNSIGNED", "BIGINT UNSIGNED DEFAULT 5", "4294967295 - seq", "18446744073709551615"),
    _wider("FLOAT", "DOUBLE", "seq / 8", "1e300"),
    _wider("DECIMAL(10,2)", "DECIMAL(20,2)", "-seq / 4", "123456789012345678.25"),
    _wider("DECIMAL(10,2)", "DECIMAL(12,4)", "seq / 4", "12345678.1234"),
    _wider("DECIMAL(10,2)", "DECIMAL(38,20)", "seq / 4", "0.00000000000000000001"),
    _wider("CHAR(5)", "CHAR(20)", "CONCAT('ü', seq)", "'longer than five'"),
    _wider("CHAR(5)", "VARCHAR(20)", "CONCAT('ü', seq)", "'longer than five '"),
    _wider("CHAR(5)", "TEXT", "CONCAT('ü', seq)", "REPEAT('x', 5000)"),
    _wider("VARCHAR(5)", "VARCHAR(300)", "CONCAT('ü', seq)", "REPEAT('x', 300)"),
    _wider("VARCHAR(5)", "LONGTEXT", "CONCAT('ü', seq)", "REPEAT('x', 5000)"),
    _wider("VARBINARY(5)", "VARBINARY(20)", "seq", "x'00112233445566778899'"),
    _wider("VARBINARY(5)", "BLOB", "seq", "REPEAT('x', 5000)"),
    _wider("TINYTEXT", "MEDIUMTEXT", "CONCAT('ü', seq)", "REPEAT('x', 5000)"),
    _wider("ENUM('a','b')", "ENUM('a','b','c')", "seq % 2 + 1", "'c'"),
    _wider("INT NOT NULL", "INT", "seq", "NULL"),
    _wider("INT NOT NULL", "BIGINT DEFAULT NULL", "seq", "NULL"),
    _wider("VARCHAR(9) NOT NULL", "VARCHAR(9) DEFAULT 'd'", "CONCAT('ü', seq)", "NULL"),
    _wider("TEXT NOT NULL", "TEXT", "CONCAT('ü', seq)", "NULL"),
    _wider("DATETIME(3) NOT NULL", "DATETIME(6)", "'2024-02-29 01:02:03.5'", "NULL"),
    _wider("DATETIME", "DATETIME(6)", "'2024-02-29 01:02:03'", "'2024-02-29 01:02:03.000001'"),
    _wider("INT", "BIGINT", "seq", "5000000000", ", KEY other (n), UNIQUE KEY one (n)"),
    _wider("INT", "BIGINT", "seq", "5000000000", ", KEY of_c (c), UNIQUE KEY two (n, c) USING BTREE"),
    _wider("VARCHAR(9)", "VARCHAR(300)", "CONCAT('ü', seq)", "REPEAT('x', 300)", ", KEY of_c (c)"),
    _wider("VARCHAR(9)", "VARCHAR(30)", "CONCAT('ü', seq)", "'longer than nine'", ", UNIQUE KEY one (c, n)"),
    _wider("CHAR(9)", "VARCHAR(30)", "CONCAT('ü', seq)", "'longer than nine'", ", KEY of_c (c), KEY too (n, c)"),
    _wider("DECIMAL(10,2)", "DECIMAL(20,4)", "seq / 4", "123456.7891", ", UNIQUE KEY one (c, id)"),
    _wider("FLOAT", "DOUBLE", "seq / 8", "1e300", ", KEY of_c (c)"),
    _wider("INT NOT NULL", "INT", "seq", "NULL", ", KEY of_c (c), UNIQUE KEY one (c, n)"),
    _key("SMALLINT", "INT", "seq - 32768", "-2147483648"),
    _key("INT", "BIGINT", "-seq", "9223372036854775807"),
    _key("INT UNSIGNED", "BIGINT", "4294967295 - seq", "-9223372036854775808"),
    _key("INT NOT NULL", "BIGINT NOT NULL", "-seq", "9223372036854775807"),
    _key("MEDIUMINT UNSIGNED", "INT", "16777215 - seq", "-2147483648"),
    Change(
        "MEDIUMINT UNSIGNED to INT to BIGINT",
        "(id INT PRIMARY KEY, c MEDIUMINT UNSIGNED, n INT)",
        "seq, 16777215 - seq, seq",
        "ALTER TABLE d.t MODIFY c INT; INSERT INTO d.t VALUES (1000, -2147483648, 1); ALTER TABLE d.t MODIFY c INT"
        " COMMENT 'x' DEFAULT 5; UPDATE d.t SET c = -7 WHERE id = 1; ALTER TABLE d.t MODIFY c BIGINT",
        "UPDATE d.t SET c = -5000000000 WHERE id < 9;",
    ),
    _key("VARCHAR(9)", "VARCHAR(20)", "CONCAT('ü', seq)", "'longer than nine'"),
    _key("DECIMAL(10,2)", "DECIMAL(12,2)", "seq / 4", "1234567890.25"),
    Change(
        "CHANGE that renames and widens",
        "(id INT PRIMARY KEY, c INT NOT NULL, n INT)",
        "seq, seq, seq",
        "ALTER TABLE d.t CHANGE c `wider one` BIGINT DEFAULT 7, CHANGE n m BIGINT NOT NULL",
        "INSERT INTO d.t VALUES (1000, NULL, 5000000000); INSERT INTO d.t (id, m) VALUES (1001, 1);"
        "UPDATE d.t SET m = m + 1;",
    ),
    Change(
        "many clauses",
        "(id INT PRIMARY KEY, c CHAR(5) NOT NULL, n INT, x INT, KEY k (n))",
        "seq, CONCAT('ü', seq), seq, seq",
        "ALTER TABLE d.t DROP COLUMN x, MODIFY c VARCHAR(30), ADD COLUMN y INT NOT NULL, RENAME INDEX k TO l,"
        " MODIFY id BIGINT, ADD COLUMN z VARCHAR(9) DEFAULT 'z', ADD UNIQUE KEY u (id)",
        "INSERT INTO d.t (id, c, n, y) VALUES (5000000000, NULL, 1, 2); UPDATE d.t SET n = -n, z = c WHERE id < 50;",
    ),
    _index("RENAME INDEX", "KEY k (n)", "RENAME INDEX k TO l"),
    _index("RENAME INDEX of a unique one", "UNIQUE KEY k (n)", "RENAME INDEX k TO l"),
    _index(
        "RENAME INDEX of an ordered one",
        "UNIQUE KEY k (n, c) USING BTREE, KEY o (c)",
        "RENAME KEY k TO l, RENAME KEY o TO p",
    ),
    _index(
        "conditions that hold",
        "KEY k (n)",
        "ADD COLUMN IF NOT EXISTS x BIGINT NOT NULL, DROP INDEX IF EXISTS k,"
        " MODIFY COLUMN IF EXISTS c TEXT, ADD INDEX IF NOT EXISTS y (id)",
        "UPDATE d.t SET x = 7 WHERE id < 9;",
    ),
    _index(
        "conditions that do not hold",
        "KEY k (n)",
        "ADD COLUMN IF NOT EXISTS c INT, DROP COLUMN IF EXISTS nothing,"
        " DROP INDEX IF EXISTS nothing, ADD INDEX IF NOT EXISTS k (id), RENAME COLUMN IF EXISTS nothing TO x",
    ),
    _index(
        "conditions about what the statement changes",
        "KEY k (n)",
        "DROP COLUMN IF EXISTS c, ADD COLUMN IF NOT EXISTS x INT DEFAULT 3, DROP COLUMN IF EXISTS x",
    ),
    _ranges(
        "ADD of several partitions",
        "ADD PARTITION (PARTITION d VALUES LESS THAN (2000), PARTITION e VALUES LESS THAN"
        " (3000), PARTITION f VALUES LESS THAN MAXVALUE)",
        "INSERT INTO d.t VALUES (1500, 1), (2500, 1), (9999, 1);",
    ),
    _ranges("DROP of several partitions", "DROP PARTITION a, b", "INSERT INTO d.t VALUES (5, 5), (150, 150);"),
    _ranges("TRUNCATE of a partition", "TRUNCATE PARTITION b", "INSERT INTO d.t VALUES (150, 150);"),
    _ranges("TRUNCATE of several partitions", "TRUNCATE PARTITION a, c", "INSERT INTO d.t VALUES (5, 5), (250, 250);"),
    _ranges("TRUNCATE of all partitions", "TRUNCATE PARTITION ALL", "INSERT INTO d.t VALUES (5, 5), (250, 250);"),
    _hashed("ADD PARTITION PARTITIONS 3"),
    _hashed("COALESCE PARTITION 2"),
    _hashed("REMOVE PARTITIONING"),
    _hashed("PARTITION BY KEY (id) PARTITIONS 2"),
    _hashed("REBUILD PARTITION ALL"),
    Change(
        "sequences",
        "(id INT PRIMARY KEY, n BIGINT)",
        "seq, seq",
        "CREATE SEQUENCE d.q; ALTER TABLE d.t MODIFY n BIGINT NOT NULL DEFAULT 0, ADD COLUMN x INT",
        "INSERT INTO d.t VALUES (1000, NEXTVAL(d.q), 1); ALTER SEQUENCE d.q RESTART 50; INSERT INTO d.t VALUES"
        " (1001, NEXTVAL(d.q), 1); DROP SEQUENCE d.q; UPDATE d.t SET x = 2;",
        ("MariaDB",),
    ),
)


def changes_of(server: str) -> list[Change]:
    """Return the changes that a server has."""
    return [each for each in CHANGES if server in each.servers]


# --- the process that ingests ---------------------------------------------------------------------
class _Steps:
    """Counts entries into and returns from functions while statements are applied; ends the process at one of them.

    marks: the numbers at which the first step of a change began, and the last one ended.
    """

    def __init__(self, end_at: int) -> None:
        self.number = 0
        self.marks: list[int] = []
        self._end_at = end_at
        self._depth = 0

    def __call__(self, frame: Any, event: str, argument: Any) -> None:
        code = frame.f_code
        is_statement = code is _STEP and isinstance(frame.f_locals["step"], StatementText)
        if is_statement and event == "call":
            self._depth += 1
        if not self._depth:
            return
        self.number += 1
        if self.number == self._end_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if code is _MAKE and event in ("call", "return"):
            self.marks.append(self.number)
        if is_statement and event == "return":
            self._depth -= 1


_STEP = Applier.step.__code__
_MAKE = schema.make.__code__


def _ingest(store: Path, source: AnySource, end_at: int | None) -> Any:
    steps = _Steps(end_at or 0)
    with tm.open(store, **OPTIONS) as db:
        assert isinstance(db, tm.Database)
        if end_at is not None:
            sys.setprofile(steps)
        try:
            take_in(db, source)
        finally:
            sys.setprofile(None)
        assert_same(db, source, "d.t")
        assert db.check()["is_sound"]
        return repr(described(db)["d.t"]), steps.number, steps.marks


def _run(work: Callable[[Any], None]) -> Any:
    """Return what a forked process sends, None if it was killed. Raises: Violation if it ends otherwise."""
    pipe, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=work, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        said = pipe.recv()
    except EOFError:
        said = None
    process.join()
    pipe.close()
    if said is None and process.exitcode != -signal.SIGKILL:
        raise Violation(f"the process ended by itself with code {process.exitcode}")
    if isinstance(said, BaseException):
        raise Violation(f"{type(said).__name__}: {said}") from said
    return said


def _ingested(store: Path, source: AnySource, end_at: int | None = None) -> Any:
    """Return what an ingest ends with, and its steps. end_at: where it is killed; 0: count them; None: do not."""

    def work(pipe: Any) -> None:
        try:
            pipe.send(_ingest(store, source, end_at))
        except (tm.Error, AssertionError) as error:
            pipe.send(AssertionError(f"{type(error).__name__}: {error}"))

    return _run(work)


# --- kills ----------------------------------------------------------------------------------------
def _drawn(draw: random.Random, place: str, count: int, marks: list[int]) -> int:
    """Return the number of a step at a place."""
    begin, end = (marks[0], marks[-1]) if marks else (1, count)
    if place == "within":
        return draw.randint(begin, end)
    if place == "after" and end < count:
        return draw.randint(end, count)
    return draw.randint(1, begin)


def kill_within(source: AnySource, change: Change, folder: Path, kills: int, draw: random.Random) -> int:
    """Make a change and kill its ingest; return the number of kills. Raises: Violation."""
    get_ready()
    libraries()
    folder.mkdir()
    first, work = folder / "first", folder / "work"
    source.reset("d")
    source.sql(change.before)
    _ingested(first, source)
    source.sql(f"{change.change}; {change.after}")
    shutil.copytree(first, work)
    expected, count, marks = _ingested(work, source, 0)
    done = 0
    for number in range(kills):
        for _ in range(ATTEMPTS):
            shutil.rmtree(work)
            shutil.copytree(first, work)
            at = _drawn(draw, PLACES[number % len(PLACES)], count, marks)
            if _ingested(work, source, at) is None:
                break
        else:
            raise Violation(f"no step {at} of {count} is reached")
        done += 1
        try:
            found, _, _ = _ingested(work, source)
        except Violation as error:
            raise Violation(f"after a kill at step {at} of {count}, changes at {marks}: {error}") from error
        if found != expected:
            raise Violation(f"after a kill at step {at} of {count} the table is {found}, not {expected}")
    shutil.rmtree(folder)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.ingest.killed_changes", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the stores are made; it must exist")
    parser.add_argument("--server", choices=sorted(SOURCES), action="append", help="this one; may be repeated")
    parser.add_argument("--kills", type=int, default=10, help="of each change")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--change", action="append", help="changes whose names have this in them; may be repeated")
    asked = parser.parse_args(arguments)
    for name in asked.server or sorted(SOURCES):
        try:
            with SOURCES[name]() as source:
                kills = changes = 0
                for number, change in enumerate(changes_of(name)):
                    if asked.change and not any(each in change.name for each in asked.change):
                        continue
                    draw = random.Random(f"{asked.seed} {change.name}")
                    kills += kill_within(source, change, asked.folder / f"{name}{number}", asked.kills, draw)
                    changes += 1
                    sys.stderr.write(f"{name}: {change.name}\n")
        except Violation as error:
            sys.stderr.write(f"{name}, {change.name}, seed {asked.seed}: {error}\n")
            return 1
        except pytest.skip.Exception as reason:
            sys.stdout.write(f"{name}: {reason}\n")
            continue
        sys.stdout.write(f"{name}: {changes} changes, {kills} kills, seed {asked.seed}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
