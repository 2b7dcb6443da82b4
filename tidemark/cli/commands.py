"""The `tidemark` script: the commands of the modules of this package, and the demo."""

from __future__ import annotations

from pathlib import Path

import click

from tidemark.cli.backup_commands import archive, backup, restore
from tidemark.cli.channel_commands import replicate, secret, serve
from tidemark.cli.log_commands import log
from tidemark.cli.node_commands import arbitrator, node
from tidemark.cli.output import json_option, one_line, say
from tidemark.cli.row_commands import dump, load, scan
from tidemark.cli.store_commands import check, checkpoint, info, partitions, report, status, tables
from tidemark.cli.verify_commands import diff


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tidemark")
def commands() -> None:
    """Tidemark: an embedded, transactional row store."""


@commands.command(short_help="Load, change, kill, restart and check TPC-H rows.")
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option("--scale", default=0.1, show_default=True, help="TPC-H scale factor.")
@click.option("--rounds", default=3, show_default=True, help="How often the process is killed.")
@click.option("--seconds", default=12.0, show_default=True, help="Refresh work per round.")
@click.option("--bulk-scale", default=1.0, show_default=True, help="TPC-H scale factor in bulk; 0 leaves it out.")
@click.option("--seed", default=20_261_121, show_default=True)
@json_option
@one_line
def demo(folder: Path, scale: float, rounds: int, seconds: float, bulk_scale: float, seed: int, as_json: bool) -> None:
    """Load TPC-H rows, change them from four threads, kill the process, restart and check. Then do the same tables in
    bulk: load them with Spark, back them up, change them, kill the process, restore to a point in time, and compare.
    """
    from tidemark.demo.bulk import Bulk
    from tidemark.demo.run import Demo

    def tell(line: str) -> None:
        if not as_json:
            click.echo(line)

    result = Demo(folder, scale, rounds, seconds, seed, tell).run()
    if bulk_scale > 0:
        result["bulk"] = Bulk(folder / "bulk", bulk_scale, seed, tell).run()
    say(result, as_json, lambda: ["every acknowledged transaction survived every kill"])


for each in (info, tables, partitions, scan, load, dump, check, checkpoint, log, report, status, serve, replicate):
    commands.add_command(each)
for each in (backup, archive, restore, diff, arbitrator, node, secret):
    commands.add_command(each)
