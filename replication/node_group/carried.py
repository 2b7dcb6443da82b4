"""What nodes tell each other beside what their view machines say, and beside node restart."""

from __future__ import annotations

from typing import NamedTuple


class EpochIs(NamedTuple):
    """From the primary: the epoch is open from the group of this sequence on. One that is lost is implied by the next
    one, or by the header of the next group.
    """

    view: int
    epoch: int
    sequence: int


class EpochWanted(NamedTuple):
    """From a member: somebody waits there for the end of an epoch (a local checkpoint, a snapshot)."""

    view: int


class CopyWanted(NamedTuple):
    """Begins a conversation: the node wants to be brought up to the primary."""


class FileWanted(NamedTuple):
    """In a conversation: a file that a group names."""

    name: str


class FilePart(NamedTuple):
    """The answer: bytes of the file from an offset on."""

    name: str
    offset: int
    size_bytes: int
    data: bytes
    is_last: bool


Carried = EpochIs | EpochWanted | CopyWanted | FileWanted | FilePart
