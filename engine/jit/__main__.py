"""`python -m tidemark.engine.jit [PROCESSES]`: compile every kernel now, so that no later process compiles.

Kernels differ in size by a factor of a hundred, so each process takes the next kernel that no other process has taken.
Processes start at different places: each process compiles every helper it meets itself, and neighbouring kernels share
helpers.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from tidemark.engine.jit import kernel


def compile_share(first: float, taken: Any) -> None:
    """Compile kernels that no other process has taken, starting at `first`, a share of all kernels, and wrapping
    around.

    taken: a mark for each kernel, shared by all processes.
    """
    compilers = kernel.declared()
    start = int(first * len(compilers))
    for number in (*range(start, len(compilers)), *range(start)):
        with taken.get_lock():
            is_taken, taken[number] = taken[number], 1
        if not is_taken:
            compilers[number]()


def main() -> None:
    """Run the command; see the module."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    kernel.import_all()
    context = multiprocessing.get_context("fork")  # safe: no thread was started and nothing was compiled yet
    taken = context.Array("b", len(kernel.declared()))
    processes = [context.Process(target=compile_share, args=(number / count, taken)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
