"""The messages between a returning node and a live node; `replication` carries them (docs/internals/node-group.md).
Both sides count what they handle (`Progress`).

They are handled in the order in which they are sent. Words are int64 arrays that no longer change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.disk.tablespaces import TablespaceDefinition
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition

ROWID_SYNC = "rowid_sync"
REPLAY_LOG = "replay_log"
DELETE_LOG = "delete_log"
VARIANTS = (ROWID_SYNC, REPLAY_LOG, DELETE_LOG)

FragmentPlace = tuple[int, int]  # table and fragment number


# --- before the joiner restarts -------------------------------------------------------------------
@dataclass(frozen=True)
class Welcome:
    """From the live node: the store of which the joiner is to become a copy."""

    store: bytes  # UUID
    incarnation: int
    format_version: int  # of the live node's messages; the joiner must be able to read it


# --- joiner to live node --------------------------------------------------------------------------
@dataclass(frozen=True)
class Ready:
    """The joiner is at the end of epoch `through`, 0 if it has no valid state."""

    through: int
    next_sequence: int  # of the next group in its log
    variant: str
    why: str  # why everything is to be copied, "" if it is not


@dataclass(frozen=True)
class Plan:
    """The rows to copy: for each existing fragment, the epoch after which changes are wanted; 0: everything."""

    since: Mapping[FragmentPlace, int]


@dataclass(frozen=True)
class Taken:
    """A slice was applied, or deletes or a part of the log: this many words are acknowledged."""

    words: int


# --- live node to joiner --------------------------------------------------------------------------
@dataclass(frozen=True)
class TablespaceShape:
    """A tablespace, and the number of extents of each of its files."""

    definition: TablespaceDefinition
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Begin:
    """The copy begins with the definitions as of group `sequence`; later changes of them come in the stream.

    variant: how it continues; why: the reason if another variant was requested. With `replay_log` there are no
    definitions: the groups have all changes of them.
    """

    variant: str
    why: str
    sequence: int
    tables: tuple[TableDefinition, ...] = ()
    tablespaces: tuple[TablespaceShape, ...] = ()
    next_table_id: int = 1
    next_tablespace_id: int = 1
    next_file_id: int = 1


@dataclass(frozen=True)
class GroupPart:
    """Records of one group of the log, or of a file it names: words[start:stop].

    tablespaces: those that the group creates or adds files to, as they are now: records do not have sizes.
    """

    sequence: int
    epoch: int
    words: Words
    start: int
    stop: int
    is_last: bool  # of the group
    tablespaces: tuple[TablespaceShape, ...] = ()


@dataclass(frozen=True)
class Slice:
    """Slots of a fragment from one ROWID to another as they are after group `sequence`.

    words: items (`engine/store/node_copy_layout.py`). epoch: the open epoch of the live node at that time; no slot has
    a higher one.
    """

    place: FragmentPlace
    version: int  # of the table's definition
    start: int
    stop: int
    epoch: int
    sequence: int
    words: Words
    rows: int


@dataclass(frozen=True)
class Deletes:
    """Rows deleted after the joiner's epoch, from the delete log. Comes before the first slice.

    epoch, sequence: as in a slice. words: items of DELETED_WORDS (`engine/store/node_copy_layout.py`).
    """

    epoch: int
    sequence: int
    words: Words


@dataclass(frozen=True)
class End:
    """The joiner has all rows as of group `sequence`, the last one of `epoch`. `next_epoch` is open after that."""

    sequence: int
    epoch: int
    next_epoch: int


FromLive = Begin | GroupPart | Deletes | Slice | End
FromJoiner = Ready | Plan | Taken


def size_words(message: Slice | Deletes) -> int:
    """Return the number of words that flow control counts."""
    return int(message.words.size) + 16


# --- progress -------------------------------------------------------------------------------------
@dataclass
class Progress:
    """Counters of one node restart. Progress is measured in pages of slots: the time left is estimated from the pages
    left to scan.
    """

    clock: Clock
    began: float  # seconds of the monotonic clock
    variant: str = ""
    why: str = ""
    fragments: int = 0
    fragments_done: int = 0
    pages: int = 0
    pages_done: int = 0
    slots: int = 0  # looked at by the live node's scan
    deletes: int = 0  # items of the delete log
    rows: int = 0
    bytes: int = 0
    groups: int = 0
    is_done: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the counters as plain values, with rates per second and the seconds left (None: unknown)."""
        seconds = max(self.clock.monotonic() - self.began, 1e-9)
        left: float | None = None
        if self.is_done:
            left = 0.0
        elif self.pages_done:
            left = seconds * max(0, self.pages - self.pages_done) / self.pages_done
        counters = {name: value for name, value in self.__dict__.items() if name not in ("clock", "began")}
        return {
            **counters,
            "seconds": seconds,
            "rows_per_second": self.rows / seconds,
            "bytes_per_second": self.bytes / seconds,
            "seconds_left": left,
        }
