"""Compiled code that the disk has no room for: the process that compiled it continues with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import resource
import numpy as np
from tidemark.engine.sealed.checksums_kernels import xxh3_merge, xxh64_words
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
words = np.arange(4, dtype=np.int64)
print(xxh64_words(words, 0, 4, 42), xxh64_words(words, 0, 4, 42))
xxh3_merge(np.arange(16, dtype=np.int64), 4)
"""


def test_kernel_runs_whose_code_cannot_be_kept_and_that_is_said_once(tmp_path: Path) -> None:
    """Story: a task of a restore on a full disk ended in numba's OSError (EFBIG, in another place ENOSPC): it was the
    first to call a kernel, and the file of its compiled code could not be written.
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TIDEMARK_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1
    assert done.stderr.count("cannot be kept") == 1
    assert not list(tmp_path.rglob("*.nbc"))
