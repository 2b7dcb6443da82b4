"""The commands `demo`, `completion` and `warmup`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

import tidemark as tm
from tidemark.cli.output import example, print_result, prints
from tidemark.engine.types.base import counted

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TIDEMARK_COMPLETE"


@click.command(epilog=example("tidemark demo --scale 0.01 --bulk-scale 0"))
@click.option("--folder", type=click.Path(path_type=Path), default=Path("build/demo"), show_default=True)
@click.option("--scale", default=0.1, show_default=True, help="TPC-H scale factor.")
@click.option("--rounds", default=3, show_default=True, help="How often the process is killed.")
@click.option("--seconds", default=12.0, show_default=True, help="Refresh work per round.")
@click.option("--bulk-scale", default=1.0, show_default=True, help="TPC-H scale factor in bulk; 0 leaves it out.")
@click.option("--seed", default=20_261_121, show_default=True)
@prints
def demo(folder: Path, scale: float, rounds: int, seconds: float, bulk_scale: float, seed: int, as_json: bool) -> None:
    """Load TPC-H rows, change them from four threads, kill the process, restart and check. Then do the same tables in
    bulk: load them with Spark, back them up, change them, kill the process, restore to a point in time, and compare.
    """
    from tidemark.demo.bulk import Bulk
    from tidemark.demo.run import Demo

    def print_line(line: str) -> None:
        if not as_json:
            click.echo(line)

    for line in _plan(folder, scale, rounds, seconds, bulk_scale):
        print_line(line)
    result = Demo(folder, scale, rounds, seconds, seed, print_line).run()
    if bulk_scale > 0:
        result["bulk"] = Bulk(folder / "bulk", bulk_scale, seed, print_line).run()
    print_result(result, as_json, lambda: ["every acknowledged transaction survived every kill"])


def _plan(folder: Path, scale: float, rounds: int, seconds: float, bulk_scale: float) -> Iterator[str]:
    """Yield lines that say what the demo will do, and how long it takes."""
    from tidemark.demo import data
    from tidemark.demo.bulk import why_no_spark

    source = "of TPC-H's generator" if data.has_generator() else "as TPC-H's (its generator is not installed)"
    yield f"Rows {source}, in {folder}. Each half says what it measured, and ends the demo if a row is wrong."
    yield (
        f"1. Load orders and lines at scale {scale:g}. {rounds} times: change them from four threads for about"
        f" {seconds:g} s, kill the process, restart, check every row."
    )
    if bulk_scale > 0:
        missing = why_no_spark()
        yield (
            f"2. In bulk{'' if missing else ' by Spark'}, at scale {bulk_scale:g}: load, back up, change, kill, restore"
            " to a point in time, compare row by row. (--bulk-scale 0 leaves this half out.)"
        )
        if missing:
            yield f"   Left out: Spark; the native loader and restore do its work. {missing}"
    # By scale and seconds, from docs/findings/goals.md and docs/findings/first-ten-minutes.md.
    seconds_in_all = rounds * (seconds + 5) + 300 * scale + 120 * bulk_scale
    yield (
        f"This takes about {max(round(seconds_in_all / 60), 1)} min on an idle machine of two cores, and in the first"
        " run some minutes more, to compile kernels."
    )
    yield ""


@click.command(
    epilog=example(
        "tidemark completion bash >> ~/.bashrc",
        "tidemark completion zsh >> ~/.zshrc",
        "tidemark completion fish > ~/.config/fish/completions/tidemark.fish",
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options and paths of tidemark."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "tidemark", _VARIABLE).source())


@click.command(epilog=example("tidemark warmup", "tidemark warmup --processes 4"))
@click.option("--processes", type=click.IntRange(min=1), help="How many compile; without it, one for each core.")
@prints
def warmup(processes: int | None, as_json: bool) -> None:
    """Compile all kernels that have no compiled code yet, so that no later command or program of this user compiles.

    The code is kept in $TIDEMARK_CACHE, or in ~/.cache/tidemark.
    """
    from tidemark.engine.jit.kept_code import CACHE_FOLDER

    compiled = tm.warmup(processes)
    result = {"compiled": compiled, "folder": CACHE_FOLDER}
    print_result(result, as_json, lambda: [f"{counted(compiled, 'kernel')} compiled; all are kept in {CACHE_FOLDER}"])
