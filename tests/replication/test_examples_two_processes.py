"""The examples of docs/examples print what their page says: two processes, over TCP, waiting on epochs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def printed(script: str, folder: Path) -> str:
    """Return the standard output of a script, which must succeed."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(EXAMPLES / script), str(folder)]
    ran = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=280, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def shown(heading: str) -> str:
    """Return the first output block under a heading of the page."""
    _, _, section = (EXAMPLES / "README.md").read_text(encoding="utf-8").partition(f"## {heading}")
    return section.split("```")[1].strip()


def test_read_tracking_of_the_manual_prints_what_its_page_says(tmp_path: Path) -> None:
    output = printed("read_tracking.py", tmp_path / "stores").strip()
    assert output == shown("Read tracking")
    # As printed in the manual.
    parts = output.split("--- ")[1:]
    assert [part.count("READ_ROW") for part in parts] == [0, 1, 0, 3]
    assert "| 999 | READ_ROW    | TRANS_IN_CONFLICT |" in parts[1]
    for employee in ("998 ", "999 ", "1000"):
        assert f"| {employee} | READ_ROW    | TRANS_IN_CONFLICT |" in parts[3]
    for part, members in zip(parts, (23, 24, 3, 24), strict=True):
        assert f"| 3  | Old project | {members:<7} |" in part
