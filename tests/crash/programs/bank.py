"""The built-in program of several threads: transfers between accounts, each with its own trace.

Every transaction moves money between two accounts and writes one row of the journal under (thread, sequence). A later
transfer removes old journal rows and adds what they moved to the table of settled sums, in the same transaction. So
balance = start + settled + what the journal moves, for every account, exactly when every transaction is there whole or
not at all. Thread 0 also makes local checkpoints, and makes and drops tables.

Ledger lines: "paid THREAD SEQUENCE", "made TABLE", "dropped TABLE". At the start every thread acknowledges what it
found: a state once shown by a restart must stay.

`disk_work` has balances twice, in memory and on disk pages; notes and the journal's amounts are on disk pages too. Its
caches have 25 frames, and GCIs, local checkpoints and a filtered UNDO log continue meanwhile.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from typing import Any, Literal

from tidemark.engine.base.errors import Error
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Int32, Int64, Text
from tidemark.recovery.crash_harness.program import Ledger, OpenStore

THREADS = 4
ACCOUNTS = 40
START_BALANCE = 1_000
JOURNAL_KEPT = 30
SCRATCH = "bank.scratch"
LCP_SHARE = 0.02
DDL_SHARE = 0.02
RETRIES = 1_000

# Pages of 4 KiB, 25 of them in memory. UNDO is made as fast as the disk takes it, so local checkpoints come often.
DISK_OPTIONS = {"page_buffer": "64 KiB", "undo_log": "4 MiB", "checkpoint_interval_ms": 150, "page_flush_rate": 0}
DISK_SPACE = {"size": "128 KiB", "page_size": "4 KiB", "extent": "32 KiB"}


Tables = dict[str, tuple[list[Column], tuple[str, ...]]]


def tables_of(storage: Literal["memory", "disk"]) -> Tables:
    """Columns and key by name; `storage` is where the values lie that may lie on disk."""
    return {
        "bank.account": (
            [
                Column("id", Int32),
                Column("balance", Int64),
                Column("shown", Int64, storage=storage),  # the balance again
                Column("note", Text, nullable=True, storage=storage),
            ],
            ("id",),
        ),
        "bank.settled": ([Column("id", Int32), Column("moved", Int64, storage=storage)], ("id",)),
        "bank.journal": (
            [
                Column("thread", Int32),
                Column("sequence", Int64),
                Column("source", Int32),
                Column("target", Int32),
                Column("amount", Int64, storage=storage),
            ],
            ("thread", "sequence"),
        ),
    }


TABLES = tables_of("memory")


class _Teller(threading.Thread):
    """One thread of transfers."""

    def __init__(self, db: Any, number: int, seed: int, ledger: Ledger, transfers: int) -> None:
        super().__init__(name=f"teller-{number}")
        self.db = db
        self.number = number
        self.rng = random.Random(f"{seed} {number}")
        self.ledger = ledger
        self.transfers = transfers
        self.scratch: list[str] = []
        self.label = f"{seed}_{number}"
        self.failed: Error | None = None
        # Decided before any thread writes.
        self.kept = {row.sequence: row for row in db["bank.journal"].scan() if row.thread == number}
        self.sequence = max(self.kept, default=0) + 1

    def run(self) -> None:
        try:
            self.found()
            for _ in range(self.transfers):
                self.step()
        except Error as error:
            self.failed = error

    def found(self) -> None:
        """From now on, the state shown by the restart is promised."""
        self.ledger.acknowledge(f"paid {self.number} {self.sequence - 1}")
        if self.number == 0:
            self.scratch = [name for name in self.db.tables() if name.startswith(SCRATCH)]
            for name in self.scratch:
                self.ledger.acknowledge(f"made {name}")

    def step(self) -> None:
        """One transfer, and for thread 0 now and then something else before it."""
        draw = self.rng.random() if self.number == 0 else 1.0
        if draw < LCP_SHARE:
            self.db.checkpoint()
        elif draw < LCP_SHARE + DDL_SHARE:
            self.ddl()
        source, target = self.rng.sample(range(ACCOUNTS), 2)
        amount = self.rng.randrange(1, 50)
        self.db.run(lambda txn: self.transfer(txn, source, target, amount), RETRIES)
        self.kept[self.sequence] = (self.number, self.sequence, source, target, amount)
        self.kept.pop(self.sequence - JOURNAL_KEPT, None)
        self.ledger.acknowledge(f"paid {self.number} {self.sequence}")
        self.sequence += 1

    def transfer(self, txn: Any, source: int, target: int, amount: int) -> None:
        """One transaction; accounts in order of their numbers, so that no two wait for each other."""
        moves = {source: -amount, target: amount}
        for account in sorted(moves):
            row = txn.get("bank.account", account, lock="exclusive")
            note = "n" * self.rng.randrange(3_000) if self.rng.random() < 0.1 else row.note
            balance = row.balance + moves[account]
            txn.update("bank.account", account, {"balance": balance, "shown": balance, "note": note})
        txn.insert("bank.journal", (self.number, self.sequence, source, target, amount))
        old = self.kept.get(self.sequence - JOURNAL_KEPT)
        if old is not None:
            _, sequence, source, target, amount = old
            txn.delete("bank.journal", (self.number, sequence))
            for account, moved in sorted({source: -amount, target: amount}.items()):
                row = txn.get("bank.settled", account, lock="exclusive")
                txn.update("bank.settled", account, {"moved": row.moved + moved})

    def ddl(self) -> None:
        """Make a table with a row, or drop one."""
        if len(self.scratch) > 2:
            name = self.scratch.pop(0)
            self.ledger.begin(f"dropped {name}")
            self.db.drop_table(name)
            self.ledger.acknowledge(f"dropped {name}")
            return
        name = f"{SCRATCH}_{self.label}_{self.sequence}"
        self.ledger.begin(f"made {name}")
        self.db.create_table(name, [Column("id", Int64)], primary_key="id", partition=HashPartition(2))
        self.ledger.acknowledge(f"made {name}")
        self.scratch.append(name)


def _prepare(db: Any, tables: Tables) -> None:
    """Make the tables and fill them, whatever an earlier attempt got done."""
    for name, (columns, key) in tables.items():
        if name not in db:
            db.create_table(name, columns, primary_key=key, partition=HashPartition(2))
    if len(db["bank.account"]) == 0:
        with db.transaction() as txn:
            for number in range(ACCOUNTS):
                txn.insert("bank.account", (number, START_BALANCE, START_BALANCE, None))
                txn.insert("bank.settled", (number, 0))


def work(open_store: OpenStore, seed: int, ledger: Ledger, transfers: int = 1 << 40) -> None:
    """The program: transfers until it is killed, or so many by each thread."""
    db = open_store(data_memory="16 MiB", redo_log="2 MiB", epoch_interval_ms=5, gcp_interval_ms=20)
    _prepare(db, TABLES)
    _transfer(db, seed, ledger, transfers)


def disk_work(open_store: OpenStore, seed: int, ledger: Ledger, transfers: int = 1 << 40) -> None:
    """The program with disk columns."""
    db = open_store(data_memory="16 MiB", redo_log="2 MiB", epoch_interval_ms=5, gcp_interval_ms=20, **DISK_OPTIONS)
    if "main" not in db.tablespaces():
        db.create_tablespace("main", **DISK_SPACE)
    _prepare(db, tables_of("disk"))
    _transfer(db, seed, ledger, transfers)


def _transfer(db: Any, seed: int, ledger: Ledger, transfers: int) -> None:
    """All threads, until they have done their transfers."""
    tellers = [_Teller(db, number, seed, ledger, transfers) for number in range(THREADS)]
    for teller in tellers:
        teller.start()
    for teller in tellers:
        teller.join()
    failed = [teller.failed for teller in tellers if teller.failed is not None]
    if failed:
        raise failed[0]
    db.close()


def verify(db: Any, ledger: Ledger) -> list[str]:
    """Every violation of the promises above."""
    found = _verify_tables(db, ledger)
    missing = [name for name in TABLES if name not in db]
    if missing or len(db["bank.account"]) == 0:
        return [*found, f"{len(missing)} tables are gone"] if ledger.acknowledged else found
    journal = [tuple(row) for row in db["bank.journal"].scan()]
    return [*found, *_verify_sequences(journal, ledger), *_verify_balances(db, journal)]


def _verify_tables(db: Any, ledger: Ledger) -> list[str]:
    present = {name for name in db.tables() if name.startswith(SCRATCH)}
    made, dropped = set(), set()
    for line in ledger.acknowledged:
        if line.startswith("made "):
            made.add(line[5:])
        elif line.startswith("dropped "):
            dropped.add(line[8:])
    going = {line[8:] for line in ledger.under_way if line.startswith("dropped ")}
    coming = {line[5:] for line in ledger.under_way if line.startswith("made ")}
    lost = made - dropped - going - present
    risen = present - (made - dropped) - coming
    return [f"table {name} is lost" for name in sorted(lost)] + [f"table {name} is back" for name in sorted(risen)]


def _verify_sequences(journal: list[tuple[int, ...]], ledger: Ledger) -> list[str]:
    """Each thread's newest rows without a gap, ending with the acknowledged one or the next one."""
    last: dict[int, int] = {}
    for line in ledger.acknowledged:
        if line.startswith("paid "):
            _, teller, sequence = line.split()
            last[int(teller)] = int(sequence)
    found = []
    for thread in range(THREADS):
        held = sorted(row[1] for row in journal if row[0] == thread)
        newest = held[-1] if held else 0
        if held != list(range(max(1, newest - JOURNAL_KEPT + 1), newest + 1)):
            found.append(f"thread {thread}: {len(held)} journal rows up to {newest} are not the newest without a gap")
        if not 0 <= newest - last.get(thread, 0) <= 1:
            found.append(f"thread {thread}: the journal ends at {newest}, acknowledged was {last.get(thread, 0)}")
    return found


def _verify_balances(db: Any, journal: list[tuple[int, ...]]) -> list[str]:
    """Balance = start + settled + journal, for every account."""
    moved: Counter[int] = Counter()
    for _, _, source, target, amount in journal:
        moved[source] -= amount
        moved[target] += amount
    settled = {row.id: row.moved for row in db["bank.settled"].scan()}
    balances = {row.id: row.balance for row in db["bank.account"].scan()}
    if sorted(balances) != list(range(ACCOUNTS)) or sorted(settled) != list(range(ACCOUNTS)):
        return [f"{len(balances)} accounts and {len(settled)} settled sums, {ACCOUNTS} of each were made"]
    half = sorted(row.id for row in db["bank.account"].scan() if row.shown != row.balance)
    if half:
        return [f"account {half[0]} has another balance on its page than in memory ({len(half)} accounts)"]
    wrong = [id for id, balance in balances.items() if balance != START_BALANCE + settled[id] + moved[id]]
    return [f"account {id} shows {balances[id]}: half a transaction" for id in wrong]
