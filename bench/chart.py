"""`python -m bench.chart FILE.json`: writes docs/pictures/calls.svg from a kept run of `python -m bench.ordinary`.

Bars are microseconds a call: shorter is faster. Colours follow the reader's light or dark mode.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from bench.report import OURS, short

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "calls.svg"
STORES = (OURS, "SQLite", "LMDB")
CALLS = (
    "get a row by its key",
    "get a row by a unique index",
    "a transaction of four gets",
    "select two rows by a value of an ordered index",
    "update a row",
    "update a row by an expression",
    "take an amount where there is enough",
    "a transfer between two rows",
    "insert a row",
    "delete a row",
)
LEFT, BARS, BAR, GAP, TOP, RIGHT = 350, 340, 11, 12, 66, 60
STYLE = """
    svg { font-family: system-ui, "Segoe UI", "DejaVu Sans", sans-serif; font-size: 13px; }
    text { fill: #1d2733; }
    .small { font-size: 11px; fill: #56636f; }
    .head { font-weight: 600; font-size: 15px; }
    .ground { fill: #ffffff; }
    .s0 { fill: #0b6a80; }
    .s1 { fill: #a9b4be; }
    .s2 { fill: #dda15e; }
    .rule { stroke: #d5dbe0; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e9ee; }
      .small { fill: #a3b0bc; }
      .ground { fill: #14191f; }
      .s0 { fill: #62c3d8; }
      .s1 { fill: #66727e; }
      .s2 { fill: #b9803f; }
      .rule { stroke: #303943; }
    }
"""


def chart(kept: dict[str, Any]) -> str:
    """The SVG of a kept run of `python -m bench.ordinary`. Raises: KeyError if it lacks one of the calls."""
    figures = {line["what"]: line["figures"] for line in kept["lines"]}
    rows = {call: {name: figures[call][name] for name in STORES if name in figures[call]} for call in CALLS}
    scale = BARS / max(max(row.values()) for row in rows.values())
    step = BAR * len(STORES) + GAP
    width, height = LEFT + BARS + RIGHT, TOP + step * len(rows) + 46
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img">',
        "  <title>Microseconds a call, of Tidemark, SQLite and LMDB</title>",
        f"  <style>{STYLE}  </style>",
        f'  <rect class="ground" width="{width}" height="{height}"/>',
        '  <text class="head" x="16" y="26">Microseconds a call: shorter is faster</text>',
    ]
    for number, name in enumerate(STORES):
        x = LEFT + 110 * number
        out.append(f'  <rect class="s{number}" x="{x}" y="40" width="12" height="12"/>')
        out.append(f'  <text x="{x + 18}" y="51">{name}</text>')
    for place, (call, row) in enumerate(rows.items()):
        y = TOP + step * place
        out.append(f'  <line class="rule" x1="16" x2="{width - 16}" y1="{y}" y2="{y}"/>')
        out.append(f'  <text x="{LEFT - 12}" y="{y + step / 2 + 5:.0f}" text-anchor="end">{call}</text>')
        top = y + (step - BAR * len(row)) / 2
        for at, (name, value) in enumerate(row.items()):
            line, length = top + BAR * at, value * scale
            out.append(
                f'  <rect class="s{STORES.index(name)}" x="{LEFT}" y="{line + 1:.1f}" width="{length:.1f}"'
                f' height="{BAR - 2}"><title>{call}, {name}: {short(value)} µs</title></rect>'
            )
            end = f'x="{LEFT + length + 5:.1f}" y="{line + BAR - 1.5:.1f}"'
            out.append(f'  <text class="small" {end}>{short(value)}</text>')
    machine = kept["machine"]
    for up, words in (
        (28, f"200,000 rows, no wait for the disk; {machine['cores']} cores, {machine['processor']}"),
        (10, f"python -m bench.ordinary, {kept['date']}, commit {kept['commit']}"),
    ):
        out.append(f'  <text class="small" x="16" y="{height - up}">{words}</text>')
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    made = chart(json.loads(parser.parse_args().file.read_text(encoding="utf-8")))
    PICTURE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
