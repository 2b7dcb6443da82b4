"""Messages between nodes besides those of the view machines and of node restart."""

from __future__ import annotations

from typing import NamedTuple


class EpochIs(NamedTuple):
    """From the primary: the epoch is open from the group of this sequence on. If this message is lost, the next one, or
    the header of the next group, implies it.
    """

    view: int
    epoch: int
    sequence: int


class EpochWanted(NamedTuple):
    """From a member: a thread there waits for the end of an epoch (a local checkpoint, a snapshot)."""

    view: int


class CopyWanted(NamedTuple):
    """Begins a conversation: the sender wants to be brought up to the primary."""


class FileWanted(NamedTuple):
    """In a conversation: requests a file that a group of the log names."""

    name: str


class FilePart(NamedTuple):
    """The answer to `FileWanted`, in parts: bytes of the file from an offset on."""

    name: str
    offset: int
    size_bytes: int
    data: bytes
    is_last: bool


Carried = EpochIs | EpochWanted | CopyWanted | FileWanted | FilePart
