"""Messages of a node group and of a node restart as bytes, and back: the kinds of their fields.

Their form, a head and sections, is that of `replication/wire/codec.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from tidemark.engine.base.errors import FrameRejected
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.log.spool_reader import is_name
from tidemark.engine.memory.arena import Words
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.node_restart import messages as restart
from tidemark.recovery.node_restart.messages import TablespaceShape
from tidemark.replication.node_group import messages as group
from tidemark.replication.node_group.view import (
    ARBITRATOR,
    MEMBERS_MAX,
    NODE_NUMBER_MAX,
    Ballot,
    Member,
    View,
    check_member,
    check_view,
)
from tidemark.replication.wire.codec import (
    DATA,
    FLAG,
    NUMBER,
    TEXT,
    WORDS,
    Field,
    In,
    Kind,
    Messages,
    Out,
    as_words,
    in_head,
    list_of,
    number,
    or_none,
    row_of,
    values_of,
)
from tidemark.replication.wire.frames import Buffer

FILE_PART_BYTES_MAX = 256 << 10
MESSAGE_BYTES_MAX = 1 << 32  # a slice may be one row of two gigabytes
STORE_BYTES = 16


# --- kinds of fields ----------------------------------------------------------------------------------
def _store(item: Any) -> bytes:
    if type(item) is not bytes or len(item) != STORE_BYTES:
        raise FrameRejected("a store is not a UUID")
    return item


def _file_name(item: Any) -> str:
    """Return a name that a group of the log may refer to: of a spool or a load file, and no other path."""
    if type(item) is not str or not is_name(item):
        raise FrameRejected("a file has a name that no group refers to")
    return item


def _member(number: int, address: str) -> Member:
    member = Member(number, address)
    check_member(member)
    return member


def _view(number: int, members: tuple[Member, ...], primary: int, arbitrator: str) -> View:
    view = View(number, members, primary, arbitrator)
    check_view(view)
    return view


def _put_groups(out: Out, groups: tuple[Words, ...]) -> None:
    buffers: list[Buffer] = []
    for words in groups:
        if words.dtype != np.int64 or words.ndim != 1 or not words.size:
            raise TypeError("a group must be a row of int64")
        buffers.append(np.ascontiguousarray(words).data.cast("B"))
    out.blobs(buffers)


def _take_groups(data: In) -> tuple[Words, ...]:
    groups = tuple(map(as_words, data.blobs()))
    if any(not words.size for words in groups):
        raise FrameRejected("a group is empty")
    return groups


def _put_since(out: Out, since: Mapping[tuple[int, int], int]) -> None:
    out.words(np.array([(*place, epoch) for place, epoch in since.items()], dtype=np.int64).reshape(-1))


def _take_since(data: In) -> dict[tuple[int, int], int]:
    words = data.words()
    if words.size % 3 or (words < 0).any():
        raise FrameRejected("a plan is invalid")
    return {(table, fragment): epoch for table, fragment, epoch in words.reshape(-1, 3).tolist()}


def _put_tables(out: Out, tables: tuple[TableDefinition, ...]) -> None:
    out.blobs([each.to_json() for each in tables])


def _take_tables(data: In) -> tuple[TableDefinition, ...]:
    return tuple(TableDefinition.from_json(bytes(each)) for each in data.blobs())


def _put_shapes(out: Out, shapes: tuple[TablespaceShape, ...]) -> None:
    out.blobs([each.definition.to_json() for each in shapes])
    out.blobs([np.array(each.extents, dtype=np.int64).tobytes() for each in shapes])


def _take_shapes(data: In) -> tuple[TablespaceShape, ...]:
    definitions = [TablespaceDefinition.from_json(bytes(each)) for each in data.blobs()]
    extents = [tuple(map(NUMBER.check, as_words(each).tolist())) for each in data.blobs()]
    return tuple(TablespaceShape(*each) for each in zip(definitions, extents, strict=True))


BALLOT = row_of(NUMBER, number(ARBITRATOR, NODE_NUMBER_MAX), made=Ballot)
MEMBER = row_of(NUMBER, TEXT, made=_member)
_FIELDS_OF_VIEW = row_of(NUMBER, list_of(MEMBER, MEMBERS_MAX), NUMBER, TEXT, made=_view)
VIEW = Kind(_FIELDS_OF_VIEW.check, lambda view: _FIELDS_OF_VIEW.plain(values_of(view)))
_PAIR = row_of(NUMBER, NUMBER)

_N, _FLAG, _TEXT, _FILE = in_head(NUMBER), in_head(FLAG), in_head(TEXT), in_head(Kind(_file_name, _file_name))
_VIEW, _BALLOT, _PLACE = in_head(VIEW), in_head(BALLOT), in_head(_PAIR)
_GROUPS: Field = (_put_groups, _take_groups)
_SINCE: Field = (_put_since, _take_since)
_TABLES: Field = (_put_tables, _take_tables)
_SHAPES: Field = (_put_shapes, _take_shapes)

# In the order of their numbers, which must be the same on both sides; fields in the order of each class.
_KINDS: tuple[tuple[type, tuple[Field, ...]], ...] = (
    (group.Ping, (_N, _N, _FLAG, _FLAG, _FLAG, _FLAG)),
    (group.Pong, (_N, _N, _FLAG, _N)),
    (group.ViewIs, (_VIEW,)),
    (group.Prepare, (_VIEW, _BALLOT, _FLAG)),
    (group.Promise, (_N, _BALLOT, _N, _BALLOT, in_head(or_none(VIEW)), _TEXT)),
    (group.Outbid, (_N, _BALLOT)),
    (group.Accept, (_VIEW, _BALLOT, _VIEW)),
    (group.Accepted, (_N, _BALLOT)),
    (group.Adopted, (_N, _N, _N, in_head(list_of(_PAIR)))),
    (group.Groups, (_N, _N, _GROUPS)),
    (group.Applied, (_N, _N, _N)),
    (group.Opened, (_N, _N, _N)),
    (group.Completed, (_N, _N, _N)),
    (group.AskJoin, (_N, in_head(MEMBER), _N, _FLAG)),
    (group.Refused, (_TEXT, _N)),
    (group.EpochIs, (_N, _N, _N)),
    (group.EpochWanted, (_N,)),
    (group.CopyWanted, ()),
    (group.FileWanted, (_FILE,)),
    (group.FilePart, (_FILE, _N, _N, DATA, _FLAG)),
    (restart.Welcome, (in_head(Kind(_store)), _N, _N)),
    (restart.Ready, (_N, _N, _TEXT, _TEXT)),
    (restart.Plan, (_SINCE,)),
    (restart.Taken, (_N,)),
    (restart.Begin, (_TEXT, _TEXT, _N, _TABLES, _SHAPES, _N, _N, _N)),
    (restart.GroupPart, (_N, _N, WORDS, _N, _N, _FLAG, _SHAPES)),
    (restart.Slice, (_PLACE, _N, _N, _N, _N, _N, WORDS, _N)),
    (restart.End, (_N, _N, _N)),
    (restart.Deletes, (_N, _N, WORDS)),
    (group.HeldWanted, (_N, _N, _N)),
    (group.Held, (_N, _N, _N)),
)


def _check(message: Any) -> None:
    """Check conditions between fields."""
    if isinstance(message, group.FilePart):
        end = message.offset + len(message.data)
        if len(message.data) > FILE_PART_BYTES_MAX or end > message.size_bytes:
            raise FrameRejected("a part of a file is longer than it may be")
        if message.is_last != (end == message.size_bytes):
            raise FrameRejected("the flag of the last part of a file is invalid")
    elif isinstance(message, restart.GroupPart):
        if (message.start, message.stop) != (0, message.words.size):
            raise FrameRejected("a part of a group differs from its description")
    elif isinstance(message, restart.Ready):
        if message.variant not in restart.VARIANTS:
            raise FrameRejected("the variant of a node restart is unknown")


MESSAGES = Messages("a message of a node group", _KINDS, _check)
GROUP_MESSAGES = frozenset[type](get_args(group.Message)) | {group.EpochIs, group.EpochWanted}
RESTART_MESSAGES = frozenset(MESSAGES.numbers) - GROUP_MESSAGES


def encode(message: Any) -> list[Buffer]:
    """Return a message as bytes, in parts. Words are not copied: they must not change until the parts are sent. Of a
    `GroupPart` only its part of the words is sent, so it starts at 0 at the receiver.

    Raises: FrameRejected for an invalid part or name of a file.
    """
    if isinstance(message, restart.GroupPart):
        words = message.words[message.start : message.stop]
        message = replace(message, words=words, start=0, stop=words.size)
    elif isinstance(message, group.FilePart):
        _check(message)
    return MESSAGES.encode(message)


def decode(data: Buffer | bytearray, kinds: frozenset[type] = GROUP_MESSAGES | RESTART_MESSAGES) -> Any:
    """Return the message that `encode` was given, if it is of one of these kinds. If `data` is mutable, words of the
    message may be views of it, and the caller must not change it any more.

    Raises: FrameRejected for any other bytes.
    """
    return MESSAGES.decode(data, kinds)
