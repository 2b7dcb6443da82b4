"""Kernels that restore fragments without a store against their naive twins."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.naive import restore as naive
from tests.naive.backup import Row
from tidemark.engine.memory.arena_layout import OK, ST_DUPLICATE, ST_INVARIANT, ST_MISSING, ST_SPACE
from tidemark.engine.rows.row_var import build_var_part
from tidemark.recovery.backup import restore_kernels as k
from tidemark.recovery.backup import restore_layout as r

SLOTS = 20
EMPTY = np.zeros(0, dtype=np.int64)


def state_of(**values: int) -> Any:
    state = np.zeros(r.RESTORE_STATE_WORDS, dtype=np.int64)
    for name, value in values.items():
        state[getattr(r, f"R_{name}")] = value
    return state


def words_of(values: list[int]) -> Any:
    return np.array(values, dtype=np.int64)


class History:
    """Rows of a backup in levels, and changes after it that mostly fit."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        has_var = rng.random() < 0.6
        key_words = rng.choice([0, 1, 2]) if has_var else rng.choice([1, 2])
        var_since = rng.choice([0, 0, 5]) if has_var and key_words else 0
        self.shape = naive.Shape(4, has_var, var_since, key_words, 5, 3, SLOTS)
        self.keys = iter(range(1, 1 << 20))
        # Epochs of the levels, oldest first; all have the columns of one version.
        self.levels = [10 * (i + 1) for i in range(rng.randrange(0, 4))]
        self.version = version = rng.choice([3, 6])
        self.rows: dict[int, Row] = {}
        self.files: list[list[Row]] = []  # of each level the rows changed since the one before, oldest first
        before = -1
        for epoch in self.levels:
            for rowid in [each for each in self.rows if rng.random() < 0.3]:
                del self.rows[rowid]
            for _ in range(rng.randrange(12)):
                rowid = self.rowid()
                self.rows[rowid] = self.row(rowid, rng.randrange(before + 1, epoch + 1), version)
            self.files.append([row for _, row in sorted(self.rows.items()) if row.epoch > before])
            before = epoch
        # Rows that a later level made dead are left out before the merge.
        self.files = [[row for row in rows if self.rows.get(row.rowid) is row] for rows in self.files]
        self.base = dict(self.rows)

    def rowid(self) -> int:
        slot = self.rng.randrange(SLOTS * 3)
        return slot // SLOTS << 16 | slot % SLOTS

    def image(self, key: int, version: int) -> tuple[list[int], list[int]]:
        rng, shape = self.rng, self.shape
        fixed = [rng.getrandbits(60) for _ in range(shape.fixed)]
        if shape.key_words:
            fixed[0] = key
            fixed[1] = 7 if shape.key_words == 2 else fixed[1]
        held = [] if shape.key_words else [key, 9]
        rest = [rng.getrandbits(60) for _ in range(rng.randrange(4))]
        var = [1 + len(held) + len(rest) | len(held) << 44 | 1 << 56, *held, *rest]
        return fixed, var if shape.has_var_at(version) else []

    def row(self, rowid: int, epoch: int, version: int) -> Row:
        fixed, var = self.image(next(self.keys), version)
        return Row(rowid, epoch, self.rng.randrange(1 << 16), fixed, var, [])

    def key(self, rowid: int) -> int:
        row = self.rows.get(rowid)
        return naive.key_of(row, self.shape)[0] if row is not None and self.rng.random() < 0.95 else next(self.keys)

    def change(self, epoch: int, fit: float) -> naive.Change:
        """A change that fits with this probability, and otherwise may or may not fit."""
        rng, rowid = self.rng, self.rowid()
        version = rng.choice([each for each in (3, 6) if each >= self.version])
        kind = rng.choice([naive.INSERT, naive.UPDATE, naive.UPDATE, naive.DELETE])
        if rng.random() < fit:
            kind = naive.INSERT if rowid not in self.rows else rng.choice([naive.UPDATE, naive.UPDATE, naive.DELETE])
        author = rng.randrange(1 << 16)
        if kind == naive.DELETE:
            return naive.Change(epoch, kind, rowid, author, version, [])
        if kind == naive.UPDATE:
            kept = rng.random() < 0.5
            return naive.Change(epoch, kind, rowid, author, version, [self.image(self.key(rowid), version)], kept)
        count = 1
        while rng.random() < 0.4 and (rowid + count) & 0xFFFF < SLOTS and rowid + count not in self.rows:
            count += 1
        return naive.Change(
            epoch, kind, rowid, author, version, [self.image(next(self.keys), version) for _ in range(count)]
        )

    def array(self) -> Any:
        """The shape as kernels have it."""
        shape = np.zeros(r.SHAPE_WORDS, dtype=np.int64)
        one = self.shape
        shape[:7] = [one.fixed, one.has_var, one.var_since, one.key_words, one.table, one.fragment, one.slots]
        return shape


def folded_of(words: Any, shape: Any) -> tuple[int, Any]:
    """Status, and the folded rows of changes."""
    state = state_of()
    status = int(k.list_changes(words, words.size, shape, EMPTY, EMPTY, EMPTY, state))
    if status != OK:
        return status, EMPTY
    lists = [np.zeros(int(state[r.R_COUNT]), dtype=np.int64) for _ in range(3)]
    assert k.list_changes(words, words.size, shape, lists[0], lists[1], lists[2], state) == OK
    order = np.argsort(lists[0], kind="stable")
    sorted_lists = [np.ascontiguousarray(each[order]) for each in lists]
    folded = np.zeros(lists[0].size * r.FOLDED_WORDS, dtype=np.int64)
    status = int(k.fold_changes(words, sorted_lists[0], sorted_lists[1], sorted_lists[2], shape, folded, state))
    return status, folded[: int(state[r.R_USED]) * r.FOLDED_WORDS].copy()


def level_arrays(rows: list[Row]) -> tuple[Any, Any, Any]:
    """Images, starts and the words beside them, of the rows of a level."""
    images = [[*row.fixed, *row.var, *row.disk] for row in rows]
    starts = np.cumsum([0, *map(len, images)]).astype(np.int64)
    about = [word for row in rows for word in (row.rowid, row.epoch, row.author, -1)]
    return words_of([word for image in images for word in image]), starts, words_of(about)


def merged(history: History, folded: Any, words: Any, shape: Any) -> tuple[int, list[int], int]:
    """Status, words of entries, rows taken out of the levels."""
    rng, state = history.rng, state_of()
    out = np.zeros(rng.choice([12, 30, 2_000]), dtype=np.int64)
    used = np.zeros(2, dtype=np.int64)
    got: list[int] = []

    def settled(status: int) -> bool:
        if status > ST_SPACE or status == OK:
            return True
        nonlocal out
        got.extend(out[: int(used[0])].tolist())
        used[0] = 0
        out = np.zeros(max(out.size, ST_SPACE - status), dtype=np.int64)
        return False

    for number in range(len(history.levels) - 1, -1, -1):
        since = history.levels[number - 1] if number else 0
        shape[7:10] = [history.shape.has_var_at(history.version), since, history.levels[number]]
        state[r.R_ROWID], state[r.R_CHANGE], state[r.R_NEXT] = -1, 0, 0
        arrays = (*level_arrays(history.files[number]), shape, folded, words)
        while not settled(status := int(k.merge_rows(*arrays, out, EMPTY, used, state))):
            pass
        if status != OK:
            return status, [], 0
    chosen = int(state[r.R_COUNT])
    state[r.R_NEXT] = 0
    while not settled(status := int(k.put_new_rows(folded, words, shape, out, used, state))):
        pass
    got.extend(out[: int(used[0])].tolist())
    return status, got, chosen


def by_rowid(words: list[int], history: History) -> dict[int, list[int]]:
    """Entries by ROWID, each once."""
    found: dict[int, list[int]] = {}
    at = 0
    while at < len(words):
        size = 3 + history.shape.fixed
        if history.shape.has_var:
            size += words[at + size] & 0xFFFFFFFF
        assert words[at] not in found
        found[words[at]] = words[at : at + size]
        at += size
    return found


@given(st.integers(0, 1 << 40), st.sampled_from([1.0, 1.0, 0.97]))
def test_levels_and_changes_merged_equal_rows_changed_one_by_one(seed: int, fit: float) -> None:
    history = History(random.Random(seed))
    shape, epoch, words = history.array(), 40, []
    is_fitting = True
    for _ in range(history.rng.randrange(60)):
        epoch += history.rng.randrange(2)
        change = history.change(epoch, fit)
        words += change.words(history.shape)
        try:
            if is_fitting:
                naive.apply(history.rows, change, history.shape)
        except naive.DoesNotFit:
            is_fitting = False
    changes = words_of(words)
    status, folded = folded_of(changes, shape)
    got: list[int] = []
    if status == OK:
        status, got, chosen = merged(history, folded, changes, shape)
    assert (status == OK) == is_fitting
    if is_fitting:
        assert chosen == len(history.base)
        want = {rowid: naive.entry(row, history.shape) for rowid, row in history.rows.items()}
        assert by_rowid(got, history) == want


@given(st.integers(0, 1 << 40))
def test_changes_collected_and_gathered_are_those_of_the_group_by_fragment(seed: int) -> None:
    rng = random.Random(seed)
    records: list[int] = []
    wanted: list[tuple[int, list[int]]] = []
    for _ in range(rng.randrange(40)):
        kind, size = rng.choice([1, 2, 3, 4, 7, 9, 10]), rng.randrange(4, 20)
        table, fragment = rng.randrange(1, 4), rng.randrange(3)
        words = [kind | size << 16, table | fragment << 32 | 9 << 44, *(rng.getrandbits(60) for _ in range(size - 2))]
        if kind == 1:  # a transaction's own words; its rows follow as records
            words = words[:4]
        elif kind in (2, 3, 4):
            wanted.append((table | fragment << 32, [77, *words]))
        records += words
    group = words_of([0, 0, *records])
    pool, places = np.zeros(rng.choice([25, 90, 900]), dtype=np.int64), np.zeros(rng.choice([4, 90]), dtype=np.int64)
    state = state_of()
    got: list[tuple[int, list[int]]] = []

    def take_out() -> None:
        count = int(state[r.R_COUNT])
        for i in range(count):
            at = int(places[2 * i + 1])
            got.append((int(places[2 * i]), pool[at : at + 1 + int(pool[at + 1] >> 16)].tolist()))
        offsets = np.ascontiguousarray(places[1 : 2 * count : 2])
        assert gathered(pool, offsets, rng) == [word for _, words in got[len(got) - count :] for word in words]
        state[r.R_USED] = state[r.R_COUNT] = 0

    while (status := int(k.collect_changes(group, 2, group.size, 77, pool, places, state))) != OK:
        assert status <= ST_SPACE and int(state[r.R_COUNT])
        take_out()
    take_out()
    assert got == wanted


def gathered(pool: Any, offsets: Any, rng: random.Random) -> list[int]:
    out, used, state = np.zeros(rng.choice([25, 400]), dtype=np.int64), np.zeros(2, dtype=np.int64), state_of()
    found: list[int] = []
    while k.gather_changes(pool, offsets, offsets.size, out, used, state) != OK:
        found += out[: int(used[0])].tolist()
        used[0] = 0
    assert int(used[1]) == offsets.size
    return found + out[: int(used[0])].tolist()


@given(st.integers(0, 1 << 40))
def test_records_of_one_epoch_after_the_other_are_taken_without_it(seed: int) -> None:
    rng = random.Random(seed)
    words: list[int] = []
    wanted: list[tuple[int, list[int]]] = []
    epoch = 3
    for _ in range(rng.randrange(20)):
        epoch += rng.randrange(2)
        size = rng.randrange(4, 9)
        record = [2 | size << 16, *(rng.getrandbits(60) for _ in range(size - 1))]
        words += [epoch, *record]
        if wanted and wanted[-1][0] == epoch:
            wanted[-1][1].extend(record)
        else:
            wanted.append((epoch, record))
    array, out, state = words_of([5, *words]), np.zeros(400, dtype=np.int64), state_of()
    got = []
    while (found := int(k.take_epoch(array, 1, array.size, out, state))) >= 0:
        got.append((found, out[: int(state[r.R_USED])].tolist()))
    assert found == -1 and got == wanted
    for head in (1 << 40, 1 | 4 << 16, 9 | 4 << 16) if words else ():  # too long, a transaction, a NOOP
        spoiled = array.copy()
        spoiled[2] = head
        assert k.take_epoch(spoiled, 1, spoiled.size, out, state_of()) == ST_INVARIANT


@given(st.integers(0, 1 << 40))
def test_words_that_are_no_changes_or_entries_are_refused_or_harmless(seed: int) -> None:
    """Whatever a file contains, kernels end, and write nothing outside their arrays."""
    rng = random.Random(seed)
    history = History(rng)
    shape = history.array()
    words = [word for _ in range(8) for word in history.change(50, 0.8).words(history.shape)]
    for _ in range(rng.randrange(1, 4)):
        words[rng.randrange(len(words))] ^= 1 << rng.randrange(63)
    status, folded = folded_of(words_of(words), shape)
    for number, rows in enumerate(history.files):
        for at in range(len(rows)):
            rows[at].fixed[0] ^= rng.getrandbits(1)
        if rows and rng.random() < 0.5:
            history.files[number] = [*rows, rows[0]]  # twice the same ROWID
            assert merged(history, EMPTY, EMPTY, shape)[0] == ST_INVARIANT
            history.files[number] = rows
    if status == OK:
        merged(history, folded, words_of(words), shape)


def test_insert_where_the_backup_has_a_row_is_a_duplicate() -> None:
    history = History(random.Random(1))
    while not history.base:
        history = History(history.rng)
    rowid = next(iter(history.base))
    version = history.version
    change = naive.Change(50, naive.INSERT, rowid, 0, version, [history.image(1, version)])
    words, shape = words_of(change.words(history.shape)), history.array()
    status, folded = folded_of(words, shape)
    assert status == OK
    assert merged(history, folded, words, shape)[0] == ST_DUPLICATE


def plain() -> History:
    """A fragment without var part, of one level with some rows."""
    history = History(random.Random(3))
    while history.shape.has_var or len(history.levels) != 1 or len(history.base) < 2:
        history = History(history.rng)
    return history


@pytest.mark.parametrize(
    ("kinds", "status"),
    [
        ([naive.INSERT, naive.INSERT], ST_DUPLICATE),
        ([naive.UPDATE, naive.INSERT], ST_DUPLICATE),
        ([naive.DELETE, naive.INSERT, naive.INSERT], ST_DUPLICATE),
        ([naive.DELETE, naive.DELETE], ST_MISSING),
        ([naive.DELETE, naive.UPDATE], ST_MISSING),
        ([naive.INSERT, naive.DELETE, naive.UPDATE], ST_MISSING),
        ([naive.DELETE, naive.INSERT, naive.UPDATE, naive.DELETE, naive.INSERT], OK),
    ],
)
def test_changes_of_one_row_that_cannot_follow_each_other_are_refused(kinds: list[int], status: int) -> None:
    history = plain()
    rowid = next(iter(history.base))
    words: list[int] = []
    for kind in kinds:
        images = [] if kind == naive.DELETE else [history.image(1, 3)]
        words += naive.Change(50, kind, rowid, 0, 3, images).words(history.shape)
    assert folded_of(words_of(words), history.array())[0] == status


def test_row_of_an_epoch_its_level_cannot_have_is_refused() -> None:
    history = plain()
    shape = history.array()
    rows = history.files[0]
    highest, lowest = max(row.epoch for row in rows), min(row.epoch for row in rows)
    out, used = np.zeros(2_000, dtype=np.int64), np.zeros(2, dtype=np.int64)
    for since, epoch, status in ((0, highest, OK), (0, highest - 1, ST_INVARIANT), (lowest or 1, 99, ST_INVARIANT)):
        shape[7:10] = [0, since, epoch]
        arrays = (*level_arrays(rows), shape, EMPTY, EMPTY, out, EMPTY, used, state_of(ROWID=-1))
        assert k.merge_rows(*arrays) == status
        used[:] = 0


def test_entries_have_the_places_of_their_images() -> None:
    history = plain()
    shape = history.array()
    shape[7:10] = [0, 0, history.levels[0]]
    rows = history.files[0]
    out, used, offsets = (
        np.zeros(2_000, dtype=np.int64),
        np.zeros(2, dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
    )
    arrays = (*level_arrays(rows), shape, EMPTY, EMPTY, out, offsets, used, state_of(ROWID=-1))
    assert k.merge_rows(*arrays) == OK
    assert out[offsets - 3].tolist() == [row.rowid for row in rows]


@given(st.lists(st.none() | st.binary(max_size=20), max_size=6), st.integers(-1, 8), st.sampled_from([b"", b"k" * 16]))
def test_var_part_is_cut_to_the_values_that_were_stored(held: list[bytes | None], values: int, key: bytes) -> None:
    """A row written before columns were added has fewer values; a disk part may follow."""
    whole = np.frombuffer(build_var_part(key, held), dtype=np.int64)
    wanted = held if values < 0 else held[:values]
    want = np.frombuffer(build_var_part(key, wanted), dtype=np.int64)
    fixed, disk = [5, 6], [2, 77]
    images = words_of([*fixed, *whole.tolist(), *disk])
    shape = np.zeros(r.SHAPE_WORDS, dtype=np.int64)
    shape[:10] = [2, 1, 0, 0 if key else 1, 5, 3, SLOTS, 1, 0, 9]
    about = words_of([4, 7, 1, values])
    out, used = np.full(200, -1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    arrays = (images, words_of([0, images.size]), about, shape, EMPTY, EMPTY, out, EMPTY, used, state_of(ROWID=-1))
    assert k.merge_rows(*arrays) == OK
    assert out[: int(used[0])].tolist() == [4, 7, 1 | 5 << 16 | 3 << 47, *fixed, *want.tolist(), *disk]


@pytest.mark.parametrize("rowid", [SLOTS, 1 << 47 | SLOTS])
def test_change_at_a_slot_no_page_has_is_refused(rowid: int) -> None:
    history = History(random.Random(2))
    change = naive.Change(50, naive.DELETE, rowid, 0, 6, [])
    assert folded_of(words_of(change.words(history.shape)), history.array())[0] == ST_INVARIANT
