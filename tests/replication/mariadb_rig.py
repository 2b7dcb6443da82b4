"""MariaDB for tests: an installed server, or Debian's packages unpacked into a cache directory; nothing is installed.

`TIDEMARK_MARIADB` names a directory in which the packages are unpacked. Without it an installed server is used, or the
cache, which is filled by `apt-get download` and `dpkg -x` where these work. Servers listen on a socket file only and
end with their test.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.replication.packages import Packages, apt

NAMES = (
    *("mariadb-server", "mariadb-server-core", "mariadb-client", "mariadb-client-core", "mariadb-common"),
    *("libmariadb3", "liburing2", "libaio1"),
)
_START_ATTEMPTS = 200
_LIMIT_S = 120


def _download(folder: Path) -> None:
    apt(folder, "apt-get", "-q", "download", *NAMES)


PACKAGES = Packages(
    "MariaDB", "TIDEMARK_MARIADB", ("usr/sbin/mariadbd", "usr/bin/mariadb-binlog"), _download, (Path("/"),)
)


def environment(root: Path) -> dict[str, str]:
    library = next((root / "usr/lib").glob("*-linux-gnu"), root / "usr/lib")
    return {**os.environ, "LD_LIBRARY_PATH": str(library)}


def need_mariadb() -> Path:
    """Return the root of MariaDB's packages; skip the test without them."""
    return PACKAGES.need()


def mysqlbinlog(*arguments: str | Path) -> str:
    """Return the output of MariaDB's mysqlbinlog; fail the test if it complains."""
    root = need_mariadb()
    done = subprocess.run(
        [root / "usr/bin/mariadb-binlog", "--no-defaults", *arguments],
        env=environment(root),
        capture_output=True,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode("utf-8", "backslashreplace")


class Server:
    """A running server; its binlogs are in `data` as `master.NNNNNN`. `options` follow those of the rig and override
    them.
    """

    options: tuple[str, ...] = ()
    client, admin = "mariadb", "mariadb-admin"

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.data = root, folder, folder / "data"
        self._socket = folder / "s"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Give each server a temporary folder of its own: a server that starts removes the temporary tables of all
        servers in its folder, and another running server died of that.
        """
        return {**environment(self.root), "TMPDIR": str(self.folder)}

    def _call(self, *command: str | Path, text: str = "", errors: str = "strict") -> str:
        done = subprocess.run(
            [str(each) for each in command],
            env=self.environment(),
            input=text.encode(),
            capture_output=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-3_000:]
        return done.stdout.decode(errors=errors)

    def program(self, name: str) -> list[str]:
        """Return the command of a program of the packages."""
        return [str(self.root / "usr" / ("sbin" if name == "mariadbd" else "bin") / name)]

    def server_command(self) -> list[str]:
        """Create the data of the server; return the command that runs it."""
        share = self.root / "usr"
        user = ["--user=root"] if os.geteuid() == 0 else []
        self._call(
            *self.program("mariadb-install-db"),
            "--no-defaults",
            f"--basedir={share}",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *user,
        )
        return [
            *(*self.program("mariadbd"), "--no-defaults"),
            *(f"--basedir={share}", f"--datadir={self.data}", f"--socket={self._socket}", "--skip-networking"),
            *(f"--lc-messages-dir={share}/share/mysql", f"--plugin-dir={share}/lib/mysql/plugin", *user),
            *("--log-bin=master", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=77"),
            *("--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"),
            *("--max-allowed-packet=64M", "--default-time-zone=+00:00", "--sql-mode=", *self.options),
        ]

    def start(self) -> None:
        self._run(self.server_command())
        self.await_answer()

    def start_again(self) -> None:
        """Start the server again on its old data."""
        self.launch()
        self.await_answer()

    def launch(self) -> None:
        """Begin to start the server again on its old data; do not wait until it answers."""
        assert self._process is not None
        self._run(self._process.args)

    def _run(self, command: Any) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, env=self.environment(), stdout=log, stderr=log)

    def await_answer(self) -> None:
        assert self._process is not None
        for _ in range(_START_ATTEMPTS):
            if self._process.poll() is not None:
                break
            ping = subprocess.run(
                [*self.program(self.admin), "--no-defaults", f"--socket={self._socket}", "--wait=1", "ping"],
                env=self.environment(),
                capture_output=True,
                timeout=_LIMIT_S,
            )
            if ping.returncode == 0:
                return
        raise AssertionError((self.folder / "log").read_text()[-3_000:])

    def kill(self) -> None:
        """Send SIGKILL: for the server's memory this is like a crash of the machine."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(_LIMIT_S)

    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @property
    def socket(self) -> str:
        """The file of its socket."""
        return str(self._socket)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_LIMIT_S)

    def sql(self, text: str, *form: str) -> str:
        """Run statements; return rows tab-separated, raw. form: options of the client instead."""
        return self._call(
            *self.program(self.client),
            "--no-defaults",
            f"--socket={self._socket}",
            "--user=root",
            "--default-character-set=utf8mb4",
            "--max-allowed-packet=64M",
            *(form or ("--batch", "--skip-column-names", "--binary-mode")),
            text=text,
        )

    def row(self, text: str) -> dict[str, str]:
        """Run a statement; return its row by names of columns."""
        lines = self.sql(text, "--vertical").splitlines()
        return {name.strip(): value for name, _, value in (line.partition(": ") for line in lines)}

    def mysqlbinlog(self, *arguments: str | Path) -> str:
        """Return the output of the server's own mysqlbinlog; fail the test if it complains."""
        return mysqlbinlog(*arguments)

    def feed(self, paths: list[Path], *arguments: str, is_idempotent: bool = False) -> None:
        """Execute binlog files, with these arguments of mysqlbinlog."""
        mode = "IDEMPOTENT" if is_idempotent else "STRICT"
        said = self.mysqlbinlog("--verify-binlog-checksum", *arguments, *paths)
        self.sql(f"SET GLOBAL slave_exec_mode='{mode}';{said}")

    def binlogs(self) -> list[Path]:
        """Return the server's own files, oldest first."""
        return sorted(self.data.glob("master.[0-9]*"))


@contextmanager
def running_server(kind: type[Server] = Server) -> Iterator[Server]:
    """Run a server for a block; skip the test without MariaDB."""
    root = need_mariadb()
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder:
        server = kind(root, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
