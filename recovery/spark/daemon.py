"""The process Spark forks its Python workers from, with what tasks need imported before (docs/spark.md, section 2).

Run by Spark as `python -m tidemark.recovery.spark.daemon pyspark.worker`, in the place of its own daemon: a worker that
imports for itself takes a second of a core before its first row, and there is one for each core, and anew for each that
died. And behind every task a worker looks through all objects for garbage: those that were imported are left out of
that.
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
    run: Callable[[], object] = manager  # of no type in one release, of some in the next
    run()
