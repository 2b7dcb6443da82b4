"""The quick start of the README, and its section on bulk work, run exactly as printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_block(text: str, tmp_path: Path) -> None:
    """Run the first block of Python in a text, in a new process."""
    code = text.split("```python\n")[1].split("```")[0]
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
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


def test_readme_quick_start_runs(tmp_path: Path) -> None:
    run_block((ROOT / "README.md").read_text(encoding="utf-8"), tmp_path)
    assert (tmp_path / "shop" / "sysfile.0").exists()


def test_section_of_the_readme_on_bulk_work_runs(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8").split("### In bulk")[1]
    run_block(text, tmp_path)
    assert list((tmp_path / "meters-archive" / "archive").iterdir())
