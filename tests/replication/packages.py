"""Debian's packages of a server for tests, unpacked into a cache directory; nothing is installed.

A variable names a directory in which the packages are unpacked already. Without it the cache is used, which is filled
by `apt-get download` and `dpkg -x` where these work.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

# Of one call. A first use that fills the cache must end within the time of one test, or the test fails instead of being
# skipped.
LIMIT_S = 60


class NotGot(Exception):
    """Why packages cannot be downloaded; one line."""


@dataclass(frozen=True)
class Packages:
    """The packages of a server. title: its name in messages. variable: names their directory. files: must be there.
    download: writes the packages into a directory, or raises NotGot. roots: directories to look into first.
    """

    title: str
    variable: str
    files: tuple[str, ...]
    download: Callable[[Path], None]
    roots: tuple[Path, ...] = ()

    def need(self) -> Path:
        """Return the root of the packages; skip the test without them."""
        root, reason = _found(self)
        if reason:
            pytest.skip(reason)
        return root

    def is_whole(self, root: Path) -> bool:
        return all((root / name).is_file() for name in self.files)

    def unpack(self, root: Path) -> None:
        """Fill the cache. Raises: NotGot, and the errors of programs."""
        if not shutil.which("apt-get") or not shutil.which("dpkg"):
            raise NotGot(f"{self.title} is not there, and neither are apt-get and dpkg")
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent) as folder:
            work = Path(folder)
            self.download(work)
            for package in sorted(work.glob("*.deb")):
                subprocess.run(["dpkg", "-x", str(package), str(work / "root")], check=True, timeout=LIMIT_S)
            if not root.exists():
                (work / "root").rename(root)


@functools.cache
def _found(packages: Packages) -> tuple[Path, str]:
    """Return the root of the packages, and the reason if there are none."""
    title = packages.title
    if named := os.environ.get(packages.variable):
        root = Path(named)
        return root, "" if packages.is_whole(root) else f"{packages.variable}={named} has no {title}"
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = Path(base) / "tidemark" / title.lower()
    for each in (*packages.roots, root):
        if packages.is_whole(each):
            return each, ""
    try:
        packages.unpack(root)
    except NotGot as error:
        reason = str(error)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"{title} cannot be unpacked: {error}"
    else:
        reason = f"{title}'s packages lack what is needed"
    return root, "" if packages.is_whole(root) else reason  # another process may have filled the cache


def apt(folder: Path, *arguments: str) -> str:
    """Run a program of apt in a directory; return its output. Raises: NotGot."""
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotGot(f"{' '.join(arguments[:1])} fails: {said}")
    return done.stdout
