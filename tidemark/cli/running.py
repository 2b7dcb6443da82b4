"""The parts shared by commands that run until a signal: secrets, TLS, signals, and options of channels."""

from __future__ import annotations

import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

import tidemark as tm
from tidemark.cli.output import Command
from tidemark.replication.settings.options import SERVER_ID_MAX

if TYPE_CHECKING:
    from tidemark.replication.wire.wire import TlsContext

T = TypeVar("T")


def option_set(*added: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options to a command, in this order."""

    def decorate(command: Command) -> Command:
        for option in reversed(added):
            command = option(command)
        return command

    return decorate


file_path = click.Path(path_type=Path, exists=True, dir_okay=False)
secret_option = click.option(
    "--secret-file", type=file_path, help="A file with the secret of both sides, 16 bytes or more."
)
metrics_option = click.option("--metrics", metavar="HOST:PORT", help="Serve metrics there over HTTP, for Prometheus.")
heartbeat_row_option = click.option(
    "--heartbeat-row-ms",
    type=click.IntRange(0, 3_600_000),
    default=0,
    help="Interval of heartbeat rows in ms; 0: none.",
)
# Tables of a channel: tables, ignored.
table_options = option_set(
    click.option(
        "--table", "tables", multiple=True, metavar="DB.TABLE", help="Replicate only these; wildcards are % and _."
    ),
    click.option("--ignore-table", "ignored", multiple=True, metavar="DB.TABLE", help="Do not replicate these."),
)
# Of a channel with several sources: others, failover_after_ms, heartbeat_from.
other_sources = option_set(
    click.option(
        "--other-source",
        "others",
        multiple=True,
        metavar="HOST:PORT",
        help="Next source, when SOURCE is silent; may be repeated.",
    ),
    click.option(
        "--failover-after-ms",
        type=click.IntRange(min=0),
        default=0,
        help="Silence in ms after which the next source is used; 0: never.",
    ),
    click.option(
        "--heartbeat-from",
        type=click.IntRange(0, SERVER_ID_MAX),
        default=0,
        help="Server id whose heartbeat rows are watched.",
    ),
)


def node_tls(
    certificate: Path | None, key: Path | None, authority: Path | None
) -> tuple[TlsContext, TlsContext] | None:
    """Return the TLS contexts of a node, as server and as client; None without TLS. Raises: click.UsageError."""
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None or authority is None:
        raise click.UsageError("TLS between nodes needs --tls-cert, --tls-key and --tls-ca")
    from tidemark.replication.wire.wire import client_tls, server_tls

    files = (str(certificate), str(key))
    return tls_context(lambda: (server_tls(*files, str(authority)), client_tls(str(authority), *files)), key)


def logged(command: Command) -> Command:
    """Write the log lines of a command to standard error, each with its time and its level."""

    @functools.wraps(command)
    def run(*arguments: Any, **named: Any) -> None:
        log, handler = logging.getLogger("tidemark"), logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        before = log.level
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            command(*arguments, **named)
        finally:
            log.setLevel(before)
            log.removeHandler(handler)

    return run


def secret_of(path: Path | None) -> bytes:
    """Return the content of a secret file. Raises: click.UsageError if none is given; as `read_secret`."""
    if path is None:
        raise click.UsageError("give --secret-file: both sides prove that they know the secret in it")
    return tm.read_secret(path)


def tls_context(make: Callable[[], T], key: Path | None) -> T:
    """Return the TLS context of these files. key: the one with the private key, if there is one. Raises:
    click.UsageError; as `check_secret_file`.
    """
    if key is not None:
        from tidemark.engine.files.private_files import check_secret_file

        check_secret_file(key)
    try:
        return make()
    except tm.SchemaInvalid as error:
        raise click.UsageError(error.message) from error


@contextmanager
def until_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set, so that the command can shut down cleanly."""
    stopped = threading.Event()
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(each, lambda *_: stopped.set()) for each in kinds]
    try:
        yield stopped
    finally:
        for each, handler in zip(kinds, before, strict=True):
            signal.signal(each, handler)
