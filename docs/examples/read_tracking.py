"""A read at one site conflicts with a change at the other one: the example of MySQL Cluster's manual, in two processes.

    python docs/examples/read_tracking.py [FOLDER]

Cluster A is this process, cluster B a second one; each serves its binlog and follows the other's over TCP. A detects
conflicts with NDB$EPOCH_TRANS. Both scenarios of the manual run twice: with reads that are not tracked, and with
`log_exclusive_reads`. What it prints stands in README.md next to it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import tidemark as tm

HOST = "127.0.0.1:0"
SECRET = b"both clusters know it"
WAIT_MS = 60_000
EMPLOYEE, DEPARTMENT = "test.employee", "test.department"
# What NDB$EPOCH_TRANS asks of both sides: positions are passed on, rows name their transaction, updates are updates.
OPTIONS = {
    "log_bin": "binlog",
    "log_apply_status": True,
    "log_transaction_id": True,
    "log_update_as_write": False,
    "epoch_interval_ms": 40,
    "data_memory": "64 MiB",
    "redo_log": "16 MiB",
}


# --- the schema of the manual -----------------------------------------------------------------------
def make_tables(db: tm.Database) -> None:
    """The tables, how conflicts are found in them, and the rows the manual shows."""
    name = tm.Column("name", tm.VarChar(2000), nullable=True)
    db.create_table(EMPLOYEE, [tm.Column("id", tm.Int32), name, tm.Column("dept", tm.Int32)], primary_key="id")
    members = tm.Column("members", tm.Int32, nullable=True)
    db.create_table(DEPARTMENT, [tm.Column("id", tm.Int32), name, members], primary_key="id")
    for table in (EMPLOYEE, DEPARTMENT):
        db.set_conflict_function(table, "NDB$EPOCH_TRANS", exceptions=True)  # what A refuses is in table$EX
    with db.transaction() as txn:
        txn.insert_many(EMPLOYEE, [(998, "Mike", 3), (999, "Joe", 3), (1000, "Mary", 3)])
        txn.insert(DEPARTMENT, (3, "Old project", 24))


# --- the transactions of the manual -------------------------------------------------------------------
def move_one(db: tm.Database) -> None:
    """Cluster A, first scenario: employee 999 moves into a new department."""
    with db.transaction() as txn:
        txn.insert(DEPARTMENT, (4, "New project", 1))
        txn.update(EMPLOYEE, 999, {"dept": 4})


def leave_one(db: tm.Database, is_tracked: bool) -> None:
    """Cluster B at the same time: reads the employee, and takes them off the old department."""
    with db.transaction(log_exclusive_reads=is_tracked) as txn:
        txn.get(EMPLOYEE, 999, lock="exclusive")
        txn.update(DEPARTMENT, 3, {"members": tm.col("members") - 1})


def move_all(db: tm.Database) -> None:
    """Cluster A, second scenario: all employees move into a new department."""
    with db.transaction() as txn:
        txn.insert(DEPARTMENT, (4, "New project", 0))
        txn.update_where(EMPLOYEE, {"dept": 4}, where=tm.col("dept") == 3)
        count = txn.scan(EMPLOYEE, where=tm.col("dept") == 4).count()
        txn.update(DEPARTMENT, 4, {"members": count})


def count_again(db: tm.Database, is_tracked: bool) -> None:
    """Cluster B at the same time: counts the members of the old department."""
    with db.transaction(log_exclusive_reads=is_tracked) as txn:
        count = len(list(txn.scan(EMPLOYEE, where=tm.col("dept") == 3, lock="exclusive")))
        txn.update(DEPARTMENT, 3, {"members": count})


SCENARIOS = {"one employee moves": (move_one, leave_one), "all employees move": (move_all, count_again)}


# --- cluster B: a process that does what it is told, line by line -----------------------------------------
def cluster_b() -> None:
    """Lines in: [what, ...]; a line out for each: what is asked for, or null."""
    db = serving = channel = None
    for line in sys.stdin:
        what, *given = json.loads(line)
        answer = None
        if what == "open":
            db = tm.open(given[0], server_id=2, **OPTIONS)
            serving = tm.serve(db, HOST, SECRET)
            channel = tm.Channel(given[1], db, secret=SECRET, skip_start=False)
            answer = "{}:{}".format(*serving.address)
        elif what == "pause":
            channel.stop(receiver=False)
        elif what == "transaction":
            SCENARIOS[given[0]][1](db, given[1])
        elif what == "resume":
            channel.start()
            db.wait_applied(db.sync(), WAIT_MS, at=[1])
        elif what == "rows":
            answer = [list(row) for row in db[given[0]].scan()]
        elif what == "close":
            db.close()
        print(json.dumps(answer), flush=True)


class ClusterB:
    """The second process, as the first one sees it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--cluster-b"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *what: object) -> object:
        """Have it done; the answer."""
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        """No more lines: it ends."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


# --- cluster A: this process --------------------------------------------------------------------------
def wait_returned(db: tm.Database, epoch: int) -> None:
    """Return when B has said, in its own binlog, that it has this epoch: it is then A's max replicated epoch."""
    pause = threading.Event()
    while (row := db["mysql.ndb_apply_status"].get(1)) is None or row.epoch < epoch:
        pause.wait(0.005)


def show(title: str, names: tuple[str, ...], rows: list[list[object]]) -> None:
    """A table as a client of MySQL prints it."""
    texts = [list(names), *[[str(value) for value in row] for row in sorted(rows)]]
    widths = [max(len(row[place]) for row in texts) for place in range(len(names))]
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in texts
    ]
    print(title)
    print("\n".join([rule, lines[0], rule, *lines[1:], *([rule] if len(lines) > 1 else [])]))


def play(name: str, is_tracked: bool, folder: Path, b: ClusterB) -> None:
    """One scenario on two new stores."""
    print(f"\n--- {name}, log_exclusive_reads={'on' if is_tracked else 'off'}")
    with tm.open(folder / "a", server_id=1, **OPTIONS) as db:
        make_tables(db)
        serving = tm.serve(db, HOST, SECRET)
        address_of_b = b.ask("open", str(folder / "b"), "{}:{}".format(*serving.address))
        channel = tm.Channel(address_of_b, db, secret=SECRET, skip_start=False)
        first = db.sync()
        db.wait_applied(first, WAIT_MS, at=[2])
        wait_returned(db, db.binlog.newest_epoch)

        # Neither site hears of the other one while the two transactions run.
        channel.stop(receiver=False)
        b.ask("pause")
        SCENARIOS[name][0](db)
        b.ask("transaction", name, is_tracked)
        channel.start()
        b.ask("resume")
        # What A has refused it sends back as it is there.
        db.wait_applied(db.sync(), WAIT_MS, at=[2])

        columns = ["id", "NDB$OP_TYPE", "NDB$CFT_CAUSE"]
        rows = db["test.employee$EX"].scan(columns=columns)
        show("A> SELECT id, NDB$OP_TYPE, NDB$CFT_CAUSE FROM employee$EX;", tuple(columns), [list(row) for row in rows])
        for table in ("department", "employee"):
            names = tuple(column.name for column in db[f"test.{table}"].definition.columns)
            here = [list(row) for row in db[f"test.{table}"].scan()]
            there = b.ask("rows", f"test.{table}")
            assert sorted(here) == sorted(there), "the clusters differ"
            show(f"A, B> SELECT * FROM {table};", names, here)
        rejected = db.status()["replication"]["variables"]["Ndb_conflict_trans_reject_count"]
        print(f"transactions of B that A has refused: {rejected}")
        b.ask("close")


def main() -> None:
    """Both scenarios, each with and without tracking."""
    if "--cluster-b" in sys.argv:
        cluster_b()
        return
    b = ClusterB()
    try:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(sys.argv[1] if len(sys.argv) > 1 else made)
            for number, name in enumerate(SCENARIOS):
                for is_tracked in (False, True):
                    stores = folder / f"{number}{'-tracked' if is_tracked else ''}"
                    stores.mkdir(parents=True)
                    play(name, is_tracked, stores, b)
    finally:
        b.end()


if __name__ == "__main__":
    main()
