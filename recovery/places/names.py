"""Names of places: paths and URIs, in one form, and as messages show them.

A path is local, and `file:` names a local path too. Any other word before a colon is the scheme of a URI: of a
filesystem that pyarrow has, or that fsspec has registered. It is never a part of a path, so a mistyped scheme makes no
directory. A local file may be `./a:b`.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from tidemark.engine.base.errors import Error, FileMissing, IoFailed, Rejected

ANSWER_S = 30.0
S3 = ("s3", "s3a", "s3n")
ARROW = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
SLOW_BYTES_PER_S = 256 << 10  # a transfer that is slower has failed
TEXT_MAX = 200  # of what a library says, in a message
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
# Also in a URI with one slash, and with a slash in the password: those are refused, and the message shows them.
_USER = re.compile(r"(?i)(\b[a-z][a-z0-9+.\-]*:/*|//)([^/?#\s]*:[^?#\s]*|[^/?#\s]*)@")
_SECRET = re.compile(r"(?i)([?&][^=&#]*(?:key|secret|token|password|passwd|sig|credential)[^=&#]*=)([^&#\s]*)")
_MISSING = re.compile(r"(?i)no_?such_?bucket|not[ _]?found|no such file|does not exist|filesystemnotfound")
_REFUSED = re.compile(
    r"(?i)access_?denied|forbidden|unauthori|invalid_?access_?key|signature|credential|permission|403"
)


def shown_place(place: Any) -> str:
    """Return a place for messages and reports, with secrets of a URI replaced by `…`."""
    if isinstance(place, tuple):
        return f"{type(place[0]).__name__} {place[1]}"
    return _SECRET.sub(r"\1…", _USER.sub(r"\1…@", str(place)))


def _without_secrets(said: str, place: Any) -> str:
    """Return a text of a library without the secrets of a place, whether or not it has them in a URI."""
    text = "" if isinstance(place, tuple) else str(place)
    found = [secret for _, secret in (*_USER.findall(text), *_SECRET.findall(text))]
    secrets = {form for each in found for part in (each, *each.split(":")) for form in (part, unquote(part))}
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        said = said.replace(secret, "…")
    return shown_place(said)


def canonical_place(place: Any) -> Any:
    """Return a place in its one form: an absolute path, a URI `scheme://…`, or a tuple as it is.

    Raises: Rejected for a scheme that is not known, a `file:` URI of another machine, and what is no place.

    Examples:
        >>> canonical_place("file:///backups/a%20b"), canonical_place("s3a://bucket/shop/")
        ('/backups/a b', 's3://bucket/shop')
    """
    if isinstance(place, tuple):
        return place
    if not isinstance(place, (str, os.PathLike)):
        raise Rejected(f"a place is given as a str or a path, got {place!r}")
    text = os.fspath(place)
    found = _SCHEME.fullmatch(text)
    # A Path is a path, but for one that was made of a URI and has lost a slash.
    if found is None or (isinstance(place, os.PathLike) and not found[2].startswith("/")):
        return os.path.abspath(text)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "file":
        return _local(text, rest)
    scheme = "s3" if scheme in S3 else scheme
    if not rest.startswith("//"):
        hint = f"give {scheme}://…" if _is_known(scheme) else f"give a path (./{text} for a local file) or a URI"
        raise Rejected(f"{shown_place(text)!r} is not a place: {hint}", place=shown_place(text))
    if not _is_known(scheme):
        raise Rejected(
            f"{shown_place(text)!r} is not a place: there is no filesystem {scheme!r}; give a path, file:, s3:, gs:,"
            " abfss:, hdfs:, or a scheme that fsspec has registered",
            place=shown_place(text),
        )
    return f"{scheme}:{rest.rstrip('/')}"


def _local(text: str, rest: str) -> str:
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
    if host not in ("", "localhost") or not path.startswith("/"):
        raise Rejected(f"{text!r} is not a file of this machine; give file:///path", place=text)
    return os.path.abspath(unquote(path))


def _is_known(scheme: str) -> bool:
    if scheme in ARROW:
        return True
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    return scheme in registry or scheme in known_implementations


def filesystem_of(uri: Any) -> tuple[Any, str]:
    """Return the pyarrow filesystem of a canonical URI or of a tuple, and the path in it. Raises: Rejected,
    FileMissing, IoFailed.
    """
    from pyarrow import fs as arrow_fs

    if isinstance(uri, tuple):
        system, path = uri
        return system if isinstance(system, arrow_fs.FileSystem) else _arrow_of(system), path
    scheme = uri.partition(":")[0]
    if scheme in ARROW:
        system, path = answered(uri, lambda: arrow_fs.FileSystem.from_uri(uri))
        return system, path

    def opened() -> tuple[Any, str]:
        import fsspec

        system, path = fsspec.core.url_to_fs(uri)
        return _arrow_of(system), path

    system, path = answered(uri, opened)
    return system, path


def _arrow_of(system: Any) -> Any:
    """Return a filesystem of fsspec as one of pyarrow."""
    from pyarrow import fs as arrow_fs

    def move(source: str, target: str) -> None:
        system.cp_file(source, target)
        system.rm_file(source)

    handler = arrow_fs.FSSpecHandler(system)
    # What pyarrow calls takes `?`, `*` and `[` in a name for a pattern, and may then move and remove other files.
    handler.move, handler.delete_file = move, system.rm_file
    return arrow_fs.PyFileSystem(handler)


def answered(place: Any, call: Callable[[], Any], size_bytes: int = 0) -> Any:
    """Return what a call of a library about a place returns. size_bytes: that it transfers, which may take longer.

    Raises: FileMissing, Rejected, IoFailed, in one line and within 30 s.
    """
    found: list[Any] = []
    failed: list[Exception] = []

    def work() -> None:
        try:
            found.append(call())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work, name="place", daemon=True)
    thread.start()
    limit_s = ANSWER_S + size_bytes / SLOW_BYTES_PER_S
    thread.join(limit_s)
    if found:
        return found[0]
    if failed:
        raise typed_error(place, failed[0]) from None  # its text may have secrets
    raise IoFailed(f"{shown_place(place)} did not answer within {limit_s:g} s; check the address and the network")


def typed_error(place: Any, error: Exception) -> Exception:
    """Return the error of a place for what a library raised: one line, without secrets."""
    if isinstance(error, Error):
        return error
    said = _without_secrets(str(error).strip().partition("\n")[0], place)[:TEXT_MAX]
    name = shown_place(place)
    if isinstance(error, (ImportError, NotImplementedError)) or "libjvm" in said or "libhdfs" in said:
        return Rejected(f"{name} needs a library that is missing: {said}; install it, or use another place", place=name)
    if isinstance(error, FileNotFoundError) or _MISSING.search(said):
        return FileMissing(f"{name} does not exist ({said}); check the bucket and the path", place=name)
    if isinstance(error, (PermissionError, ValueError)) or _REFUSED.search(said):
        return Rejected(f"{name} cannot be used ({said}); check the URI and its keys", place=name)
    return IoFailed(f"{name} cannot be reached ({said}); check the address and the network", place=name)
