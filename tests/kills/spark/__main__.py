"""`python -m tests.kills.spark DIRECTORY`: SIGKILL of processes that load and restore by Spark, by seed and count.

Exit code 1 at the first broken promise, with its round (`loop.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tidemark.spark
from tests.kills.spark.loop import CLUSTER_SETTINGS, DRIVER_KINDS, EXECUTOR_KINDS, KINDS, kill_loop
from tests.spark.cluster import standalone
from tidemark.recovery.crash_harness.program import Violation


@contextmanager
def cluster_session(directory: Path) -> Iterator[Any]:
    """Spark on a standalone cluster, for the block. directory: for its files."""
    from tests.spark.conftest import SETTINGS

    with standalone(directory / "cluster") as master:
        settings = {**SETTINGS, **CLUSTER_SETTINGS, "spark.local.dir": str(directory / "spark-local")}
        spark = tidemark.spark.session(master, "kill loop", settings)
        try:
            yield spark
        finally:
            spark.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills.spark", description=__doc__)
    parser.add_argument("directory", type=Path, help="where stores are made; it must be missing or empty")
    known = (*KINDS, *EXECUTOR_KINDS, *DRIVER_KINDS)
    parser.add_argument("--kind", choices=known, action="append", help="this one; may be repeated")
    parser.add_argument("--rounds", type=int, default=1 << 60, help="of each kind")
    parser.add_argument("--seconds", type=float, default=100, help="after the start of Spark")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args(arguments)
    if asked.directory.exists() and any(asked.directory.iterdir()):
        parser.error(f"{asked.directory} is not empty")

    def say(line: str) -> None:
        sys.stderr.write(line + "\n")

    try:
        kinds = asked.kind or known
        is_alone = all(kind in DRIVER_KINDS for kind in kinds)
        with nullcontext() if is_alone else cluster_session(asked.directory.absolute()) as spark:
            reports = kill_loop(asked.directory, kinds, asked.seed, lambda: spark, asked.seconds, asked.rounds, say)
    except Violation as violation:
        sys.stderr.write(f"{violation}\n")
        return 1
    for report in reports:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
