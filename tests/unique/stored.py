"""A store whose table has unique indexes, some ordered; dicts say what each transaction sees, and what is refused."""

from __future__ import annotations

from typing import Any

import tidemark as tm
from tests.engine.arena_check import check_arena
from tests.store.random_work import RandomWork, Row, Rows

NAME = "test.u"
UNIQUE = {"by_email": ("email",), "by_pair": ("a", "b"), "by_float": ("f",)}
ORDERED = ("by_pair", "by_email")


def columns(on_disk: bool) -> list[tm.Column]:
    made = [
        tm.Column("id", tm.Int64),
        tm.Column("email", tm.VarChar(700), nullable=True),
        tm.Column("a", tm.Int16, nullable=True),
        tm.Column("b", tm.Char(6)),
        tm.Column("f", tm.Float64, nullable=True),
        tm.Column("n", tm.Int32),
    ]
    if on_disk:
        made.append(tm.Column("cold", tm.VarBinary(900), storage="disk"))
    return made


def key_of(row: Row, name: str) -> Any:
    """The value that must be unique; None if the row does not count."""
    places = {"by_email": (1,), "by_pair": (2, 3), "by_float": (4,)}[name]
    key = tuple(row[place] for place in places)
    if None in key:
        return None
    return tuple("nan" if isinstance(each, float) and each != each else each for each in key)


class Refused(Exception):
    """The model's answer to a call that gives two rows one key."""


class Uniques(RandomWork):
    """Random work on a table with unique indexes."""

    changes_max, inner_max = 10, 5
    undone, inner_undone = 0.25, 0.6

    def __init__(self, seed: int, on_disk: bool = False, partition: Any = None, **options: Any) -> None:
        self.keys = 60
        self.refused = 0
        super().__init__(NAME, columns(on_disk), seed, partition, **options)

    @property
    def unique(self) -> list[str]:
        return [each["name"] for each in self.db.indexes(NAME) if each["unique"]]

    # --- values ---------------------------------------------------------------------------------
    def value(self, name: str) -> Any:
        rng = self.rng
        if name == "email":
            long = "x" * rng.choice([0, 0, 0, 500])
            return None if rng.random() < 0.1 else f"{long}{rng.randrange(90)}" + "\0" * rng.randint(0, 1)
        if name == "a":
            return None if rng.random() < 0.2 else rng.randrange(-20, 20)
        if name == "b":
            return rng.choice(["", "x", "yy", "zzzzzz", "ä"])
        if name == "f":
            chosen = rng.choice([0.0, -0.0, float("nan"), float("inf"), rng.random(), rng.randrange(50) / 2])
            return None if rng.random() < 0.5 else chosen
        if name == "n":
            return rng.randrange(1_000)
        return bytes([rng.randrange(256)]) * rng.randrange(900)

    # --- the model ------------------------------------------------------------------------------
    def put(self, rows: Rows, row: Row) -> None:
        """Raises: Refused."""
        for name in self.unique:
            key = key_of(row, name)
            if key is not None and any(key_of(each, name) == key for k, each in rows.items() if k != row[0]):
                raise Refused(name)
        rows[row[0]] = row

    def both(self, call: Any, model: Any, rows: Rows) -> None:
        """The same call on store and model: both refuse it for the same index, without trace, or neither does."""
        before = dict(rows)
        said = None
        try:
            model()
        except Refused as error:
            said = str(error)
            rows.clear()
            rows.update(before)
        try:
            call()
            assert said is None, f"{said} was not refused"
        except tm.DuplicateKey as error:
            self.refused += 1
            # A row that breaks two indexes may be refused for either.
            assert said is not None and error.index in self.unique, (said, error)

    def change(self, txn: Any, rows: Rows) -> None:
        rng, draw = self.rng, self.rng.random()
        key = rng.randrange(self.keys)
        if draw < 0.2:
            row = self.row(key)
            self.both(lambda: txn.write(NAME, row), lambda: self.put(rows, row), rows)
        elif draw < 0.35 and key in rows:
            txn.delete(NAME, key)
            del rows[key]
        elif draw < 0.6 and key in rows:
            changes = {name: self.value(name) for name in rng.sample(self.names[1:], rng.randint(1, 3))}
            row = self.changed(rows[key], changes)
            self.both(lambda: txn.update(NAME, key, changes), lambda: self.put(rows, row), rows)
        elif draw < 0.7:
            self.many(txn, rows)
        elif draw < 0.8 and rows:
            self.by_index(txn, rows)
        elif draw < 0.9:
            self.in_savepoint(txn, rows)
        elif self.unique:
            self.upsert(txn, rows)

    def many(self, txn: Any, rows: Rows) -> None:
        rng = self.rng
        if rng.random() < 0.5:
            fresh = [self.row(each) for each in rng.sample(range(self.keys), rng.randint(1, 6))]
            self.both(lambda: txn.write_many(NAME, fresh), lambda: [self.put(rows, row) for row in fresh], rows)
        elif rows:
            some = rng.sample(sorted(rows), min(len(rows), 4))
            changes = [{"id": each, "a": self.value("a"), "n": each} for each in some]
            after = [self.changed(rows[each["id"]], each) for each in changes]
            self.both(lambda: txn.update_many(NAME, changes), lambda: [self.put(rows, row) for row in after], rows)

    def by_index(self, txn: Any, rows: Rows) -> None:
        """A row looked for by its key in one of the indexes, changed or deleted."""
        if not self.unique:
            return
        name = self.rng.choice(self.unique)
        row = self.rng.choice(sorted(rows.values(), key=repr))
        if key_of(row, name) is None:
            return
        key = tuple(row[self.names.index(each)] for each in UNIQUE[name])
        key = key[0] if len(key) == 1 else key
        draw = self.rng.random()
        lock = self.rng.choice([None, "shared", "exclusive"])
        if draw < 0.4:
            assert repr(tuple(txn.get(NAME, key, lock, index=name))) == repr(row)
        elif draw < 0.6:
            many = txn.get_many(NAME, [key, key], ["id"], index=name, lock=lock)
            assert many.column("id").to_pylist() == [row[0]] * 2
        elif draw < 0.8:
            assert txn.update(NAME, key, {"n": tm.col("n") + 1}, index=name)
            rows[row[0]] = self.changed(row, {"n": row[self.names.index("n")] + 1})
        elif self.rng.random() < 0.5:
            assert txn.delete(NAME, key, index=name)
            del rows[row[0]]
        else:
            assert txn.delete_many(NAME, [key], index=name) == 1
            del rows[row[0]]

    def upsert(self, txn: Any, rows: Rows) -> None:
        name = self.rng.choice([None, *self.unique])
        row = self.row(self.rng.randrange(self.keys))
        wanted = key_of(row, name) if name else row[0]
        keys = {k: key_of(each, name) if name else k for k, each in rows.items()}
        held = [rows[k] for k, key in keys.items() if wanted is not None and key == wanted]
        changes = self.rng.choice([None, {"n": tm.col("n") + 7}])
        call: Any = txn.upsert
        if self.rng.random() < 0.5:
            call = lambda table, row, changes, name: txn.upsert_many(  # noqa: E731
                table, [dict(zip(self.names, row, strict=True))], changes, name
            )

        def model() -> None:
            if held and changes is None:
                self.put(rows, (held[0][0], *row[1:]))
            elif held:
                rows[held[0][0]] = self.changed(held[0], {"n": held[0][self.names.index("n")] + 7})
            elif row[0] in rows:
                raise Refused("primary key")
            else:
                self.put(rows, row)

        if held or row[0] not in rows:
            self.both(lambda: self.reported(call(NAME, row, changes, name), not held), model, rows)
            return
        try:
            call(NAME, row, changes, name)
            raise AssertionError("a primary key was there twice")
        except tm.DuplicateKey:
            pass

    def reported(self, answer: Any, is_inserted: bool) -> None:
        assert bool(answer) == is_inserted

    # --- life -----------------------------------------------------------------------------------
    def index(self, *names: str) -> None:
        """Build unique indexes; rows that break one are deleted first."""
        for name in names or UNIQUE:
            seen = set()
            for key, row in list(self.rows.items()):
                value = key_of(row, name)
                if value is not None and value in seen:
                    self.table.delete(key)
                    del self.rows[key]
                seen.add(value)
            self.db.create_index(NAME, name, UNIQUE[name], unique=True, ordered=name in ORDERED)

    def verify_order(self, name: str) -> None:
        """Scans by an ordered index give every row once, in order, NULL first."""
        places = [self.names.index(each) for each in UNIQUE[name]]

        def key(row: Row) -> Any:
            pieces = (row[place] for place in places)
            return [(each is not None, each.encode() if isinstance(each, str) else each or 0) for each in pieces]

        found = [tuple(row) for row in self.table.scan(index=name)]
        back = [tuple(row) for row in self.table.scan(index=name, reverse=True)]
        assert sorted(map(repr, found)) == sorted(map(repr, back)) == sorted(map(repr, self.rows.values()))
        assert [key(row) for row in found] == [key(row) for row in back[::-1]] == sorted(map(key, found))

    def verify(self) -> None:
        """Table, indexes and dict agree; every word has one owner."""
        assert {row[0]: repr(tuple(row)) for row in self.table.scan()} == {k: repr(r) for k, r in self.rows.items()}
        assert self.db.check()["problems"] == []
        for each in self.db.indexes(NAME):
            keyed = sum(key_of(row, each["name"]) is not None for row in self.rows.values())
            assert each["entries"] == (len(self.rows) if each["ordered"] else keyed), each
            if each["ordered"]:
                self.verify_order(each["name"])
        if isinstance(self.table.definition.partition, tm.HashPartition):
            check_arena(self.db)
