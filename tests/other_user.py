"""What another user of the machine can do: a forked child drops root, and returns how the system answered it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

STRANGER = 54_321
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to run a child as another user")


def write_secret(path: Path, content: bytes) -> Path:
    """A file for this user alone, as commands require for secrets."""
    path.touch(0o600)
    path.chmod(0o600)
    path.write_bytes(content)
    return path


@contextmanager
def open_folder() -> Iterator[Path]:
    """A directory that any user may enter; pytest's own are closed to other users."""
    folder = Path(tempfile.mkdtemp(prefix="tidemark-open-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def as_stranger(act: Callable[[], object], groups: tuple[int, ...] = (), user: int = STRANGER) -> str:
    """The result of `act` in a child of another user, in these groups, as text; for an error its class."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        # Only system calls here: locks of other threads of this process may stay held for ever.
        try:
            os.setgroups(groups)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
            said = str(act())
        except OSError as error:
            said = type(error).__name__
        finally:
            os.write(write, said.encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answers:
        said = answers.read()
    os.waitpid(child, 0)
    return said
