"""`python -m bench.ingest [--rows N] [--out DIR]`: a MariaDB taken into a store, its first copy and its row events.

Beside it the same into SQLite as one would write it in an hour: a cursor of pymysql, `executemany`; mysql-replication's
own decoding, one transaction of SQLite for each of the source (WAL, synchronous NORMAL). The server runs on the same
machine and takes its part of it. Every figure is one run; needs what `tests/replication/mariadb_rig.py` finds.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
from pymysql.cursors import SSCursor
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import XidEvent
from pymysqlreplication.row_event import UpdateRowsEvent, WriteRowsEvent

import tidemark as tm
from bench.report import OURS, RESULTS, Line, keep
from tests.ingest.rig import Source, options_of, rows_at, rows_in, running_source
from tidemark.sites.mysql_ingest import ingest

PEER = "pymysql into SQLite"
FOLLOWING_PEER = "mysql-replication into SQLite"
COLUMNS = ["id", "n", "v", "t"]
TABLE = "CREATE TABLE d.a (id INT PRIMARY KEY, n INT, v DOUBLE, t VARCHAR(40));"
ROW = "seq, seq * 7, seq / 3, CONCAT('row number ', seq)"
SMALL = 20_000
PEER_SERVER_ID = 4_712


def steps(rows: int) -> list[tuple[str, int, str]]:
    """Return the measured steps: name, rows, and the SQL that makes the changes."""
    some = rows // 5
    small = f"BEGIN NOT ATOMIC FOR i IN 1..{SMALL} DO UPDATE d.a SET n = i WHERE id = i * 3; END FOR; END"
    inserts = [
        f"INSERT INTO d.a SELECT {ROW} FROM seq_{rows + 1 + some * at}_to_{rows + some * (at + 1)};" for at in (0, 1, 2)
    ]
    return [
        (f"inserts, transactions of {some:,} rows", 3 * some, "".join(inserts)),
        (f"updates, transactions of {some:,} rows", some * 2, f"UPDATE d.a SET n = n + 1 WHERE id <= {some};" * 2),
        ("updates, one-row transactions", SMALL, f"DELIMITER //\n{small}//\nDELIMITER ;\n"),
    ]


class SqliteCopy:
    """The peer: SQLite filled by hand-written Python."""

    def __init__(self, source: Source, path: Path) -> None:
        self.settings: dict[str, Any] = {"unix_socket": source.address.socket, "user": "root", "charset": "utf8mb4"}
        self.database = sqlite3.connect(path, isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")
        self.database.execute("PRAGMA synchronous=NORMAL")
        self.database.execute("CREATE TABLE a (id INTEGER PRIMARY KEY, n INTEGER, v REAL, t TEXT)")
        self.place: tuple[str, int] = ("", 0)

    def stand(self) -> None:
        """Set the position to the present end of the binlog."""
        connection = pymysql.connect(**self.settings)
        with connection.cursor() as cursor:
            cursor.execute("SHOW MASTER STATUS")
            row: Any = cursor.fetchone()
            self.place = str(row[0]), int(row[1])
        connection.close()

    def copy(self) -> None:
        """Copy all rows of the table."""
        connection = pymysql.connect(**self.settings)
        self.database.execute("BEGIN")
        with connection.cursor(SSCursor) as cursor:
            cursor.execute("SELECT id, n, v, t FROM d.a")
            while rows := cursor.fetchmany(10_000):
                self.database.executemany("INSERT INTO a VALUES (?,?,?,?)", rows)
        self.database.execute("COMMIT")
        connection.close()

    def follow(self) -> None:
        """Apply row events up to the end of the binlog."""
        stream = BinLogStreamReader(
            connection_settings=self.settings,
            server_id=PEER_SERVER_ID,
            blocking=False,
            resume_stream=True,
            log_file=self.place[0],
            log_pos=self.place[1],
            only_events=[WriteRowsEvent, UpdateRowsEvent, XidEvent],
        )
        for event in stream:
            if isinstance(event, XidEvent):
                if self.database.in_transaction:
                    self.database.execute("COMMIT")
                continue
            if not self.database.in_transaction:
                self.database.execute("BEGIN")
            if isinstance(event, WriteRowsEvent):
                rows = [tuple(row["values"][name] for name in COLUMNS) for row in event.rows]
                self.database.executemany("INSERT INTO a VALUES (?,?,?,?)", rows)
            else:
                after = [row["after_values"] for row in event.rows]
                changed = [(row["n"], row["v"], row["t"], row["id"]) for row in after]
                self.database.executemany("UPDATE a SET n = ?, v = ?, t = ? WHERE id = ?", changed)
        stream.close()


def seconds(work: Callable[[], object]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(rows: int) -> list[Line]:
    """Measure all lines, and check at the end that both sides have the server's rows."""
    lines = []
    with running_source() as source, tempfile.TemporaryDirectory() as folder:
        source.reset("d")
        source.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0;" + TABLE)
        source.sql(f"INSERT INTO d.a SELECT {ROW} FROM seq_1_to_{rows};")
        with tm.open(Path(folder) / "store", data_memory="1 GiB", redo_log="1 GiB") as db:
            assert isinstance(db, tm.Database)
            warm_up(db, source)
            peer = SqliteCopy(source, Path(folder) / "peer")
            taken = seconds(lambda: ingest(db, source.address, options_of(tables=["d.a"])).run())
            lines.append(line("first copy", rows, taken, PEER, seconds(peer.copy)))
            for what, count, sql in steps(rows):
                peer.stand()
                source.sql(sql)
                taken = seconds(lambda: ingest(db, source.address, options_of(tables=["d.a"])).run())
                lines.append(line(what, count, taken, FOLLOWING_PEER, seconds(peer.follow)))
            expected = rows_at(source, "d.a", COLUMNS)
            assert rows_in(db, "d.a", COLUMNS) == expected
            assert peer.database.execute("SELECT id, n, v, t FROM a ORDER BY id").fetchall() == expected
            peer.database.close()
    return lines


def warm_up(db: tm.Database, source: Source) -> None:
    """Call every kernel that is measured, so that it is compiled."""
    source.sql(f"{TABLE.replace('d.a', 'd.w')} INSERT INTO d.w SELECT {ROW} FROM seq_1_to_100;")
    for sql in ("", f"INSERT INTO d.w SELECT {ROW} FROM seq_101_to_200;", "UPDATE d.w SET n = 0;"):
        source.sql(sql)
        ingest(db, source.address, options_of(source="warm", tables=["d.w"])).run()


def line(what: str, rows: int, ours_s: float, peer: str, peer_s: float) -> Line:
    """One measurement in rows per second."""
    return Line("ingest", what, "rows/s", {OURS: rows / ours_s, peer: rows / peer_s})


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    lines = measure(given.rows)
    for each in lines:
        shown = ", ".join(f"{name} {value:,.0f}" for name, value in each.figures.items())
        print(f"{each.what}: {shown} rows/s")
    print(keep(lines, {"rows": given.rows}, given.out, "ingest"))


if __name__ == "__main__":
    main()
