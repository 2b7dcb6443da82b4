"""The place of a crash state: which files the power loss cut and how, and between which calls of the store.

An enumeration of crash states proves nothing about a state it never reached. So each judged state is counted under
every name that fits it. The test of a fault fails if a name that `FAULTS` lists for this fault was never counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, header_of

if TYPE_CHECKING:
    from tidemark.recovery.crash_harness.disks.power_loss import Piece

# The first matching prefix decides: a control file is in the folder of the data files.
_KINDS = (
    ("lcp/control-", "control file"),
    ("control-", "control file"),  # pieces of directory entries have no folder
    ("lcp/", "checkpoint data"),
    ("redo/", "REDO"),
    ("undo/", "UNDO"),
    ("space/", "tablespace"),
    ("double-write", "double write"),
    ("sysfile", "sysfile"),
)

_LEAVES = ((".data", "checkpoint data"), (".redo", "REDO"), (".undo", "UNDO"))

# Names that depend on earlier calls of the store, not on what a power loss kept.
UNDER_WAY = "transaction under way, its group not written"
GROUP_PENDING = "group written, not durable"
GROUP_DURABLE = "group durable, sysfile older"
LAP_PENDING = "group over one of an earlier lap, not durable"
DATA_PENDING = "checkpoint data written, not durable"
DATA_DURABLE = "checkpoint data durable, no control file"
CONTROL_PENDING = "control file not durable"
PUBLISHED = "control file durable, log not truncated"
REMOVING = "older checkpoint being removed"

# Faults of the catalogue, and the places an enumeration must have reached to cover them.
FAULTS: dict[str, tuple[str, ...]] = {
    "F01": (UNDER_WAY,),
    "F02": (GROUP_PENDING, "REDO write lost", "REDO write kept"),
    "F03": ("REDO write torn",),
    "F04": (GROUP_DURABLE,),
    "F05": ("sysfile write torn",),
    "F07": (DATA_PENDING, "checkpoint data write torn"),
    "F08": (DATA_DURABLE, CONTROL_PENDING),
    "F09": (PUBLISHED,),
    "F10": (REMOVING, LAP_PENDING),
    "F16": ("nothing kept",),
    "F17": ("some kept",),
    "F18": ("REDO write: only a prefix kept",),
    "F19": ("REDO write: hole in its middle",),
    "F23": ("control file write torn",),
    "F24": ("checkpoint data grown without its data", "checkpoint data data without its growth"),
    "F25": ("checkpoint data name kept", "checkpoint data name lost", "control file name kept"),
}


def missing(counts: Mapping[str, int], faults: Iterable[str]) -> dict[str, list[str]]:
    """Return, by fault, the names that were never counted."""
    found = {fault: [name for name in FAULTS[fault] if not counts.get(name)] for fault in faults}
    return {fault: names for fault, names in found.items() if names}


def kind_of(name: str) -> str:
    """Return the kind of a file, by its name; pieces of directory entries have the leaf name only."""
    for prefix, kind in _KINDS:
        if name.startswith(prefix):
            return kind
    for suffix, kind in _LEAVES:
        if name.endswith(suffix):
            return kind
    return "another file"


class Places:
    """Follows the calls of one run and names the place of a crash before the next call."""

    def __init__(self) -> None:
        self._sysfile_is_older = False
        self._later_lap = False  # whether a group of a later lap is written and not synced
        self._lcp = ""

    def step(self, operation: str, name: str, data: bytes = b"") -> None:
        """Follow a call that was carried out. data: the bytes of a write."""
        kind = kind_of(name)
        if kind == "REDO" and operation == "pwrite":
            self._later_lap = self._later_lap or _lap(data) > 0
            if self._lcp in (PUBLISHED, REMOVING):
                self._lcp = ""
        elif kind == "REDO" and operation == "fdatasync":
            self._sysfile_is_older, self._later_lap = True, False
        elif kind == "sysfile" and operation == "fdatasync":
            self._sysfile_is_older = False
        elif kind == "checkpoint data" and operation == "create":
            self._lcp = DATA_PENDING
        elif kind == "control file" and operation == "create":
            self._lcp = CONTROL_PENDING
        elif name == "lcp" and operation == "sync_directory" and self._lcp == CONTROL_PENDING:
            self._lcp = PUBLISHED
        elif kind == "control file" and operation == "unlink":
            self._lcp = REMOVING

    def names(self, pieces: Sequence[Piece], kept: Iterable[Piece], is_under_way: bool) -> set[str]:
        """Return the names of the state in which only the kept ones of these pieces reached the disk. is_under_way: a
        transaction was begun and not acknowledged.
        """
        written = {kind_of(piece.name) for piece in pieces if piece.kind == "write"}
        found = cuts(pieces, frozenset(kept))
        if "REDO" in written:
            found.add(GROUP_PENDING)
            if self._later_lap:
                found.add(LAP_PENDING)
        else:
            found.update(
                name for name, holds in ((GROUP_DURABLE, self._sysfile_is_older), (UNDER_WAY, is_under_way)) if holds
            )
        if self._lcp == DATA_PENDING and "checkpoint data" not in written:
            found.add(DATA_DURABLE)
        elif self._lcp:
            found.add(self._lcp)
        return found


def _lap(data: bytes) -> int:
    """Return the lap of the group with which a write begins; 0 if it begins with none."""
    if len(data) < GROUP.itemsize:
        return 0
    header = header_of(np.frombuffer(data[: GROUP.itemsize], dtype=np.int64), GROUP)
    return int(header["lap"]) if int(header["kind"]) == KIND_GROUP else 0


def cuts(pieces: Sequence[Piece], kept: frozenset[Piece]) -> set[str]:
    """Return the cuts of a power loss that kept these pieces, by kind of file."""
    found: set[str] = set()
    if pieces:
        survivors = sum(piece in kept for piece in pieces)
        found.add("nothing kept" if not survivors else "everything kept" if survivors == len(pieces) else "some kept")
    writes: dict[int, list[Piece]] = {}
    for piece in pieces:
        if piece.kind == "write":
            writes.setdefault(piece.change, []).append(piece)
    found.update(f"{kind_of(own[0].name)} {cut}" for own in writes.values() for cut in _write_cuts(own, kept))
    found.update(f"{kind_of(name)} {cut}" for name, cut in _file_cuts(pieces, kept))
    return found


def _write_cuts(own: list[Piece], kept: frozenset[Piece]) -> set[str]:
    """Return the cuts of one write, given its sectors in order."""
    there = [piece in kept for piece in own]
    if not any(there):
        return {"write lost"}
    if all(there):
        return {"write kept"}
    found = {"write torn"}
    if there == sorted(there, reverse=True):
        found.add("write: only a prefix kept")
    if there[0] and there[-1]:
        found.add("write: hole in its middle")
    return found


def _file_cuts(pieces: Sequence[Piece], kept: frozenset[Piece]) -> Iterable[tuple[str, str]]:
    """Yield (file name, cut) for each file of which only the growth or only the data in it was kept, and for each
    directory entry.
    """
    grown = {piece.name: piece in kept for piece in pieces if piece.kind == "grow"}
    content = dict.fromkeys(grown, False)
    for piece in pieces:
        if piece.kind == "write" and piece.is_grown and piece.name in grown:
            content[piece.name] = content[piece.name] or piece in kept
        if piece.kind in ("link", "unlink"):
            yield piece.name, f"{'name' if piece.kind == 'link' else 'removal'} {'kept' if piece in kept else 'lost'}"
    for name, has_grown in grown.items():
        if has_grown != content[name]:
            yield name, "grown without its data" if has_grown else "data without its growth"
