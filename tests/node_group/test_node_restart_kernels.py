"""The kernels of node restart against naive twins, at every call of random joins; and invalid words from a peer."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tidemark as tm
import tidemark.engine.store.node_copy as node_copy
import tidemark.engine.store.node_join as joined
from tests.naive import node_copy as naive
from tests.node_group.support import COPYING, Wire, away, open_node, restarted
from tests.seeds import fresh_seeds
from tidemark.engine.log import redo_layout as r
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import NOTHING, address_of
from tidemark.engine.store import node_copy_layout as n
from tidemark.engine.store import node_join_kernels as node_join
from tidemark.engine.table.setup_kernels import fragment_handles


class Checked:
    """Wraps the kernels: each result is compared with that of a twin, and calls are counted."""

    def __init__(self, monkeypatch: Any) -> None:
        self.calls: dict[str, int] = {}
        for module, names in (
            (node_copy, ["scan_changed", "list_items"]),
            (
                joined,
                [
                    "find_conflicting_rows",
                    "records_of_slice",
                    "stamp_slice",
                    "find_stale",
                    "find_deleted",
                    "executed_records",
                    "set_uncopied",
                ],
            ),
        ):
            for name in names:
                monkeypatch.setattr(module, name, self._wrapped(name, getattr(module, name)))

    def _wrapped(self, name: str, real: Any) -> Any:
        def call(*args: Any) -> int:
            self.calls[name] = self.calls.get(name, 0) + 1
            return int(getattr(self, name)(real, *args))

        return call

    def scan_changed(
        self, real: Any, mem: Any, fragment: int, since: int, empty: int, limit: int, out: Any, state: Any
    ) -> int:
        start = int(state[n.N_POSITION])
        slots = naive.slots_of(mem, fragment) if mem[address_of(fragment) + a.F_KEY_WORDS] else None
        status = int(real(mem, fragment, since, empty, limit, out, state))
        if slots is not None:
            items = naive.parse(mem, fragment, out[: int(state[n.N_USED])])
            naive.check_scan(slots, items, since, start, int(state[n.N_POSITION]), bool(empty))
        return status

    def list_items(self, real: Any, words: Any, stop: int, *rest: Any) -> int:
        status = int(real(words, stop, *rest))
        images, ranges, state = rest[3:]
        places = [int(each) - a.ENTRY_WORDS for each in images[: int(state[n.N_ROWS])]]
        assert len(places) + int(state[n.N_RANGES]) > 0 or stop == 0
        assert sorted(words[places].tolist()) == words[places].tolist(), "in the order of ROWIDs"
        firsts = ranges[: 2 * int(state[n.N_RANGES]) : 2]
        assert all((words == -1 - first).any() for first in firsts)
        return status

    def find_conflicting_rows(
        self, real: Any, mem: Any, fragment: int, words: Any, stop: int, out: Any, state: Any
    ) -> int:
        status = int(real(mem, fragment, words, stop, out, state))
        if (
            mem[address_of(fragment) + a.F_KEY_WORDS]
            and not mem[address_of(fragment) + a.F_HAS_DISK]
            and status == a.OK
        ):
            expected = naive.in_the_way(naive.slots_of(mem, fragment), naive.parse(mem, fragment, words))
            assert set(out[: int(state[n.N_USED])].tolist()) == expected
        return status

    def records_of_slice(
        self, real: Any, mem: Any, fragment: int, words: Any, stop: int, identity: int, out: Any, state: Any
    ) -> int:
        status = int(real(mem, fragment, words, stop, identity, out, state))
        if mem[address_of(fragment) + a.F_KEY_WORDS] and not mem[address_of(fragment) + a.F_HAS_DISK]:
            slots = naive.slots_of(mem, fragment)
            made = naive.operations(out, 0, int(state[n.N_USED]))
            wanted = [
                (r.KIND_UPDATE if rowid in slots.rows else r.KIND_INSERT, identity, rowid)
                for rowid, _, _ in naive.parse(mem, fragment, words).rows
            ]
            assert [each[1:4] for each in made] == wanted
        return status

    def stamp_slice(self, real: Any, mem: Any, fragment: int, words: Any, stop: int) -> int:
        status = int(real(mem, fragment, words, stop))
        if mem[address_of(fragment) + a.F_KEY_WORDS] and not mem[address_of(fragment) + a.F_HAS_DISK]:
            slots = naive.slots_of(mem, fragment)
            assert all(slots.rows[at] == (epoch, key) for at, epoch, key in naive.parse(mem, fragment, words).rows)
        return status

    def set_uncopied(self, real: Any, mem: Any, fragment: int, position: int) -> int:
        status = int(real(mem, fragment, position))
        assert naive.position_of(mem, fragment) == position
        return status

    @staticmethod
    def _fragment(mem: Any, tables: Any, identity: int) -> int:
        table = int(tables[identity & r.TABLE_MASK])
        if not table:
            return 0
        handles = np.zeros(int(fragment_handles(mem, table, NOTHING)), dtype=np.int64)
        fragment_handles(mem, table, handles)
        return int(handles[identity >> r.FRAGMENT_SHIFT & r.FRAGMENT_MASK])

    def find_stale(
        self, real: Any, mem: Any, tables: Any, words: Any, start: int, stop: int, out: Any, state: Any
    ) -> int:
        status = int(real(mem, tables, words, start, stop, out, state))
        if status != a.OK:
            return status
        found = {(int(one), int(two)) for one, two in out[: int(state[n.N_USED])].reshape(-1, 2)}
        expected, known = set(), {}
        for at, kind, identity, first, rows in naive.operations(words, start, stop):
            fragment = self._fragment(mem, tables, identity)
            if (
                not fragment
                or not mem[address_of(fragment) + a.F_KEY_WORDS]
                or mem[address_of(fragment) + a.F_HAS_DISK]
            ):
                found = {
                    pair for pair in found if pair[0] != identity & (r.TABLE_MASK | r.FRAGMENT_MASK << r.FRAGMENT_SHIFT)
                }
                continue
            slots = known.setdefault(fragment, naive.slots_of(mem, fragment))
            position = naive.position_of(mem, fragment)
            place = identity & (r.TABLE_MASK | r.FRAGMENT_MASK << r.FRAGMENT_SHIFT)
            if kind == r.KIND_DELETE and first >= position and first in slots.rows:
                expected.add((place, first))
            if kind == r.KIND_INSERT:
                image = at + r.OPERATION_WORDS
                for number in range(rows):
                    key = tuple(
                        int(each) for each in words[image : image + int(mem[address_of(fragment) + a.F_KEY_WORDS])]
                    )
                    fixed = int(mem[address_of(fragment) + a.F_FIXED_WORDS])
                    image += fixed + (
                        int(words[image + fixed]) & 0xFFFFFFFF if mem[address_of(fragment) + a.F_HAS_VAR] else 0
                    )
                    if first + number < position:
                        stale = [at for at, (_, other) in slots.rows.items() if other == key and at >= position]
                        expected |= {(place, at) for at in stale}
        assert found == expected
        return status

    def find_deleted(self, real: Any, mem: Any, tables: Any, words: Any, stop: int, out: Any, state: Any) -> int:
        status = int(real(mem, tables, words, stop, out, state))
        if status == a.OK:
            expected = set()
            for place, rows in words[:stop].reshape(-1, 2).tolist():
                fragment = self._fragment(mem, tables, place)
                here = set(naive.slots_of(mem, fragment).rows) if fragment else set()
                first, position = rows & a.ROWID_MASK, naive.position_of(mem, fragment) if fragment else 0
                gone = range(max(first, position), first + (rows >> a.COUNT_SHIFT))
                expected |= {(place, rowid) for rowid in gone if rowid in here}
            assert {(int(one), int(two)) for one, two in out[: int(state[n.N_USED])].reshape(-1, 2)} == expected
        return status

    def executed_records(
        self, real: Any, mem: Any, tables: Any, words: Any, start: int, stop: int, out: Any, state: Any
    ) -> int:
        status = int(real(mem, tables, words, start, stop, out, state))
        wanted = []
        for _, kind, identity, first, rows in naive.operations(words, start, stop):
            fragment = self._fragment(mem, tables, identity)
            if fragment:
                kept = min(rows, max(0, naive.position_of(mem, fragment) - first))
                wanted += [(kind, identity, first, kept)] if kept else []
        assert [each[1:] for each in naive.operations(out, 0, int(state[n.N_USED]))] == wanted
        return status


def test_record_that_does_not_fit_a_table_with_disk_columns_says_that_the_copies_differ() -> None:
    """A group of the live node deletes a row that the joiner lacks, in a table with disk columns. The joiner raised
    RedoDamaged and advised to restore a backup; the remedy is a full copy, as for tables in memory. The ROWID in the
    message of those contained the count of rows.
    """
    db = open_node()
    db.create_table("test.d", [tm.Column("id", tm.Int64), tm.Column("text", tm.Text, storage="disk")], "id")
    table = db.parts.store.tables.by_name["test.d"]
    identity = r.pack_identity(table.table_id, 0, table.definition.version)
    words = np.array([r.pack_kind(r.KIND_DELETE, 0, 4), identity, 60_000 | 1 << a.COUNT_SHIFT, 0], dtype=np.int64)
    with pytest.raises(tm.InvariantBroken, match="ROWID 60000 does not fit .*: the copies differ"):
        joined.JoinedRows(db.parts.store).take_records(words, 0, words.size, 1)
    db.close()


@pytest.mark.parametrize("variant", COPYING)
@pytest.mark.parametrize("seed", [1, 2, *fresh_seeds(1)])
def test_kernels_of_random_joins_equal_twins_at_every_call(seed: int, variant: str, monkeypatch: Any) -> None:
    checked = Checked(monkeypatch)
    db, files, writers, node, through, rng = away(seed, rows=150, steps=10, has_disk=seed == 2)
    wire = Wire(db, files, rng, writers.step, slice_slots=rng.choice([4, 40]), slice_words=200, work_max=40)
    restarted(node, wire, through, variant)
    assert (checked.calls.get("find_deleted", 0) > 0) == (variant == "delete_log")
    assert min(checked.calls.get(name, 0) for name in ("scan_changed", "find_conflicting_rows", "find_stale")) > 5
    assert seed != 2 or checked.calls["list_items"] > 5
    db.close()


@pytest.mark.parametrize("seed", [1, *fresh_seeds(1)])
def test_words_that_are_no_slice_are_refused_and_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    db = open_node()
    db.create_table("test.t", [tm.Column("id", tm.Int64), tm.Column("text", tm.Text)], "id")
    db["test.t"].insert_many([(key, "x" * (key % 9)) for key in range(100)])
    store = db.parts.store
    fragment = store.tables.by_name["test.t"].fragments[0]
    before = store.mem.copy()
    statuses = set()
    for _ in range(300):
        words = np.array(
            [rng.choice([-3, 0, 5, 1 << 47, 1 << 60, rng.getrandbits(20)]) for _ in range(rng.randrange(1, 30))]
        )
        state = np.zeros(n.NODE_COPY_STATE_WORDS, dtype=np.int64)
        out = np.zeros(64, dtype=np.int64)
        statuses.add(int(node_join.find_conflicting_rows(store.mem, fragment, words, words.size, out, state)))
        state[:] = 0
        node_join.records_of_slice(store.mem, fragment, words, words.size, 1, np.zeros(99, dtype=np.int64), state)
        tables = np.array([0, store.tables.by_name["test.t"].handle], dtype=np.int64)
        state[:] = 0
        node_join.find_stale(store.mem, tables, words, 0, words.size, out, state)
        state[:] = 0
        node_join.executed_records(store.mem, tables, words, 0, words.size, np.zeros(words.size, dtype=np.int64), state)
        state[:] = 0
        statuses.add(int(node_join.find_deleted(store.mem, tables, words, words.size, out, state)))
    assert a.ST_INVARIANT in statuses
    assert np.array_equal(store.mem, before)
    db.close()
