"""Sets of MySQL's GTIDs: intervals of numbers by the UUID of a server, as text and as bytes, and the whole algebra.

A shortcut in the set functions is an error that tools notice late: one of them then says that what it needs was purged.
"""

from __future__ import annotations

import re
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tidemark.engine.base.errors import ValueOutOfRange

NUMBER_MAX: Final = (1 << 63) - 2
INTERVALS_MAX: Final = 5_000
_INTERVAL = re.compile(rb"([0-9]{1,19})(?:-([0-9]{1,19}))?")
_UUID = re.compile(rb"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_PART, _WORD = re.compile(rb"[^,]+"), re.compile(rb"[^:]+")  # found one by one: a text may have a million of them

Interval = tuple[int, int]  # first and last number


def _joined(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Return intervals in order, without overlaps and neighbours."""
    joined: list[Interval] = []
    for interval in sorted(intervals):
        first, last = interval
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append(interval)
    return tuple(joined)


def _less(ours: tuple[Interval, ...], theirs: tuple[Interval, ...]) -> list[Interval]:
    """Return what of the intervals is not in the others, in one pass over both."""
    left: list[Interval] = []
    place = 0
    for begin, last in ours:
        first = begin
        while place < len(theirs) and theirs[place][1] < first:
            place += 1
        at = place
        while at < len(theirs) and theirs[at][0] <= last:
            if theirs[at][0] > first:
                left.append((first, theirs[at][0] - 1))
            first = theirs[at][1] + 1
            at += 1
        if first <= last:
            left.append((first, last))
    return left


@dataclass(frozen=True)
class GtidSet:
    """Intervals by UUID; each in order, none empty, without overlaps and neighbours."""

    by_uuid: Mapping[uuid.UUID, tuple[Interval, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, intervals: Iterable[tuple[uuid.UUID, int, int]]) -> GtidSet:
        found: dict[uuid.UUID, list[Interval]] = {}
        for server, first, last in intervals:
            found.setdefault(server, []).append((first, last))
        return cls({server: _joined(each) for server, each in sorted(found.items())})

    @classmethod
    def parse(cls, given: str | bytes) -> GtidSet:
        """Parse the text form: `UUID:1-5:7, UUID:3`; spaces and empty parts may be anywhere between.

        Raises: ValueOutOfRange.
        """
        text = given.encode("utf-8", "surrogateescape") if isinstance(given, str) else given
        shown = text[:800].decode("utf-8", "replace")
        found: dict[uuid.UUID, list[Interval]] = {}
        count = 0
        for part in _PART.finditer(text):
            if not part[0].strip():
                continue
            colon = text.find(b":", *part.span())
            server = text[part.start() : max(colon, 0)].strip()
            if not _UUID.fullmatch(server):
                raise _malformed(shown)
            intervals = found.setdefault(uuid.UUID(server.decode()), [])
            for word in _WORD.finditer(text, colon, part.end()):
                interval = word[0].strip()
                matched = _INTERVAL.fullmatch(interval)
                if matched is None:
                    if interval:
                        raise _malformed(shown)
                    continue
                first, last = int(matched[1]), int(matched[2] or matched[1])
                if not 1 <= first <= NUMBER_MAX or last > NUMBER_MAX:
                    raise _malformed(shown)
                if first <= last:  # MySQL takes 5-3 as nothing
                    intervals.append((first, last))
                    count += 1
                if count > INTERVALS_MAX:
                    raise _malformed(shown)
        return cls({server: _joined(each) for server, each in sorted(found.items()) if each})

    @classmethod
    def unpack(cls, octets: bytes) -> GtidSet:
        """Parse the form in PREVIOUS_GTIDS and in COM_BINLOG_DUMP_GTID. Raises: ValueOutOfRange."""
        found: list[tuple[uuid.UUID, int, int]] = []
        at = 8
        servers = int.from_bytes(octets[:8], "little")
        for _ in range(servers):
            if len(octets) < at + 24:
                raise _malformed(octets)
            server, count = uuid.UUID(bytes=octets[at : at + 16]), int.from_bytes(octets[at + 16 : at + 24], "little")
            at += 24
            if count > (len(octets) - at) // 16:
                raise _malformed(octets)
            for _ in range(count):
                first, end = (int.from_bytes(octets[at + 8 * n : at + 8 * n + 8], "little") for n in (0, 1))
                at += 16
                if not 1 <= first < end <= NUMBER_MAX + 1 or len(found) >= INTERVALS_MAX:
                    raise _malformed(octets)
                found.append((server, first, end - 1))
        if len(octets) < 8 or at != len(octets):
            raise _malformed(octets)
        return cls.of(found)

    def pack(self) -> bytes:
        """Return the form in PREVIOUS_GTIDS; the ends of intervals there are after their last numbers."""
        pieces = [len(self.by_uuid).to_bytes(8, "little")]
        for server, intervals in self.by_uuid.items():
            pieces += [server.bytes, len(intervals).to_bytes(8, "little")]
            pieces += [first.to_bytes(8, "little") + (last + 1).to_bytes(8, "little") for first, last in intervals]
        return b"".join(pieces)

    def __str__(self) -> str:
        return ",\n".join(
            ":".join([str(server), *(f"{a}-{b}" if b > a else str(a) for a, b in intervals)])
            for server, intervals in self.by_uuid.items()
        )

    def __bool__(self) -> bool:
        return bool(self.by_uuid)

    def __contains__(self, gtid: tuple[uuid.UUID, int]) -> bool:
        server, number = gtid
        intervals = self.by_uuid.get(server, ())
        place = bisect_right(intervals, (number, NUMBER_MAX))
        return place > 0 and number <= intervals[place - 1][1]

    def __or__(self, other: GtidSet) -> GtidSet:
        return GtidSet.of((*self._each(), *other._each()))

    def __sub__(self, other: GtidSet) -> GtidSet:
        left = {
            server: tuple(_less(intervals, other.by_uuid.get(server, ()))) for server, intervals in self.by_uuid.items()
        }
        return GtidSet({server: intervals for server, intervals in left.items() if intervals})

    def __le__(self, other: GtidSet) -> bool:
        """Whether every GTID of this set is in the other."""
        return not self - other

    def _each(self) -> Iterable[tuple[uuid.UUID, int, int]]:
        for server, intervals in self.by_uuid.items():
            for first, last in intervals:
                yield server, first, last


def _malformed(given: str | bytes) -> ValueOutOfRange:
    shown = given if isinstance(given, str) else given[:100].hex()
    return ValueOutOfRange(f"Malformed GTID set specification '{shown[:200]}'.")
