"""The kernels' tests over kernels as plain Python, and the lines of kernels that none of them runs:
`python -m tests.audit.kernel_lines FOLDER-OF-COVERAGE`, by `make interpreted`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.audit import lines

KERNELS = [each for floor in ("engine", "replication") for each in sorted(Path(floor).rglob("*_kernels.py"))]
# Tests that run kernels in their own process. The others run the same kernels a hundred times slower.
TESTS = (
    *("tests/naive", "tests/layout", "tests/interpreter", "tests/digest", "tests/index", "tests/unique", "tests/rows"),
    *("tests/disk", "tests/partition", "tests/engine", "tests/log", "tests/applied", "tests/load", "tests/store"),
    *("tests/access", "tests/spool", "tests/snapshot", "tests/recovery", "tests/backup", "tests/applier"),
)
# Every point of a call is interrupted, and kernels in Python have too many of them.
LEFT_OUT = (
    "tests/disk/test_cache_trouble.py::test_signal_at_any_point_of_hold_or_release_leaves_no_pin_and_no_reservation",
)


def code_lines(file: Path) -> set[int]:
    """Lines of the functions of a module, without their heads and docstrings."""
    found: set[int] = set()
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef):
            body = function.body[1:] if ast.get_docstring(function) is not None else function.body
            for statement in body:
                found.update(each.lineno for each in ast.walk(statement) if isinstance(each, ast.stmt))
    return found


def main(library: str, *given: str) -> int:
    """Run them; return pytest's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lines.json"
        variables = {
            lines.SOURCES_VARIABLE: ",".join(map(str, KERNELS)),
            lines.OUTPUT_VARIABLE: str(output),
            lines.LIBRARY_VARIABLE: library,
            "NUMBA_DISABLE_JIT": "1",
        }
        plugins = ("-p", "tests.audit.interpreted", "-p", "tests.audit.lines")
        options = ("-q", "-n", "2", "--dist", "loadfile", "-m", "not slow and not soak")
        limits = ("-o", "timeout=0", "-o", "faulthandler_timeout=0")
        left_out = [f"--deselect={each}" for each in LEFT_OUT]
        command = [sys.executable, "-m", "pytest", *plugins, *options, *limits, *left_out, *(given or TESTS)]
        code = subprocess.run(command, env={**os.environ, **variables}, check=False).returncode
        ran: dict[str, set[int]] = {}
        for files in lines.read(output)[0].values():
            for file, numbers in files.items():
                ran.setdefault(file, set()).update(numbers)
    count = total = 0
    for file in KERNELS:
        wanted = code_lines(file)
        missed = sorted(wanted - ran.get(str(file), set()))
        count += len(wanted) - len(missed)
        total += len(wanted)
        if missed:
            print(f"{file}: {len(missed)} of {len(wanted)} not run: {', '.join(map(str, missed))}")
    print(f"{count} of {total} lines of kernels were run, {count / total:.1%}")
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
