"""`python -m tidemark.engine.jit [PROCESSES]`: have the code of every kernel, so that no later process compiles.

Kernels differ in size by a factor of a hundred, so a process takes one after the other that none has taken. Each begins
at a place of its own: a helper is compiled anew by each process that meets it, and neighbours have helpers in common.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from tidemark.engine.jit import kernel


def compile_share(first: float, taken: Any) -> None:
    """Compile what no other process compiles, from `first`, a share of all kernels, on and round.

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
    """See the module."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    kernel.import_all()
    context = multiprocessing.get_context("fork")  # nothing was started or compiled yet
    taken = context.Array("b", len(kernel.declared()))
    processes = [context.Process(target=compile_share, args=(number / count, taken)) for number in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max(abs(process.exitcode or 0) for process in processes))


if __name__ == "__main__":
    main()
