"""The process from which Spark forks its Python workers, with the imports of tasks done in advance (docs/spark.md,
section 2).

Spark runs it as `python -m tidemark.recovery.spark.daemon pyspark.worker`, in place of its own daemon. Without it every
worker would spend a second of processor time on imports before its first row: one worker per core, and a new one for
each that died. Workers also collect garbage after every task, so the imported objects are frozen, and the collector
skips them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from pyspark.daemon import manager

from tidemark.recovery.spark import jobs, load

IMPORTED = (jobs, load)

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    run: Callable[[], object] = manager  # untyped in one release, typed in the next
    run()
