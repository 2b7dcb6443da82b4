"""`secret`, `serve` and `replicate`: a secret for links, a store offered to replicas, and a store that follows another
store or a MySQL server.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tidemark as tm
from tidemark.cli.mysql_commands import (
    mysql_options,
    mysql_server_options,
    mysql_users,
    replicate_mysql,
    serve_users,
)
from tidemark.cli.output import (
    bar,
    epoch_text,
    example,
    one_line,
    open_store,
    opens_store,
    options_given,
    options_of,
    print_result,
    reported,
    store_argument,
    tree_lines,
)
from tidemark.cli.running import (
    file_path,
    heartbeat_row_option,
    metrics_option,
    other_sources,
    secret_of,
    secret_option,
    tls_context,
    until_signal,
)
from tidemark.engine.base.clock import SystemClock
from tidemark.engine.types.base import counted
from tidemark.replication.ingest.address import COPY
from tidemark.replication.settings.options import SERVER_ID_MAX

if TYPE_CHECKING:
    from tidemark.sites.channel import Channel

POLL_SECONDS = 0.05
_server_id = click.option("--server-id", type=click.IntRange(1, SERVER_ID_MAX), help="Id of this site.")
_given = options_given("An option of replication, of the store or of the channel.")


@click.command(epilog=example("tidemark secret secret"))
@click.argument("file", type=click.Path(path_type=Path))
@one_line
def secret(file: Path) -> None:
    """Write 32 random bytes, as 64 hexadecimal digits, to a new FILE that only its owner may read.

    Give each side of a link a copy. Links to other hosts without TLS accept no shorter secret.
    """
    from tidemark.replication.wire.handshake import KEY_BYTES_MIN

    is_made = False
    try:
        file.touch(0o600, exist_ok=False)
        is_made = True
        file.write_text(f"{SystemClock().random_bytes(KEY_BYTES_MIN).hex()}\n")
    except OSError as error:
        if is_made:
            file.unlink()  # a partly written secret could be used as a whole one
        raise click.UsageError(
            f"no secret was written to {file}: {error.strerror}; give the path of a new file"
        ) from error


@click.command(
    epilog=example(
        "tidemark serve shop --server-id 1 --secret-file secret --listen 127.0.0.1:7306",
        "tidemark serve shop --server-id 1 --mysql 127.0.0.1:3306 --mysql-user repl:repl.secret",
    )
)
@store_argument
@click.option("--listen", default="127.0.0.1:7306", show_default=True, metavar="HOST:PORT", help="Port 0: a free one.")
@_server_id
@secret_option
@click.option("--tls-cert", type=file_path, help="This site's certificate (PEM).")
@click.option("--tls-key", type=file_path, help="Its private key (PEM).")
@click.option("--tls-ca", type=file_path, help="CA certificate (PEM); replicas need a certificate signed by it.")
@heartbeat_row_option
@click.option("--calls", metavar="HOST:PORT", help="Serve calls of clients there (tm.connect). Port 0: a free one.")
@mysql_server_options
@metrics_option
@_given
@opens_store
def serve(
    store: Path,
    listen: str,
    server_id: int | None,
    secret_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    heartbeat_row_ms: int,
    calls: str | None,
    metrics: str | None,
    given: tuple[str, ...],
    data_memory: str | None,
    as_json: bool,
    **mysql: Any,
) -> None:
    """Open STORE and serve its binlog until SIGTERM or SIGINT. This process has the store open in the meantime.

    The first line printed is the address. A store without a binlog gets one (-o log_bin=NAME, "binlog" if not given);
    replicas get what is committed from then on.

    With --mysql it is also served to replicas and tools of MySQL and MariaDB, and without --secret-file to these alone.
    Updates must be logged whole: -o log_update_as_write=off -o log_updated_only=off.
    """
    options = {"log_bin": "binlog", **options_of(given)[0]}
    if server_id is not None:
        options["server_id"] = server_id
    users = mysql_users(mysql)
    is_mysql_alone = users is not None and secret_file is None and calls is None
    secret = b"" if is_mysql_alone else secret_of(secret_file)
    tls = mysql_tls = None
    if tls_cert is not None or tls_key is not None or tls_ca is not None:
        if tls_cert is None or tls_key is None:
            raise click.UsageError("TLS needs --tls-cert and --tls-key")
        from tidemark.replication.wire.wire import server_tls

        authority = None if tls_ca is None else str(tls_ca)
        tls = tls_context(lambda: server_tls(str(tls_cert), str(tls_key), authority), tls_key)
        mysql_tls = server_tls(str(tls_cert), str(tls_key), authority, version_min="1.2")
    with (
        until_signal() as stopped,
        open_store(store, data_memory, background=True, options=options) as db,
        nullcontext() if is_mysql_alone else tm.serve(db, listen, secret, tls, heartbeat_row_ms) as links,
        nullcontext() if users is None else serve_users(db, users, mysql, mysql_tls) as of_mysql,
        nullcontext() if calls is None else tm.serve_calls(db, calls, secret, tls) as taking,
        nullcontext() if metrics is None else tm.serve_metrics(db, metrics) as scraped,
    ):
        serving = links or of_mysql
        assert serving is not None
        more = {
            "mysql": None if of_mysql is None else of_mysql.name,
            "calls": None if taking is None else taking.name,
            "metrics": None if scraped is None else scraped.name,
        }
        also = "".join(f", {what} at {name}" for what, name in more.items() if name is not None)
        text = f"serving {store} at {serving.name}{also}{'' if tls is None else ' with TLS'}"
        print_result({"serving": serving.name, "tls": tls is not None, **more}, as_json, lambda: [text])
        while not stopped.wait(1.0):
            db.check_usable()
        found = {"stopped": True, **serving.status(), "binlog": db.status()["binlog"]}
    print_result(found, as_json, lambda: [f"stopped at {found['binlog']['file']}:{found['binlog']['position']}"])


@click.command(
    epilog=example(
        "tidemark replicate 127.0.0.1:7306 branch --server-id 2 --secret-file secret --copy",
        "tidemark replicate mysql://reader@db.example:3306/ branch --copy --table shop.%",
    )
)
@click.argument("source")
@click.argument("store", type=click.Path(path_type=Path, file_okay=False))
@mysql_options
@secret_option
@other_sources
@_given
@opens_store
def replicate(
    source: str,
    store: Path,
    secret_file: Path | None,
    others: tuple[str, ...],
    failover_after_ms: int,
    heartbeat_from: int,
    given: tuple[str, ...],
    data_memory: str | None,
    as_json: bool,
    **mysql: Any,
) -> None:
    """Apply the changes of SOURCE to STORE, which is created if it is missing, until SIGTERM or SIGINT, or with --once
    until all changes that SOURCE has are applied.

    SOURCE is HOST:PORT of a store that is served: --server-id and --secret-file are needed, --tls, --tls-ca, --tls-cert
    and --tls-key as the source requires, --name and --table as for others. Or it is mysql://user@host:port/: then the
    password comes from --password-file or the environment variable TIDEMARK_MYSQL_PASSWORD. The position is kept in the
    store: when it is started again, it continues after the last transaction applied.

    With --other-source, --failover-after-ms and --heartbeat-from it moves to the next source when the heartbeat row
    (serve --heartbeat-row-ms) of that server, whose changes all sources pass on, has not changed here for so long.
    """
    sources = {"other_sources": others, "failover_after_ms": failover_after_ms, "heartbeat_from": heartbeat_from}
    if "://" in source:
        if secret_file is not None or given or any(sources.values()):
            raise click.UsageError("--secret-file, --option and fail-over are for stores that are served")
        found = replicate_mysql(source, store, data_memory, **mysql)
    else:
        found = _replicate(source, store, secret_file, given, data_memory, mysql, sources)
    shown = {name: value for name, value in found.items() if name != "applied_seconds"}  # buckets, for programs
    print_result(found, as_json, lambda: [*tree_lines(shown), reached_line(source, found)])


def reached_line(source: str, found: dict[str, Any]) -> str:
    """Return how far a store has followed its source, in one line."""
    if "applied_to" in found:
        count, place, seconds = found["applied"], found["applied_to"], found["lag"]["seconds"]
        epoch = f", epoch {epoch_text(found['applied_epoch'])}" if found["applied_epoch"] else ""
    else:
        count, seconds, epoch = found["transactions"], found["seconds_behind"], ""
        place = f"{found['file']}:{found['position']}" if found["file"] else None
    lag = "lag unknown" if seconds is None else f"lag {seconds:,.1f} s" if seconds else "nothing is left to apply"
    return f"{counted(count, 'transaction')} of {source} applied, to {place or 'its beginning'}{epoch}, {lag}"


_MYSQL_ONLY = ("password_file", "position", "tolerant", "skip", "tls_any_name")


def _replicate(
    source: str,
    store: Path,
    secret_file: Path | None,
    given: tuple[str, ...],
    data_memory: str | None,
    wanted: dict[str, Any],
    sources: dict[str, Any],
) -> dict[str, Any]:
    for name in _MYSQL_ONLY:
        if wanted[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} is for mysql:// sources")
    if wanted["start"] not in (None, COPY):
        raise click.UsageError("--from-now is for mysql:// sources")
    secret = secret_of(secret_file)
    options, of_channel = options_of(given)
    if wanted["server_id"] is not None:
        options["server_id"] = wanted["server_id"]
    tls = None
    if wanted["tls"] or wanted["tls_ca"] or wanted["tls_cert"]:
        from tidemark.replication.wire.wire import client_tls

        paths = [None if wanted[name] is None else str(wanted[name]) for name in ("tls_ca", "tls_cert", "tls_key")]
        tls = tls_context(lambda: client_tls(*paths), wanted["tls_key"] or wanted["tls_cert"])
    with (
        until_signal() as stopped,
        open_store(store, data_memory, background=True, create=True, options=options) as db,
        reported("copied") as progress,
    ):
        channel = tm.Channel(
            source,
            db,
            wanted["name"] or "main",
            secret=secret,
            tls=tls,
            skip_start=False,
            copy=wanted["start"] == COPY,
            progress=progress,
            replicate_do=wanted["tables"],
            replicate_ignore=wanted["ignored"],
            **sources,
            **of_channel,
        )
        with channel:
            _follow(db, channel, stopped, wanted["once"])
            return channel.status()


def _follow(db: tm.Database, channel: Channel, stopped: threading.Event, once: bool) -> None:
    """Wait for a signal or, if `once`, until all is applied. Raises: the error of receiver or applier, StoreFailed."""
    shown = 0
    with bar("applied", None, "transactions") as advance:
        while not stopped.wait(POLL_SECONDS):
            db.check_usable()
            done = channel.replica.progress.done
            advance(done - shown)
            shown = done
            channel.check_running()
            if once and channel.has_caught_up:
                return
