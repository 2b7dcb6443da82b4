"""`python -m tests.conformance [--sites NAME] PATH...`: files or folders; exit status 1 if a case failed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.conformance.runner import ADAPTERS, files_of, run_file


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument("--sites", choices=sorted(ADAPTERS), default="model", help="what scenarios are played on")
    given = parser.parse_args(arguments)
    files = files_of(given.paths)
    failed = 0
    print(f"scenarios are played on: {given.sites}")
    for path in files:
        wrong = run_file(path, given.sites)
        failed += bool(wrong)
        print(f"{'FAIL' if wrong else 'pass'}  {path}" + (f"  {'; '.join(wrong)}" if wrong else ""))
    print(f"{len(files) - failed} passed, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
