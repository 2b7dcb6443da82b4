"""MariaDB for tests: an installed server, or Debian's packages unpacked into a cache directory; nothing is installed.

`TIDEMARK_MARIADB` names a directory in which the packages are unpacked. Without it an installed server is used, or the
cache, which is filled by `apt-get download` and `dpkg -x` where these work. Servers listen on a socket file only and
end with their test.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PACKAGES = (
    *("mariadb-server", "mariadb-server-core", "mariadb-client", "mariadb-client-core", "mariadb-common"),
    *("libmariadb3", "liburing2", "libaio1"),
)
_START_ATTEMPTS = 200
_LIMIT_S = 120


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "tidemark" / "mariadb"


def _is_whole(root: Path) -> bool:
    return (root / "usr/sbin/mariadbd").is_file() and (root / "usr/bin/mariadb-binlog").is_file()


def _unpack(root: Path) -> str | None:
    """Fill the cache; return why it cannot be filled, None if it was."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        return "MariaDB is not there, and neither are apt-get and dpkg"
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        work = Path(folder)
        fetched = subprocess.run(
            ["apt-get", "-q", "download", *PACKAGES], cwd=work, capture_output=True, text=True, timeout=_LIMIT_S
        )
        if fetched.returncode:
            return (
                "apt-get cannot download MariaDB: " + (fetched.stderr.strip().splitlines() or ["no reason given"])[-1]
            )
        for package in sorted(work.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(work / "root")], check=True, timeout=_LIMIT_S)
        if not root.exists():
            (work / "root").rename(root)
    return None


@functools.cache
def _find() -> tuple[Path, str]:
    """Return the root of the packages, and the reason if there are none."""
    named = os.environ.get("TIDEMARK_MARIADB")
    root = Path(named) if named else cache_folder()
    for each in (root,) if named else (Path("/"), root):
        if _is_whole(each):
            return each, ""
    if named:
        return root, f"TIDEMARK_MARIADB={named} has no MariaDB"
    try:
        reason = _unpack(root)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"MariaDB cannot be unpacked: {error}"
    return root, reason or ("" if _is_whole(root) else "MariaDB's packages lack what is needed")


def environment(root: Path) -> dict[str, str]:
    library = next((root / "usr/lib").glob("*-linux-gnu"), root / "usr/lib")
    return {**os.environ, "LD_LIBRARY_PATH": str(library)}


def need_mariadb() -> Path:
    """Return the root of MariaDB's packages; skip the test without them."""
    root, reason = _find()
    if reason:
        pytest.skip(reason)
    return root


def mysqlbinlog(*arguments: str | Path) -> str:
    """Return the output of mysqlbinlog; fail the test if it complains."""
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

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.data = root, folder, folder / "data"
        self._socket = folder / "s"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Give each server a temporary folder of its own: a server that starts removes the temporary tables of all
        servers in its folder, and another running server died of that.
        """
        return {**environment(self.root), "TMPDIR": str(self.folder)}

    def _call(self, *command: str | Path, text: str = "") -> str:
        done = subprocess.run(
            [str(each) for each in command],
            env=self.environment(),
            input=text.encode(),
            capture_output=True,
            timeout=_LIMIT_S,
        )
        assert done.returncode == 0, done.stderr.decode()[-3_000:]
        return done.stdout.decode()

    def start(self) -> None:
        share = self.root / "usr"
        user = ["--user=root"] if os.geteuid() == 0 else []
        self._call(
            self.root / "usr/bin/mariadb-install-db",
            "--no-defaults",
            f"--basedir={share}",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *user,
        )
        options = (
            *(f"--basedir={share}", f"--datadir={self.data}", f"--socket={self._socket}", "--skip-networking"),
            *(f"--lc-messages-dir={share}/share/mysql", f"--plugin-dir={share}/lib/mysql/plugin", *user),
            *("--log-bin=master", "--binlog-format=ROW", "--binlog-row-metadata=FULL", "--server-id=77"),
            *("--skip-grant-tables", "--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0"),
            *("--max-allowed-packet=64M", "--default-time-zone=+00:00", "--sql-mode=", *self.options),
        )
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [self.root / "usr/sbin/mariadbd", "--no-defaults", *options],
                env=self.environment(),
                stdout=log,
                stderr=log,
            )
        for _ in range(_START_ATTEMPTS):
            if self._process.poll() is not None:
                break
            ping = subprocess.run(
                [self.root / "usr/bin/mariadb-admin", "--no-defaults", f"--socket={self._socket}", "--wait=1", "ping"],
                env=self.environment(),
                capture_output=True,
                timeout=_LIMIT_S,
            )
            if ping.returncode == 0:
                return
        raise AssertionError((self.folder / "log").read_text()[-3_000:])

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_LIMIT_S)

    def sql(self, text: str) -> str:
        """Run statements; return rows tab-separated, raw."""
        return self._call(
            self.root / "usr/bin/mariadb",
            "--no-defaults",
            f"--socket={self._socket}",
            "--user=root",
            "--default-character-set=utf8mb4",
            "--max-allowed-packet=64M",
            "--batch",
            "--skip-column-names",
            "--binary-mode",
            text=text,
        )

    def binlogs(self) -> list[Path]:
        """Return the server's own files, oldest first."""
        return sorted(self.data.glob("master.[0-9]*"))


@contextmanager
def running_server() -> Iterator[Server]:
    """Run a server for a block; skip the test without MariaDB."""
    root = need_mariadb()
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder:
        server = Server(root, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
