"""`python -m tests.project.advice`: long functions, and long and short modules. Nothing fails by it."""

from __future__ import annotations

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
    print(f"advice: {len(functions)} functions over {rules.FUNCTION_LINES_MAX} lines; {len(modules)} modules {bounds}")


if __name__ == "__main__":
    main()
