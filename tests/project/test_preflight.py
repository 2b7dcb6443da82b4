"""What `import tidemark` refuses before it imports anything of ours."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

import engine.base.errors
import tidemark
from tidemark import _preflight

ROOT = Path(__file__).resolve().parents[2]


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONOPTIMIZE": ""}
    return subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("name", _preflight.FLOORS)
@pytest.mark.parametrize("shape", ["{}.py", "{}/__init__.py"])
def test_users_module_before_a_floor_is_named_and_not_run(name: str, shape: str, tmp_path: Path) -> None:
    hiding = tmp_path / shape.format(name)
    hiding.parent.mkdir(exist_ok=True)
    hiding.write_text("raise SystemExit('was run')")
    outcome = run_python("-c", "import tidemark", cwd=tmp_path)
    last = outcome.stderr.strip().splitlines()[-1]
    assert outcome.returncode == 1
    assert last.startswith("ImportError: ") and str(hiding) in last and "rename" in last


def test_users_module_imported_earlier_is_named(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text("x = 1")
    outcome = run_python("-c", "import engine, sys; sys.path.pop(0); import tidemark", cwd=tmp_path)
    assert str(tmp_path / "engine.py") in outcome.stderr.strip().splitlines()[-1]


def test_users_folder_without_init_does_not_hide_a_floor(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    outcome = run_python("-c", "import tidemark; print(tidemark.Error.__module__)", cwd=tmp_path)
    assert (outcome.returncode, outcome.stdout) == (0, "engine.base.errors\n")


def test_module_made_at_run_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "engine", types.ModuleType("engine"))
    with pytest.raises(ImportError, match="'engine' is hidden by a module made at run time"):
        _preflight.check_floor("engine", ROOT)


def test_missing_floor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="missing from"):
        _preflight.check_floor("no_such_floor", tmp_path)


def test_python_with_optimization_is_refused_in_one_line(tmp_path: Path) -> None:
    outcome = run_python("-O", "-c", "import tidemark", cwd=tmp_path)
    assert outcome.returncode == 1
    assert "python -O" in outcome.stderr.strip().splitlines()[-1]


def test_free_threaded_build_is_refused_in_one_line() -> None:
    with pytest.raises(ImportError, match="^tidemark does not run on a free-threaded build [^\n]*$"):
        _preflight.check_interpreter(0, True)


def test_every_error_class_is_public() -> None:
    classes = {name for name, value in vars(engine.base.errors).items() if inspect.isclass(value) and name[0] != "_"}
    assert classes <= set(tidemark.__all__)
    assert all(getattr(tidemark, name) is getattr(engine.base.errors, name) for name in classes)


def test_import_and_opening_leave_what_most_programs_never_use(tmp_path: Path) -> None:
    """Rooms that only replicating or restored stores need had come into every start, and made it a third longer."""
    code = "import sys, tidemark as tm; tm.open(sys.argv[1], background=False).close(); print(*sys.modules)"
    outcome = run_python("-c", code, str(tmp_path / "store"), cwd=ROOT)
    loaded = set(outcome.stdout.split())
    rooms = (
        "recovery.backup",
        "replication.injector.attached",
        "replication.applier",
        "replication.channel.channel",
        "ssl",
        "click",
    )
    assert "tidemark.database" in loaded
    assert [
        name for name in (*rooms, "pyarrow", "pandas", "tidemark.channel", "tidemark.backup") if name in loaded
    ] == []
