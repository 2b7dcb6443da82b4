"""Pictures: the timeline of a restart. Needs matplotlib, of the `plot` extra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import Unsupported


def restart_timeline(phases: list[dict[str, Any]], path: Path) -> None:
    """Draw the phases of a restart, one bar each, into an SVG file. Raises: Unsupported without matplotlib."""
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported("pictures need matplotlib; install tidemark[plot]") from error
    figure = Figure(figsize=(9, 0.6 + 0.45 * len(phases)), layout="constrained")
    FigureCanvasSVG(figure)
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
