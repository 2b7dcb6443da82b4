"""A disk that refuses a call in a wrong order of writes, as soon as the call is made.

It knows the store's kinds of files by name and tracks what is durable in each. It is below the failure latch, so it
sees exactly the calls that reach the disk. A violation raises OrderViolation, an AssertionError, which no code of the
store catches.

Rules:
- (O1) A local checkpoint's control file is written, or renamed into place, only after content and entry of all its data
  files are durable (F23).
- (O2) Control and data files of a complete local checkpoint are unlinked only while another control file can replace
  it. Every newer control file must be durable in content and entry before an unlink, and all control files before the
  log is cut (F28).
- (O3) The REDO log is not written over LSNs that no `cut` has declared free (F28, L4).
- (O4) A REDO write starts only after all earlier ones are durable (L1).
- (O5) `ack` is marked only when all REDO is durable (RP2).
- (O6) Only close and unlock follow a failed sync (F33).
- (O7) A renamed file is not used before its directories are synced (F26).
- (O8) No REDO group ends past the reach of the newest durable sysfile (L6, ADR 0007).
- (O9) An UNDO group is written only after all earlier writes to the UNDO log are durable, and only over space that an
  `undo_cut` has declared free (U1, U4).
- (O10) A page is written to its place only after the UNDO log is durable through its LSN.
- (O11) A page is written to its place only after its copy in the double-write file is durable.
- (O12) The double-write file is overwritten only after the pages written before are durable.
- (O13) A control file is written only after the UNDO group of its mark and the pages with LSNs before that mark are
  durable.
- (O14) An UNDO_RESTART record is written only after all pages are durable.
- (O15) See `order_spool.py` for spool files.

Not detected: a REDO group that starts at offset 0 of a file while the previous group, which ends the last file, is
unsynced. The two look like one group across both files.

Marks that it uses: `mark("cut", lsn=...)` after each durable control file and once at open (the tail); `mark("ack",
...)` by the thread that synced, before it stops being the leader; `mark("undo_cut", position=...)` when the UNDO log is
opened and when its tail moves; `mark("undo_durable", lsn=...)` then and after each flush.
"""

from __future__ import annotations

import functools
import re
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidemark.engine.files.layer import CheckedFiles, parent_of
from tidemark.engine.files.protocol import Buffer, File, RawFiles, flat
from tidemark.recovery.crash_harness.disks.order_disk import DiskOrder
from tidemark.recovery.crash_harness.disks.order_spool import SpoolOrder
from tidemark.recovery.crash_harness.disks.order_undo import Ring, UndoOrder, is_undo_name
from tidemark.recovery.crash_harness.disks.wrapper import RawWrapper, WrappedFiles
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE, SYSFILE_BYTES

_DATA = re.compile(r"lcp/(\d+)-[^/]*\.data")
# With a suffix the file does not have its final name yet, and cannot replace another control file.
_CONTROL = re.compile(r"lcp/control-(\d+)(\.[^/]*)?")
_REDO = re.compile(r"redo/[^/]*\.redo")
_SYSFILE = re.compile(r"sysfile\.\d")


@functools.cache
def is_redo_name(name: str) -> bool:
    return _REDO.fullmatch(name) is not None


class OrderViolation(AssertionError):
    """A rule of the order of writes was broken; the message names rule, call and file."""


class OrderMonitor(WrappedFiles):
    """`Files` that raise OrderViolation at the first call in a wrong order."""

    def __init__(self, inner: CheckedFiles) -> None:
        super().__init__(inner, _OrderRaw(inner.raw))


@dataclass(eq=False)
class _FileState:
    """The changes of one file that are not durable yet. A file that already existed counts as durable."""

    writes: int = 0
    synced: int = 0
    is_entry_unsynced: bool = False
    # Directories to sync before the file may be used under its new name.
    renamed_between: set[str] = field(default_factory=set)

    @property
    def is_unsynced(self) -> bool:
        return self.writes != self.synced


class _RedoState:
    """Derives the LSN of each write to the log from its place in the ring.

    A write belongs to the lap that brings it nearest to the log's end so far. Laps are counted from the first write
    seen; the first `cut` shows the true lap.
    """

    def __init__(self) -> None:
        self.end: int | None = None
        self.written = 0  # end of the last write: a restart zeroes remnants after the end of the log first
        self.tail: int | None = None
        self.is_placed = False

    def write(self, place: int, count: int, capacity: int) -> int | None:
        """Follow a write of `count` bytes; return the first LSN it destroys, or None if it destroys none."""
        if self.end is None:
            # The first write of a reopened store may be anywhere in the lap after the tail.
            self.end = place if self.tail is None else self.tail + (place - self.tail) % capacity
        lsn = self.end + (place - self.end + capacity // 2) % capacity - capacity // 2
        if self.tail is None:
            self.tail = lsn
        self.written = lsn + count
        self.end = max(self.end, self.written)
        lost = lsn + count - capacity
        return None if lost <= self.tail else max(self.tail, lsn - capacity)

    def cut(self, lsn: int, capacity: int) -> None:
        """Declare the log before `lsn` free."""
        if not self.is_placed and self.end is not None and capacity:
            self.end = lsn + (self.end - lsn) % capacity
        self.is_placed = True
        self.tail = lsn


class _OrderRaw(RawWrapper):
    def __init__(self, inner: RawFiles) -> None:
        super().__init__(inner)
        self._states: dict[str, _FileState] = {}
        self._handles: dict[int, _FileState] = {}
        self._redo = _RedoState()
        self._redo_ring = Ring("redo", is_redo_name)
        # The reach in each sysfile copy as written, and the durable reach; None until a sync of a copy is seen.
        self._reach_written: dict[str, int] = {}
        self._reach: int | None = None
        self._undo = UndoOrder()
        self._disk = DiskOrder()
        self._spool = SpoolOrder()
        self._failed_sync = ""
        self._mutex = threading.RLock()

    def _state(self, name: str) -> _FileState:
        return self._states.setdefault(name, _FileState())

    def _check_alive(self, operation: str, name: str) -> None:
        if self._failed_sync:
            raise OrderViolation(f"O6: {operation} of {name or '.'} after a failed sync of {self._failed_sync}")

    def _check_renamed(self, operation: str, name: str, state: _FileState) -> None:
        if state.renamed_between:
            raise OrderViolation(f"O7: {operation} of {name} after its rename, before its directory is synced")

    def _is_entry_unsynced(self, name: str) -> bool:
        # A durable entry in a directory whose own entry is not durable is lost with it (F25).
        above = self._states.get(parent_of(name))
        own = self._states.get(name)
        return (own is not None and own.is_entry_unsynced) or (above is not None and above.is_entry_unsynced)

    def _is_durable(self, name: str) -> bool:
        state = self._states.get(name)
        return not self._is_entry_unsynced(name) and (state is None or not state.is_unsynced)

    def _unsynced_redo(self) -> list[str]:
        return sorted(name for name in self._states if is_redo_name(name) and not self._is_durable(name))

    def _unsynced_undo(self) -> list[str]:
        return sorted(name for name in self._states if is_undo_name(name) and not self._is_durable(name))

    def _check_undo_write(self, file: File, offset: int, view: memoryview) -> None:
        self._undo.measure(self.inner)
        fault = self._undo.fault(file.name, offset, view, self._unsynced_undo)
        if fault:
            raise OrderViolation(f"O9: {fault}")
        self._undo.begun(file.name, offset)

    def _forget_sizes(self) -> None:
        self._redo_ring.sizes = {}
        self._undo.sizes = {}

    def _check_control(self, operation: str, name: str) -> None:
        control = _CONTROL.fullmatch(name)
        if control is None:
            return
        fault = self._disk.control_fault(int(control[1]))
        if fault:
            raise OrderViolation(fault)
        for other, state in self._states.items():
            data = _DATA.fullmatch(other)
            if data is not None and int(data[1]) == int(control[1]):
                if state.is_unsynced:
                    raise OrderViolation(f"O1: {operation} of {name} before the content of {other} is durable")
                if self._is_entry_unsynced(other):
                    raise OrderViolation(f"O1: {operation} of {name} before the entry of {other} is durable")

    def _check_lcp_unlink(self, name: str) -> None:
        matched = _CONTROL.fullmatch(name) or _DATA.fullmatch(name)
        if matched is None:
            return
        own = int(matched[1])
        another_is_durable = own_is_durable = False
        for leaf in self.inner.names("lcp"):
            control = _CONTROL.fullmatch(f"lcp/{leaf}")
            if control is None:
                continue
            is_durable = self._is_durable(f"lcp/{leaf}")
            if int(control[1]) > own and not is_durable:
                raise OrderViolation(f"O2: unlink of {name} before lcp/{leaf} is durable in content and entry")
            if control[2] is not None:
                continue
            if is_durable and int(control[1]) == own:
                own_is_durable = True
            elif is_durable:
                another_is_durable = True
        is_unnamed = matched.re is _CONTROL and matched[2] is not None
        if own_is_durable and not another_is_durable and not is_unnamed:
            raise OrderViolation(f"O2: unlink of {name} while no other control file stands in for it")

    def _check_redo_write(self, file: File, offset: int, count: int) -> None:
        ring = self._redo_ring
        ring.measure(self.inner)
        if ring.is_new(file.name, offset):
            unsynced = self._unsynced_redo()
            if unsynced:
                raise OrderViolation(f"O4: REDO write at {file.name} {offset}+{count} while {unsynced[0]} is unsynced")
        lost = self._redo.write(ring.place(file.name, offset), count, ring.capacity)
        if lost is not None:
            raise OrderViolation(f"O3: REDO write at {file.name} {offset}+{count} over LSN {lost}, which no cut freed")

    def _check_reach(self, file: File, offset: int, view: memoryview) -> None:
        end = self._redo.written
        # A restart zeroes the sector after the end of the log; that write is no group.
        if self._reach is None or not self._redo.is_placed or not any(view[:8]):
            return
        if end > self._reach:
            raise OrderViolation(f"O8: REDO write at {file.name} {offset} ends at LSN {end}, past {self._reach}")

    def create(self, name: str) -> File:
        with self._mutex:
            self._check_alive("create", name)
            file = self.inner.create(name)
            self._states[name] = self._handles[file] = _FileState(is_entry_unsynced=True)
            self._forget_sizes()
            return file

    def open(self, name: str, writable: bool) -> File:
        with self._mutex:
            self._check_alive("open", name)
            self._check_renamed("open", name, self._state(name))
            file = self.inner.open(name, writable)
            self._handles[file] = self._state(name)
            return file

    def pread_into(self, file: File, view: memoryview, offset: int) -> int:
        self._check_alive("pread", file.name)
        self._check_renamed("pread", file.name, self._handles[file])
        return self.inner.pread_into(file, view, offset)

    def pwrite(self, file: File, buffer: Buffer, offset: int) -> int:
        with self._mutex:
            self._check_alive("pwrite", file.name)
            state = self._handles[file]
            self._check_renamed("pwrite", file.name, state)
            self._check_control("pwrite", file.name)
            self._check_spool(self._spool.write_fault(file.name))
            view = flat(buffer)
            count = view.nbytes
            if _SYSFILE.fullmatch(file.name) and count == SYSFILE_BYTES:
                self._reach_written[file.name] = int(np.frombuffer(view, dtype=SYSFILE)["reach_lsn"][0])
            is_redo = is_redo_name(file.name)
            # A write that grows a REDO file fills it at its creation; the log itself never grows a file.
            is_log = is_redo and offset + count <= self.inner.size(file)
            if is_log:
                self._check_redo_write(file, offset, count)
                self._check_reach(file, offset, view)
                self._check_spool(self._spool.redo_fault(view, self._is_durable))
                self._redo_ring.begun(file.name, offset)
            elif is_redo:
                self._redo_ring.sizes = {}
            is_undo = is_undo_name(file.name) and offset + count <= self.inner.size(file)
            if is_undo:
                self._check_undo_write(file, offset, view)
            fault = self._disk.fault(file.name, view) if offset + count <= self.inner.size(file) else ""
            if fault:
                raise OrderViolation(fault)
            state.writes += 1
        done = self.inner.pwrite(file, buffer, offset)
        if is_log or is_undo:
            (self._redo_ring if is_log else self._undo).written(file.name, offset, done, done < count)
        with self._mutex:
            state.writes += 1
            self._disk.landed(file.name, view)
        return done

    def truncate(self, file: File, size: int) -> None:
        with self._mutex:
            self._check_alive("truncate", file.name)
            self._check_renamed("truncate", file.name, self._handles[file])
            self._handles[file].writes += 1
            self._forget_sizes()
        self.inner.truncate(file, size)

    def fdatasync(self, file: File) -> None:
        self._check_alive("fdatasync", file.name)
        state = self._handles[file]
        writes = state.writes
        try:
            self.inner.fdatasync(file)
        except OSError:
            self._failed_sync = file.name
            raise
        with self._mutex:
            state.synced = writes
            self._disk.synced(file.name)
            self._reach = self._reach_written.get(file.name, self._reach)
            # A group across two files is repeated whole after a signal, so both places count until both are durable.
            if self._redo_ring.is_pending and not self._unsynced_redo():
                self._redo_ring.synced()
            if is_undo_name(file.name) and not self._unsynced_undo():
                self._undo.synced()

    def fail_sync(self, target: File | str, error_number: int) -> None:
        name = target if isinstance(target, str) else target.name
        self._check_alive("sync", name)
        try:
            super().fail_sync(target, error_number)
        except OSError:
            self._failed_sync = name or "."
            raise

    def sync_directory(self, path: str) -> None:
        self._check_alive("sync_directory", path)
        with self._mutex:
            before = [state for name, state in self._states.items() if parent_of(name) == path]
        try:
            self.inner.sync_directory(path)
        except OSError:
            self._failed_sync = path or "."
            raise
        with self._mutex:
            for state in before:
                state.is_entry_unsynced = False
            for state in self._states.values():
                state.renamed_between.discard(path)

    def make_directory(self, path: str) -> None:
        self._check_alive("make_directory", path)
        self.inner.make_directory(path)
        with self._mutex:
            self._states[path] = _FileState(is_entry_unsynced=True)

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            self._check_alive("rename", source)
            state = self._state(source)
            self._check_renamed("rename", source, state)
            self._check_control("rename", target)
            self.inner.rename(source, target)
            self._states[target] = self._states.pop(source)
            state.is_entry_unsynced = True
            state.renamed_between = {parent_of(source), parent_of(target)}

    def link(self, name: str, source_name: str, source: RawFiles) -> bool:
        with self._mutex:
            self._check_alive("link", name)
            is_linked = super().link(name, source_name, source)
            if is_linked:
                self._states[name] = _FileState(is_entry_unsynced=True)
            return is_linked

    def unlink(self, name: str) -> None:
        with self._mutex:
            self._check_alive("unlink", name)
            self._check_renamed("unlink", name, self._state(name))
            self._check_lcp_unlink(name)
            self._check_spool(self._spool.unlink_fault(name, self._redo.tail))
            self.inner.unlink(name)
            self._states.pop(name, None)
            self._forget_sizes()

    def names(self, path: str) -> tuple[str, ...]:
        self._check_alive("list", path)
        return self.inner.names(path)

    def size(self, file: File) -> int:
        self._check_alive("size", file.name)
        return self.inner.size(file)

    def close(self, file: File) -> None:
        self._handles.pop(file, None)
        self.inner.close(file)

    def mark(self, kind: str, values: dict[str, Any]) -> None:
        with self._mutex:
            if kind == "ack":
                self._check_alive("ack", "a transaction")
                unsynced = self._unsynced_redo()
                if unsynced:
                    raise OrderViolation(f"O5: ack {values} while {unsynced[0]} is unsynced")
            elif kind == "cut":
                self._check_cut()
                self._redo.cut(int(values["lsn"]), self._redo_ring.capacity)
            elif kind == "undo_durable":
                if not self._unsynced_undo():
                    self._disk.durable(int(values["lsn"]))
            elif kind == "undo_cut":
                self._undo.tail = int(values["position"])
        self.inner.mark(kind, values)

    @staticmethod
    def _check_spool(fault: str) -> None:
        if fault:
            raise OrderViolation(f"O15: {fault}")

    def _check_cut(self) -> None:
        for name in self._states:
            if _CONTROL.fullmatch(name) and not self._is_durable(name):
                raise OrderViolation(f"O2: cut of the log before {name} is durable in content and entry")
        if self.inner.exists("redo"):
            self._redo_ring.measure(self.inner)
