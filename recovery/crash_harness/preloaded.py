"""The imports of the server of `forks.py`: the public face and the code of every kernel."""

from __future__ import annotations

from tidemark.engine.jit.registry import compile_declared, import_all
from tidemark.recovery.crash_harness.program import OPEN_DIRECTORY, resolve

import_all()
compile_declared()
resolve(OPEN_DIRECTORY)
