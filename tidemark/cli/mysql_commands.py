"""`replicate mysql://…`: apply row events of a MySQL or MariaDB server to a store. `serve --mysql`: be such a
server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tidemark as tm
from tidemark.cli.output import open_store, reported
from tidemark.cli.running import file_path, option_set, table_options
from tidemark.replication.ingest.address import COPY, CURRENT, Filter, Tls, parse_address
from tidemark.replication.mysql_source.flavors import FLAVORS

if TYPE_CHECKING:
    from tidemark.replication.mysql_source.users import MysqlUser
    from tidemark.replication.wire.wire import TlsContext
    from tidemark.sites.mysql_serving import MysqlServing

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

# Of `mysql_users` and `serve_users`.
mysql_server_options = option_set(
    click.option("--mysql", metavar="HOST:PORT", help="Serve replicas and tools of MySQL there. Port 0: a free one."),
    click.option("--mysql-user", multiple=True, metavar="NAME:FILE", help="A user, and the file with the password."),
    click.option("--mysql-read", multiple=True, metavar="NAME", help="A user who may also read rows."),
    click.option(
        "--mysql-flavor", type=click.Choice(list(FLAVORS)), default="mysql", show_default=True, help="Be such a server."
    ),
    click.option("--mysql-status-rows", is_flag=True, help="Send rows of the database mysql too."),
)


def mysql_users(given: dict[str, Any]) -> list[MysqlUser] | None:
    """Return the users of a MySQL port, None without a port. given: the options of `mysql_server_options`. Raises:
    click.UsageError; as `read_secret`.
    """
    if given["mysql"] is None:
        if given["mysql_user"] or given["mysql_read"] or given["mysql_status_rows"]:
            raise click.UsageError("give --mysql HOST:PORT, where these users log in")
        return None
    users = []
    for each in given["mysql_user"]:
        name, colon, file = each.partition(":")
        if not (name and colon and file):
            raise click.UsageError(f"a user is given as NAME:FILE, got {each!r}")
        users.append(tm.MysqlUser(name, tm.read_secret(file), name in given["mysql_read"]))
    if not users:
        raise click.UsageError("--mysql needs a user; give --mysql-user NAME:FILE")
    if unknown := set(given["mysql_read"]) - {each.name for each in users}:
        raise click.UsageError(f"--mysql-read {min(unknown)}: there is no --mysql-user of this name")
    return users


def serve_users(db: tm.Database, users: list[MysqlUser], given: dict[str, Any], tls: TlsContext | None) -> MysqlServing:
    """Serve a store to users. given: as for `mysql_users`. Raises: as `tm.serve_mysql`."""
    return tm.serve_mysql(db, given["mysql"], users, given["mysql_flavor"], tls, given["mysql_status_rows"])


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
