"""Pictures: the timeline of a restart, the fill of pages. Needs matplotlib, of the `plot` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tidemark.engine.base.errors import Rejected
from tidemark.engine.base.extras import needed

SUFFIXES = (".svg", ".png")
CLASS_NAMES = ("wholly free", "any row", "small rows", "full")
ROW_NAMES = ("≥ 80 %", "≥ 60 %", "≥ 40 %", "≥ 20 %", "less")


def restart_timeline(phases: list[dict[str, Any]], path: Path) -> None:
    """Draw the phases of a restart, one bar each, into an SVG file. Raises: Unsupported without matplotlib."""
    figure = _figure(9, 0.6 + 0.45 * len(phases), ".svg")
    axes = figure.add_subplot()
    start = 0.0
    for place, phase in enumerate(phases):
        axes.barh(place, phase["ms"], left=start, color="#2b6cb0")
        label = f"{phase['ms']:.1f} ms"
        if phase["rows"]:
            label += f", {phase['rows']:,} rows"
        if phase["bytes"] and phase["ms"]:
            label += f", {phase['bytes'] / 1e3 / phase['ms']:.0f} MB/s"
        axes.text(start + phase["ms"], place, " " + label, va="center", fontsize=8)
        start += phase["ms"]
    axes.set_yticks(range(len(phases)), [phase["name"] for phase in phases])
    axes.invert_yaxis()
    axes.set_xlim(0, start * 1.35 + 1)
    axes.set_xlabel("milliseconds since the restart began")
    axes.set_title("Restart timeline")
    figure.savefig(path, format="svg")


def draw_space(report: dict[str, Any], path: Path) -> None:
    """Draw what `space_report` found, one row of three panels for each table, into an SVG or PNG file.

    Raises: Unsupported without matplotlib, Rejected for another kind of file or a report without tables.
    """
    if path.suffix not in SUFFIXES:
        raise Rejected(f"{path.name} is not a name of a picture; give one that ends in .svg or .png")
    if not report["tables"]:
        raise Rejected("no table has disk columns, so there is nothing to draw; use --json for the tablespaces")
    tables = report["tables"]
    figure = _figure(15, 4.2 * len(tables), path.suffix)
    for place, (name, each) in enumerate(tables.items()):
        row = [figure.add_subplot(len(tables), 3, 3 * place + number) for number in (1, 2, 3)]
        _draw_matrix(row[0], name, each)
        _draw_fill(row[1], each)
        _draw_map(row[2], each)
    figure.savefig(path, format=path.suffix[1:])


def _figure(width: float, height: float, suffix: str) -> Any:
    """Return an empty figure, whose sides are in inches, for a kind of file. Raises: Unsupported without matplotlib."""
    with needed("pictures need matplotlib", "plot"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    (FigureCanvasSVG if suffix == ".svg" else FigureCanvasAgg)(figure)
    return figure


def _draw_matrix(axes: Any, name: str, table: dict[str, Any]) -> None:
    counts, shares = np.array(table["matrix"]), np.array(table["matrix_free_share"])
    axes.imshow(np.log1p(counts), cmap="Blues", aspect="auto")
    shade = np.log1p(counts.max(initial=1)) / 2
    for at, count in np.ndenumerate(counts):
        if count:
            color = "white" if np.log1p(count) > shade else "black"
            text = f"{count:,}\n{shares[at]:.0%} free"
            axes.text(at[1], at[0], text, ha="center", va="center", fontsize=8, color=color)
    axes.set_xticks(range(len(CLASS_NAMES)), CLASS_NAMES, fontsize=8)
    axes.set_yticks(range(len(ROW_NAMES)), ROW_NAMES, fontsize=8)
    axes.set_xlabel("best page of the extent has room for")
    axes.set_ylabel("free words of the extent")
    axes.set_title(
        f"{name}: extent search matrix ({table['extents']:,} extents, {table['current']} current)", fontsize=9
    )


def _draw_fill(axes: Any, table: dict[str, Any]) -> None:
    pages = table["pages_by_fill"]
    axes.bar(np.arange(len(pages)) * 10 + 5, pages, width=9, color="#2b6cb0")
    axes.set_xlabel("per cent of the page used")
    axes.set_ylabel("pages")
    axes.set_title(f"fill of {sum(pages):,} pages", fontsize=9)


def _draw_map(axes: Any, table: dict[str, Any]) -> None:
    rows = [each["percent_used"] for each in table["map"]]
    if rows:
        axes.imshow(np.array(rows), cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    axes.set_xlabel("page of the extent")
    axes.set_ylabel("extent")
    axes.set_title(f"map of {len(rows):,} extents: dark empty, light full", fontsize=9)
