"""Sets of GTIDs against sets of Python, and both forms of MySQL."""

from __future__ import annotations

import random
import uuid

import pytest

from tidemark.engine.base.errors import ValueOutOfRange
from tidemark.replication.mysql_source.gtid_sets import GtidSet

SEED = 51_044
SERVERS = [uuid.UUID(int=number) for number in (1, 2, 3)]
Plain = set[tuple[uuid.UUID, int]]


def drawn(r: random.Random) -> tuple[GtidSet, Plain]:
    intervals = []
    for _ in range(r.randrange(6)):
        first = r.randrange(1, 25)
        intervals.append((r.choice(SERVERS), first, first + r.randrange(6)))
    return GtidSet.of(intervals), {(each, n) for each, first, last in intervals for n in range(first, last + 1)}


def plain(given: GtidSet) -> Plain:
    return {
        (each, n) for each, all_of in given.by_uuid.items() for first, last in all_of for n in range(first, last + 1)
    }


def test_every_operation_is_that_of_sets() -> None:
    print("seed", SEED)
    r = random.Random(SEED)
    for _ in range(3_000):
        (one, ones), (other, others) = drawn(r), drawn(r)
        assert plain(one) == ones
        assert plain(one - other) == ones - others and plain(one | other) == ones | others
        assert (one <= other) == (ones <= others) and bool(one) == bool(ones)
        assert all(((each, n) in one) == ((each, n) in ones) for each in SERVERS for n in (1, 7, 30))
        for made in (one, one - other, one | other):
            assert GtidSet.parse(str(made)) == made == GtidSet.unpack(made.pack())
            assert all(
                a[1] + 1 < b[0] for all_of in made.by_uuid.values() for a, b in zip(all_of, all_of[1:], strict=False)
            )


def test_text_is_taken_as_mysql_takes_it() -> None:
    server = "3E11FA47-71CA-11E1-9E33-C80AA9429562"
    given = GtidSet.parse(f" {server} : 5-7 : 1-3:4,, {server}:9:11-10,\n")
    assert str(given) == f"{server.lower()}:1-7:9"
    assert str(GtidSet.parse("")) == "" and not GtidSet.parse(f"{server}:5-4")


@pytest.mark.parametrize(
    "text", ["x", "x:1", f"{SERVERS[0]}", f"{SERVERS[0]}:0", f"{SERVERS[0]}:1-x", f"{SERVERS[0]}:{1 << 63}", "1:2:3"]
)
def test_text_that_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueOutOfRange, match="Malformed GTID set"):
        GtidSet.parse(text)


def test_bytes_cut_or_changed_anywhere_are_refused_or_a_set() -> None:
    whole = GtidSet.of([(SERVERS[0], 1, 5), (SERVERS[0], 7, 7), (SERVERS[1], 1 << 40, 1 << 41)]).pack()
    for place in range(len(whole)):
        with pytest.raises(ValueOutOfRange):
            GtidSet.unpack(whole[:place])
        changed = bytearray(whole)
        changed[place] ^= 0x81
        try:
            assert GtidSet.unpack(bytes(changed)) is not None
        except ValueOutOfRange:
            pass
    with pytest.raises(ValueOutOfRange):
        GtidSet.unpack(whole + b"\0")
