"""`python -m bench.table FILE.json`: the table of a kept run as Markdown, for docs/findings/goals.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.report import OURS, short


def rows_of(lines: list[dict[str, Any]]) -> list[str]:
    """One row per line: goal, work, ours (smallest … largest round), peers and their ratio to ours, goals."""
    out = ["| goal | work | ours | beside it | wanted: reached |", "|---|---|---|---|---|"]
    for line in lines:
        # A line that compares parts of Tidemark has no peers; the first part stands for Tidemark.
        name_of_ours = OURS if OURS in line["figures"] else next(iter(line["figures"]))
        ours = line["figures"][name_of_ours]
        beside = ", ".join(
            f"{name} {short(value)} ({value / ours:.2g}×)"
            for name, value in line["figures"].items()
            if name != name_of_ours
        )
        judged = "; ".join(
            f"{goal['wanted']}: {short(goal['reached'])}, {'met' if goal['met'] else '**missed**'}"
            for goal in line["goals"]
        )
        rounds = line["rounds"].get(name_of_ours, [])
        spread = f" ({short(min(rounds))} … {short(max(rounds))})" if rounds else ""
        unit = "" if line["unit"] == "ratio" else f" {line['unit']}"
        figure = f"{short(ours)}{unit}{spread}"
        out.append(f"| {line['goal']} | {line['what']} | {figure} | {beside or '–'} | {judged or 'reported'} |")
    return out


def main() -> None:
    """Print the table of a file."""
    parser = argparse.ArgumentParser(prog="python -m bench.table", description=__doc__)
    parser.add_argument("file", type=Path)
    kept = json.loads(parser.parse_args().file.read_text(encoding="utf-8"))
    print("\n".join(rows_of(kept["lines"])))


if __name__ == "__main__":
    main()
