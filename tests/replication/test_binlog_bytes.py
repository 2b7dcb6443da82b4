"""Damaged bytes in a store's binlog (F67, F112): refused, or cut where the damage begins; no damaged byte is served.

A small store with three binlog files, killed or closed, has each byte of its binlog folder flipped, its files cut at
each place, their sectors overwritten, and is opened. It opens and its binlog has the same content, or an incident where
something is missing; or the damage is refused with its place, and the rows are there all the same.
"""

from __future__ import annotations

import functools
import random
import struct
import zlib

import pytest

from tests.replication.site import index_rows, open_site, transactions_in
from tests.replication.stage import end_of
from tests.shares import few
from tests.store.support import ACCOUNT
from tidemark.engine.base.errors import BinlogDamaged, Damaged, Rejected, StoreFailed
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.position import Position
from tidemark.replication.binlog.reader import BinlogReader, StatementMaps

SEED = 670_112
NAME = "test.account"
WHOLE = {"log_updated_only": False, "log_update_as_write": False}
# One place of so many, at random.
STRIDE = few(97, 1)


pytestmark = pytest.mark.usefixtures("quiet")


@functools.cache
def history(is_closed):
    """Return the files of a store, the content of its binlog, and its rows."""
    db = open_site(**WHOLE)
    table = db.create_table(NAME, ACCOUNT, "id")
    table.insert((1, "ann", 1.0, None))
    db.sync()
    db.binlog.rotate()
    table.update(1, {"balance": 2.0})
    db.sync()
    db.checkpoint()
    db.binlog.rotate()
    for number in (2, 3):
        table.insert((number, "bob", 1.0, "x" * 30))
        db.sync()
    table.delete(2)
    db.sync()
    rows = {row.id: row._asdict() for row in table.scan()}
    if is_closed:
        db.close()
    left = db.parts.files.kill()
    return left.snapshot(), reported(left), rows


def reported(files):
    """Return the content of a binlog, and the error that ends it."""
    found = []
    try:
        for each in transactions_in(files):
            found.append(each)
    except Damaged as error:
        return found, error
    return found, None


def prefix_until_damage(files):
    """Return the transactions before the first damage, read one after the other."""
    from tests.replication.stage import end_of
    from tidemark.replication.binlog.reader import BinlogReader, StatementMaps

    whole, error = reported(files)
    if error is None:
        return whole, None
    reader = BinlogReader(files)
    maps, last, places = StatementMaps(), None, []
    try:
        for read in reader.events(end_of(files)):
            maps.observe(read.event)
            if hasattr(read.event, "body"):
                for _ in maps.reader(read.event, read.at).chunks(read.event.body, read.at):
                    pass
            if read.is_boundary:
                last = read.next
                places.append(last)
    except Damaged:
        pass
    finally:
        reader.close()
    return (transactions_in(files, end=last) if last else []), error


def judge(contents, truth, rows):
    """Open a store with a damaged binlog; return "refused", "same", "incident" or "cut off for readers"."""
    files = MemoryFiles.from_snapshot(contents)
    try:
        db = open_site(files, **WHOLE)
    except (Damaged, Rejected) as error:
        assert not isinstance(error, StoreFailed)
        plain = open_site(MemoryFiles.from_snapshot(contents), log_bin=None)
        assert {row.id: row._asdict() for row in plain[NAME].scan()} == rows
        return "refused"
    assert {row.id: row._asdict() for row in db[NAME].scan()} == rows
    said, error = prefix_until_damage(db.parts.files)
    incidents = [place for place, each in enumerate(said) if each.incident]
    if error is not None:
        assert isinstance(error, Damaged)
        assert incidents or said == truth[: len(said)], "what is read before the damage is not what was written"
        return "damage for readers"
    epochs = [each.epoch for each in said if each.epoch]
    assert epochs == sorted(set(epochs)) == [row["epoch"] for row in index_rows(db)]
    if not incidents:
        assert said == truth
        return "same"
    assert len(incidents) == 1 and said[: incidents[0]] == truth[: incidents[0]]
    assert [each.rows for each in said[incidents[0] + 1 :]] == [[]]
    return "incident"


def states(contents, stride, rng):
    """Yield (what was done, contents) for flips, cuts and zeroed sectors of every binlog file."""
    for name in sorted(contents):
        if not name.startswith("binlog/") or name.endswith("/"):
            continue
        data = contents[name]
        for place in range(rng.randrange(stride), len(data), stride):
            flipped = bytearray(data)
            flipped[place] ^= 1 << rng.randrange(8)
            yield f"flip {name} {place}", {**contents, name: bytes(flipped)}
        for place in range(rng.randrange(stride), len(data), stride):
            yield f"cut {name} {place}", {**contents, name: data[:place]}
        for at in range(0, len(data), 512):
            for fill in (b"\0", b"\xff"):
                sector = fill * len(data[at : at + 512])
                yield f"fill {name} {at}", {**contents, name: data[:at] + sector + data[at + 512 :]}
        yield f"empty {name}", {**contents, name: b""}
        yield f"longer {name}", {**contents, name: data + bytes(100)}
        yield f"gone {name}", {other: content for other, content in contents.items() if other != name}


def sweep(is_closed, stride, seed):
    print("seed", seed)
    contents, (truth, error), rows = history(is_closed)
    assert error is None and len(truth) == 8
    counts = {}
    for what, left in states(contents, stride, random.Random(seed)):
        try:
            outcome = judge(left, truth, rows)
        except BaseException:
            print("at", what)
            raise
        counts[outcome] = counts.get(outcome, 0) + 1
    print(counts)
    return counts


@pytest.mark.parametrize("is_closed", [False, True])
def test_f67_store_with_a_damaged_binlog_says_so_or_says_what_it_said_before(is_closed):
    counts = sweep(is_closed, STRIDE, SEED)
    assert sum(counts.values()) > 50
    assert counts["refused"] and counts["damage for readers"]
    # In the file in use, damage is cut off and written again from the log.
    assert is_closed or counts["same"] > 4


def sealed(event):
    """Return an event with a correct checksum."""
    return bytes(event) + struct.pack("<I", zlib.crc32(event))


def read_through(files):
    """Read every event and row of a binlog as a replica does. Raises: Damaged, Rejected."""
    reader, maps = BinlogReader(files), StatementMaps()
    for read in reader.events(end_of(files)):
        maps.observe(read.event)
        if isinstance(read.event, e.Rows):
            origin = read.at
            for _ in maps.reader(read.event, origin).chunks(read.event.body, origin):
                pass
    reader.close()


def test_f112_events_with_right_checksums_and_any_content_are_refused_or_read_and_harm_nothing():
    """Bytes of events are changed and their checksums corrected: counts, lengths, names, positions, row bodies."""
    contents, (truth, _), rows = history(False)
    name = "binlog/binlog.000003"
    data = contents[name]
    rng = random.Random(SEED)
    places, at = [], b.FIRST_POSITION
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 9)[0]
        places.append((at, size))
        at += size
    outcomes = {}
    for number in range(250):
        at, size = rng.choice(places)
        event = bytearray(data[at : at + size - 4])
        for _ in range(rng.choice([1, 1, 2, 4])):
            event[rng.randrange(len(event))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        changed = data[:at] + sealed(event) + data[at + size :]
        files = MemoryFiles.from_snapshot({**contents, name: changed})
        try:
            db = open_site(files, **WHOLE)
        except (Damaged, Rejected):
            outcome = "refused"
        else:
            outcome = "opened"
            assert {row.id: row._asdict() for row in db[NAME].scan()} == rows, f"event at {at}, seed {SEED} {number}"
            try:
                read_through(db.parts.files)
            except (Damaged, Rejected):
                pass
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(outcomes, len(truth))
    assert outcomes["refused"] > 5 and outcomes["opened"] > 20


def test_f67_damage_met_by_a_reader_names_file_and_position():
    contents, _, _ = history(True)
    name = "binlog/binlog.000001"
    data = bytearray(contents[name])
    data[-60] ^= 1
    db = open_site(MemoryFiles.from_snapshot({**contents, name: bytes(data)}), **WHOLE)
    with pytest.raises(BinlogDamaged) as caught:
        transactions_in(db.parts.files)
    assert caught.value.file == "binlog.000001" and 0 < caught.value.position < len(data)
    db[NAME].insert((50, "new", 0.0, None))
    db.sync()

    after = transactions_in(db.parts.files, start=Position("binlog.000002", b.FIRST_POSITION))
    assert after[-1].rows[0].after["id"] == 50
    db.close()


def test_f67_file_cut_between_two_transactions_is_not_read_over():
    """Story: a file that lost whole transactions at its end has nothing torn; readers continued with the next file."""
    contents, (truth, _), rows = history(False)
    for number, kept in (("1", 157), ("2", 157)):
        name = f"binlog/binlog.00000{number}"
        cut = {**contents, name: contents[name][:kept]}
        files = MemoryFiles.from_snapshot(cut)
        with pytest.raises(BinlogDamaged, match="was ended"):
            transactions_in(files)
        assert judge(cut, truth, rows) == "damage for readers"
