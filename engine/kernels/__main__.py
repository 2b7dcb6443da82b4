"""`python -m engine.kernels [PROCESSES]`: have the code of every kernel there is, so that no later process compiles.

Kernels differ in size by a factor of a hundred, so each process takes the next one that nobody has taken.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import engine.kernels


def compile_share(taken: Any) -> None:
    """Compile what nobody else compiles. taken: how many kernels have been taken, shared by all processes."""
    engine.kernels.import_all()
    compilers = engine.kernels.declared()
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value = number + 1
        if number >= len(compilers):
            return
        compilers[number]()


def main() -> None:
    """See the module."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")  # nothing was started or compiled yet
    taken = context.Value("q", 0)
    processes = [context.Process(target=compile_share, args=(taken,)) for _ in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
