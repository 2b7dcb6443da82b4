"""Which cases a tree has lost, and whether the lines they ran are still run: `python -m tests.audit.cases COMMIT`.

The cases of COMMIT and of this tree are listed and compared. Those that are gone run on COMMIT; the cases of the same
files, and of files named in addition, run here. A line of the program is reported if the first have run it, it still
exists, and none of the second runs it. Where seeds, or what they choose, name the cases, each run has others: COMMIT is
listed twice, and a function whose cases differ counts as one case.
"""

from __future__ import annotations

import argparse
import difflib
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.audit import lines

SOURCES = "engine,recovery,replication,tidemark"


def function(case: str) -> str:
    """The function that a case belongs to."""
    return case.partition("[")[0]


def listed(tree: Path) -> list[str]:
    """The cases of `make test` in a tree."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not soak", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, env=environment(tree), check=False)
    if done.returncode:
        raise SystemExit(f"the cases of {tree} cannot be collected: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return [line for line in done.stdout.splitlines() if "::" in line]


def environment(tree: Path, **more: str) -> dict[str, str]:
    """The environment of a process that runs cases of a tree, whatever tree is installed."""
    return {**os.environ, "PYTHONPATH": f"{tree}{os.pathsep}{Path(__file__).parent}", **more}


def covered(tree: Path, what: list[str], output: Path) -> dict[str, set[int]]:
    """Lines of the program, by file, that some of the cases of a tree run."""
    arguments = output.with_suffix(".cases")
    arguments.write_text("\n".join(what), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not soak", "-p", "lines"]
    variables = {lines.SOURCES_VARIABLE: SOURCES, lines.OUTPUT_VARIABLE: str(output)}
    done = subprocess.run([*command, f"@{arguments}"], cwd=tree, env=environment(tree, **variables), check=False)
    if done.returncode == pytest.ExitCode.TESTS_FAILED:
        print(f"some cases failed in {tree}: what they ran counts all the same", flush=True)
    elif done.returncode:
        raise SystemExit(f"the cases of {tree} did not run: pytest ended with {done.returncode}")
    found: dict[str, set[int]] = {}
    for files in lines.read(output)[0].values():
        for file, numbers in files.items():
            found.setdefault(file, set()).update(numbers)
    return found


def kept(before: str, after: str) -> dict[int, int]:
    """Lines of a file that exist in both trees: number before, number after."""
    old, new = before.splitlines(), after.splitlines()
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
    return {block.a + at + 1: block.b + at + 1 for block in blocks for at in range(block.size)}


def main() -> None:
    """Compare; exit with 1 if a line is no longer run."""
    parser = argparse.ArgumentParser(prog="python -m tests.audit.cases", description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("also", nargs="*", help="more files of tests whose cases run here")
    given = parser.parse_args()
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tree = folder / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), given.commit], check=True)
        try:
            lost = compare(here, tree, folder, given.also)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True)
    sys.exit(1 if lost else 0)


def compare(here: Path, tree: Path, folder: Path, also: list[str]) -> int:
    """Return how many lines are no longer run."""
    lists = [listed(each) for each in (tree, tree, here, here)]
    drawn = {function(case) for one, two in (lists[:2], lists[2:]) for case in set(one) ^ set(two)}
    before, after = ({function(case) if function(case) in drawn else case for case in each} for each in lists[::2])
    gone = sorted(before - after)
    print(f"{len(lists[0])} cases before, {len(lists[2])} now; {len(gone)} are gone, {len(after - before)} are new")
    for name, number in sorted(Counter(map(function, gone)).items()):
        print(f"gone: {number} of {name}")
    files = {case.partition("::")[0] for case in gone}
    there = sorted({*(each for each in files if (here / each).exists()), *also})
    ran = covered(tree, gone, folder / "before.json")
    runs = covered(here, there, folder / "after.json")
    lost = 0
    for file, numbers in sorted(ran.items()):
        if not (here / file).exists():
            print(f"gone with its file: {file}")
            continue
        texts = [(each / file).read_text(encoding="utf-8") for each in (tree, here)]
        stays = kept(*texts)
        for number in sorted(numbers):
            if number in stays and stays[number] not in runs.get(file, set()):
                lost += 1
                print(f"run no more: {file}:{stays[number]}: {texts[0].splitlines()[number - 1].strip()}")
    print(f"{sum(map(len, ran.values()))} lines were run by cases that are gone; {lost} of them are run no more")
    return lost


if __name__ == "__main__":
    main()
