"""`arbitrator`: the voter of a node group that has no rows."""

from __future__ import annotations

from pathlib import Path

import click

from replication.node_group.view import NODE_NUMBER_MAX
from tidemark.arbitrator import Arbitrator
from tidemark.cli.output import json_option, one_line, say, to_json
from tidemark.cli.running import group_of, node_options, node_tls, secret_of, until_told

POLL_SECONDS = 0.2


@click.command(short_help="Vote where a node group could break into two halves.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@node_options
@click.option("--new-group", "is_new", is_flag=True, help="Begin with a group that is to be made.")
@click.option(
    "--living",
    type=click.IntRange(1, NODE_NUMBER_MAX),
    metavar="NODE",
    help="Its disk was lost: begin with the view of this node. Make sure first that no other side of the group lives.",
)
@json_option
@one_line
def arbitrator(
    directory: Path,
    group: str,
    listen: str | None,
    secret_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    is_new: bool,
    living: int | None,
    as_json: bool,
) -> None:
    """Run the arbitrator of a node group until SIGTERM or SIGINT; DIRECTORY keeps what it has voted for.

    The first line printed says where it listens. An empty DIRECTORY votes for nobody until it is said what happened:
    --new-group, which does no harm where a record is, or --living.
    """
    if is_new and living is not None:
        raise click.UsageError("a group is new, or it lives already: give --new-group or --living")
    configuration = group_of(group)
    secret = secret_of(secret_file)
    tls = node_tls(tls_cert, tls_key, tls_ca)
    with (
        until_told() as told,
        Arbitrator(directory, configuration, secret, listen=listen, tls=tls, is_new=is_new, living=living) as running,
    ):
        if as_json:
            click.echo(to_json({"arbitrator": running.name, "tls": tls is not None}))
        else:
            click.echo(f"arbitrator at {running.name}{'' if tls is None else ' with TLS'}")
        while not told.is_set() and not running.wait(POLL_SECONDS):
            pass
        found = {"stopped": True, **running.status()}
    say(found, as_json, lambda: [f"stopped in view {found['view']}"])
