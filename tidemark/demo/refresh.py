"""The process that is killed: four threads of refresh transactions, each acknowledged on standard output.

`python -m tidemark.demo.refresh DIRECTORY SEED`. A line "thread sequence" is printed after the commit has returned,
never before; at intervals a line of JSON has the figures of page buffer and UNDO log. Each thread works on the orders
whose key modulo the number of threads is its own number, so the expected state of each order is known.
"""

from __future__ import annotations

import datetime
import json
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

import tidemark as tm
from tidemark.demo.data import PAGE_BUFFER_BYTES, changed_comment, disk_figures, line_cents
from tidemark.engine.base.clock import SystemClock

THREADS = 4
FIRST_NEW_KEY = 100_000_000
LINES_MAX = 7
FIGURES_SECONDS = 2.0
DAY = datetime.date(1998, 1, 1)


def whole_cents(value: Decimal) -> int:
    """Cents of a Decimal(15, 2)."""
    return int(value.scaleb(2))


class Refresher:
    """The work of one thread."""

    def __init__(self, db: tm.Database, number: int, seed: int, keys: list[int], sequence: int, acks: Any) -> None:
        self.db = db
        self.number = number
        self.rng = np.random.default_rng([seed, number])
        self.keys = keys
        self.sequence = sequence
        self.next_key = FIRST_NEW_KEY + sequence * THREADS + number
        self.acks = acks

    def run(self) -> None:
        """Run transactions until the process is killed."""
        work = (self.insert_order, self.delete_order, self.change_price)
        while True:
            # This thread's state changes only after the commit has returned, so an attempt that is retried changes
            # nothing.
            remember = self.db.run(work[int(self.rng.integers(0, 3))])
            remember()
            self.acks(f"{self.number} {self.sequence}\n")
            self.sequence += 1

    def log(self, txn: tm.Transaction, operation: str, key: int, lines: int, total: int) -> None:
        txn.insert("tpch.refresh_log", (self.number, self.sequence, operation, key, lines, total))

    def line(self, key: int, number: int) -> tuple[Any, ...]:
        price, discount, tax = (int(value) for value in self.rng.integers((90_000, 0, 0), (10_000_000, 11, 9)))
        quantity = Decimal(int(self.rng.integers(1, 51)))
        money = (Decimal(price).scaleb(-2), Decimal(discount).scaleb(-2), Decimal(tax).scaleb(-2))
        comment = changed_comment(price)
        return (key, 1, 1, number, quantity, *money, "N", "O", DAY, DAY, DAY, "NONE", "MAIL", comment)

    def insert_order(self, txn: tm.Transaction) -> Callable[[], None]:
        """RF1: insert a new order with its lines."""
        key = self.next_key
        lines = [self.line(key, number) for number in range(1, int(self.rng.integers(2, LINES_MAX + 2)))]
        total = sum(line_cents(*(whole_cents(value) for value in line[5:8])) for line in lines)
        price = Decimal(total).scaleb(-2)
        comment = changed_comment(total)
        txn.insert("tpch.orders", (key, 1, "O", price, DAY, "1-URGENT", "Clerk#000000001", 0, comment))
        for line in lines:
            txn.insert("tpch.lineitem", line)
        self.log(txn, "insert", key, len(lines), total)

        def remember() -> None:
            self.next_key = key + THREADS
            self.keys.append(key)

        return remember

    def lines_of(self, txn: tm.Transaction, key: int) -> list[Any]:
        found = (txn.get("tpch.lineitem", (key, number)) for number in range(1, LINES_MAX + 1))
        return [line for line in found if line is not None]

    def delete_order(self, txn: tm.Transaction) -> Callable[[], None]:
        """RF2: delete an old order and its lines."""
        place = int(self.rng.integers(0, len(self.keys)))
        key = self.keys[place]
        txn.delete("tpch.orders", key)
        for line in self.lines_of(txn, key):
            txn.delete("tpch.lineitem", (key, line.l_linenumber))
        self.log(txn, "delete", key, 0, 0)

        def remember() -> None:
            self.keys[place] = self.keys[-1]
            self.keys.pop()

        return remember

    def change_price(self, txn: tm.Transaction) -> Callable[[], None]:
        """Change a line's price, and the order's total with it; the comments of both repeat the prices."""
        key = self.keys[int(self.rng.integers(0, len(self.keys)))]
        order: Any = txn.get("tpch.orders", key, lock="exclusive")
        lines = self.lines_of(txn, key)
        line = lines[int(self.rng.integers(0, len(lines)))]
        price = int(self.rng.integers(90_000, 10_000_000))
        rates = (whole_cents(line.l_discount), whole_cents(line.l_tax))
        old = line_cents(whole_cents(line.l_extendedprice), *rates)
        total = whole_cents(order.o_totalprice) - old + line_cents(price, *rates)
        changes = {"l_extendedprice": Decimal(price).scaleb(-2), "l_comment": changed_comment(price, line.l_comment)}
        txn.update("tpch.lineitem", (key, line.l_linenumber), changes)
        changes = {"o_totalprice": Decimal(total).scaleb(-2), "o_comment": changed_comment(total, order.o_comment)}
        txn.update("tpch.orders", key, changes)
        self.log(txn, "update", key, len(lines), total)
        return lambda: None


def main(directory: str, seed: int) -> None:
    db = tm.open(directory, checkpoint_interval_ms=3_000, page_buffer=PAGE_BUFFER_BYTES)
    keys = np.asarray(db["tpch.orders"].to_arrow(["o_orderkey"]).column(0))
    done = db["tpch.refresh_log"].to_arrow(["thread", "sequence"])
    threads, sequences = np.asarray(done.column(0)), np.asarray(done.column(1))
    turn = threading.Lock()

    def acknowledge(line: str) -> None:
        with turn:
            sys.stdout.write(line)
            sys.stdout.flush()

    for number in range(THREADS):
        mine = sequences[threads == number]
        first = int(mine.max()) + 1 if mine.size else 1
        own = keys[keys % THREADS == number].tolist()
        refresher = Refresher(db, number, seed, own, first, acknowledge)
        threading.Thread(target=refresher.run, name=f"refresh-{number}").start()
    clock = SystemClock()
    while True:
        clock.sleep(FIGURES_SECONDS)
        acknowledge(json.dumps(disk_figures(db)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
