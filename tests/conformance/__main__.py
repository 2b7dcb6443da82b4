"""`python -m tests.conformance [--sites NAME] PATH...`: files or folders; exit status 1 if a case failed.

Without `--sites` each scenario is played twice, on the reference model and on real stores, and must come out right on
both.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from tests.conformance.runner import ADAPTERS, BOTH, files_of, run_file


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH")
    parser.add_argument(
        "--sites", choices=sorted(ADAPTERS), help="what scenarios are played on (default: model, store)"
    )
    given = parser.parse_args(arguments)
    wanted = BOTH if given.sites is None else (given.sites,)
    files = files_of(given.paths)
    failed = 0
    print(f"scenarios are played on: {', '.join(wanted)}")
    for path in files:
        on_purpose: list[str] = []
        wrong = run_file(path, *wanted, on_purpose=on_purpose)
        failed += bool(wrong)
        said = [*wrong, *(f"differs on purpose: {each}" for each in on_purpose)]
        print(f"{'FAIL' if wrong else 'pass'}  {path}" + (f"  {'; '.join(said)}" if said else ""), flush=True)
    print(f"{len(files) - failed} passed, {failed} failed")
    return 1 if failed or not files else 0


if __name__ == "__main__":
    logging.getLogger("tidemark").setLevel(logging.ERROR)  # what set-up warns of is part of the cases
    sys.exit(main())
