"""`node` and `arbitrator`: what a node group consists of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from recovery.node_restart.messages import ROWID_SYNC, VARIANTS
from replication.node_group.view import NODE_NUMBER_MAX
from replication.settings.options import OF_STORE, parse_text
from tidemark.arbitrator import Arbitrator
from tidemark.cli.output import json_option, memory_option, one_line, say, to_json
from tidemark.cli.running import group_of, node_options, node_tls, secret_of, until_told
from tidemark.node_group import NodeGroup

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


def _option(text: str) -> tuple[str, Any]:
    """An option of the store, as `tm.open` takes it. Raises: click.UsageError, SchemaInvalid."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.UsageError(f"--option is NAME=VALUE, got {text!r}")
    if name in OF_STORE:
        return name, parse_text(name, value)
    return name, int(value) if value.isascii() and value.isdigit() else value


@click.command(short_help="Run a node of a group of synchronous replicas.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", "number", type=click.IntRange(1, NODE_NUMBER_MAX), required=True, help="Its number.")
@node_options
@click.option("--calls", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where it serves clients.")
@click.option("--found", is_flag=True, help="Make the group, if this node knows of none: one of its nodes, once.")
@click.option(
    "--variant", type=click.Choice(VARIANTS), default=ROWID_SYNC, show_default=True, help="How it wishes to come back."
)
@click.option(
    "--stay", is_flag=True, help="When told to end, do not leave the group first: it is to come back at once."
)
@click.option("--replicas", metavar="HOST:PORT", help="Serve this node's binlog to replica sites there.")
@click.option(
    "--heartbeat-row-ms", type=click.IntRange(0, 3_600_000), default=0, help="Write a row so often; 0: never."
)
@click.option("-o", "--option", "given", multiple=True, metavar="NAME=VALUE", help="An option of the store.")
@memory_option
@json_option
@one_line
def node(
    directory: Path,
    number: int,
    group: str,
    listen: str | None,
    secret_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    calls: str,
    found: bool,
    variant: str,
    stay: bool,
    replicas: str | None,
    heartbeat_row_ms: int,
    given: tuple[str, ...],
    data_memory: str,
    as_json: bool,
) -> None:
    """Run a node until SIGTERM or SIGINT; DIRECTORY holds its store. It joins the group by itself, and again after
    whatever has happened to it.

    A line is printed when it begins to serve, and whenever that changes: its state, the view, and where clients call.
    """
    options = dict(map(_option, given))
    secret, tls = secret_of(secret_file), node_tls(tls_cert, tls_key, tls_ca)
    running = NodeGroup(
        directory,
        number,
        group_of(group),
        secret,
        calls,
        listen=listen,
        found=found,
        tls=tls,
        variant=variant,
        replicas=replicas,
        heartbeat_row_ms=heartbeat_row_ms,
        data_memory=data_memory,
        **options,
    )
    try:
        with until_told() as told:
            before: dict[str, Any] = {}
            while not told.wait(POLL_SECONDS):
                status = running.status()
                shown = {name: status[name] for name in ("node", "state", "view", "members", "primary")}
                if shown != before:
                    before = shown
                    click.echo(to_json({**shown, "calls": running.address}) if as_json else _line(shown, running))
    finally:
        running.close(leave=not stay)
    say({"stopped": True, "node": number}, as_json, lambda: [f"node {number} stopped"])


def _line(shown: dict[str, Any], running: NodeGroup) -> str:
    members = ", ".join(map(str, shown["members"])) or "none"
    return (
        f"node {shown['node']} {shown['state']}: view {shown['view']}, members {members}, primary {shown['primary']},"
        f" calls at {running.address or 'no address yet'}"
    )
