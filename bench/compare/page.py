"""The generated part of docs/findings/compare.md: what was run, the picture, and a table for each durability.

A figure in parentheses is the peer's rate divided by Tidemark's: above 1 the peer is ahead. The fastest is bold,
whichever it is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.compare.measure import MEDIAN, RATE, TAIL, what
from bench.compare.picture import picture
from bench.compare.stores import DURABILITIES, Durability
from bench.report import OURS, put_table, short

PAGE = Path(__file__).parents[2] / "docs" / "findings" / "compare.md"
NAMES = (OURS, "SQLite", "LMDB", "RocksDB", "Redis")
EMPTY = "–"
Figures = dict[str, dict[str, float]]  # by workload, then by store


def figures_of(kept: dict[str, Any], durability: Durability, measure: str) -> Figures:
    """The medians of one measure."""
    text = what(durability, measure)
    return {line["goal"]: line["figures"] for line in kept["lines"] if line["what"] == text}


def _header(first: str) -> list[str]:
    return [f"| {first} | {' | '.join(NAMES)} |", "|---|" + "---:|" * len(NAMES)]


def _rate(figures: dict[str, float], name: str) -> str:
    if name not in figures:
        return EMPTY
    text = short(figures[name])
    if name != OURS:
        text += f" ({short(figures[name] / figures[OURS])})"
    return f"**{text}**" if figures[name] == max(figures.values()) else text


def rates_of(figures: Figures) -> list[str]:
    """Operations a second, and of peers the ratio to Tidemark."""
    rows = [f"| {goal} | {' | '.join(_rate(row, name) for name in NAMES)} |" for goal, row in figures.items()]
    return [*_header("operations a second"), *rows]


def latencies_of(medians: Figures, tails: Figures) -> list[str]:
    """Median and 99 % latency."""
    out = _header("µs: median / 99 %")
    for goal, row in medians.items():
        cells = [f"{short(row[name])} / {short(tails[goal][name])}" if name in row else EMPTY for name in NAMES]
        out.append(f"| {goal} | {' | '.join(cells)} |")
    return out


def fastest(figures: Figures) -> str:
    """Which store is ahead where."""
    first: dict[str, list[str]] = {}
    for goal, row in figures.items():
        first.setdefault(max(row, key=lambda name: row[name]), []).append(goal)
    return "Fastest: " + "; ".join(f"{name} in {', '.join(first[name])}" for name in NAMES if name in first) + "."


def tables(kept: dict[str, Any]) -> str:
    """All that stands between the marks."""
    settings, machine = kept["settings"], kept["machine"]
    out = [
        f"{kept['date']}, commit {kept['commit']}, {settings['seconds']:,} s on {machine['cores']} cores"
        f" ({machine['processor']}, {machine['memory_gib']} GiB), Python {machine['python']}, load"
        f" {machine['load_average']:.1f} at the end. {settings['rows']:,} records and subscribers,"
        f" {settings['operations']:,} operations of each workload, timed rounds: {settings['rounds']},"
        f" seeds {' and '.join(map(str, settings['seeds']))}.",
        f"{settings['check']}.",
    ]
    if settings["missing"]:
        out.append(f"Not measured: {'; '.join(settings['missing'])}.")
    if settings["is_quick"]:
        out.append("**A quick run: it shows that the program works, and says nothing about speed.**")
    out.append("![Rates of the peers, divided by Tidemark's, for each workload and durability](compare.svg)")
    for durability in DURABILITIES:
        rates = figures_of(kept, durability, RATE)
        medians, tails = (figures_of(kept, durability, measure) for measure in (MEDIAN, TAIL))
        out.append(f"### {durability.label.capitalize()}")
        out += ["\n".join(rates_of(rates)), fastest(rates), "\n".join(latencies_of(medians, tails))]
    return "\n\n".join(out)


def write(kept: dict[str, Any], source: str, target: Path = PAGE) -> None:
    """Put the tables into the page, and the picture next to it."""
    rates = {durability.label: figures_of(kept, durability, RATE) for durability in DURABILITIES}
    target.with_suffix(".svg").write_text(picture(rates), encoding="utf-8")
    put_table(target, "bench.compare", tables(kept), source)
