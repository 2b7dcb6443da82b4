"""A process that carries out tasks of a restore: `python -m tidemark.recovery.backup.worker`, one task per line of its
standard input.

It answers each with lines of JSON: `{"rows": n}` as rows are done, then `{"report": ...}` or `{"error": ...}`. It ends
with its input, so it does not outlive the restoring process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tidemark.engine.base.errors import Error
from tidemark.recovery.backup.restore_task import RestoreTask
from tidemark.recovery.backup.tasks import restore_fragment

ROWS_SAID = 100_000  # rows between two lines of progress


class _Said:
    """Rows done since they were last reported."""

    def __init__(self) -> None:
        self.rows = 0

    def advance(self, rows: int) -> None:
        self.rows += rows
        if self.rows >= ROWS_SAID:
            self.flush()

    def flush(self) -> None:
        if self.rows:
            say({"rows": self.rows})
            self.rows = 0


def say(value: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(value, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def serve() -> None:
    """Carry out tasks until the input ends."""
    for line in sys.stdin:
        said = _Said()
        try:
            report = restore_fragment(RestoreTask.from_json(line), said.advance)
        except Error as error:
            evidence = {name: value for name, value in error.evidence.items() if isinstance(value, (int, str))}
            say({"error": [type(error).__name__, error.message, evidence]})
            continue
        said.flush()
        say({"report": report.to_json()})


if __name__ == "__main__":
    serve()
