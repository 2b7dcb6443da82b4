"""`tm.repair`: one side becomes what the other says, through transactions, and later work is not overwritten."""

from __future__ import annotations

import random

import pytest

import tidemark as tm
from tests.backup.support import take
from tests.digest.support import COLUMNS, ON_DISK, backup_side, naive, row_of, rows_in, store
from tests.seeds import fresh_seeds
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.verification import compare


@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("seed", [1, *fresh_seeds(3)])
def test_repaired_side_is_what_the_other_one_says(seed, side):
    print("seed", seed)
    rng = random.Random(seed)
    a = store([row_of(key) for key in range(0, 900, 2)], fragments=3)
    b = store([row_of(key, rng.choice([0, 1])) for key in range(0, 900, rng.choice([2, 3]))])
    before = rows_in(a), rows_in(b)
    report = tm.repair(a, b, side=side, batch_rows=rng.choice([1, 7, 1_000]))
    wanted = before[side == "b"]
    assert rows_in(a) == rows_in(b) == wanted
    differing = naive(*before)
    missing = {each[0] for each in differing if each[1] is None and each[2 if side == "a" else 3]}
    surplus = {each[0] for each in differing if each[1] is None and each[3 if side == "a" else 2]}
    changed = {each[0] for each in differing if each[1] is not None}
    assert [report[name] for name in ("inserted", "deleted", "updated", "skipped")] == [
        len(missing),
        len(surplus),
        len(changed),
        0,
    ]
    assert tm.diff(a, b)["is_equal"]


def test_store_is_repaired_from_its_backup_with_disk_columns():
    a = store(
        [(key, f"n{key}", key, "far" * 9) for key in range(500)],
        columns=ON_DISK,
        page_buffer="2 MiB",
        undo_log="16 MiB",
    )
    place = MemoryFiles()
    take(a, place)
    was = rows_in(a)
    a["d.t"].update(7, {"far": "gone"})
    a["d.t"].update(8, {"name": None})
    a["d.t"].delete(9)
    report = tm.repair(backup_side(place), a, side="a")
    assert (report["updated"], report["inserted"]) == (2, 1)
    assert rows_in(a) == was


def test_rows_changed_since_they_were_compared_are_left_alone(monkeypatch):
    a = store([row_of(key) for key in range(10)])
    b = store([row_of(key, 1) for key in range(1, 12)])
    original = compare.TableComparison.groups

    def groups(self):
        for group in original(self):
            # Another transaction is quicker: one row of each kind has changed meanwhile.
            b["d.t"].update(3, {"number": 333})
            b["d.t"].update(11, {"number": 111})
            b["d.t"].insert(row_of(0, 99))
            yield group

    monkeypatch.setattr(compare.TableComparison, "groups", groups)
    report = tm.repair(a, b, side="a")
    assert (report["updated"], report["deleted"], report["inserted"], report["skipped"]) == (8, 1, 0, 3)
    assert b["d.t"][3].number == 333 and b["d.t"][11].number == 111 and b["d.t"][0] == row_of(0, 99)
    assert 10 not in b["d.t"] and tuple(b["d.t"][4]) == row_of(4)


def test_definitions_are_not_repaired_and_columns_of_the_repaired_side_stay():
    a = store([row_of(1), row_of(2)])
    b = store([(1, "other", 1, None, "mine")], columns=[*COLUMNS, tm.Column("own", tm.VarChar(9), default="new")])
    a.create_table("d.only", COLUMNS, "id")
    report = tm.repair(a, b, side="a")
    assert {(each["table"], each["column"]) for each in report["schema"]} == {("d.only", None), ("d.t", "own")}
    assert [tuple(row) for row in sorted(b["d.t"].scan())] == [(*row_of(1), "mine"), (*row_of(2), "new")]
    assert b.tables() == ["d.t"]


def test_only_an_open_store_is_repaired():
    a = store([row_of(1)])
    place = MemoryFiles()
    take(a, place)
    with pytest.raises(tm.Rejected, match="open store"):
        tm.repair(a, backup_side(place), side="a")
    with pytest.raises(tm.Rejected, match="side"):
        tm.repair(a, a, side="c")
    with pytest.raises(tm.ValueOutOfRange):
        tm.repair(a, a, side="a", batch_rows=0)
    with a.snapshot() as snapshot:
        a["d.t"].delete(1)
        assert tm.repair(snapshot, a, side="a")["inserted"] == 1
    assert 1 in a["d.t"]
