"""Changes of valid inputs: of bytes, of fields, of trees of JSON and MessagePack, of words of a text; and what makes a
changed input reach the content of a reader: checksums that are right again.

A mutation takes an input, a source of chance and the members it may splice with, and gives a new input. It keeps
nothing from one call to the next, so that the number of an input and the seed of a run give the input again.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from tidemark.engine.sealed.sealed_layout import SEAL_WORDS, seal

Mutation = Callable[[bytes, random.Random, Sequence[bytes]], bytes]
# A field: its offset and its size in bytes.
Fields = Callable[[bytes], Sequence[tuple[int, int]]]

SIZES = (1, 2, 4, 8)
# No mutation makes an input longer; what readers do with very long ones is a matter of their own tests.
BYTES_MAX = 256 << 10
_TREE_DEPTH = 40


def boundary(rng: random.Random, size: int) -> int:
    """A number of this many bytes at which readers go wrong: about a power of two, about zero, about the largest."""
    bits = 8 * size
    choice = rng.randrange(6)
    if choice == 0:
        found = rng.randrange(8)
    elif choice == 1:
        found = (1 << bits) - 1 - rng.randrange(8)
    elif choice == 2:
        found = (1 << (bits - 1)) - 4 + rng.randrange(8)
    elif choice == 3:
        found = (1 << rng.randrange(bits)) + rng.randrange(-1, 2)
    elif choice == 4:
        found = rng.randrange(256)
    else:
        found = rng.getrandbits(bits)
    return found & ((1 << bits) - 1)


def _range(data: bytearray, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + (rng.randrange(1, 9) if rng.random() < 0.5 else rng.randrange(1, 257)))


def _one(data: bytearray, rng: random.Random, others: Sequence[bytes], fields: Sequence[tuple[int, int]]) -> None:
    choice = rng.randrange(15)
    if not data:
        data += rng.randbytes(rng.randrange(1, 64))
    elif choice < 4 and fields:
        at, size = fields[rng.randrange(len(fields))]
        if rng.random() < 0.3:  # a little more or less than the value there: off by one, off by a word
            value = int.from_bytes(data[at : at + size], "little") + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8))
        else:
            value = boundary(rng, size)
        data[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")[: len(data) - at]
    elif choice == 4 and len(fields) > 1:
        (at, size), (to, other) = rng.sample(list(fields), 2)
        data[to : to + min(size, other)] = data[at : at + min(size, other)]
    elif choice < 7:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif choice == 7:
        data[rng.randrange(len(data))] = rng.randrange(256)
    elif choice == 8:
        size = rng.choice(SIZES)
        at = rng.randrange(len(data))
        value = boundary(rng, size).to_bytes(size, rng.choice(("little", "little", "big")))
        data[at : at + size] = value[: len(data) - at]
    elif choice == 9:
        del data[rng.randrange(len(data)) :]
    elif choice == 10:
        start, end = _range(data, rng)
        del data[start:end]
    elif choice == 11:
        start, end = _range(data, rng)
        at = rng.randrange(len(data) + 1)
        data[at:at] = data[start:end]
    elif choice == 14:
        start, end = _range(data, rng)
        at = rng.choice((start, end, len(data)))
        data[at:at] = data[start:end] * rng.choice((2, 10, 100, 1_000))
    elif choice == 12:
        other = rng.choice(others)
        start, end = _range(bytearray(other), rng)
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.choice((0, end - start))] = other[start:end]
    else:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.randbytes(rng.randrange(1, 17))


def octets(fields: Fields = lambda data: ()) -> Mutation:
    """Bits, bytes, numbers and pieces of the input, and its fields more often than others."""

    def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        changed = bytearray(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
            _one(changed, rng, others, [each for each in fields(data) if each[0] < len(changed)])
        return bytes(changed[:BYTES_MAX])

    return mutate


def then(mutation: Mutation, mend: Callable[[bytes], bytes]) -> Mutation:
    """The mutation, and its checksums right again."""
    return lambda data, rng, others: mend(mutation(data, rng, others))


def inside(mutation: Mutation, taken: Callable[[bytes], bytes], put: Callable[[bytes, bytes], bytes]) -> Mutation:
    """A mutation of the part that `taken` finds in an input; `put` returns the input with that part replaced, valid
    otherwise.
    """

    def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        return put(
            data, mutation(taken(data), rng, [taken(each) for each in (others if len(others) < 4 else others[:4])])
        )

    return mutate


# --- trees --------------------------------------------------------------------------------------------
def _strange(rng: random.Random) -> Any:
    """A value that is no value of its place, most often."""
    choice = rng.randrange(9)
    if choice == 0:
        return rng.choice((None, True, False, "", [], {}, 0, -1, 1, 0.5, float("nan"), float("inf"), -0.0, 1e308))
    if choice == 1:
        return boundary(rng, rng.choice(SIZES))
    if choice == 2:
        return -boundary(rng, rng.choice(SIZES)) // 2
    if choice == 3:
        return rng.choice(
            ("\0", "\ud800", "é" * 70, "a" * 300, "../x", "x\ny", "utf8", "%s", "-", "999999999999999999")
        )
    if choice == 4:
        return [rng.choice((None, 0, -1, "", "x", 1 << 40, []))] * rng.choice((1, 2, 3, 300))
    if choice == 5:
        return {"x": rng.choice((None, 0, "x", [], {}))}
    if choice == 6:
        found: Any = rng.choice(([], 0))
        for _ in range(rng.choice((2, _TREE_DEPTH))):
            found = [found] if rng.random() < 0.7 else {"a": found}
        return found
    if choice == 7:
        return 10 ** rng.choice((18, 19, 20, 40, 400))
    return rng.randbytes(rng.randrange(9)).decode("latin1")


def _places(tree: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """(container, key) of everything in a tree."""
    if isinstance(tree, dict):
        for key in tree:
            found.append((tree, key))
            _places(tree[key], found)
    elif isinstance(tree, list):
        for key in range(len(tree)):
            found.append((tree, key))
            _places(tree[key], found)
    return found


def tree_changed(tree: Any, rng: random.Random) -> Any:
    """A tree of dicts and lists with some of its values changed; the one given is changed too."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = _places(tree, [])
        if not places or rng.random() < 0.02:
            return _strange(rng)
        holder, key = places[rng.randrange(len(places))]
        choice = rng.randrange(8)
        if choice == 0:
            del holder[key]
        elif choice == 1:
            other, of = places[rng.randrange(len(places))]
            found = other.get(of) if isinstance(other, dict) else other[of]
            holder[key] = copy.deepcopy(found)  # of a container around it, too: no tree holds itself
        elif choice == 2 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif choice == 3 and isinstance(holder, dict):
            holder[rng.choice(("", "x", "format", str(key) + "x"))] = _strange(rng)
        elif choice == 4 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] += rng.choice((-1, 1, -8, 8, 1 << 16, 1 << 32))
        elif choice == 5 and isinstance(holder[key], str):
            text = holder[key]
            at = rng.randrange(len(text) + 1)
            holder[key] = text[:at] + rng.choice(("", "x", "\0", " ", "0", "é", "\ud800", text)) + text[at + 1 :]
        else:
            holder[key] = _strange(rng)
    return tree


def json_tree(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """Change values in the tree of a JSON text; a text that is not JSON is changed as bytes."""
    if rng.random() < 0.1:
        return octets()(data, rng, others)
    try:
        tree = json.loads(data)
    except (ValueError, RecursionError):
        return octets()(data, rng, others)
    return json.dumps(tree_changed(tree, rng)).encode("utf-8", "surrogatepass")


def packed_tree(depth: int) -> Mutation:
    """Change values in the tree of a MessagePack, including its extensions, `depth` extensions deep."""

    def unpacked(data: bytes, left: int) -> Any:
        def extended(code: int, payload: bytes) -> Any:
            try:
                inner = unpacked(payload, left - 1) if left > 0 else None
            except (ValueError, msgpack.exceptions.UnpackException):
                inner = None
            return {"extension": code, "tree": inner} if inner is not None else {"extension": code, "bytes": payload}

        return msgpack.unpackb(data, ext_hook=extended, strict_map_key=False, raw=False)

    def packed(tree: Any) -> bytes:
        def back(value: Any) -> Any:
            if isinstance(value, dict):
                if "extension" in value and ("tree" in value or "bytes" in value):
                    code = value["extension"]
                    inner = packed(value["tree"]) if "tree" in value else value["bytes"]
                    is_code = type(code) is int and 0 <= code < 128
                    return msgpack.ExtType(code if is_code else 0, inner if isinstance(inner, bytes) else b"")
                return {back(key): back(each) for key, each in value.items()}
            if isinstance(value, list):
                return [back(each) for each in value]
            if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
                return 1 << 63
            return value

        made: bytes = msgpack.packb(back(tree), use_bin_type=True, unicode_errors="surrogatepass")
        return made

    def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        if rng.random() < 0.3:
            return octets()(data, rng, others)
        try:
            return packed(tree_changed(unpacked(data, depth), rng))
        except (ValueError, TypeError, msgpack.exceptions.UnpackException):
            return octets()(data, rng, others)

    return mutate


# --- texts --------------------------------------------------------------------------------------------
def words(known: Sequence[str], pattern: str = r"\w+|\s+|.") -> Mutation:
    """A text by its words: some left out, doubled, swapped, nested, or replaced by others that are `known`."""
    import re

    divide = re.compile(pattern, re.DOTALL)

    def mutate(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
        if rng.random() < 0.15:
            return octets()(data, rng, others)
        parts = divide.findall(data.decode("utf-8", "surrogateescape")) or [""]
        for _ in range(rng.choice((1, 1, 2, 3, 5))):
            at = rng.randrange(len(parts))
            choice = rng.randrange(8)
            if choice == 0 and len(parts) > 1:
                del parts[at]
            elif choice == 1:
                parts.insert(at, parts[rng.randrange(len(parts))])
            elif choice == 2:
                to = rng.randrange(len(parts))
                parts[at], parts[to] = parts[to], parts[at]
            elif choice == 3:
                other = divide.findall(rng.choice(others).decode("utf-8", "surrogateescape")) or [""]
                start = rng.randrange(len(other))
                parts[at:at] = other[start : start + rng.randrange(1, 20)]
            elif choice == 4:
                parts[at] = parts[at] * rng.choice((2, 3, 50, 500)) if len(parts[at]) < 20 else parts[at]
            elif choice == 5:
                parts[at] = rng.choice(("0", "-1", "1e9", "9" * 30, "0x", "''", "\0", "é", "\ud800", "`", "(", ")"))
            else:
                parts[at] = rng.choice(known)
        return "".join(parts).encode("utf-8", "surrogatepass")[:BYTES_MAX]

    return mutate


# --- fields and seals of units on disk -----------------------------------------------------------------
def fields_of(layout: np.dtype[Any], at: int = 0) -> list[tuple[int, int]]:
    """The fields of a record at a byte, arrays element by element, without `reserved`."""
    found: list[tuple[int, int]] = []
    assert layout.fields is not None
    for name in layout.names or ():
        kind, offset = layout.fields[name][:2]
        if name != "reserved":
            size = kind.base.itemsize
            found += [(at + offset + place * size, size) for place in range(min(kind.itemsize // size, 8))]
    return found


def units_in(data: bytes, kind: int) -> list[int]:
    """Where units of a kind may begin: at words that a seal's second word follows."""
    found = np.frombuffer(data[: len(data) // 8 * 8], np.int64)
    return [int(at) - 1 for at in np.flatnonzero(found & 0xFFFF == kind) if at]


def resealed(kind: int) -> Callable[[bytes], bytes]:
    """Give every unit of a kind in an input a right checksum. A unit whose length exceeds the input gets the length
    that is there.
    """

    def mend(data: bytes) -> bytes:
        found = np.frombuffer(data[: len(data) // 8 * 8], np.int64).copy()
        for at in units_in(data, kind):
            count = int(found[at + 1]) >> 32 & 0xFFFFFFFF
            if not SEAL_WORDS < count <= len(found) - at:
                count = len(found) - at
                found[at + 1] = int(found[at + 1]) & 0xFFFFFFFF | count << 32
            if count >= 32:
                seal(found[at:], count)
        return found.tobytes() + data[len(found) * 8 :]

    return mend


def unit_fields(kind: int, layout: np.dtype[Any], words_after: int = 0) -> Fields:
    """The fields of every unit of a kind, and `words_behind` words after each header."""

    def fields(data: bytes) -> list[tuple[int, int]]:
        found = []
        for at in units_in(data, kind):
            found += fields_of(layout, at * 8)
            begin = at * 8 + layout.itemsize
            found += [(begin + place * 8, 8) for place in range(words_after)]
        return found

    return fields


def sealed_units(kind: int, layout: np.dtype[Any], words_after: int = 0) -> tuple[Mutation, Mutation, Mutation]:
    """Mutations of inputs made of sealed units: as they are, and twice as often with their seals right again."""
    plain = octets(unit_fields(kind, layout, words_after))
    mended = then(plain, resealed(kind))
    return plain, mended, mended


def sealed_json(kind: int, layout: np.dtype[Any], size_field: str = "body_bytes") -> Mutation:
    """For a sealed unit whose content is JSON: change the JSON; its length and seal stay right."""
    assert layout.fields is not None
    at = int(layout.fields[size_field][1])

    def taken(data: bytes) -> bytes:
        size = int.from_bytes(data[at : at + 8], "little")
        return data[layout.itemsize : layout.itemsize + size]

    def put(data: bytes, body: bytes) -> bytes:
        unit = data[: layout.itemsize] + body
        unit += bytes(-len(unit) % 8)
        unit = bytearray(unit.ljust(33 * 8, b"\0"))
        unit[at : at + 8] = len(body).to_bytes(8, "little")
        unit[12:16] = (len(unit) // 8).to_bytes(4, "little")
        return resealed(kind)(bytes(unit))

    return inside(json_tree, taken, put)
