"""MySQL for tests: Debian sid's packages with their own libraries and loader, unpacked into a cache directory.

`TIDEMARK_MYSQL` names a directory in which the packages are unpacked. Without it the cache is used, which is filled
through an apt configuration of its own, from the Debian mirror that apt has; the machine's packages are not touched.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.replication.mariadb_rig import Server, running_server
from tests.replication.packages import NotGot, Packages, apt

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_WANTED = ("mysql-server-core", "mysql-client-core")


def _download(folder: Path) -> None:
    """Download the server, the client and the libraries that they need. Raises: NotGot."""
    shown = apt(folder, "apt-get", "indextargets", "--format", "$(ORIGIN)|$(REPO_URI)", "Created-By: Packages")
    mirrors = [line.partition("|")[2] for line in shown.splitlines() if line.startswith("Debian|")]
    if not mirrors or not Path(_KEYRING).is_file():
        raise NotGot("MySQL is not there, and apt has no mirror of Debian with its keys")
    (folder / "lists/partial").mkdir(parents=True)
    (folder / "archives/partial").mkdir(parents=True)
    (folder / "sources").write_text(f"deb [signed-by={_KEYRING}] {mirrors[0]} sid main\n", encoding="utf-8")
    own = {
        "Dir::Etc::sourcelist": folder / "sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": folder,
        "Acquire::Languages": "none",
    }
    options = [piece for name, value in own.items() for piece in ("-o", f"{name}={value}")]
    apt(folder, "apt-get", "-q", *options, "update")
    kinds = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")
    recursion = ("depends", "--recurse", *(f"--no-{kind}" for kind in kinds))
    needed = apt(folder, "apt-cache", *options, *recursion, *_WANTED).split()
    # Scripts of the packages need Perl, which is not run here.
    libraries = sorted({name for name in needed if name.startswith("lib") and not name.startswith("libperl")})
    apt(folder, "apt-get", "-q", *options, "download", *_WANTED, *libraries)


PACKAGES = Packages("MySQL", "TIDEMARK_MYSQL", ("usr/sbin/mysqld", "usr/bin/mysqlbinlog", "usr/bin/mysql"), _download)


class MySqlServer(Server):
    """A running MySQL, as `Server` is a MariaDB."""

    client, admin = "mysql", "mysqladmin"

    def environment(self) -> dict[str, str]:
        # The machine's own loader must not see these libraries.
        return {**os.environ, "TMPDIR": str(self.folder)}

    def program(self, name: str) -> list[str]:
        """Return the command of a program, with the loader and the libraries of its packages."""
        (library,) = (self.root / "usr/lib").glob("*-linux-gnu")
        (loader,) = library.glob("ld-linux-*.so.*")
        folder = "sbin" if name == "mysqld" else "bin"
        return [str(loader), "--library-path", str(library), str(self.root / "usr" / folder / name)]

    def server_command(self) -> list[str]:
        share = self.root / "usr"
        user = ["--user=root"] if os.geteuid() == 0 else []
        options = [
            *("--no-defaults", f"--basedir={share}", f"--datadir={self.data}", *user),
            *(f"--lc-messages-dir={share}/share/mysql", f"--character-sets-dir={share}/share/mysql/charsets"),
            *(f"--plugin-dir={share}/lib/mysql/plugin", "--secure-file-priv=", "--mysqlx=OFF"),
            *("--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"),
            *("--innodb-doublewrite=OFF", "--max-allowed-packet=64M", "--default-time-zone=+00:00", "--sql-mode="),
            f"--tmpdir={self.folder}",
        ]
        self._call(*self.program("mysqld"), *options, "--initialize-insecure", "--skip-log-bin")
        return [
            *(*self.program("mysqld"), *options, f"--socket={self._socket}", f"--pid-file={self.folder}/pid"),
            *("--skip-networking", "--log-bin=master", "--binlog-row-metadata=FULL", "--server-id=77", *self.options),
        ]

    def mysqlbinlog(self, *arguments: str | Path) -> str:
        return self._call(*self.program("mysqlbinlog"), "--no-defaults", *arguments, errors="backslashreplace")

    def feed(self, paths: list[Path], *arguments: str, is_idempotent: bool = False) -> None:
        # By default the server has gtid_mode=ON, and refuses transactions without a GTID (1782).
        given = ("--skip-gtids", *(["--idempotent"] if is_idempotent else []), *arguments)
        self.sql(self.mysqlbinlog("--verify-binlog-checksum", *given, *paths))


@contextmanager
def running_mysql(kind: type[MySqlServer] = MySqlServer) -> Iterator[MySqlServer]:
    """Run a server for a block; skip the test without MySQL."""
    root = PACKAGES.need()
    # The path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="tm-", dir="/tmp") as folder:
        server = kind(root, Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()


# The servers that tests of a stock server run with.
SERVERS = {"MariaDB": running_server, "MySQL": running_mysql}
