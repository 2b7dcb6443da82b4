"""Messages of a node group and of a node restart as bytes, and back.

A message is a head, MessagePack with the number of its kind and its fields, followed by *sections*: long fields, as
they are in memory, each at a multiple of eight bytes. The head has the size of each section. Words are not copied when
they are sent. When they are received they are views of the received bytes if these are writable, because kernels take
no read-only arrays; otherwise they are copied once.

An invalid message raises `FrameRejected`, before more memory is allocated than was received (F108).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack
import numpy as np

from tidemark.engine.base.errors import Error, FrameRejected
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.log.spool_reader import is_name
from tidemark.engine.memory.arena import Words
from tidemark.engine.schema.definition import TableDefinition
from tidemark.recovery.node_restart import messages as restart
from tidemark.recovery.node_restart.messages import TablespaceShape
from tidemark.replication.node_group import carried
from tidemark.replication.node_group import messages as group
from tidemark.replication.node_group.view import (
    ARBITRATOR,
    MEMBERS_MAX,
    NODE_NUMBER_MAX,
    NUMBER_MAX,
    Ballot,
    Member,
    View,
    check_member,
    check_view,
)
from tidemark.replication.wire.frames import Buffer

TEXT_CHARACTERS_MAX = 2_000
FILE_PART_BYTES_MAX = 256 << 10
MESSAGE_BYTES_MAX = 1 << 32  # a slice may be one row of two gigabytes
HEAD_BYTES_MAX = 64 << 10
HEAD_ITEMS_MAX = 256  # of one list of a head, because MessagePack allocates a list at its announced length
STORE_BYTES = 16
_SIZE = struct.Struct("<I")


# --- out and in -------------------------------------------------------------------------------------
class Out:
    """A message that is being encoded."""

    def __init__(self, number: int) -> None:
        self.head: list[Any] = [number]
        self.sections: list[Buffer] = []

    def section(self, data: Buffer) -> None:
        """Append a section, and its size to the head."""
        self.head.append(len(data))
        if len(data):
            self.sections.append(data)
            if len(data) % 8:
                self.sections.append(bytes(-len(data) % 8))

    def words(self, words: Words) -> None:
        """Append words."""
        if words.dtype != np.int64 or words.ndim != 1:
            raise TypeError("words must be a row of int64")
        self.section(np.ascontiguousarray(words).data.cast("B") if words.size else b"")

    def blobs(self, blobs: list[Buffer]) -> None:
        """Append any number of pieces: their sizes, then all of them."""
        self.words(np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs)))
        for each in blobs:
            if len(each):
                self.sections.append(each)
                if len(each) % 8:
                    self.sections.append(bytes(-len(each) % 8))


class _In:
    """A received message, decoded field by field. An invalid field raises FrameRejected, or a Python error that
    `decode` turns into FrameRejected.
    """

    def __init__(self, data: Buffer) -> None:
        (size,) = _SIZE.unpack_from(data)
        if size > HEAD_BYTES_MAX or _SIZE.size + size > len(data):
            raise _wrong("its head is too long")
        most = HEAD_ITEMS_MAX
        head = msgpack.unpackb(
            data[_SIZE.size : _SIZE.size + size], raw=False, max_array_len=most, max_map_len=0, max_ext_len=0
        )
        if type(head) is not list:
            raise _wrong("its head is not a list")
        self._head: Iterator[Any] = iter(head)
        self._data = data
        self._at = _SIZE.size + size
        self._pad()

    def _pad(self) -> None:
        end = self._at + -self._at % 8
        if any(self._data[self._at : end]) or end > len(self._data):
            raise _wrong("it has bytes that belong to no field")
        self._at = end

    def next(self) -> Any:
        """The next item of the head."""
        for each in self._head:
            return each
        raise _wrong("it has too few fields")

    def number(self) -> int:
        """The next item, a number."""
        return _number(self.next())

    def bytes(self, size: int) -> Buffer:
        """The next `size` bytes after the head."""
        if not 0 <= size <= len(self._data) - self._at:
            raise _wrong("it is shorter than it says")
        found = self._data[self._at : self._at + size]
        self._at += size
        self._pad()
        return found

    def words(self) -> Words:
        """A section of words."""
        return _as_words(self.bytes(self.number()))

    def blobs(self) -> list[Buffer]:
        """Pieces that `Out.blobs` appended."""
        return [self.bytes(size) for size in self.words().tolist()]

    def end(self) -> None:
        """Check that nothing is left."""
        if self._at != len(self._data) or any(True for _ in self._head):
            raise _wrong("it has more than its fields")


def _wrong(what: str) -> FrameRejected:
    return FrameRejected(f"the message received is not a message of a node group: {what}")


def _as_words(data: Buffer) -> Words:
    if len(data) % 8:
        raise _wrong("words are incomplete")
    found: Words = np.frombuffer(data, dtype=np.int64) if len(data) else np.zeros(0, dtype=np.int64)
    return found if found.flags.behaved else found.copy()  # aligned and writable


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        raise _wrong("a number is invalid")
    return value


# --- kinds of fields ----------------------------------------------------------------------------------
Put = Callable[[Out, Any], None]
Take = Callable[[_In], Any]
Field = tuple[Put, Take]


def _plain(check: Callable[[Any], Any], made: Callable[[Any], Any] = lambda value: value) -> Field:
    """A field that is one item of the head."""
    return (lambda out, value: out.head.append(made(value))), (lambda data: check(data.next()))


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _wrong("a flag is neither true nor false")
    return value


def _cleaned(text: str) -> str:
    """A text that another node can show and log: one line, of limited length."""
    return "".join(each if each.isprintable() else " " for each in text[:TEXT_CHARACTERS_MAX])


def _text(value: Any) -> str:
    if type(value) is not str or value != _cleaned(value):
        raise _wrong("a text has unprintable characters or is too long")
    return value


def _store(value: Any) -> bytes:
    if type(value) is not bytes or len(value) != STORE_BYTES:
        raise _wrong("a store is not a UUID")
    return value


def _file_name(value: Any) -> str:
    """A name that a group of the log may refer to: of a spool or a load file, and no other path."""
    if type(value) is not str or not is_name(value):
        raise _wrong("a file has a name that no group refers to")
    return value


def _pair(value: Any) -> list[Any]:
    if type(value) is not list or len(value) != 2:
        raise _wrong("a pair is invalid")
    return value


def _ballot(value: Any) -> Ballot:
    round_, node = map(_number, _pair(value))
    if not ARBITRATOR <= node <= NODE_NUMBER_MAX:
        raise _wrong("a ballot has no node")
    return Ballot(round_, node)


def _member(value: Any) -> Member:
    number, address = _pair(value)
    member = Member(_number(number), _text(address))
    check_member(member)
    return member


def _view(value: Any) -> View:
    if type(value) is not list or len(value) != 4 or type(value[1]) is not list or len(value[1]) > MEMBERS_MAX:
        raise _wrong("a view is invalid")
    members = tuple(map(_member, value[1]))
    view = View(_number(value[0]), members, _number(value[2]), _text(value[3]))
    check_view(view)
    return view


def listed_view(view: View) -> list[Any]:
    return [view.number, [list(each) for each in view.members], view.primary, view.arbitrator]


def _grants(value: Any) -> tuple[tuple[int, int], ...]:
    if type(value) is not list:
        raise _wrong("leases are not a list")
    return tuple((_number(node), _number(age_ms)) for node, age_ms in map(_pair, value))


def _place(value: Any) -> tuple[int, int]:
    table, fragment = map(_number, _pair(value))
    return table, fragment


def _put_groups(out: Out, groups: tuple[Words, ...]) -> None:
    buffers: list[Buffer] = []
    for words in groups:
        if words.dtype != np.int64 or words.ndim != 1 or not words.size:
            raise TypeError("a group must be a row of int64")
        buffers.append(np.ascontiguousarray(words).data.cast("B"))
    out.blobs(buffers)


def _take_groups(data: _In) -> tuple[Words, ...]:
    groups = tuple(map(_as_words, data.blobs()))
    if any(not words.size for words in groups):
        raise _wrong("a group is empty")
    return groups


def _put_since(out: Out, since: Mapping[tuple[int, int], int]) -> None:
    out.words(np.array([(*place, epoch) for place, epoch in since.items()], dtype=np.int64).reshape(-1))


def _take_since(data: _In) -> dict[tuple[int, int], int]:
    words = data.words()
    if words.size % 3 or (words < 0).any():
        raise _wrong("a plan is invalid")
    return {(table, fragment): epoch for table, fragment, epoch in words.reshape(-1, 3).tolist()}


def _put_tables(out: Out, tables: tuple[TableDefinition, ...]) -> None:
    out.blobs([each.to_json() for each in tables])


def _take_tables(data: _In) -> tuple[TableDefinition, ...]:
    return tuple(TableDefinition.from_json(bytes(each)) for each in data.blobs())


def _put_shapes(out: Out, shapes: tuple[TablespaceShape, ...]) -> None:
    out.blobs([each.definition.to_json() for each in shapes])
    out.blobs([np.array(each.extents, dtype=np.int64).tobytes() for each in shapes])


def _take_shapes(data: _In) -> tuple[TablespaceShape, ...]:
    definitions = [TablespaceDefinition.from_json(bytes(each)) for each in data.blobs()]
    extents = [tuple(map(_number, _as_words(each).tolist())) for each in data.blobs()]
    return tuple(TablespaceShape(*each) for each in zip(definitions, extents, strict=True))


NUMBER = _plain(_number, int)
FLAG = _plain(_flag)
TEXT = _plain(_text, _cleaned)
STORE = _plain(_store)
FILE_NAME = _plain(_file_name, _file_name)
BALLOT = _plain(_ballot, list)
MEMBER = _plain(_member, list)
VIEW = _plain(_view, listed_view)
VIEW_OR_NONE = _plain(
    lambda value: None if value is None else _view(value),
    lambda view: None if view is None else listed_view(view),
)
GRANTS = _plain(_grants, lambda grants: [list(each) for each in grants])
PLACE = _plain(_place, list)
WORDS: Field = (Out.words, _In.words)
DATA: Field = (Out.section, lambda data: bytes(data.bytes(data.number())))
GROUPS: Field = (_put_groups, _take_groups)
SINCE: Field = (_put_since, _take_since)
TABLES: Field = (_put_tables, _take_tables)
SHAPES: Field = (_put_shapes, _take_shapes)

# In the order of their numbers, which must be the same on both sides; fields in the order of each class.
_KINDS: tuple[tuple[type, tuple[Field, ...]], ...] = (
    (group.Ping, (NUMBER, NUMBER, FLAG, FLAG, FLAG)),
    (group.Pong, (NUMBER, NUMBER, FLAG, NUMBER)),
    (group.ViewIs, (VIEW,)),
    (group.Prepare, (VIEW, BALLOT, FLAG)),
    (group.Promise, (NUMBER, BALLOT, NUMBER, BALLOT, VIEW_OR_NONE, TEXT)),
    (group.Outbid, (NUMBER, BALLOT)),
    (group.Accept, (VIEW, BALLOT, VIEW)),
    (group.Accepted, (NUMBER, BALLOT)),
    (group.Adopted, (NUMBER, NUMBER, NUMBER, GRANTS)),
    (group.Groups, (NUMBER, NUMBER, GROUPS)),
    (group.Applied, (NUMBER, NUMBER, NUMBER)),
    (group.Opened, (NUMBER, NUMBER, NUMBER)),
    (group.Completed, (NUMBER, NUMBER, NUMBER)),
    (group.AskJoin, (NUMBER, MEMBER, NUMBER, FLAG)),
    (group.Refused, (TEXT,)),
    (carried.EpochIs, (NUMBER, NUMBER, NUMBER)),
    (carried.EpochWanted, (NUMBER,)),
    (carried.CopyWanted, ()),
    (carried.FileWanted, (FILE_NAME,)),
    (carried.FilePart, (FILE_NAME, NUMBER, NUMBER, DATA, FLAG)),
    (restart.Welcome, (STORE, NUMBER, NUMBER)),
    (restart.Ready, (NUMBER, NUMBER, TEXT, TEXT)),
    (restart.Plan, (SINCE,)),
    (restart.Taken, (NUMBER,)),
    (restart.Begin, (TEXT, TEXT, NUMBER, TABLES, SHAPES, NUMBER, NUMBER, NUMBER)),
    (restart.GroupPart, (NUMBER, NUMBER, WORDS, NUMBER, NUMBER, FLAG, SHAPES)),
    (restart.Slice, (PLACE, NUMBER, NUMBER, NUMBER, NUMBER, NUMBER, WORDS, NUMBER)),
    (restart.End, (NUMBER, NUMBER, NUMBER)),
    (restart.Deletes, (NUMBER, NUMBER, WORDS)),
)
NUMBERS = {kind: number for number, (kind, _) in enumerate(_KINDS)}
GROUP_MESSAGES = frozenset(kind for kind, _ in _KINDS if kind.__module__ == group.__name__) | {
    carried.EpochIs,
    carried.EpochWanted,
}
RESTART_MESSAGES = frozenset(NUMBERS) - GROUP_MESSAGES


def values_of(message: Any) -> tuple[Any, ...]:
    if isinstance(message, tuple):
        return message
    if isinstance(message, restart.GroupPart):
        # The joiner needs only this part of the array.
        words = message.words[message.start : message.stop]
        return (message.sequence, message.epoch, words, 0, words.size, message.is_last, message.tablespaces)
    return tuple(getattr(message, name) for name in type(message).__dataclass_fields__)


def _check(message: Any) -> None:
    """Check conditions between fields."""
    if isinstance(message, carried.FilePart):
        end = message.offset + len(message.data)
        if len(message.data) > FILE_PART_BYTES_MAX or end > message.size_bytes:
            raise _wrong("a part of a file is longer than it may be")
        if message.is_last != (end == message.size_bytes):
            raise _wrong("the flag of the last part of a file is invalid")
    elif isinstance(message, restart.GroupPart):
        if (message.start, message.stop) != (0, message.words.size):
            raise _wrong("a part of a group differs from its description")
    elif isinstance(message, restart.Ready):
        if message.variant not in restart.VARIANTS:
            raise _wrong("the variant of a node restart is unknown")


def encode(message: Any) -> list[Buffer]:
    """Return a message as bytes, in parts. Words are not copied: they must not change until the parts are sent. Of a
    `GroupPart` only its part of the words is sent, so it starts at 0 at the receiver.

    Raises: FrameRejected for an invalid part or name of a file.
    """
    number = NUMBERS[type(message)]
    out = Out(number)
    for (put, _), value in zip(_KINDS[number][1], values_of(message), strict=True):
        put(out, value)
    if isinstance(message, carried.FilePart):
        _check(message)
    head: bytes = msgpack.packb(out.head, use_bin_type=True)
    pad = bytes(-(_SIZE.size + len(head)) % 8)
    return [_SIZE.pack(len(head)) + head + pad, *out.sections]


_CANNOT_BE = (
    Error,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
    msgpack.exceptions.UnpackException,
)


def decode(data: bytes | bytearray | memoryview, kinds: frozenset[type] = GROUP_MESSAGES | RESTART_MESSAGES) -> Any:
    """Return the message that `encode` was given, if it is of one of these kinds. If `data` is mutable, words of the
    message may be views of it, and the caller must not change it any more.

    Raises: FrameRejected for any other bytes.
    """
    try:
        taken = _In(memoryview(data))
        number = taken.number()
        kind, fields = _KINDS[number]
        if kind not in kinds:
            raise _wrong(f"{kind.__name__} is not allowed here")
        message = kind(*[take(taken) for _, take in fields])
        taken.end()
        _check(message)
        return message
    except FrameRejected:
        raise
    except _CANNOT_BE as error:
        raise _wrong(f"{type(error).__name__}") from None
