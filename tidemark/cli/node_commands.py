"""`node` and `arbitrator`: the processes of a node group."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

import tidemark as tm
from tidemark.cli.output import (
    example,
    memory_of,
    opens_store,
    options_given,
    options_of,
    print_result,
    prints,
    to_json,
)
from tidemark.cli.running import (
    file_path,
    heartbeat_row_option,
    logged,
    metrics_option,
    node_tls,
    option_set,
    other_sources,
    secret_of,
    secret_option,
    table_options,
    tls_context,
    until_signal,
)
from tidemark.recovery.node_restart.messages import ROWID_SYNC, VARIANTS
from tidemark.replication.node_group.configuration import FORM, GroupConfiguration
from tidemark.replication.node_group.view import NODE_NUMBER_MAX
from tidemark.replication.settings.options import split_keywords

if TYPE_CHECKING:
    from tidemark.nodes.node_channel import NodeChannelKeywords
    from tidemark.nodes.node_group import NodeGroup

POLL_SECONDS = 0.2
# Options of `node` that `tm.NodeGroup` takes as they are.
_OF_NODE = ("calls", "listen", "variant", "replicas", "heartbeat_row_ms", "metrics")
# Of every process of a node group: group, listen, secret_file, tls_cert, tls_key, tls_ca.
_node_options = option_set(
    click.option("--group", required=True, metavar=FORM, help="All nodes of the group; give each node the same text."),
    click.option("--listen", metavar="HOST:PORT", help="Where to listen, if that is not its address in the group."),
    secret_option,
    click.option("--tls-cert", type=file_path, help="This node's certificate (PEM)."),
    click.option("--tls-key", type=file_path, help="Its private key (PEM)."),
    click.option("--tls-ca", type=file_path, help="CA certificate of the nodes' certificates (PEM)."),
)
_channel_options = option_set(
    click.option("--source", metavar="HOST:PORT", help="Address of a source; the group becomes its replica site."),
    click.option(
        "--source-secret-file", type=file_path, help="The secret of the source, if it differs from that of the group."
    ),
    click.option("--source-tls-ca", type=file_path, help="CA certificate of the source (PEM); turns TLS on."),
    click.option("--channel", "name", metavar="NAME", help="Name of the channel."),
    click.option("--copy", is_flag=True, help="The first time: copy all wanted tables, then follow."),
    table_options,
    other_sources,
)


@click.command(epilog=example("tidemark arbitrator votes --group GROUP --secret-file secret --new-group"))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@_node_options
@click.option("--new-group", "is_new", is_flag=True, help="Begin with a new group.")
@click.option(
    "--living",
    type=click.IntRange(1, NODE_NUMBER_MAX),
    metavar="NODE",
    help="Its disk was lost: begin with the view of this node. Make sure first that no other part of the group runs.",
)
@prints
@logged
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
    """Run the arbitrator of a node group until SIGTERM or SIGINT. DIRECTORY keeps its votes.

    The first line printed is the address. With an empty DIRECTORY it votes for no node until an option says why the
    directory is empty: --new-group, which does no harm where there is a record, or --living.
    """
    if is_new and living is not None:
        raise click.UsageError("a group is new or exists already; give --new-group or --living, not both")
    configuration, secret = GroupConfiguration.parse(group), secret_of(secret_file)
    tls = node_tls(tls_cert, tls_key, tls_ca)
    with (
        until_signal() as stopped,
        tm.Arbitrator(
            directory, configuration, secret, listen=listen, tls=tls, is_new=is_new, living=living
        ) as running,
    ):
        text = f"arbitrator at {running.name}{'' if tls is None else ' with TLS'}"
        print_result({"arbitrator": running.name, "tls": tls is not None}, as_json, lambda: [text])
        while not stopped.is_set() and not running.wait(POLL_SECONDS):
            pass
        found = {"stopped": True, **running.status()}
    print_result(found, as_json, lambda: [f"stopped in view {found['view']}"])


def _channel(
    options: dict[str, Any], given: dict[str, Any], certificate: Path | None, key: Path | None
) -> NodeChannelKeywords | None:
    """Return the arguments of the channel. options: those of --option. Raises: click.UsageError."""
    if given["source"] is None:
        if options or any(given.values()):
            raise click.UsageError("options of the group's channel need --source")
        return None
    found: dict[str, Any] = {
        "source": given["source"],
        "copy": given["copy"],
        "replicate_do": given["tables"],
        "replicate_ignore": given["ignored"],
        "other_sources": given["others"],
        "failover_after_ms": given["failover_after_ms"],
        "heartbeat_from": given["heartbeat_from"],
        **options,
    }
    if given["name"] is not None:
        found["name"] = given["name"]
    if given["source_secret_file"] is not None:
        found["secret"] = secret_of(given["source_secret_file"])
    if given["source_tls_ca"] is not None:
        from tidemark.replication.wire.wire import client_tls

        own = [None if each is None else str(each) for each in (certificate, key)]
        found["tls"] = tls_context(lambda: client_tls(str(given["source_tls_ca"]), *own), None)  # see `node_tls`
    return cast("NodeChannelKeywords", found)


@click.command(epilog=example("tidemark node n1 --node 1 --group GROUP --secret-file secret --found"))
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", "number", type=click.IntRange(1, NODE_NUMBER_MAX), required=True, help="Number of the node.")
@_node_options
@click.option("--calls", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Where it serves clients.")
@click.option("--found", is_flag=True, help="Create the group if no node knows one; for one node, at its first start.")
@click.option(
    "--found-alone",
    is_flag=True,
    help="Create the group although other nodes do not answer. Make sure first that none of them has it.",
)
@click.option(
    "--variant",
    type=click.Choice(VARIANTS),
    default=ROWID_SYNC,
    show_default=True,
    help="How the node is brought up to date when it joins again.",
)
@click.option(
    "--stay", is_flag=True, help="On SIGTERM or SIGINT do not leave the group: the node will be back at once."
)
@click.option("--replicas", metavar="HOST:PORT", help="Serve this node's binlog to replica sites there.")
@heartbeat_row_option
@metrics_option
@_channel_options
@options_given("An option of the store or of the channel.")
@opens_store
@logged
def node(
    directory: Path,
    number: int,
    group: str,
    secret_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    found: bool,
    found_alone: bool,
    stay: bool,
    given: tuple[str, ...],
    data_memory: str | None,
    as_json: bool,
    **more: Any,
) -> None:
    """Run a node until SIGTERM or SIGINT. DIRECTORY holds its store. The node joins the group by itself, and again
    after any failure.

    With --source the group is a replica site: the node that leads follows that source, or with --other-source,
    --failover-after-ms and --heartbeat-from the next one, as `replicate` does. Give the same at all nodes.

    A line is printed when the node begins to serve and whenever that changes: its state, the view, the address for
    clients, and whether the channel is here, or the error it ended with. `tidemark status DIRECTORY` asks the running
    node.

    Log lines go to standard error. The first one says that the node gets its compiled code. The node listens only after
    that. On a machine that has no compiled code yet this takes minutes.
    """
    options, own = options_of(given)
    of_node = {name: more.pop(name) for name in _OF_NODE}
    channel = _channel(own, more, tls_cert, tls_key)
    options = {**memory_of(data_memory), **options}
    split_keywords(options)  # refuses other names, which could be arguments of NodeGroup
    secret, tls = secret_of(secret_file), node_tls(tls_cert, tls_key, tls_ca)
    running = tm.NodeGroup(
        directory,
        number,
        GroupConfiguration.parse(group),
        secret,
        found="alone" if found_alone else found,
        tls=tls,
        channel=channel,
        **of_node,
        **options,
    )
    if running.metrics is not None:
        click.echo(to_json({"metrics": running.metrics.name}) if as_json else f"metrics at {running.metrics.name}")
    try:
        with until_signal() as stopped:
            before: dict[str, Any] = {}
            while not stopped.wait(POLL_SECONDS):
                status = running.status()
                shown = {name: status[name] for name in ("node", "state", "view", "members", "primary", "disk_full")}
                if status["channel"] is not None:
                    shown["channel"] = {name: status["channel"][name] for name in ("is_here", "error")}
                if shown != before:
                    before = shown
                    click.echo(to_json({**shown, "calls": running.address}) if as_json else _line(shown, running))
    finally:
        running.close(leave=not stay)
    print_result({"stopped": True, "node": number}, as_json, lambda: [f"node {number} stopped"])


def _line(shown: dict[str, Any], running: NodeGroup) -> str:
    members = ", ".join(map(str, shown["members"])) or "none"
    return (
        f"node {shown['node']} {shown['state']}: view {shown['view']}, members {members}, primary {shown['primary']},"
        f" calls at {running.address or 'no address yet'}{_of_channel(shown.get('channel'))}"
        f"{shown['disk_full'] and ', ' + shown['disk_full']}"
    )


def _of_channel(shown: dict[str, Any] | None) -> str:
    if shown is None:
        return ""
    if shown["error"] is not None:
        return f", channel ended: {shown['error']}"
    return ", channel here" if shown["is_here"] else ", channel elsewhere"
