"""Secrets in files outside any store: read, after a check that no other user may read or write them."""

from __future__ import annotations

import logging
import os
import stat

from tidemark.engine.base.errors import FileMissing, Rejected
from tidemark.engine.base.users import is_own_user

_log = logging.getLogger("tidemark.files")

SECRET_BYTES_MAX = 64 << 10
_ENDS_OF_LINE = (b"\r\n", b"\n")


def read_secret(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a file with a secret or password: every byte, except one line end (LF or CRLF) at the end.

    All commands read their secrets with it. It logs a warning if the group may use the file, or if it is owned by
    another user (except root).

    Raises:
        Rejected: Any user may read or write the file, or it is empty, has more than 64 KiB or cannot be read.
        FileMissing: There is no such file.

    Examples:
        >>> import pathlib
        >>> secret = pathlib.Path("secret")
        >>> secret.touch(mode=0o600)
        >>> length = secret.write_text("swordfish")
        >>> tm.read_secret("secret")
        b'swordfish'
    """
    place = os.fspath(path)
    try:
        # Without O_NONBLOCK: for a pipe, such as a shell's <(...), the open must wait.
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(os.fstat(descriptor), place)
            content = b""
            while piece := os.read(descriptor, SECRET_BYTES_MAX + 1 - len(content)):
                content += piece
        finally:
            os.close(descriptor)
    except FileNotFoundError as cause:
        raise FileMissing(f"there is no file {place}; check the path", file=place) from cause
    except OSError as cause:
        raise Rejected(
            f"{place} cannot be read as a secret: {cause.strerror}; check the path and its permissions", file=place
        ) from cause
    if len(content) > SECRET_BYTES_MAX:
        raise Rejected(
            f"{place} has more than {SECRET_BYTES_MAX:,} bytes, too many for a secret; check the path", file=place
        )
    for end in _ENDS_OF_LINE:
        if content.endswith(end):
            content = content[: -len(end)]
            break
    if not content:
        raise Rejected(f"{place} is empty; write the secret into it", file=place)
    return content


def check_secret_file(path: str | os.PathLike[str]) -> None:
    """Check the mode of a secret file as `read_secret` does, for a file that other code reads, such as the key of a
    certificate.

    Raises: Rejected, FileMissing.
    """
    place = os.fspath(path)
    try:
        _check(os.stat(place), place)
    except FileNotFoundError as cause:
        raise FileMissing(f"there is no file {place}; check the path", file=place) from cause
    except OSError as cause:
        raise Rejected(
            f"{place} cannot be read: {cause.strerror}; check the path and its permissions", file=place
        ) from cause


def _check(status: os.stat_result, place: str) -> None:
    mode = stat.S_IMODE(status.st_mode)
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        text = f"any user may read or write {place}, which holds a secret (mode {mode:04o}); chmod 600 it"
        raise Rejected(f"{text}, and change the secret", file=place)
    if mode & (stat.S_IRGRP | stat.S_IWGRP):
        _log.warning("%s holds a secret, and its group may read or write it (mode %04o); chmod 600 it", place, mode)
    if not is_own_user(status.st_uid):
        _log.warning(
            "%s holds a secret, and user %d owns the file and can read it; make it your own", place, status.st_uid
        )
