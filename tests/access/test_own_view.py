"""Transactions with `isolation="snapshot"`, by a model: each reads a copy of the rows made at its begin.

The model knows dictionaries only. A change or a lock conflicts if the row, or its absence, is not what the copy has.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tidemark as tm
from tests.shares import few
from tests.store.support import open_memory

KEYS = range(12)
TAGS = ["a", "b", "c", "d", "e", None]
Row = tuple[int, int, Any, str]


def columns(storage: str) -> list[tm.Column]:
    return [
        tm.Column("id", tm.Int64),
        tm.Column("n", tm.Int32),
        tm.Column("tag", tm.VarChar(4), nullable=True),
        tm.Column("note", tm.Text, storage="disk" if storage == "disk" else "memory"),
    ]


def made(storage: str) -> Any:
    db: Any = open_memory()
    partition = tm.RangePartition("id", [("low", 6), ("high", tm.MAXVALUE)]) if storage == "partitioned" else None
    db.create_table("t", columns(storage), "id", partition)
    db.create_index("t", "by_n", "n")
    if storage == "unique":
        db.create_index("t", "by_tag", "tag", unique=True, ordered=True)
    return db


class Model:
    """What is committed, with a number for the change that made each row or removed it."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.changed: dict[int, int] = {}
        self.commits = 0

    def commit(self, own: dict[int, Row | None]) -> None:
        self.commits += 1
        for key, row in own.items():
            self.changed[key] = self.commits
            self.rows.pop(key, None)
            if row is not None:
                self.rows[key] = row


class Open:
    """An open transaction, and what the model says it sees."""

    def __init__(self, db: Any, model: Model, level: Any) -> None:
        self.txn = db.transaction(isolation=level)
        self.model = model
        self.is_own = level == "snapshot"
        self.rows, self.changed = dict(model.rows), dict(model.changed)
        self.own: dict[int, Row | None] = {}
        self.held: set[int] = set()
        self.tried: set[int] = set()  # keys of changes that were refused, whose rows may be locked

    @property
    def shown(self) -> dict[int, Row]:
        found = dict(self.rows if self.is_own else self.model.rows)
        for key, row in self.own.items():
            found.pop(key, None)
            if row is not None:
                found[key] = row
        return found

    def conflicts(self, key: int) -> bool:
        """Whether the row of a key, or its absence, is not what the transaction saw at its begin."""
        if not self.is_own or key in self.held:
            return False
        if key not in self.model.rows and key not in self.rows:
            return False
        return self.model.changed.get(key) != self.changed.get(key)

    def clashes(self, row: Row, is_unique: bool) -> str | None:
        """How the unique key of a row to put is refused."""
        if not is_unique or row[2] is None:
            return None
        now = {key: each for key, each in {**self.model.rows, **self.own}.items() if each is not None}
        for key, other in now.items():
            if key != row[0] and other[2] == row[2]:
                return "WriteConflict" if self.conflicts(key) else "DuplicateKey"
        if self.is_own:
            for key, other in self.rows.items():
                if other[2] == row[2] and key not in self.held and self.conflicts(key):
                    return "WriteConflict"
        return None


def reads(txn: Any, random_: random.Random, is_unique: bool) -> tuple[str, Callable[[dict[int, Row]], Any], Any]:
    """Read by a door; return its name, what the model makes of the rows, and what was read."""
    key, low = random_.choice(KEYS), random_.randrange(0, 40)
    some = random_.sample(KEYS, 4)
    tag = random_.choice(["a", "b", "c", "d", "e"])

    def listed(rows: Any) -> list[Row]:
        return sorted(tuple(row) for row in rows)

    doors: dict[str, tuple[Callable[[dict[int, Row]], Any], Callable[[], Any]]] = {
        "get": (lambda rows: rows.get(key), lambda: txn.get("t", key)),
        "get_many": (
            lambda rows: [rows[each] for each in some if each in rows],
            lambda: [tuple(row.values()) for row in txn.get_many("t", some).to_pylist()],
        ),
        "get_many of a column": (
            lambda rows: [rows[each][1] for each in some if each in rows],
            lambda: txn.get_many("t", some, ["n"]).column("n").to_pylist(),
        ),
        "scan": (lambda rows: sorted(rows.values()), lambda: listed(txn.scan("t"))),
        "scan of columns": (
            lambda rows: sorted((row[1], row[0]) for row in rows.values()),
            lambda: listed(txn.scan("t", ["n", "id"])),
        ),
        "key": (
            lambda rows: [rows[key]] if key in rows else [],
            lambda: listed(txn.scan("t", where=tm.col("id") == key)),
        ),
        "keys": (
            lambda rows: sorted(rows[each] for each in some if each in rows),
            lambda: listed(txn.scan("t", where=tm.col("id").isin(some))),
        ),
        "index": (
            lambda rows: sorted(row for row in rows.values() if low <= row[1] < low + 10),
            lambda: listed(txn.scan("t", index="by_n", lower=low, upper=low + 10)),
        ),
        "index that is chosen": (
            lambda rows: sorted(row for row in rows.values() if row[1] == low),
            lambda: listed(txn.scan("t", where=tm.col("n") == low)),
        ),
        "index alone": (
            lambda rows: sorted(row[1] for row in rows.values()),
            lambda: sorted(row.n for row in txn.scan("t", ["n"], index="by_n")),
        ),
        "condition": (
            lambda rows: sorted(row for row in rows.values() if row[1] % 3 == 1),
            lambda: listed(txn.scan("t", where=tm.col("n") % 3 == 1)),
        ),
        "filter": (
            lambda rows: sorted(row[0] for row in rows.values() if row[1] > low),
            lambda: sorted(txn.scan("t", ["id"], where=tm.col("n") > low).to_arrow().column("id").to_pylist()),
        ),
        "count": (len, lambda: txn.scan("t").count()),
        "count by index": (
            lambda rows: sum(low <= row[1] < low + 10 for row in rows.values()),
            lambda: txn.scan("t", index="by_n", lower=low, upper=low + 10).count(),
        ),
        "sum": (
            lambda rows: sum(row[1] for row in rows.values()) if rows else None,
            lambda: txn.scan("t").sum("n"),
        ),
        "groups": (
            lambda rows: sorted({row[1] % 2 for row in rows.values()}),
            lambda: sorted(row.even for row in txn.scan("t").aggregate(by={"even": tm.col("n") % 2}, many=("count",))),
        ),
        "arrow": (
            lambda rows: sorted(row[3] for row in rows.values()),
            lambda: sorted(txn.scan("t", ["note"]).to_arrow().column("note").to_pylist()),
        ),
    }
    if is_unique:
        doors["unique"] = (
            lambda rows: next((row for row in rows.values() if row[2] == tag), None),
            lambda: txn.get("t", tag, index="by_tag"),
        )
        doors["unique condition"] = (
            lambda rows: [row for row in rows.values() if row[2] == tag],
            lambda: listed(txn.scan("t", where=tm.col("tag") == tag)),
        )
        doors["unique in order"] = (
            lambda rows: sorted(row[2] for row in rows.values() if row[2] is not None and row[2] >= tag),
            lambda: [row.tag for row in txn.scan("t", index="by_tag", lower=tag)],
        )
        doors["unique many"] = (
            lambda rows: [row[0] for row in rows.values() if row[2] == tag],
            lambda: txn.get_many("t", [tag], ["id"], index="by_tag").column("id").to_pylist(),
        )
    name = random_.choice(list(doors))
    expected, call = doors[name]
    return name, expected, call()


def row_for(random_: random.Random, key: int) -> Row:
    return (key, random_.randrange(0, 40), random_.choice(TAGS), "x" * random_.choice([0, 3, 300]))


def change(each: Open, random_: random.Random, is_unique: bool, busy: set[int]) -> None:
    """Make a change in an open transaction, and compare its outcome with the model's."""
    txn, shown = each.txn, each.shown
    free = [key for key in KEYS if key not in busy]
    if not free:
        return
    key = random_.choice(free)
    row = row_for(random_, key)
    if busy:
        row = (*row[:2], None, row[3])  # another open transaction may hold the unique key
    is_there = key in shown
    after: Row | None = row
    batch = {"id": [key], "n": [row[1]], "tag": [row[2]], "note": [row[3]]}
    puts: dict[str, Callable[[], Any]] = {
        "insert": lambda: txn.insert("t", row),
        "insert_many": lambda: txn.insert_many("t", [row]),
        "write": lambda: txn.write("t", row),
        "write_many": lambda: txn.write_many("t", batch),
        "upsert": lambda: txn.upsert("t", row),
        "upsert_many": lambda: txn.upsert_many("t", [row]),
        "update": lambda: txn.update("t", key, {"n": row[1], "tag": row[2], "note": row[3]}),
        "update_many": lambda: txn.update_many("t", batch),
    }
    others: dict[str, Callable[[], Any]] = {
        "update by expression": lambda: txn.update("t", key, {"n": tm.col("n") + 1}),
        "update where": lambda: txn.update("t", key, {"n": row[1]}, where=tm.col("n") >= 0),
        "update_where": lambda: txn.update_where("t", {"n": row[1]}, where=tm.col("id") == key),
        "delete": lambda: txn.delete("t", key),
        "delete_many": lambda: txn.delete_many("t", [key]),
        "delete_where": lambda: txn.delete_where("t", tm.col("id") == key),
        "lock": lambda: txn.get("t", key, lock="exclusive"),
        "share": lambda: txn.get("t", key, lock="shared"),
    }
    kind = random_.choice([*puts, *others])
    expected = "done"
    if kind in ("update_where", "delete_where") and not is_there:
        expected = "done"  # it finds nothing, and locks nothing
        after = shown.get(key)
    elif each.conflicts(key):
        expected = "WriteConflict"
    elif kind in ("insert", "insert_many") and is_there:
        expected = "DuplicateKey"
    elif (
        kind in ("update", "update_many", "update by expression", "update where", "delete", "delete_many")
        and not is_there
    ):
        expected = "RowNotFound"
    elif kind in puts:
        expected = each.clashes(row, is_unique) or "done"
    if kind == "update by expression" and is_there:
        after = (key, shown[key][1] + 1, *shown[key][2:])
    if kind in ("update where", "update_where") and is_there:
        after = (key, row[1], *shown[key][2:])
    if kind in ("delete", "delete_many", "delete_where"):
        after = None
    found = "done"
    try:
        result = {**puts, **others}[kind]()
        if kind in ("lock", "share"):
            assert result == shown.get(key), (kind, key)
            after = shown.get(key)
    except (tm.Rejected, tm.Retryable) as error:
        found = type(error).__name__
    assert found == expected, f"{kind} of {key}: {found}, and the model says {expected}"
    each.tried.add(key)
    if found == "WriteConflict":
        assert each.txn.is_ended
    elif found == "done":
        if is_there or after is not None:
            each.held.add(key)
        if after != shown.get(key) or kind not in ("lock", "share", "update_where", "delete_where"):
            each.own[key] = after


@pytest.mark.parametrize("storage", ["memory", "disk", "partitioned", "unique"])
@pytest.mark.parametrize("seed", range(few(6, 60)))
def test_transactions_see_the_state_at_their_begin_and_the_first_committer_wins(storage: str, seed: int) -> None:
    random_ = random.Random(f"{storage} {seed}")
    print(f"seed {seed}")
    db, model = made(storage), Model()
    is_unique = storage == "unique"
    open_now: list[Open] = []
    for _ in range(300):
        open_now = [each for each in open_now if not each.txn.is_ended]
        if len(open_now) < 4 and random_.random() < 0.4:
            open_now.append(Open(db, model, random_.choice(["snapshot", "snapshot", "read committed"])))
            continue
        if random_.random() < 0.03:
            db.checkpoint()
        if not open_now:
            continue
        each = random_.choice(open_now)
        kind = random_.random()
        if kind < 0.5:
            name, expected, found = reads(each.txn, random_, is_unique)
            assert found == expected(each.shown), f"{name}: {found}, and the model says {expected(each.shown)}"
        elif kind < 0.85:
            busy = set().union(*(other.held | other.tried for other in open_now if other is not each))
            change(each, random_, is_unique, busy)
        elif kind < 0.97:
            each.txn.commit()
            model.commit(each.own)
        else:
            each.txn.rollback()
    for each in open_now:
        each.txn.rollback()
    assert sorted(tuple(row) for row in db["t"].scan()) == sorted(model.rows.values())
    assert db.status()["snapshots"]["used_bytes"] == 0, "a view that was left open keeps old rows"
    assert db.check()["is_sound"]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_row_whose_place_the_reader_has_taken_is_read_all_the_same(storage: str) -> None:
    """Story: a row that another transaction deleted after a scan began was missing in it, once the scan's own
    transaction had inserted a row, which took its place.
    """
    db: Any = open_memory()
    db.create_table("t", columns(storage), "id")
    db["t"].insert_many([(key, key, None, "x") for key in range(3_000)])
    with db.transaction() as txn:
        rows = iter(txn.scan("t"))
        first = next(rows)
        db["t"].delete_many([2_500, 2_700])
        txn.insert("t", (5_000, 0, None, "own"))
        txn.insert("t", (5_001, 0, None, "own"))
        txn.delete("t", 5_001)
        found = sorted(row.id for row in (first, *rows))
        assert found == [*range(3_000), 5_000]
        for limit in (1, 2, 7):
            assert len(list(txn.scan("t", limit=limit))) == limit
    with db.transaction(isolation="snapshot") as txn:
        db["t"].delete_many([1_500, 1_700])
        txn.insert("t", (6_000, 0, None, "own"))
        assert txn.get("t", 1_500).note == "x" and txn.get("t", 6_000).note == "own"
        assert txn.scan("t", where=tm.col("id").isin([1_500, 1_700, 6_000])).count() == 3
        assert len(txn.scan("t").to_arrow()) == txn.scan("t").count() == 3_000
        assert len(list(txn.scan("t", limit=2_999))) == 2_999


def set_to(db: Any, **values: int) -> None:
    with db.transaction() as txn:
        for key, value in values.items():
            txn.update("t", int(key[1:]), {"n": value})


# --- ends -----------------------------------------------------------------------------------------
def simple() -> Any:
    db: Any = open_memory()
    db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("n", tm.Int32)], "id")
    db["t"].insert_many([(1, 10), (2, 20)])
    return db


@pytest.mark.parametrize("end", ["commit", "rollback", "with", "error", "dropped", "kill", "conflict", "reader"])
def test_end_of_a_transaction_lets_the_old_rows_go(end: str) -> None:
    db = simple()
    txn = db.transaction(isolation="snapshot")
    set_to(db, k1=11)
    assert txn.get("t", 1).n == 10 and db.status()["snapshots"]["used_bytes"] > 0
    if end != "reader":
        txn.update("t", 2, {"n": 21})
    match end:
        case "commit" | "reader":
            txn.commit()
        case "rollback":
            txn.rollback()
        case "with":
            with txn:
                pass
        case "error":
            with pytest.raises(ZeroDivisionError), txn:
                raise ZeroDivisionError
        case "dropped":
            with pytest.warns(ResourceWarning):
                del txn
            db["t"].update(2, {"n": 22})
        case "kill":
            db.kill(txn.txid)
        case "conflict":
            with pytest.raises(tm.WriteConflict, match="row with key 1 of main.t since this one began") as caught:
                txn.delete("t", 1)
            assert caught.value.evidence == {"table": "main.t", "key": 1}
    assert db.status()["snapshots"]["used_bytes"] == 0
    assert db.status()["snapshots"]["versions_kept"] > 0


def test_transaction_whose_old_rows_do_not_fit_is_rolled_back() -> None:
    db: Any = open_memory(snapshot_memory="1 MiB")
    db.create_table("t", [tm.Column("id", tm.Int64), tm.Column("note", tm.VarChar(1_000))], "id")
    db["t"].insert_many([(key, "x" * 1_000) for key in range(2_000)])
    reader, writer = db.transaction(isolation="snapshot"), db.transaction(isolation="snapshot")
    assert reader.get("t", 1).note == "x" * 1_000
    writer.insert("t", (9_999, "new"))
    db["t"].update_where({"note": "y" * 1_000})
    with pytest.raises(tm.SnapshotTooOld, match="was rolled back"):
        reader.scan("t").to_arrow()
    with pytest.raises(tm.WriteConflict):
        writer.update("t", 5, {"note": "z"})
    assert reader.is_ended and writer.is_ended and 9_999 not in db["t"]
    assert db.status()["snapshots"]["used_bytes"] == 0


@pytest.mark.parametrize("index", [None, "by_n"])
def test_transaction_whose_large_value_is_lost_is_rolled_back_by_every_read(index: str | None) -> None:
    """A scan by an index reads disk parts as if without a transaction, and left this one open."""
    db: Any = open_memory(redo_log="32 MiB", undo_log="32 MiB", transaction_memory="16 MiB", page_buffer="4 MiB")
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("large", tm.Blob, storage="disk")]
    db.create_table("t", columns, "id")
    db.create_index("t", "by_n", "n")
    db["t"].insert_many([(1, 1, b"x"), (2, 2, b"y" * 400_000)])
    reader = db.transaction(isolation="snapshot")
    assert reader.get("t", 1).large == b"x"
    reader.insert("t", (3, 3, b"z"))
    db["t"].update(2, {"large": b"gone"})
    with pytest.raises(tm.SnapshotTooOld, match="was rolled back"):
        list(reader.scan("t", index=index))
    assert reader.is_ended and 3 not in db["t"]


@pytest.mark.parametrize("given", ["serializable", "SNAPSHOT", None, ["snapshot"]])
def test_unknown_isolation_is_refused(given: Any) -> None:
    db = simple()
    with pytest.raises(tm.SchemaInvalid, match="isolation must be 'read committed' or 'snapshot'"):
        db.transaction(isolation=given)
