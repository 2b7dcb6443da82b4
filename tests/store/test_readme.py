"""The program of the README runs exactly as printed, and its figures are those that were kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from bench import chart
from bench.report import short

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES_MAX = 150


def kept(commit: str) -> dict:
    """The run of ordinary calls of a commit."""
    (path,) = (ROOT / "bench" / "results").glob(f"*-{commit}-ordinary.json")
    return json.loads(path.read_text(encoding="utf-8"))


def test_readme_quick_start_runs_and_runs_again(tmp_path: Path) -> None:
    """Story: the second run of the first program a user types ended with TableExists and fifteen lines of traceback."""
    script = tmp_path / "block.py"
    script.write_text(README.split("```python\n")[1].split("```")[0], encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, str(script)],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "HOME": str(Path.home())},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "accounts" / "sysfile.0").exists()


def test_readme_is_short() -> None:
    """A reader decides in a minute; what is longer has a page in docs."""
    assert len(README.splitlines()) <= LINES_MAX


def test_picture_is_of_the_figures_that_it_names() -> None:
    picture = chart.PICTURE.read_text(encoding="utf-8")
    (commit,) = re.findall(r"commit (\w+)<", picture)
    assert f"commit {commit}" in README
    assert chart.chart(kept(commit)) == picture


def test_figures_of_ordinary_calls_are_those_that_were_kept() -> None:
    (commit,) = re.findall(r"commit (\w+)\.", README)
    figures = {line["what"]: line["figures"] for line in kept(commit)["lines"]}
    rows = [line.strip("| ").split(" | ") for line in README.splitlines() if line.startswith("| ")]
    found = {row[0]: row[1:4] for row in rows if row[0] in figures}
    assert len(found) == 8
    for what, cells in found.items():
        wanted = [short(figures[what][name]) if name in figures[what] else "–" for name in chart.STORES]
        assert [cell.strip("*") for cell in cells] == wanted, what
