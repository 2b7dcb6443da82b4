"""Evaluate the times of takeovers: the figures of one kill, and tables and picture of all kills."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Times = Sequence[tuple[float, float]]  # when each began and ended, in the order of time
NAMES = {"three": "three nodes", "two": "two nodes and arbitrator"}


@dataclass(frozen=True)
class Kill:
    """One kill of a primary. first_ms, last_ms: until the first writer, and the last writer, had an acknowledged commit
    that was begun after the kill. reads_ms: by survivor, until the first read that was answered after the last refused
    read; 0 if no read was refused. lost: transactions that ended in PrimaryLost or NotPrimary. unknown: those that
    ended in OutcomeUnknown.
    """

    first_ms: float
    last_ms: float
    reads_ms: dict[str, float]
    lost: int
    unknown: int

    def to_dict(self) -> dict[str, Any]:
        """For the JSON."""
        return asdict(self)


def first_after(times: Times, at: float) -> float:
    """Return when the first call that began after a moment ended. Raises: ValueError if there is none."""
    return min(ended for began, ended in times if began >= at)


def resumed(answered: Times, refused: Sequence[float], at: float) -> float:
    """Return when reads resumed after a moment; the moment itself if no read was refused since."""
    late = [each for each in refused if each >= at]
    return first_after(answered, late[-1]) if late else at


def judged(
    at: float,
    writers: Sequence[Times],
    readers: Mapping[int, tuple[Times, Sequence[float]]],
    lost: int,
    unknown: int,
) -> Kill:
    """Return the figures of a kill at a moment. readers: by node, the answered reads, and when reads were refused."""
    firsts = [first_after(times, at) for times in writers]
    return Kill(
        first_ms=(min(firsts) - at) * 1e3,
        last_ms=(max(firsts) - at) * 1e3,
        reads_ms={str(number): (resumed(*each, at) - at) * 1e3 for number, each in readers.items()},
        lost=lost,
        unknown=unknown,
    )


def shown(kill: Kill) -> str:
    """A line for the terminal."""
    reads = ", ".join(f"node {number} {ms:.0f} ms" for number, ms in kill.reads_ms.items())
    return (
        f"commits {kill.first_ms:.0f} ms, of the last writer {kill.last_ms:.0f} ms; reads at {reads};"
        f" {kill.lost} lost, {kill.unknown} unknown"
    )


def median_and_worst(values: Sequence[float]) -> str:
    """Format the median and the worst value for a cell of a table."""
    return f"{statistics.median(values):,.0f} | {max(values):,.0f}"


def table_of(settings: Mapping[str, Any]) -> str:
    """Return the tables of the page as Markdown, from the JSON."""
    out = [
        "| group | kills | next commit, ms: median | worst | last writer's next commit, ms: median | worst"
        " | reads at a survivor continue, ms: median | worst |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind, found in settings["takeovers"].items():
        kills = found["kills"]
        reads = [ms for each in kills for ms in each["reads_ms"].values()]
        out.append(
            f"| {NAMES[kind]} | {len(kills)} | {median_and_worst([each['first_ms'] for each in kills])}"
            f" | {median_and_worst([each['last_ms'] for each in kills])} | {median_and_worst(reads)} |"
        )
    lost = sum(each["lost"] for found in settings["takeovers"].values() for each in found["kills"])
    unknown = sum(each["unknown"] for found in settings["takeovers"].values() for each in found["kills"])
    out += ["", f"Of the transactions under way, {lost} were lost, with an error, and {unknown} ended as unknown.", ""]
    return "\n".join([*out, *_commits(settings)])


def _commits(settings: Mapping[str, Any]) -> list[str]:
    trips = settings["round_trips"]
    out = [
        f"| one-row update, durable | µs a commit, 1 thread | own write and sync | then waits for members"
        f" | commits/s, {settings['threads']} threads |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, each in trips.items():
        parts = ["–", "–"] if each["own_us"] is None else [f"{each['own_us']:,.0f}", f"{each['members_us']:,.0f}"]
        many = "–" if each["many_per_second"] is None else f"{each['many_per_second']:,.0f}"
        out.append(f"| {name} | {each['one_us']:,.0f} | {' | '.join(parts)} | {many} |")
    out += [
        "",
        f'| the same, `durability="epoch"` | µs a commit, 1 thread | commits/s, {settings["threads"]} threads |',
        "|---|---:|---:|",
    ]
    for name, each in settings["shared"].items():
        out.append(f"| {name} | {each['one_us']:,.1f} | {each['many_per_second']:,.0f} |")
    out += [
        "",
        f"| durable, by `tm.connect` | µs a commit, 1 thread | commits/s, {settings['threads']} threads |",
        "|---|---:|---:|",
    ]
    for kind, found in settings["takeovers"].items():
        clients = found["clients"]
        out.append(f"| {NAMES[kind]} | {clients['one_us']:,.0f} | {clients['many_per_second']:,.0f} |")
    return out


def draw_picture(settings: Mapping[str, Any], target: Path) -> None:
    """A dot for each kill: next commit, last writer, reads at each survivor; a column for each group."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "takeover"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(NAMES), figsize=(10, 4), sharey=True)
    for axis, (kind, name) in zip(axes, NAMES.items(), strict=True):
        kills = settings["takeovers"][kind]["kills"]
        numbers = range(1, len(kills) + 1)
        axis.plot(numbers, [each["first_ms"] for each in kills], "o", color="#1f5fa8", label="next commit")
        axis.plot(numbers, [each["last_ms"] for each in kills], "x", color="#1f5fa8", label="of the last writer")
        reads = [(number, ms) for number, each in zip(numbers, kills, strict=True) for ms in each["reads_ms"].values()]
        axis.plot(*zip(*reads, strict=True), "o", fillstyle="none", color="#e08a1e", label="reads at a survivor")
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("kill")
        axis.set_xticks(list(numbers))
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("ms after the kill")
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})
