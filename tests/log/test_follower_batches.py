"""Many small transactions come from the log in few batches, and the changes of one key in their order."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

import tidemark as tm
from tests.log.test_follower import COLUMNS, ON_DISK, captured, changes_of, follower, nets, read_all
from tidemark.engine.log.row_changes import RowChanges

SEED = 55_210


@pytest.mark.parametrize("durability", ["commit", "epoch"])
@pytest.mark.parametrize("unique", [False, True])
def test_kinds_of_small_transactions_are_gathered_and_each_key_keeps_its_order(durability, unique):
    """One batch for each row or group cost forty times the rows. If a unique key moves from row to row,
    order is kept.
    """
    print("seed", SEED)
    rng = random.Random(SEED)
    db = captured({"memory": COLUMNS}, durability=durability)
    table = db["memory"]
    if unique:
        db.create_index("memory", "by_name", "name", unique=True)
    db.sync()
    wanted, rows, number = defaultdict(list), {}, 0
    done = []
    for _ in range(400):
        key = rng.randrange(25)
        number += 1
        before = rows.get(key)
        after = {"id": key, "number": number, "name": f"n{number}"}
        if before is None:
            table.insert(after)
        elif rng.random() < 0.4:
            table.delete(key)
            after = None
        else:
            table.update(key, {"number": number, "name": f"n{number}"})
        rows.pop(key, None)
        if after is not None:
            rows[key] = after
        wanted[key].append(("memory", before, after))
        done.append(("memory", before, after))
    parts = changes_of(db)
    found = [each for part in parts for each in nets(part)]
    by_key = defaultdict(list)
    for each in found:
        by_key[(each[2] or each[1])["id"]].append(each)
    assert by_key == wanted
    assert sorted(found, key=repr) == sorted(done, key=repr)
    if unique:
        assert found == done
    else:
        # As many rounds as the key changed most often has changes, of three kinds each.
        assert len(parts) <= 3 * max(map(len, wanted.values())) < 100


def test_groups_of_one_transaction_each_are_read_as_one_piece_and_a_schema_change_between_them_is_followed():
    db = captured({"memory": COLUMNS}, durability="commit")
    db.parts.store.resources.follows_log = False  # so that the change is in the epoch of the rows
    table = db["memory"]
    db.sync()
    for number in range(50):
        table.insert({"id": number, "number": number, "name": "a"})
    db.add_column("memory", tm.Column("more", tm.Int32, nullable=True))
    for number in range(50, 90):
        db["memory"].insert({"id": number, "number": number, "name": "a", "more": 7})
    parts = [part for _, parts in read_all(db, follower(db)) for part in parts]
    counts = [part.count if isinstance(part, RowChanges) else 0 for part in parts]
    assert counts == [0, 50, 0, 40]
    assert [len(each[2]) for each in nets(parts[1])] == [3] * 50 and nets(parts[3])[0][2]["more"] == 7


def test_kinds_gathered_of_a_table_with_disk_columns_keep_their_disk_parts():
    """Story: rows were reordered, and the state of their disk parts was not. An image lost its disk columns, or was
    read with those of another row, as soon as small transactions of one piece changed kinds sixteen times.
    """
    db = captured({"disk": ON_DISK})
    table = db["disk"]
    wanted = defaultdict(list)
    for number in range(41):  # not a multiple of the kinds: else the wrong row has the right flags
        row = {"id": f"k{number}", "number": number, "comment": f"c{number}"}
        changed = {**row, "number": -number}
        table.insert(row)
        table.update(row["id"], {"number": -number})
        table.delete(row["id"])
        wanted[row["id"]] = [("disk", None, row), ("disk", row, changed), ("disk", changed, None)]
    found = defaultdict(list)
    for part in changes_of(db):
        for net in nets(part):
            found[(net[1] or net[2])["id"]].append(net)
    assert found == wanted
