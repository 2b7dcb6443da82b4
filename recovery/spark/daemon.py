"""The process from which Spark forks its Python workers, with the imports of tasks done in advance (docs/spark.md,
section 2).

Spark runs it as `python -m tidemark.recovery.spark.daemon pyspark.worker`, in place of its own daemon. A worker that
imports for itself needs a second of a core before its first row, and there is a worker for each core, and a new one for
each that died. A worker also collects garbage after every task; the imported objects are frozen so that the collector
skips them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from pyspark.daemon import manager

from tidemark.recovery.spark import jobs, load, rows

IMPORTED = (jobs, load, rows)

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    run: Callable[[], object] = manager  # untyped in one release, typed in the next
    run()
