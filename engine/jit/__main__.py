"""`python -m tidemark.engine.jit [PROCESSES]`: compile every kernel that is not kept, so that no later process does.

Kernels differ in size by a factor of a hundred, so each process takes the next kernel that no other process has taken.
Processes start at different places: each process compiles every helper it meets itself, and neighbouring kernels share
helpers. When a kernel is compiled, its name and the seconds of processor time are written to standard output.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

from tidemark.engine.jit import code_cache, registry


def compile_share(first: float, names: list[str], taken: Any) -> None:
    """Compile kernels that no other process has taken, starting at `first`, a share of all names, and wrapping around.

    taken: a mark for each name, shared by all processes.
    """
    compilers = registry.declared()
    clock = code_cache.COMPILING.clock
    start = int(first * len(names))
    with code_cache.COMPILING.silent():
        for number in (*range(start, len(names)), *range(start)):
            with taken.get_lock():
                is_taken, taken[number] = taken[number], 1
            if not is_taken:
                began = clock.thread_seconds()
                compilers[names[number]]()
                sys.stdout.write(f"{names[number]} {clock.thread_seconds() - began}\n")
                sys.stdout.flush()


def main() -> None:
    """Run the command; see the module."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    registry.import_all()
    names = list(registry.not_kept())
    context = multiprocessing.get_context("fork")  # safe: no thread was started and nothing was compiled yet
    taken = context.Array("b", max(1, len(names)))
    shares = [number / count for number in range(min(count, len(names)))]
    processes = [context.Process(target=compile_share, args=(share, names, taken)) for share in shares]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    sys.exit(max((abs(process.exitcode or 0) for process in processes), default=0))


if __name__ == "__main__":
    main()
