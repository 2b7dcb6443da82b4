"""Before a node accepts a group of the log, fetch the files that the group names (docs/internals/node-group.md).

A node that lacks a file requests it from the primary. Meanwhile the other nodes continue, but no commit of this group
or a later one is acknowledged (N1). The group becomes part of this node's log only after its files are synced here: if
the primary died with the only copy, no node could apply the log to its end. A crash leaves a file that no group names;
it is removed when the store is opened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import PeerError, PositionLost
from tidemark.engine.files.durable_files import make_folder
from tidemark.engine.files.opened import Opened
from tidemark.engine.log.reader import described
from tidemark.engine.log.spool_reader import is_name, referred
from tidemark.replication.node_group.messages import FilePart, FileWanted

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.replication.node_group.conversation import Conversation

PIECE_BYTES = 256 << 10


def missing_files(files: Files, words: Words) -> list[str]:
    """Return the files that a sealed group names and that are missing here. Raises: RedoDamaged."""
    what = referred(described(words))
    return [] if what is None else [name for name in what.names if not files.exists(name)]


def fetch_files(files: Files, words: Words, converse: Callable[[], Conversation]) -> None:
    """Fetch every missing file that a sealed group names. Durable on return: the files and their names.

    Raises: PeerError, PositionLost, RedoDamaged, StorageFull, StoreFailed.
    """
    missing = missing_files(files, words)
    with converse() as conversation:
        for name in missing:
            conversation.send(FileWanted(name))
            write_file(files, name, conversation)


def write_file(files: Files, name: str, conversation: Conversation) -> None:
    """Write the parts of a file as they arrive. Durable on return: the file and its name. An error removes the file,
    unless the store has failed.

    Raises: PeerError, StorageFull, StoreFailed.
    """
    folder = name.partition("/")[0]
    make_folder(files, folder)
    file = files.create(name)
    try:
        at, is_last = 0, False
        while not is_last:
            part = conversation.receive()
            if not isinstance(part, FilePart) or part.name != name or part.offset != at:
                raise PeerError(f"the message received is not the part of {name} at {at}; ask again")
            files.pwrite(file, at, part.data)
            at, is_last = at + len(part.data), part.is_last
        files.fdatasync(file)
        files.sync_directory(folder)
    except BaseException:
        files.close(file)
        if files.failure.first is None:
            files.unlink(name)  # else a partial file, or one whose name is not durable, would be taken for complete
        raise
    files.close(file)


def send_file(files: Files, name: str, conversation: Conversation) -> None:
    """Send a file in parts. Raises: PeerError; PositionLost if no group of the kept log names it any more."""
    if not is_name(name) or not files.exists(name):
        raise PositionLost(f"no group of the kept log names {name[:80]!r}; let the node join anew", file=name[:80])
    with Opened(files, files.open(name)) as file:
        size_bytes, at = files.size(file), 0
        while True:
            data = files.pread(file, at, min(PIECE_BYTES, size_bytes - at))
            is_last = at + len(data) >= size_bytes
            conversation.send(FilePart(name, at, size_bytes, data, is_last))
            at += len(data)
            if is_last:
                return
