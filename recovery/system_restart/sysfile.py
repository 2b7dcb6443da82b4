"""The sysfile: two copies, so that one is always intact (RD1). One copy is written at a time if the other still gives a
valid floor; both are written for facts that a restart must find in either (`write_both`).

It has the settings of the store's creation, and two bounds on the end of the log; the log itself shows the exact end.
The *floor*: the log is durable up to there, and a log that ends before it has lost acknowledged commits. The *reach*:
no group that ends past it is written, so a restart does not look for one there (ADR 0007).
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import RestoreUnfinished
from tidemark.engine.base.ids import next_incarnation
from tidemark.engine.base.limits import INCARNATION_MAX, TABLE_ID_MAX
from tidemark.engine.disk.undo_ring import UndoVoid, undo_ring
from tidemark.engine.log.geometry import Geometry
from tidemark.engine.sealed.sealed_layout import (
    KIND_SYSFILE,
    SEAL,
    header_of,
    seal,
    store_of,
    write_seal,
)
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE, SYSFILE_BYTES
from tidemark.recovery.system_restart.two_copies import TwoCopies, check_of_one_store, read_sealed

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

_log = logging.getLogger("tidemark.restart")
OPENINGS_WARNED = 1_000
NAMES = ("sysfile.0", "sysfile.1")
# Fields of an open store that both copies have before anything depends on them (`write_both`).
LASTING = frozenset({"incarnation", "geometry", "undo_geometry"})
# Fields of a `Sysfile` that are numbers of the header.
_NUMBERS = (
    *("generation", "gci", "closed_epoch", "durable_lsn", "durable_sequence", "hash_seed", "next_table_id"),
    *("next_lcp_id", "created_us", "reach_lsn", "filtered_epoch", "timeline", "seam_lsn", "seam_sequence"),
)
_LSNS = ("durable_lsn", "reach_lsn", "seam_lsn", "undo_void_lsn")
RESTORING = "restoring"  # a restore is running in this directory, or was interrupted


@dataclass(frozen=True)
class Sysfile:
    """Content of one copy; see `recovery/system_restart/sysfile_layout.py` for the fields."""

    store: bytes
    incarnation: int
    generation: int
    gci: int
    closed_epoch: int
    durable_lsn: int
    durable_sequence: int
    geometry: Geometry
    hash_seed: int
    next_table_id: int
    next_lcp_id: int
    created_us: int
    reach_lsn: int
    filtered_epoch: int = 0
    undo_geometry: Geometry | None = None  # None: there is no UNDO log yet
    undo_void: UndoVoid = UndoVoid()
    timeline: int = 0
    seam_lsn: int = 0
    seam_sequence: int = 0

    def check_openings(self) -> None:
        """Log a warning if only a few openings are left before transaction ids run out. Raises: LimitExceeded."""
        if self.next_incarnation > INCARNATION_MAX - OPENINGS_WARNED:
            _log.warning(
                "incarnation %d of %d: back the store up, and restore it into an empty directory, before ids of"
                " transactions are used up",
                self.next_incarnation,
                INCARNATION_MAX,
            )

    @property
    def next_incarnation(self) -> int:
        """The incarnation of the opening that reads the sysfile. Raises: LimitExceeded if transaction ids are used
        up.
        """
        return next_incarnation(self.incarnation)

    def is_before_seam(self, lsn: int, sequence: int) -> bool:
        """Whether a place in the log is before the seam. At the LSN of the seam, the next sequence decides: the log may
        have no group between a local checkpoint and the rows that were copied over it.
        """
        return 0 < self.seam_lsn and (lsn, sequence) < (self.seam_lsn, self.seam_sequence)

    def continued_at(self, end: tuple[int, int], sequence: int) -> Sysfile:
        """Return the sysfile for a log that ends before this LSN and group and continues with group `sequence`: with a
        seam there if groups are missing between them.
        """
        if end[1] != sequence:
            return replace(self, seam_lsn=end[0], seam_sequence=sequence)
        return replace(self, seam_lsn=0, seam_sequence=0) if self.is_before_seam(*end) else self

    def bounds(self, start_lsn: int, start_sequence: int) -> tuple[int, int]:
        """Return floor and reach of the log for a reader that begins at a group. If that is before the seam, the reach
        is the seam, and the floor is not past it.

        Groups past the seam change rows that were copied, which only a local checkpoint after the seam has.
        """
        if self.is_before_seam(start_lsn, start_sequence):
            return min(self.durable_lsn, self.seam_lsn), self.seam_lsn
        return self.durable_lsn, self.reach_lsn


def has_sysfile(files: Files) -> bool:
    """Whether there is a copy, intact or not."""
    return any(files.exists(name) for name in NAMES)


def read_sysfile(files: Files, is_restoring: bool = False) -> Sysfile | None:
    """Return the newest intact copy, or None if there is none. Raises: VersionTooNew, VersionTooOld, ForeignFile;
    RestoreUnfinished unless the caller is the restore.

    Its filtered epoch is the lower one of both copies: no flush left out records past it
    (`SysfileKeeper.restorable_epoch`).
    """
    if not is_restoring and files.exists(RESTORING):
        raise RestoreUnfinished(
            "a restore into this directory was interrupted; restore again, into this directory or another one"
        )
    copies = [copy for copy in (read_copy(files, name) for name in NAMES) if copy is not None]
    check_of_one_store((copy.store for copy in copies), NAMES)
    newest = max(copies, key=lambda copy: copy.generation, default=None)
    if newest is None:
        return None
    before = next((copy for copy in copies if copy.generation == newest.generation - 1), None)
    if before is None:
        # The missing copy may have been the newer one, with a higher reach of the log.
        return replace(newest, reach_lsn=0)
    return replace(newest, filtered_epoch=min(newest.filtered_epoch, before.filtered_epoch))


def read_copy(files: Files, name: str) -> Sysfile | None:
    """Return one copy, or None if it is missing, damaged or unreadable. Raises: VersionTooNew, VersionTooOld."""
    words = read_sealed(files, name, KIND_SYSFILE, SYSFILE_BYTES)
    if words is None:
        return None
    header = header_of(words, SYSFILE)
    geometry = Geometry(int(header["file_bytes"]), int(header["file_count"]), unmade_count=int(header["unmade_count"]))
    undo_count = int(header["undo_file_count"])
    undo = undo_ring(int(header["undo_file_bytes"]), undo_count) if undo_count else None
    if not geometry.is_possible() or (undo is not None and not undo.is_possible()):
        return None
    # Kernels and the next generation take signed words: the store never wrote a value that does not fit, nor an LSN
    # with no room for those after it (F112).
    if max(int(header[name]) for name in (SYSFILE.names or ())[len(SEAL.names or ()) : -1]) >= 1 << 63:
        return None
    if max(int(header[name]) for name in _LSNS) >= 1 << 62:
        return None
    if int(header["next_table_id"]) > TABLE_ID_MAX + 1:
        return None
    return Sysfile(
        store=store_of(words),
        incarnation=int(header["incarnation"]),
        geometry=geometry,
        undo_geometry=undo,
        undo_void=UndoVoid(int(header["undo_void_sequence"]), int(header["undo_void_lsn"])),
        **{name: int(header[name]) for name in _NUMBERS},
    )


def open_copies(files: Files) -> TwoCopies:
    """Open both copies, writable, for the life of the store."""
    return TwoCopies(files, NAMES, SYSFILE_BYTES)


def write_sysfile(copies: TwoCopies, content: Sysfile) -> Sysfile:
    """Write the next generation over the older copy; return the written content. Durable on return."""
    content = replace(content, generation=content.generation + 1)
    words = np.zeros(SYSFILE_BYTES // 8, dtype=np.int64)
    header = header_of(words, SYSFILE)
    write_seal(header, KIND_SYSFILE, words.size, content.store, content.incarnation)
    for name in _NUMBERS:
        header[name] = getattr(content, name)
    header["file_bytes"] = content.geometry.file_bytes
    header["file_count"] = content.geometry.file_count
    header["unmade_count"] = content.geometry.unmade_count
    if content.undo_geometry is not None:
        header["undo_file_bytes"] = content.undo_geometry.file_bytes
        header["undo_file_count"] = content.undo_geometry.file_count
    header["undo_void_sequence"] = content.undo_void.sequence
    header["undo_void_lsn"] = content.undo_void.lsn
    seal(words, words.size)
    copies.write(content.generation % 2, words)
    return content


def write_both(copies: TwoCopies, content: Sysfile) -> Sysfile:
    """Write both copies, for facts that either copy alone must have; return the written content. Durable on return.
    Otherwise, after the loss of one copy, the store would have no UNDO log, assign transaction ids again, or read void
    groups.
    """
    return write_sysfile(copies, write_sysfile(copies, content))


class SysfileKeeper:
    """The sysfile of an open store: serializes its writers, and sets how far the log may reach.

    Lock order: a thread that leads the log's write may take this latch; a thread that holds it never waits for the log.
    """

    def __init__(self, copies: TwoCopies, content: Sysfile) -> None:
        self._copies = copies
        self._turn = threading.Lock()
        self.content = content
        # UNDO records of epochs up to this may be left out. Both copies have it: otherwise, after the loss of the newer
        # one, a restart could go back before an epoch whose records a flush has left out.
        self.restorable_epoch = content.filtered_epoch

    def write(self, **changes: Any) -> None:
        """Write the sysfile with fields changed and its reach extended; the floor never falls. Durable on return."""
        with self._turn:
            changed = replace(self.content, **changes)
            if changed.durable_lsn < self.content.durable_lsn:  # raised after the caller read it
                floor = self.content.durable_lsn, self.content.durable_sequence
                changed = replace(changed, durable_lsn=floor[0], durable_sequence=floor[1])
            reach = max(changed.reach_lsn, changed.durable_lsn + changed.geometry.reach_step_bytes)
            self._write(replace(changed, reach_lsn=reach))
            if not LASTING.isdisjoint(changes):
                self._write(self.content)

    def raise_floor(self, lsn: int, sequence: int) -> None:
        """Record that the log is durable up to this LSN and group: from now on, an earlier end is damage. Durable on
        return.
        """
        if lsn > self.content.durable_lsn:
            self.write(durable_lsn=lsn, durable_sequence=sequence)

    def extend_reach(self, lsn: int) -> int:
        """Extend the reach of the log to at least `lsn`; return the reach. Durable on return."""
        durable = self.content.reach_lsn
        if lsn <= durable:
            return durable  # without the latch: commits do not wait for a sysfile whose sync hangs
        with self._turn:
            if lsn > self.content.reach_lsn:
                reach = lsn + self.content.geometry.reach_step_bytes
                self._write(replace(self.content, reach_lsn=reach))
            return self.content.reach_lsn

    def _write(self, content: Sysfile) -> None:
        before = self.content.filtered_epoch
        self.content = write_sysfile(self._copies, content)
        self.restorable_epoch = min(before, content.filtered_epoch)
