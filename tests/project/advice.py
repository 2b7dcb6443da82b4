"""`python -m tests.project.advice`: long functions, long and short modules, and public calls that no program of the
oracle makes. Nothing fails by it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.project import rules

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Print it."""
    sources = rules.read_tree(ROOT, (*rules.LINKED, "tidemark"))
    functions = [line for source in sources for line in rules.advise_functions(source)]
    modules = [line for source in sources for line in rules.advise_modules(source)]
    print("\n".join([*functions, *modules]))
    bounds = f"over {rules.MODULE_LINES_MAX} or under {rules.MODULE_LINES_MIN} lines"
    oracle = subprocess.run([sys.executable, "-m", "tests.blackbox", "calls"], cwd=ROOT, capture_output=True, text=True)
    print(oracle.stdout + oracle.stderr, end="")
    print(f"advice: {len(functions)} functions over {rules.FUNCTION_LINES_MAX} lines; {len(modules)} modules {bounds}")


if __name__ == "__main__":
    main()
