"""A record of everything that reached the disk, with the marks of the store in between.

The record renders as text for golden traces. It also holds the bytes, so that the disk at any moment of the run, and
from there every crash of it, can be rebuilt.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tidemark.engine.files.layer import CheckedFiles
from tidemark.engine.files.protocol import Buffer, File, RawFiles, flat
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.crash_harness.disks.wrapper import RawWrapper, WrappedFiles

T = TypeVar("T")
# The second argument of a call, as a field of its event.
_FIELDS = (("truncate", "length"), ("rename", "target"), ("link", "target"))


@dataclass(frozen=True)
class Event:
    """One call that reached the raw disk, or one mark.

    `data` is the bytes a write transferred; `digest` covers them, or the bytes a read returned. `length` is that of the
    transfer, or the new size of a truncation. `target` is the new name of a rename, or the other name of a link;
    `error` is the name of the error number.
    """

    number: int
    operation: str
    name: str
    offset: int = 0
    length: int = 0
    digest: str = ""
    data: bytes = b""
    target: str = ""
    error: str = ""
    values: dict[str, Any] = field(default_factory=dict)

    def render(self, digests: bool = True) -> str:
        """Return one line of a golden trace; without `digests` it does not depend on the bytes."""
        words = [self.operation, self.name or "."]
        if self.operation in ("pwrite", "pread"):
            words.append(f"{self.offset}+{self.length}")
            if digests and self.digest:
                words.append(f"#{self.digest}")
        elif self.operation == "truncate":
            words.append(str(self.length))
        if self.target:
            words.append(self.target)
        words += [f"{key}={value}" for key, value in self.values.items()]
        if self.error:
            words.append(f"!{self.error}")
        return " ".join(words)


class TraceFiles(WrappedFiles):
    """`Files` that record; `events` grows with every call."""

    def __init__(self, inner: CheckedFiles) -> None:
        self._trace = _TraceRaw(inner.raw)
        super().__init__(inner, self._trace)

    @property
    def events(self) -> tuple[Event, ...]:
        """Everything recorded so far, in order."""
        return tuple(self._trace.events)

    def render(self, digests: bool = True) -> str:
        """Return the record as text, one line per event, without `pread`, `size`, `list` and `exists`."""
        hidden = ("pread", "size", "list", "exists")
        shown = [event.render(digests) for event in self._trace.events if event.operation not in hidden]
        return "\n".join(shown) + "\n"

    def replay(self, through: int, start: MemoryFiles | None = None) -> MemoryFiles:
        """Return the disk after the events numbered up to `through`, synced and unsynced state included.

        `start` is the disk on which the recording began; it is not changed. By default it is an empty disk.
        """
        return replay(self.events[:through], start)


def replay(events: Sequence[Event], start: MemoryFiles | None = None) -> MemoryFiles:
    """Carry out recorded events on a copy of `start`; return that disk. See `Replay`."""
    run = Replay(start)
    for event in events:
        run.step(event)
    return run.files


class Replay:
    """Carries out recorded events one by one on a copy of `start`; failed events change nothing.

    After a failed sync the changes before it stay pending here, whatever the personality of the recorded disk.
    """

    def __init__(self, start: MemoryFiles | None = None) -> None:
        self.files = start.kill() if start is not None else MemoryFiles()
        self._handles: dict[str, File] = {}

    def _handle(self, name: str) -> File:
        if name not in self._handles:
            self._handles[name] = self.files.raw.open(name, True)
        return self._handles[name]

    def step(self, event: Event) -> None:
        raw = self.files.raw
        if event.error:
            return
        if event.operation == "create":
            self._handles[event.name] = raw.create(event.name)
        elif event.operation == "pwrite":
            raw.pwrite(self._handle(event.name), event.data, event.offset)
        elif event.operation == "truncate":
            raw.truncate(self._handle(event.name), event.length)
        elif event.operation == "fdatasync":
            raw.fdatasync(self._handle(event.name))
        elif event.operation == "sync_directory":
            raw.sync_directory(event.name)
        elif event.operation == "make_directory":
            raw.make_directory(event.name)
        elif event.operation == "rename":
            raw.rename(event.name, event.target)
            self._handles.pop(event.target, None)
            is_unknown = event.name not in self._handles
            self._handles[event.target] = self._handle(event.target) if is_unknown else self._handles.pop(event.name)
        elif event.operation == "unlink":
            # A handle stays usable after its name is gone, as on a real disk.
            raw.unlink(event.name)
        elif event.operation == "link" and raw.exists(event.target):
            raw.link(event.name, event.target, raw)
        elif event.operation == "remove_tree":
            raw.remove_tree(event.name)
        elif event.operation == "lock" and not self.files.exists("LOCK"):
            raw.create("LOCK")


class _TraceRaw(RawWrapper):
    def __init__(self, inner: RawFiles) -> None:
        super().__init__(inner)
        self.events: list[Event] = []
        self._mutex = threading.Lock()

    def _record(self, operation: str, name: str, **fields: Any) -> None:
        with self._mutex:
            self.events.append(Event(len(self.events) + 1, operation, name, **fields))

    def _call(self, operation: str, name: str, function: Callable[..., T], *arguments: Any) -> T:
        fields = {field: arguments[1] for kind, field in _FIELDS if kind == operation}
        # Recorded after it has returned: the record is the order in which the disk finished.
        try:
            result = function(*arguments)
        except OSError as cause:
            self._record(operation, name, error=errno.errorcode.get(cause.errno or 0, "error"), **fields)
            raise
        self._record(operation, name, **fields)
        return result

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        try:
            got = self.inner.pread_into(file, view, offset)
        except OSError as cause:
            self._record("pread", file.name, offset=offset, error=errno.errorcode.get(cause.errno or 0, "error"))
            raise
        self._record("pread", file.name, offset=offset, length=got, digest=_digest(flat(view)[:got]))
        return got

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        data = bytes(flat(buffer))
        try:
            done = self.inner.pwrite(file, buffer, offset)
        except OSError as cause:
            error = errno.errorcode.get(cause.errno or 0, "error")
            self._record("pwrite", file.name, offset=offset, length=len(data), error=error)
            raise
        data = data[:done]
        self._record("pwrite", file.name, offset=offset, length=done, digest=_digest(data), data=data)
        return done

    def fail_sync(self, target: File | str, error_number: int) -> None:
        name = target if isinstance(target, str) else target.name
        operation = "sync_directory" if isinstance(target, str) else "fdatasync"
        error = "LATE"
        try:
            super().fail_sync(target, error_number)
        except OSError as cause:
            error = errno.errorcode.get(cause.errno or 0, "error")
            raise
        finally:
            self._record(operation, name, error=error)

    def mark(self, kind: str, values: dict[str, Any]) -> None:
        self._record("mark", kind, values=dict(values))
        self.inner.mark(kind, values)


def _digest(data: bytes | memoryview) -> str:
    return hashlib.blake2b(data, digest_size=4).hexdigest() if len(data) else ""
