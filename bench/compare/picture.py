"""The picture of the comparison, as SVG: a panel for each durability, a row for each workload, a mark for each peer.

The axis is the peer's rate divided by Tidemark's, logarithmic: a mark right of the line is a peer that is ahead. There
is no background, and every colour is a middle tone, so that it can be read on white and on black.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from bench.report import OURS, short

Rates = Mapping[str, Mapping[str, Mapping[str, float]]]  # by durability, workload and store

GREY = "#7b8794"
# Colour and path of each peer's mark, about its place.
MARKS = {
    "SQLite": ("#3b82c4", "M-5,-5h10v10h-10z"),
    "LMDB": ("#d9822b", "M0,-6.5L6.5,0L0,6.5L-6.5,0z"),
    "RocksDB": ("#3c9a5f", "M0,-6L6,5H-6z"),
    "Redis": ("#c8505a", "M-5.5,0a5.5,5.5 0 1,0 11,0a5.5,5.5 0 1,0 -11,0z"),
}
TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
LEFT, PANEL, GAP, ROW, TOP, MARGIN = 84, 350, 36, 40, 74, 14
LANE = 7  # of each peer's marks, so that equal ratios do not hide each other


def _text(x: float, y: float, words: str, anchor: str = "middle", weight: int = 400) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def _mark(x: float, y: float, name: str, title: str) -> str:
    colour, path = MARKS[name]
    return f'<path transform="translate({x:.1f},{y:.1f})" d="{path}" fill="{colour}"><title>{title}</title></path>'


def _ratios(rates: Rates) -> dict[str, dict[str, dict[str, float]]]:
    return {
        label: {
            goal: {name: value / row[OURS] for name, value in row.items() if name in MARKS}
            for goal, row in figures.items()
        }
        for label, figures in rates.items()
    }


def _bounds(ratios: dict[str, dict[str, dict[str, float]]]) -> tuple[float, float]:
    """The ticks around all ratios, and around 1."""
    every = [value for rows in ratios.values() for row in rows.values() for value in row.values()]
    least, most = min([0.5, *every]), max([2.0, *every])
    low = max([tick for tick in TICKS if tick <= least * 0.95], default=TICKS[0])
    high = min([tick for tick in TICKS if tick >= most * 1.05], default=TICKS[-1])
    return low, high


def _panel(left: float, label: str, rows: dict[str, dict[str, float]], low: float, high: float) -> list[str]:
    bottom = TOP + ROW * len(rows)

    def place(ratio: float) -> float:
        inside = min(max(ratio, low), high)
        return left + PANEL * math.log(inside / low) / math.log(high / low)

    out = [_text(left + PANEL / 2, TOP - 14, label, weight=600)]
    for tick in (tick for tick in TICKS if low <= tick <= high):
        is_one = tick == 1
        style = 'stroke-width="1.6"' if is_one else 'stroke-opacity="0.35"'
        x = place(tick)
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="{GREY}" {style}/>')
        if high / low <= 200 or f"{tick:e}".startswith("1."):  # all labels of a longer axis would overlap
            out.append(_text(x, bottom + 16, f"{tick:g}", weight=600 if is_one else 400))
    for number, (goal, row) in enumerate(rows.items()):
        y = TOP + ROW * (number + 0.5)
        out.append(f'<line x1="{left}" x2="{left + PANEL}" y1="{y}" y2="{y}" stroke="{GREY}" stroke-opacity="0.2"/>')
        for name, ratio in row.items():
            lane = list(MARKS).index(name) - (len(MARKS) - 1) / 2
            out.append(_mark(place(ratio), y + lane * LANE, name, f"{goal}, {name}: {short(ratio)}"))
    return out


def picture(rates: Rates) -> str:
    """The SVG."""
    ratios = _ratios(rates)
    low, high = _bounds(ratios)
    goals = list(next(iter(ratios.values())))
    width = LEFT + PANEL * len(ratios) + GAP * (len(ratios) - 1) + MARGIN
    height = TOP + ROW * len(goals) + 48
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" font-family="system-ui, sans-serif" font-size="12" fill="{GREY}">',
        "<title>Rates of SQLite, LMDB, RocksDB and Redis divided by Tidemark's</title>",
    ]
    for number, name in enumerate(MARKS):
        x = LEFT + 10 + 100 * number
        out += [_mark(x, 22, name, name), _text(x + 12, 26, name, "start")]
    out.append(_text(width - MARGIN, 26, f"line at 1: {OURS}; to the right the peer is faster", "end"))
    out += [_text(LEFT - 12, TOP + ROW * (number + 0.5) + 4, goal, "end") for number, goal in enumerate(goals)]
    for number, (label, rows) in enumerate(ratios.items()):
        out += _panel(LEFT + (PANEL + GAP) * number, label, rows, low, high)
    middle = LEFT + (width - LEFT - MARGIN) / 2
    out.append(_text(middle, height - 8, "operations a second, divided by Tidemark's (logarithmic)"))
    return "\n".join([*out, "</svg>", ""])
