"""Random transactions on a store, and their changes of each row by epoch, as the binlog must have them."""

from __future__ import annotations

import copy
import random
from typing import Any

import tidemark as tm
from tests.conformance.images import Images
from tidemark.replication.settings.binlog_type import binlog_type

Row = dict[str, Any]
# (epoch, table, row before, row after), one for each row and transaction, in commit order.
Net = tuple[int, str, Row | None, Row | None]

COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("number", tm.Int32),
    tm.Column("name", tm.VarChar(40), nullable=True),
    tm.Column("text", tm.Text, nullable=True),
]
ON_DISK = [
    tm.Column("id", tm.Int64),
    tm.Column("number", tm.Int32),
    tm.Column("comment", tm.VarChar(60), nullable=True, storage="disk"),
]
KEYS = 12


class History:
    """A store driven by a seed. `tables` have the committed rows, `nets` the changes of each transaction."""

    def __init__(self, db: Any, rng: random.Random, with_disk: bool = False) -> None:
        self.db, self.rng = db, rng
        self.tables: dict[str, dict[int, Row]] = {"d.memory": {}}
        db.create_table("d.memory", COLUMNS, "id")
        if with_disk:
            db.create_tablespace("main", size="4 MiB", page_size="8 KiB", extent="64 KiB")
            db.create_table("d.disk", ON_DISK, "id")
            self.tables["d.disk"] = {}
        self.nets: list[Net] = []

    def _row(self, name: str, key: int) -> Row:
        text = self.rng.choice([None, "", "x" * self.rng.randrange(40)])
        row: Row = {"id": key, "number": self.rng.randrange(5)}
        if name == "d.memory":
            return row | {"name": text, "text": self.rng.choice([None, "", "y" * self.rng.randrange(300)])}
        return row | {"comment": text}

    def _operation(self, txn: Any, now: dict[str, dict[int, Row]]) -> tuple[str, int]:
        rng = self.rng
        name, key = rng.choice(list(now)), rng.randrange(KEYS)
        rows = now[name]
        if key not in rows:
            rows[key] = self._row(name, key)
            txn.insert(name, rows[key])
        elif rng.random() < 0.25:
            del rows[key]
            txn.delete(name, key)
        else:
            fresh = self._row(name, key)
            change = {each: fresh[each] for each in rng.sample([*fresh][1:], rng.randint(1, len(fresh) - 1))}
            rows[key] = rows[key] | change
            txn.update(name, key, change)
        return name, key

    def commit(self, most: int = 4) -> None:
        """Run one transaction, which may change a row several times, or roll back."""
        now = copy.deepcopy(self.tables)
        touched: dict[tuple[str, int], None] = {}
        txn = self.db.transaction()
        for _ in range(self.rng.randint(1, most)):
            touched[self._operation(txn, now)] = None
        if self.rng.random() < 0.1:
            txn.rollback()
            return
        epoch = self.db.parts.store.epochs.current
        txn.commit(True)
        for name, key in touched:
            before, after = self.tables[name].get(key), now[name].get(key)
            if before is not None or after is not None:
                self.nets.append((epoch, name, before, after))
        self.tables = now

    def run(self, transactions: int) -> None:
        """Run transactions; close epochs now and then, and at the end."""
        for _ in range(transactions):
            self.commit()
            if self.rng.random() < 0.3:
                self.db.sync()
        self.db.sync()

    def expected(self, number: int) -> list[tuple[Any, ...]]:
        """Return (epoch, table, event, image before, image after) of every row event that must be logged."""
        kind = Images(binlog_type(number)[0])
        found: list[tuple[Any, ...]] = []
        for epoch, name, before, after in self.nets:
            columns = [*(before or after or {})]
            if before is None:
                image = kind.insert(columns, {"id"})
            elif after is None:
                image = kind.delete(columns, {"id"})
            else:
                changed = [each for each in columns if before[each] != after[each]]
                if not changed:
                    continue
                image = kind.update(columns, {"id"}, changed)
            found.append((epoch, name, image.event, _part(before, image.before), _part(after, image.after)))
        return found if kind.how.is_logged else []


def _part(row: Row | None, names: tuple[str, ...] | None) -> Row | None:
    return None if names is None or row is None else {name: row[name] for name in names}
