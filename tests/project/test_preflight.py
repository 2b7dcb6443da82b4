"""What `import tidemark` refuses before it imports any of its own modules."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark
from tidemark import _preflight
from tidemark.engine.base import errors

ROOT = Path(__file__).resolve().parents[2]


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONOPTIMIZE": ""}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


def test_modules_of_the_users_own_with_the_names_of_floors_are_no_concern(tmp_path: Path) -> None:
    """Story: floors had been top-level packages, which modules of users could hide, and which hid theirs."""
    for name in ("engine", "recovery", "replication"):
        (tmp_path / f"{name}.py").write_text("x = 1")
    code = "import engine, tidemark, replication; print(engine.x, replication.x, tidemark.Error.__module__)"
    outcome = run_python("-c", code, cwd=tmp_path)
    assert outcome.stdout == "1 1 tidemark.errors\n", outcome.stderr


def test_python_with_optimization_is_refused_in_one_line(tmp_path: Path) -> None:
    outcome = run_python("-O", "-c", "import tidemark", cwd=tmp_path)
    assert outcome.returncode == 1
    assert "python -O" in outcome.stderr.strip().splitlines()[-1]


def test_free_threaded_build_is_refused_in_one_line() -> None:
    with pytest.raises(ImportError, match="^tidemark does not run on a free-threaded build [^\n]*$"):
        _preflight.check_interpreter(0, True)


def test_every_error_class_is_public() -> None:
    classes = {name for name, value in vars(errors).items() if inspect.isclass(value) and name[0] != "_"}
    assert classes <= set(tidemark.__all__)
    assert all(getattr(tidemark, name) is getattr(errors, name) for name in classes)


def test_every_public_name_is_found_at_its_home() -> None:
    for name in tidemark.__all__:
        assert getattr(tidemark, name) is not None
    assert set(tidemark.__all__) <= set(dir(tidemark))
    with pytest.raises(AttributeError, match="has no attribute 'opem'"):
        _ = tidemark.opem


def test_import_and_opening_leave_what_most_programs_never_use(tmp_path: Path) -> None:
    """Story: rooms that only replicating or restored stores need were imported at every start, and made it a third
    longer.
    """
    code = "import sys, tidemark as tm; tm.open(sys.argv[1], background=False).close(); print(*sys.modules)"
    outcome = run_python("-c", code, str(tmp_path / "store"), cwd=ROOT)
    loaded = set(outcome.stdout.split())
    rooms = (
        "tidemark.recovery.backup",
        "tidemark.replication.injector.attached",
        "tidemark.replication.applier",
        "tidemark.replication.channel.channel",
        "ssl",
        "click",
    )
    assert "tidemark.database" in loaded
    assert [
        name for name in (*rooms, "pyarrow", "pandas", "tidemark.sites.channel", "tidemark.backup") if name in loaded
    ] == []
