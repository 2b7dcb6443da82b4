"""What a node that comes back and a live node say to each other; `replication` carries it (docs/node-group.md, 4).

All come and are handled in the order they are sent. Words are int64 arrays that nobody changes any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    """From the live node: whose copy the joiner is to become."""

    store: bytes  # UUID
    incarnation: int
    format_version: int  # of what it writes: the joiner is to read it


# --- joiner to live node --------------------------------------------------------------------------
@dataclass(frozen=True)
class Ready:
    """The joiner stands at the end of epoch `through`, 0 if it has nothing that counts."""

    through: int
    next_sequence: int  # of the group that would follow in its log
    variant: str
    why: str  # everything is to be copied


@dataclass(frozen=True)
class Plan:
    """What is to be copied: for each fragment there is, what has changed behind an epoch; 0: everything."""

    since: Mapping[FragmentPlace, int]


@dataclass(frozen=True)
class Taken:
    """A slice is in its place, or deletes are done: so many words need no answer any more."""

    words: int


# --- live node to joiner --------------------------------------------------------------------------
@dataclass(frozen=True)
class TablespaceShape:
    """A tablespace, and the extents each of its files has."""

    definition: TablespaceDefinition
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Begin:
    """The copy begins: definitions as behind group `sequence`, those of the stream behind it follow.

    variant: how it goes on; why: if another was wished for. With `replay_log` there are no definitions: groups have all
    changes of them.
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

    tablespaces: those the group makes or gives files, as they are now: records do not tell sizes.
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
    """Slots of a fragment from one ROWID to another as they are behind group `sequence`.

    words: items (`engine/store/node_copy_layout.py`). epoch: open on the live node then: no slot has a higher one.
    """

    place: FragmentPlace
    version: int  # of the table's definition
    start: int
    stop: int
    epoch: int
    sequence: int
    words: Words
    rows: int

    @property
    def size_words(self) -> int:
        """What flow control counts."""
        return int(self.words.size) + 16


@dataclass(frozen=True)
class Deletes:
    """Rows deleted behind the joiner's epoch, out of the delete log; before the first slice.

    epoch, sequence: as of a slice. words: items of DELETED_WORDS (`engine/store/node_copy_layout.py`).
    """

    epoch: int
    sequence: int
    words: Words

    @property
    def size_words(self) -> int:
        """What flow control counts."""
        return int(self.words.size) + 16


@dataclass(frozen=True)
class End:
    """The joiner has what the live node has behind group `sequence`, the last one of this epoch; which is open next."""

    sequence: int
    epoch: int
    next_epoch: int


FromLive = Begin | GroupPart | Deletes | Slice | End
FromJoiner = Ready | Plan | Taken
