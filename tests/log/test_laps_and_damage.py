"""The ring of files wraps and is read again: old laps stay unread, damage is distinguished from a tail
(F29, F52-F55).
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
from tests.log.support import BLOCK, DAMAGE, STORE, Log, patched, read, reader, records
from tests.recovery.support import flipped, refused
from tests.store.support import ACCOUNT, open_memory, rows_of
from tidemark.engine.log.geometry import create_files
from tidemark.engine.log.group_layout import GROUP, GROUP_ALIGN_BYTES
from tidemark.engine.log.reader import GroupRead
from tidemark.engine.sealed.sealed_layout import header_of, seal
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles

pytestmark = pytest.mark.usefixtures("storage")

Contents = dict[str, bytes]


def test_files_of_a_new_log_are_closed_once_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Story: a mutant left the files open, and no test saw it; each store made would have cost its
    process descriptors.
    """
    files, left = MemoryFiles(), []
    made, closed = files.create, files.close
    monkeypatch.setattr(files, "create", lambda *given: left.append(made(*given)) or left[-1])
    monkeypatch.setattr(files, "close", lambda file: (left.remove(file), closed(file)))
    create_files(files, Log().geometry)
    assert left == [] and len(files.snapshot()) > 2


def test_laps_are_read_from_the_tail_and_groups_of_earlier_laps_are_left_alone() -> None:
    seed = 77
    rng = random.Random(seed)
    log = Log(file_bytes=1 << 15)
    capacity = log.geometry.capacity_bytes
    marks: list[tuple[int, int, int]] = []  # LSN, sequence and value of every group
    tail = 0
    while log.redo.head_lsn < 6 * capacity:
        size = rng.randrange(2_500)
        while log.redo.used_bytes() + 8 * size + 8_192 > capacity:
            tail += 1
            log.redo.set_tail(marks[tail][0], marks[tail][1], "a test")
        value = len(marks) + 1
        marks.append((log.redo.head_lsn, log.redo.sequence, value))
        log.write(value, words=size)
        if value % 7 == 0:
            groups = read(log.after_power_loss(), log.geometry, marks[tail][0], marks[tail][1])
            expected = [each[2] for each in marks[tail:]]
            assert [records(group)[0] for group in groups] == expected, f"seed {seed}, group {value}"
            found = reader(log.after_power_loss(), log.geometry)
            assert list(found.groups(*marks[tail][:2]))[-1].end_lsn == log.redo.head_lsn
            assert (found.end_lsn, found.next_sequence) == (log.redo.head_lsn, log.redo.sequence)


def test_group_of_an_earlier_lap_past_the_end_is_neither_replayed_nor_taken_for_damage() -> None:
    log = Log(file_bytes=1 << 13)  # 24 KiB: six groups a lap
    for value in range(1, 7):
        log.write(value)
    log.redo.set_tail(4 * 4_096, 5, "a test")
    log.write(7)
    files = log.after_power_loss()
    assert [records(group) for group in read(files, log.geometry, 4 * 4_096, 5)] == [[5], [6], [7]]
    # Torn, the seventh group shows part of the first group of the previous lap: a tail, although group 2 after it is
    # intact.
    contents = files.snapshot()
    contents["redo/0000.redo"] = flipped(contents["redo/0000.redo"], 200)
    assert [records(group) for group in read(MemoryFiles.from_snapshot(contents), log.geometry, 4 * 4_096, 5)] == [
        [5],
        [6],
    ]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_group_is_a_tail_at_the_end_and_redo_damaged_before(damage: str) -> None:
    log = Log(file_bytes=1 << 15)
    places = []
    for value in range(1, 11):
        begun = log.redo.head_lsn
        log.write(value, words=value * 61 % 700)
        places.append((*log.place(begun), log.redo.head_lsn - begun))
    whole = log.after_power_loss().snapshot()
    for number, (name, offset, size) in enumerate(places):
        size = min(size, log.geometry.file_bytes - offset)  # the part in this file
        content = DAMAGE[damage](whole[name], offset, size)
        if content == whole[name]:
            continue
        files = MemoryFiles.from_snapshot({**whole, name: content})
        before = files.snapshot()
        if number == len(places) - 1:
            assert [records(group)[0] for group in read(files, log.geometry)] == list(range(1, 10))
        else:
            with pytest.raises(tm.RedoDamaged) as caught:
                read(files, log.geometry)
            assert (caught.value.file, caught.value.offset) == (name, offset)
        assert files.snapshot() == before


def test_two_damaged_groups_name_the_first() -> None:
    log = Log()
    for value in range(1, 8):
        log.write(value)
    content = log.after_power_loss().snapshot()
    name = "redo/0000.redo"
    content[name] = patched(patched(content[name], 2 * BLOCK, bytes(BLOCK)), 4 * BLOCK, bytes(BLOCK))
    with pytest.raises(tm.RedoDamaged) as caught:
        read(MemoryFiles.from_snapshot(content), log.geometry)
    assert (caught.value.file, caught.value.offset) == (name, 2 * 4_096)


def test_group_of_another_store_is_foreign() -> None:
    log = Log()
    log.write(1)
    log.write(2)
    files = log.after_power_loss()
    with pytest.raises(tm.ForeignFile):
        raise reader(files, log.geometry, bytes(reversed(STORE))).damage("is not there")


# --- a whole store ------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def store(storage: str) -> tuple[Contents, dict[Any, Any], int]:
    """Files of a killed store with some groups since its last local checkpoint; rows; where the log ends."""
    files = MemoryFiles()
    db = open_memory(files)
    account = db.create_table("test.account", ACCOUNT, primary_key="id")
    account.insert_many([(number, "a", 1.0, "n" * 200) for number in range(50)])
    db.checkpoint()
    db.checkpoint()
    for number in range(12):
        account.update(number, {"balance": float(number)})
    return files.kill().snapshot(), rows_of(db), db.parts.store.log.head_lsn


def test_store_with_needed_redo_damaged_is_refused_with_file_and_offset_and_not_changed(store: Any) -> None:
    contents, _, end = store
    name = "redo/0000.redo"
    for groups_back in (2, 3, 6):
        offset = end - groups_back * 4_096
        for content in (patched(contents[name], offset, bytes(BLOCK)), flipped(contents[name], offset + 300, 3)):
            error = refused({**contents, name: content}, tm.RedoDamaged)
            assert (error.file, error.offset) == (name, offset)


def test_store_with_its_last_group_damaged_opens_without_it(store: Any) -> None:
    contents, rows, end = store
    name = "redo/0000.redo"
    db = open_memory(MemoryFiles.from_snapshot({**contents, name: flipped(contents[name], end - 4_096 + 140)}))
    found = rows_of(db)
    assert found[11][2] == 1.0
    assert {key: row for key, row in found.items() if key != 11} == {k: row for k, row in rows.items() if k != 11}
    db["test.account"].insert((100, "b", 1.0, None))
    expected = rows_of(db)
    assert rows_of(open_memory(db.parts.files.kill())) == expected


def test_group_that_the_disk_wrote_to_a_wrong_place_is_damage_where_it_is_needed_and_a_tail_elsewhere(
    store: Any,
) -> None:
    """F55. Story: only a bare log was tested with its first group in the place of others. No store was opened on a
    misdirected write, and none on one that is missing at its own place. Only its header shows that such a group is the
    wrong one: its checksum is right.
    """
    contents, rows, end = store
    first, second = "redo/0000.redo", "redo/0001.redo"
    size = GROUP_ALIGN_BYTES
    # Each of the last commits is a group of one unit. Places: 0 is the last one, -1 and -3 are past the end.
    at = {number: end - (number + 1) * size for number in (-3, -1, 0, 1, 4, 7)}
    seen = {"damage": 0, "tail": 0, "whole": 0}
    for source, target, is_at_home in itertools.product((0, 1, 4, 7), (-3, -1, 0, 1, 4, 7, "other"), (True, False)):
        if source == target:
            continue
        group = contents[first][at[source] : at[source] + size]
        changed = {**contents}
        name, place = (second, 16 * size) if target == "other" else (first, at[target])
        changed[name] = patched(changed[name], place, group)
        if not is_at_home:
            changed[first] = patched(changed[first], at[source], bytes(size))
        bad = {number for number in (source if not is_at_home else None, target) if number in (0, 1, 4, 7)}
        what = f"group {source} at {target}, {'' if is_at_home else 'not '}at home"
        if max(bad, default=0) > 0 and bad != {0, 1}:
            error = refused(changed, tm.RedoDamaged)
            assert (error.file, error.offset) == (first, at[max(bad)]), what
            seen["damage"] += 1
            continue
        db = open_memory(MemoryFiles.from_snapshot(changed))
        # Group n is the update of row 11 - n, the only one that differs from the local checkpoint.
        lost = {11 - number for number in bad}
        expected = {key: row if key not in lost else (*row[:2], 1.0, *row[3:]) for key, row in rows.items()}
        assert rows_of(db) == expected, what
        seen["tail" if lost else "whole"] += 1
        db["test.account"].insert((100, "b", 1.0, None))
        shown = rows_of(db)
        assert rows_of(open_memory(db.parts.files.kill())) == shown, what
    print(seen)
    assert min(seen.values()) > 3


def test_store_with_garbage_past_its_end_or_before_its_checkpoints_opens_whole(store: Any) -> None:
    contents, rows, end = store
    name = "redo/0000.redo"
    for content in (
        patched(contents[name], end, b"\xa5" * BLOCK),
        patched(contents[name], 0, bytes(BLOCK)),
        flipped(contents[name], 4_096 + 50),
    ):
        db = open_memory(MemoryFiles.from_snapshot({**contents, name: content}))
        assert rows_of(db) == rows


@pytest.mark.parametrize(
    ("field", "shift"), [("store_low", 1), ("store_high", 1), ("sequence", 1), ("lsn", GROUP_ALIGN_BYTES), ("kind", 1)]
)
def test_group_that_says_it_is_another_one_is_not_taken_though_its_seal_is_right(field: str, shift: int) -> None:
    """Story: mutants that compare no store id and no LSN survived: groups were damaged by flipped bits only."""
    log = Log(file_bytes=1 << 15)
    log.write(1)
    lsn, sequence = log.redo.head_lsn, log.redo.sequence
    log.write(2)
    contents = log.after_power_loss().snapshot()
    name, offset = log.place(lsn)
    group = np.frombuffer(contents[name], dtype=np.int64)[offset // 8 :][: GROUP_ALIGN_BYTES // 8].copy()

    def found() -> GroupRead | None:
        data = patched(contents[name], offset, group.tobytes())
        return reader(MemoryFiles.from_snapshot({**contents, name: data}), log.geometry).group_at(lsn, sequence)

    assert found() is not None
    header = header_of(group, GROUP)
    header[field] += shift
    seal(group, group.size)
    assert found() is None
