"""Payloads and messages as bytes, and back: each is declared by the kinds of its fields.

There are three forms. In each, a field declares which values it may have.

- *JSON*: a `Kind` for the whole, made of kinds (`to_json`, `from_json`).
- *Octets*: fields one after the other, of fixed size or with their size before them (`Octets`).
- *A head and sections* (`Messages`): a head in MessagePack with the number of the message's kind and its short fields,
  then *sections*: long fields, as they are in memory, each at a multiple of eight bytes. The head has the size of each
  section. Words are not copied when they are sent. When they are received they are views of the received bytes if these
  are writable, because kernels take no read-only arrays; otherwise they are copied once.

Invalid bytes raise `FrameRejected`, before more memory is allocated than was received (F108).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import msgpack
import numpy as np

from tidemark.engine.base.errors import Error, FrameRejected
from tidemark.replication.wire.frames import Buffer

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words

NUMBER_MAX = (1 << 63) - 1
TEXT_CHARACTERS_MAX = 2_000
HEAD_BYTES_MAX = 64 << 10
HEAD_ITEMS_MAX = 256  # of one list of a head, because MessagePack allocates a list at its announced length
ALIGNED_BYTES = 8
_SIZE = struct.Struct("<I")
# What Python and the constructors of values raise for content that is invalid.
_INVALID = (
    *(Error, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, struct.error),
    msgpack.exceptions.UnpackException,
)


@contextmanager
def judged(what: str) -> Iterator[None]:
    """Raise FrameRejected for every error in content that a block reads; `what` names the message."""
    try:
        yield
    except FrameRejected as error:
        raise FrameRejected(f"{what} is invalid: {error.message}") from None
    except _INVALID as error:
        raise FrameRejected(f"{what} is invalid: {type(error).__name__}") from None


# --- kinds of items, as JSON and MessagePack have them --------------------------------------------
class Kind(NamedTuple):
    """What an item may be. check: returns the value of a received item; an invalid one raises FrameRejected, or an
    error that `judged` turns into it. plain: returns the item of a value.
    """

    check: Callable[[Any], Any]
    plain: Callable[[Any], Any] = lambda value: value


def number(least: int = 0, most: int = NUMBER_MAX) -> Kind:
    """Return the kind of an integer from `least` to `most`."""

    def check(item: Any) -> int:
        if type(item) is not int or not least <= item <= most:
            raise FrameRejected(f"a number is not one of {least} to {most}")
        return item

    return Kind(check, int)


def exactly(kind: type) -> Kind:
    """Return the kind of an item of this type."""

    def check(item: Any) -> Any:
        if type(item) is not kind:
            raise FrameRejected(f"a field is not of type {kind.__name__}")
        return item

    return Kind(check)


def cleaned(text: str, most: int = TEXT_CHARACTERS_MAX) -> str:
    """Return a text that the other side can show and log: one line, of limited length."""
    return "".join(each if each.isprintable() else " " for each in text[:most])


def _check_text(item: Any) -> str:
    if type(item) is not str or item != cleaned(item):
        raise FrameRejected("a text has unprintable characters or is too long")
    return item


def list_of(kind: Kind, most: int = NUMBER_MAX) -> Kind:
    """Return the kind of a list of at most this many items of a kind; the value is a tuple."""

    def check(item: Any) -> tuple[Any, ...]:
        if type(item) is not list or len(item) > most:
            raise FrameRejected(f"a field is not a list of at most {most} items")
        return tuple(map(kind.check, item))

    return Kind(check, lambda values: list(map(kind.plain, values)))


def row_of(*kinds: Kind, made: Callable[..., Any] = lambda *values: values) -> Kind:
    """Return the kind of a list of one item of each kind; the value is what `made` returns for them."""

    def check(item: Any) -> Any:
        if type(item) is not list or len(item) != len(kinds):
            raise FrameRejected(f"a field is not a list of {len(kinds)} items")
        return made(*(kind.check(each) for kind, each in zip(kinds, item, strict=True)))

    return Kind(check, lambda values: [kind.plain(each) for kind, each in zip(kinds, values, strict=True)])


def object_of(kinds: Mapping[str, Kind]) -> Kind:
    """Return the kind of a JSON object with exactly these fields, sent in this order; the value is a dict."""

    def check(item: Any) -> dict[str, Any]:
        if type(item) is not dict or item.keys() != kinds.keys():
            raise FrameRejected("it lacks required fields")
        found = {}
        for name, kind in kinds.items():
            try:
                found[name] = kind.check(item[name])
            except FrameRejected as error:
                raise FrameRejected(f"{name}: {error.message}") from None
        return found

    return Kind(check, lambda values: {name: kind.plain(values[name]) for name, kind in kinds.items()})


def or_none(kind: Kind) -> Kind:
    """Return the kind of an item that is None or of `kind`."""
    return Kind(
        lambda item: None if item is None else kind.check(item),
        lambda value: None if value is None else kind.plain(value),
    )


NUMBER = number()
FLAG = exactly(bool)
TEXT = Kind(_check_text, cleaned)


# --- JSON -----------------------------------------------------------------------------------------
def to_json(kind: Kind, value: Any) -> bytes:
    return json.dumps(kind.plain(value)).encode()


def from_json(kind: Kind, payload: bytes, what: str) -> Any:
    """Return the value of JSON. what: names the payload in messages. Raises: FrameRejected."""
    with judged(what):
        return kind.check(_parsed(payload))


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        raise FrameRejected("it is not JSON") from None


# --- out and in -----------------------------------------------------------------------------------
class Out:
    """A message that is being encoded. aligned_bytes: each section begins at a multiple of it."""

    def __init__(self, head: list[Any], aligned_bytes: int = ALIGNED_BYTES) -> None:
        self.head = head
        self.sections: list[Buffer] = []
        self._aligned_bytes = aligned_bytes

    def bytes(self, data: Buffer) -> None:
        """Append bytes whose size the receiver knows."""
        if len(data):
            self.sections.append(data)
            if len(data) % self._aligned_bytes:
                self.sections.append(bytes(-len(data) % self._aligned_bytes))

    def section(self, data: Buffer) -> None:
        """Append a section, and its size to the head."""
        self.head.append(len(data))
        self.bytes(data)

    def words(self, words: Words) -> None:
        if words.dtype != np.int64 or words.ndim != 1:
            raise TypeError("words must be a row of int64")
        self.section(np.ascontiguousarray(words).data.cast("B") if words.size else b"")

    def blobs(self, blobs: Sequence[Buffer]) -> None:
        """Append any number of pieces: their sizes, then all of them."""
        self.words(np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs)))
        for each in blobs:
            self.bytes(each)


class In:
    """A received message, decoded field by field, from `at` on. head: the items of its head. Its calls raise
    FrameRejected if the message does not have what the call reads.
    """

    def __init__(self, head: Iterator[Any], data: Buffer, at: int, aligned_bytes: int = ALIGNED_BYTES) -> None:
        self._head = head
        self._data = data
        self._at = at
        self._aligned_bytes = aligned_bytes
        self._pad()

    def _pad(self) -> None:
        end = self._at + -self._at % self._aligned_bytes
        if any(self._data[self._at : end]) or end > len(self._data):
            raise FrameRejected("it has bytes that belong to no field")
        self._at = end

    def next(self) -> Any:
        """Return the next item of the head."""
        for each in self._head:
            return each
        raise FrameRejected("it has too few fields")

    @property
    def left_bytes(self) -> int:
        """The bytes that no field has taken yet."""
        return len(self._data) - self._at

    def bytes(self, size: int) -> Buffer:
        if not 0 <= size <= self.left_bytes:
            raise FrameRejected("it is shorter than its fields")
        found = self._data[self._at : self._at + size]
        self._at += size
        self._pad()
        return found

    def section(self) -> Buffer:
        """Return a section, whose size is the next item of the head."""
        return self.bytes(NUMBER.check(self.next()))

    def words(self) -> Words:
        return as_words(self.section())

    def blobs(self) -> list[Buffer]:
        """Return the pieces that `Out.blobs` appended."""
        return [self.bytes(size) for size in self.words().tolist()]

    def end(self) -> None:
        """Check that nothing is left."""
        if self.left_bytes or any(True for _ in self._head):
            raise FrameRejected("it has more than its fields")


def as_words(data: Buffer) -> Words:
    """Return bytes as words. Raises: FrameRejected."""
    if len(data) % 8:
        raise FrameRejected("words are incomplete")
    found: Words = np.frombuffer(data, dtype=np.int64) if len(data) else np.zeros(0, dtype=np.int64)
    return found if found.flags.behaved else found.copy()  # aligned and writable


Field = tuple[Callable[[Out, Any], None], Callable[[In], Any]]


def in_head(kind: Kind) -> Field:
    """Return a field that is one item of the head."""
    return (lambda out, value: out.head.append(kind.plain(value))), (lambda data: kind.check(data.next()))


WORDS: Field = (Out.words, In.words)
DATA: Field = (Out.section, lambda data: bytes(data.section()))


# --- octets ---------------------------------------------------------------------------------------
def scalar(code: str, kind: Kind = NUMBER) -> Field:
    """Return the field of a number of fixed size, little-endian; code: as for `struct`."""
    layout = struct.Struct("<" + code)
    return (
        lambda out, value: out.bytes(layout.pack(value)),
        lambda data: kind.check(*layout.unpack(data.bytes(layout.size))),
    )


def sized_text(kind: Kind) -> Field:
    """Return the field of a UTF-8 text after its size, two bytes."""
    put_size, take_size = scalar("H")

    def put(out: Out, text: str) -> None:
        put_size(out, len(text.encode()))
        out.bytes(text.encode())

    return put, lambda data: kind.check(str(data.bytes(take_size(data)), "utf-8"))


def many(most: int, *kinds: Field) -> Field:
    """Return the last field: at most this many tuples, to the end."""

    def put(out: Out, values: Sequence[Sequence[Any]]) -> None:
        for value in values:
            for (put_one, _), each in zip(kinds, value, strict=True):
                put_one(out, each)

    def take(data: In) -> tuple[tuple[Any, ...], ...]:
        found: list[tuple[Any, ...]] = []
        while data.left_bytes:
            if len(found) == most:
                raise FrameRejected(f"a list has more than {most} items")
            found.append(tuple(take_one(data) for _, take_one in kinds))
        return tuple(found)

    return put, take


REST: Field = (Out.bytes, lambda data: bytes(data.bytes(data.left_bytes)))


class Octets:
    """A `Form`: fields one after the other. `unpack` raises FrameRejected, or an error that `judged` turns into it."""

    def __init__(self, *kinds: Field) -> None:
        self._kinds = kinds

    def pack(self, values: Sequence[Any]) -> bytes:
        out = Out([], 1)
        for (put, _), value in zip(self._kinds, values, strict=True):
            put(out, value)
        return b"".join(out.sections)

    def unpack(self, payload: bytes) -> Sequence[Any]:
        data = In(iter(()), payload, 0, 1)
        values = [take(data) for _, take in self._kinds]
        data.end()
        return values


class Json:
    """A `Form`: JSON of a kind. names: fields of an object, for a kind whose values are dicts; otherwise the kind's
    value is that of the only field.
    """

    def __init__(self, kind: Kind, *names: str) -> None:
        self._kind = kind
        self._names = names

    def pack(self, values: Sequence[Any]) -> bytes:
        return to_json(self._kind, dict(zip(self._names, values, strict=True)) if self._names else values[0])

    def unpack(self, payload: bytes) -> Sequence[Any]:
        found = self._kind.check(_parsed(payload))
        return [found[name] for name in self._names] if self._names else [found]


Form = Octets | Json  # how the fields of a payload are encoded, in the order of the class


class Payload:
    """The base of a dataclass that a frame carries. what: names it in messages. form: how its fields are encoded."""

    what: ClassVar[str]
    form: ClassVar[Form]

    def pack(self) -> bytes:
        return self.form.pack(values_of(self))

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Return the content of a payload. Raises: FrameRejected."""
        make: Any = cls
        with judged(cls.what):
            made: Self = make(*cls.form.unpack(payload))
            made.check()
        return made

    def check(self) -> None:
        """Raise FrameRejected if the fields of a received payload do not fit each other."""


def values_of(message: Any) -> tuple[Any, ...]:
    """Return the values of the fields of a named tuple or a dataclass, in their order."""
    if isinstance(message, tuple):
        return message
    return tuple(getattr(message, each.name) for each in fields(message))


# --- a head and sections --------------------------------------------------------------------------
class Messages:
    """Messages of a head and sections. kinds: in the order of their numbers, which must be the same on both sides, each
    with its fields in the order of the class. check: raises FrameRejected for fields that do not fit each other.
    """

    def __init__(self, what: str, kinds: Sequence[tuple[type, Sequence[Field]]], check: Callable[[Any], None]) -> None:
        self._what = what
        self._kinds = kinds
        self._check = check
        self.numbers = {kind: at for at, (kind, _) in enumerate(kinds)}

    def encode(self, message: Any) -> list[Buffer]:
        """Return a message as bytes, in parts. Words are not copied: they must not change until the parts are sent."""
        at = self.numbers[type(message)]
        out = Out([at])
        for (put, _), value in zip(self._kinds[at][1], values_of(message), strict=True):
            put(out, value)
        return finished(out)

    def decode(self, data: Buffer | bytearray, allowed: Collection[type]) -> Any:
        """Return a message, if it is of one of the allowed kinds. If `data` is mutable, words of the message may be
        views of it, and the caller must not change it any more. Raises: FrameRejected for any other bytes.
        """
        with judged(self._what):
            taken = _opened(memoryview(data))
            kind, kinds = self._kinds[NUMBER.check(taken.next())]
            if kind not in allowed:
                raise FrameRejected(f"{kind.__name__} is not allowed here")
            message = kind(*[take(taken) for _, take in kinds])
            taken.end()
            self._check(message)
            return message


def finished(out: Out) -> list[Buffer]:
    """Return the parts of a message of a head and sections."""
    head: bytes = msgpack.packb(out.head, use_bin_type=True)
    pad = bytes(-(_SIZE.size + len(head)) % ALIGNED_BYTES)
    return [_SIZE.pack(len(head)) + head + pad, *out.sections]


def _opened(data: memoryview) -> In:
    (size,) = _SIZE.unpack_from(data)
    if size > HEAD_BYTES_MAX or _SIZE.size + size > len(data):
        raise FrameRejected("its head is too long")
    packed = data[_SIZE.size : _SIZE.size + size]
    head = msgpack.unpackb(packed, raw=False, max_array_len=HEAD_ITEMS_MAX, max_map_len=0, max_ext_len=0)
    if type(head) is not list:
        raise FrameRejected("its head is not a list")
    return In(iter(head), data, _SIZE.size + size)
