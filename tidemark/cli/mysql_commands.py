"""`replicate mysql://…`: apply row events of a MySQL or MariaDB server to a store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

import tidemark as tm
from tidemark.cli.output import open_store, reported
from tidemark.cli.running import file_path, option_set, table_options
from tidemark.replication.ingest.address import COPY, CURRENT, Filter, Tls, parse_address

PASSWORD_VARIABLE = "TIDEMARK_MYSQL_PASSWORD"
# Those of `replicate_mysql`.
mysql_options = option_set(
    click.option("--password-file", type=file_path, help="A file that holds the password."),
    click.option("--name", default="", help="Name of the source in mysql.tidemark_ingest; its address if not given."),
    click.option(
        "--server-id",
        type=click.IntRange(1, (1 << 32) - 1),
        help="Server id of this replica, which no other replica of the source has.",
    ),
    click.option("--copy", "start", flag_value=COPY, help="The first time: copy all wanted tables, then follow."),
    click.option("--from-now", "start", flag_value=CURRENT, help="The first time: follow from where the binlog ends."),
    click.option("--from", "position", metavar="FILE:POSITION", help="The first time: follow from this position."),
    table_options,
    click.option("--once", is_flag=True, help="End where the binlog ends."),
    click.option("--tolerant", is_flag=True, help="Do not stop at rows that are missing or exist already."),
    click.option("--skip", multiple=True, metavar="FILE:POSITION", help="Skip the statement at this position."),
    click.option("--tls", is_flag=True, help="Require TLS."),
    click.option(
        "--tls-ca", type=file_path, help="CA certificate of the server (PEM); without it the server is not verified."
    ),
    click.option("--tls-cert", type=file_path, help="Certificate of this client (PEM)."),
    click.option("--tls-key", type=file_path, help="Its private key (PEM)."),
    click.option("--tls-any-name", is_flag=True, help="Accept a certificate of another host name."),
)


def _position(text: str) -> tuple[str, int]:
    file, colon, number = text.rpartition(":")
    if not (file and colon and number.isdigit()):
        raise click.UsageError(f"a position must be FILE:POSITION, got {text!r}")
    return file, int(number)


def _password_of(path: Path) -> str:
    try:
        return tm.read_secret(path).decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(f"the password in {path} is not UTF-8: {error.reason}") from error


def replicate_mysql(url: str, directory: Path, data_memory: str | None, **given: Any) -> dict[str, Any]:
    """Replicate from a server until stopped, or with `once` to the end of its binlog; return the last status.

    given: the options of `mysql_options`. Raises: click.UsageError, and as `Ingest.run`.
    """
    from tidemark.engine.files.private_files import check_secret_file
    from tidemark.replication.ingest.ingest import IngestOptions
    from tidemark.sites.mysql_ingest import default_server_id, ingest

    password = os.environ.get(PASSWORD_VARIABLE, "")
    if given["password_file"] is not None:
        password = _password_of(given["password_file"])
    files = {"authority": given["tls_ca"], "certificate": given["tls_cert"], "key": given["tls_key"]}
    wants_tls = given["tls"] or any(files.values())
    if key := given["tls_key"] or given["tls_cert"]:
        check_secret_file(key)
    tls = Tls(**{name: str(path or "") for name, path in files.items()}, verifies_name=not given["tls_any_name"])
    address = parse_address(url, password, tls if wants_tls else None)
    position = given["position"]
    if position is not None and given["start"] is not None:
        raise click.UsageError("give only one of --copy, --from-now and --from")
    with open_store(directory, data_memory, background=True, create=True) as db, reported("applied") as progress:
        options = IngestOptions(
            server_id=given["server_id"] or default_server_id(db),
            source=given["name"],
            start=given["start"] if position is None else _position(position),
            wanted=Filter(tuple(given["tables"]), tuple(given["ignored"])),
            once=given["once"],
            tolerates=given["tolerant"],
            skipped=frozenset(map(_position, given["skip"])),
        )
        running = ingest(db, address, options, progress)
        try:
            running.run()
        except KeyboardInterrupt:
            click.echo("stopped; the next run continues from here", err=True)
        return running.status()
