"""The real replicas of the loop: their settings, how they are killed and started, and what they say of themselves.

Their settings are those that docs/mysql.md asks of a replica that may be killed. Nothing else is prepared at them.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from tests.replication.mariadb_rig import Server
from tests.replication.mysql_port_rig import with_mysqls_names
from tests.replication.mysql_rig import MySqlServer
from tidemark.recovery.crash_harness.program import Violation

PATIENCE_S = 60
LOG_CHARACTERS = 3_000
NET_TIMEOUT_S = 6  # longer stalls make a replica connect again
# What a server says when it applies a transaction once more that it had committed before it was killed.
DUPLICATE_ROW, NO_ROW, DUPLICATE_COLUMN = 1062, 1032, 1060
# What a MariaDB that follows by position says when it connects again in the middle of a statement.
NO_END_OF_STATEMENT = 1595


class MariadbReplica(Server):
    """One that survives a kill as well as MariaDB can."""

    options = (
        *("--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1", "--relay-log-recovery=ON"),
        *("--sync-relay-log-info=1", "--relay-log=relay", "--slave-exec-mode=STRICT", "--gtid-strict-mode=ON"),
        f"--slave-net-timeout={NET_TIMEOUT_S}",
    )


class SecondMariadbReplica(MariadbReplica):
    options = (*MariadbReplica.options, "--server-id=78")


class MySqlReplica(MySqlServer):
    """One that survives a kill."""

    options = (
        *("--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--relay-log=relay", "--server-id=79"),
        *("--innodb-flush-log-at-trx-commit=1", "--innodb-flush-method=fsync", "--innodb-doublewrite=ON"),
        *("--sync-binlog=1", "--relay-log-recovery=ON", f"--replica-net-timeout={NET_TIMEOUT_S}"),
    )


@dataclass(frozen=True)
class Kind:
    """kind: of the server. flavor: of the port that it follows. given: how it follows. repeats: errors by which it says
    that it has applied a transaction once more after a kill, since it keeps its position outside its tables. resumes:
    the error at which its I/O thread is started again.
    """

    kind: type[Server]
    flavor: str
    given: dict[str, str]
    repeats: tuple[int, ...] = ()
    resumes: int = 0


KINDS: Final = {
    "mariadb-position": Kind(
        MariadbReplica, "mariadb", {}, (DUPLICATE_ROW, NO_ROW, DUPLICATE_COLUMN), NO_END_OF_STATEMENT
    ),
    # The position is committed with the rows, but not with a schema change, which MariaDB commits by itself.
    "mariadb-gtid": Kind(SecondMariadbReplica, "mariadb", {"USE_GTID": "slave_pos"}, (DUPLICATE_COLUMN,)),
    "mysql-gtid": Kind(MySqlReplica, "mysql", {"AUTO_POSITION": "1", "RETRY_COUNT": "86400"}),
}

Place = tuple[str, int]  # file, position


@dataclass
class Replica:
    """One replica, and what is known of it."""

    name: str
    kind: Kind
    server: Server
    is_launched: bool = True
    is_up: bool = True
    is_io_stopped: bool = False
    idle_looks: int = 0  # in a row that found its I/O thread stopped by itself
    first_applied: Place | None = None  # at the first look after a start
    status: dict[str, Any] = field(default_factory=dict)
    repeated: int = 0
    resumed: int = 0

    @property
    def read(self) -> Place | None:
        """How far it has received, at the last look."""
        return _place(self.status, "Source_Log_File", "Read_Source_Log_Pos")

    @property
    def applied(self) -> Place | None:
        """How far it has applied, at the last look."""
        return _place(self.status, "Relay_Source_Log_File", "Exec_Source_Log_Pos")

    # --- its process ------------------------------------------------------------------------------
    def kill(self) -> None:
        self.server.kill()
        self.is_launched = self.is_up = self.is_io_stopped = False
        self.first_applied, self.idle_looks = None, 0

    def launch(self) -> None:
        self.server.launch()
        self.is_launched = True

    def answers(self) -> bool:
        """Whether it is up by now. Raises: Violation if it has ended by itself."""
        import pymysql

        if self.is_launched and self.server.has_ended():
            raise self._ended()
        if self.is_launched and not self.is_up:
            try:
                self.ask("SELECT 1")
                self.is_up = True
            except pymysql.err.OperationalError:
                pass
        return self.is_up

    def _ended(self) -> Violation:
        return Violation(f"{self.name} ended by itself: {self._log()}")

    def _log(self) -> str:
        return (self.server.folder / "log").read_text(errors="replace")[-LOG_CHARACTERS:]

    def ask(self, statement: str) -> list[dict[str, Any]]:
        """Execute a statement; return its rows. Raises: pymysql's errors."""
        import pymysql

        options = {"read_timeout": PATIENCE_S, "cursorclass": pymysql.cursors.DictCursor, "autocommit": True}
        with closing(
            pymysql.connect(unix_socket=self.server.socket, user="root", charset="utf8mb4", **options)
        ) as link:
            with link.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())

    # --- replication ------------------------------------------------------------------------------
    @property
    def word(self) -> str:
        return "SLAVE" if self.kind.flavor == "mariadb" else "REPLICA"

    def stop_io(self, is_stopped: bool) -> None:
        """Stop the I/O thread, or start it."""
        self.ask(f"{'STOP' if is_stopped else 'START'} {self.word} IO_THREAD")
        self.is_io_stopped, self.idle_looks = is_stopped, 0

    def look(self) -> None:
        """Learn how far it is. Raises: Violation if it has stopped by itself."""
        import pymysql

        try:
            (row,) = self.ask(f"SHOW {self.word} STATUS")
        except pymysql.err.OperationalError:
            raise self._ended() from None
        status = self.status = with_mysqls_names(row)
        if self.first_applied is None:
            self.first_applied = self.applied
        is_idle = status["Replica_IO_Running"] == "No" and not self.is_io_stopped
        if is_idle and status["Last_IO_Errno"] and status["Last_IO_Errno"] == self.kind.resumes:
            self.stop_io(False)
            self.resumed += 1
            is_idle = False
        self.idle_looks = self.idle_looks + 1 if is_idle else 0
        if self.idle_looks > 1 or (is_idle and status["Last_IO_Errno"]):
            reason = f"{status['Last_IO_Errno']} {status['Last_IO_Error']}"
            raise Violation(f"{self.name} reads no more at {self.read}: {reason}; {self._log()}")
        if status["Replica_SQL_Running"] == "No":
            self._pass_repeated(status)

    def _pass_repeated(self, status: dict[str, Any]) -> None:
        """Pass over a transaction that was committed before a kill, as docs/mysql.md says. Raises: Violation if the
        replica has stopped for another reason.
        """
        number = status["Last_SQL_Errno"]
        if number not in self.kind.repeats or self.applied != self.first_applied:
            reason = f"{number} {status['Last_SQL_Error']}"
            raise Violation(f"{self.name} applies no more at {self.applied}: {reason}{self._workers()}")
        self.ask("SET GLOBAL sql_slave_skip_counter=1")
        self.ask("START SLAVE SQL_THREAD")
        self.repeated += 1
        self.first_applied = ("", 0)  # only one

    def _workers(self) -> str:
        if self.kind.flavor == "mariadb":
            return ""
        found = self.ask("SELECT LAST_ERROR_MESSAGE m FROM performance_schema.replication_applier_status_by_worker")
        return "".join(f"; {row['m']}" for row in found if row["m"])


def _place(status: dict[str, Any], file: str, position: str) -> Place | None:
    return (status[file], int(status[position])) if status.get(file) else None


def ahead_of(read: Place | None, files: list[Place]) -> str:
    """Return what is wrong if a replica has received more than the store has; files: of the store, with their sizes."""
    sizes = dict(files)
    if read is None or read[0] < files[0][0] or read[1] <= sizes.get(read[0], -1):
        return ""
    return f"it has received up to {read[0]}:{read[1]}, and the store has {files[-1][0]}:{files[-1][1]}"
