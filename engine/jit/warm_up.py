"""`tidemark.warmup`: all kernels compiled ahead, on all cores."""

from __future__ import annotations

import os
import subprocess
import sys

from tidemark.engine.base.errors import MemoryExhausted, Rejected, SchemaInvalid
from tidemark.engine.jit.compiling import Compiling
from tidemark.engine.jit.kept_code import CACHE_FOLDER
from tidemark.engine.jit.registry import import_all, not_kept

# Processes of their own: this one may have threads, which do not survive a fork. They get the module path of this one,
# wherever that was started.
COMMAND = (
    "import sys; sys.path[:] = {path!r}; sys.argv[1:] = ['{count}'];"
    " from tidemark.engine.jit.__main__ import main; main()"
)


def warmup(processes: int | None = None) -> int:
    """Compile every kernel that has no compiled code yet, so that no later call of this user compiles.

    Says how many kernels are compiled and about how much processor time that takes: on standard error with a bar if
    that is a terminal, else in the log. Does nothing if all kernels have code.

    Args:
        processes: How many processes compile, each with up to 500 MiB of memory; None: one for each core.

    Returns:
        How many kernels were compiled.

    Raises:
        SchemaInvalid: `processes` is less than 1.
        Rejected: The code cannot be kept, because the cache cannot be written.
        MemoryExhausted: No process could be started, or one failed.

    Durable on return: nothing; the code is in the user's cache (`TIDEMARK_CACHE`, `~/.cache/tidemark`).

    Examples:
        >>> _ = tm.warmup()
        >>> tm.warmup()
        0
    """
    count = len(os.sched_getaffinity(0)) if processes is None else processes
    if not isinstance(count, int) or count < 1:
        raise SchemaInvalid(f"processes is {processes!r}; give a number from 1 on")
    import_all()
    seconds = not_kept()
    if not seconds:
        return 0
    said = Compiling(CACHE_FOLDER)
    command = [sys.executable, "-c", COMMAND.format(path=sys.path, count=count)]
    advice = "warm up again, with fewer processes"
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except OSError as cause:
        raise MemoryExhausted(f"no process was started ({cause.strerror}); {advice}") from cause
    with process, said.wait("", seconds, f" by {count} process{'es' if count > 1 else ''}"):
        assert process.stdout is not None
        for line in process.stdout:
            name, _, took = line.strip().rpartition(" ")
            said.compiled(name, seconds[name], float(took))
        code = process.wait()
    if code:
        raise MemoryExhausted(f"a process that compiled kernels ended with exit code {code}; {advice}")
    if not_kept():
        raise Rejected(f"compiled code cannot be kept in {CACHE_FOLDER}; name another folder with TIDEMARK_CACHE")
    return len(seconds)
