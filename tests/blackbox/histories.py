"""Records what concurrent clients do and see, and checks it (`anomalies`).

Three places: threads of one process; clients over TCP of a process that is killed; clients of a node group whose
processes are killed. Clients append to lists and read them in transactions of several steps. Beside them, tellers move
money between accounts, and a stamper writes one number into every row of a table, in one commit: a reader of a whole
table with one call must find what one state has.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import tidemark as tm
from tests.blackbox.anomalies import ABORTED, APPEND, COMMITTED, READ, UNKNOWN, Anomaly, Recorded, check
from tests.blackbox.judge import RAW
from tidemark.engine.base.clock import SystemClock

LISTS, ACCOUNTS, STAMPS, REGISTER = "lists", "account", "stamp", "register"
PAD_BYTES = 2_000  # so that writing takes time
SLOTS = 6  # lists that are in use
APPENDS_MAX = 60  # of one list; then the next one begins
ACCOUNT_ROWS, BALANCE = 200, 100
STAMP_ROWS = 8_000  # in one commit, which is applied in slices
PAIRS = 20
CLOCK = SystemClock()
Connect = Callable[[], Any]


def make_tables(db: Any) -> None:
    """Make the tables that all clients use."""
    db.create_table(LISTS, [tm.Column("id", tm.Int64), tm.Column("items", tm.Text)], "id")
    columns = [tm.Column("id", tm.Int64), tm.Column("balance", tm.Int64), tm.Column("owner", tm.VarChar(9))]
    db.create_table(ACCOUNTS, columns, "id")
    db[ACCOUNTS].insert_many([(number, BALANCE, f"o{number}") for number in range(ACCOUNT_ROWS)])
    db.create_table(STAMPS, [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64)], "id")
    db[STAMPS].insert_many([(number, 0) for number in range(STAMP_ROWS)])
    columns = [tm.Column("id", tm.Int64), tm.Column("n", tm.Int64), tm.Column("token", tm.Int64)]
    db.create_table(REGISTER, [*columns, tm.Column("pad", tm.VarBinary(PAD_BYTES))], "id")
    db[REGISTER].insert((1, 0, 0, b""))


def listed(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split())) if text else ()


class Recorder:
    """What all clients did, and what was seen that must not be."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.history: list[Recorded] = []
        self.found: list[Anomaly] = []
        self.counts: Counter[str] = Counter()
        self.values = 0
        self.generations = [0] * SLOTS
        self.stop = threading.Event()
        self.pending: list[tuple[Recorded, int]] = []  # transactions of unknown outcome with their txid
        self.mutex = threading.Lock()
        self.transactions_max = 0
        # Of the register: tokens by number, of acknowledged writes and of committed reads.
        self.acknowledged: dict[int, set[int]] = defaultdict(set)
        self.seen: dict[int, set[int]] = defaultdict(set)

    def key(self, rng: random.Random) -> int:
        slot = rng.randrange(SLOTS)
        return self.generations[slot] * SLOTS + slot

    def value(self) -> int:
        with self.mutex:
            self.values += 1
            return self.values

    def is_over(self) -> bool:
        return self.stop.is_set() or (0 < self.transactions_max <= len(self.history))

    def note(self, txn: Recorded) -> None:
        with self.mutex:
            self.history.append(txn)
            self.counts[txn.outcome] += 1

    def see(self, name: str, text: str) -> None:
        with self.mutex:
            self.found.append(Anomaly(name, text))


class Client:
    """One client: a thread with a connection that is made again when it breaks."""

    isolation: Any = "read committed"
    lock: Any = "exclusive"  # before a list is read to be changed

    def __init__(self, number: int, recorder: Recorder, connect: Connect) -> None:
        self.number = number
        self.recorder = recorder
        self.connect = connect
        self.rng = random.Random(f"{recorder.seed} {number}")
        self.db: Any = None

    def run(self) -> None:
        """Make transactions until it is over."""
        try:
            while not self.recorder.is_over():
                if self.db is None:
                    try:
                        self.db = self.connect()
                    except tm.Error:
                        self.recorder.stop.wait(0.02)
                        continue
                try:
                    self.turn()
                except (tm.PeerError, tm.PrimaryLost, tm.StoreFailed, tm.NotPrimary, tm.OutcomeUnknown):
                    self.drop()
                except tm.Retryable:
                    self.recorder.counts["tried again"] += 1
        except (*RAW, tm.Error) as error:
            self.recorder.see("error", f"client {self.number}: {type(error).__name__}: {error}")
            self.recorder.stop.set()
        finally:
            self.drop()

    def drop(self) -> None:
        if self.db is not None and hasattr(self.db, "links"):
            with suppress(tm.Error):
                self.db.close()
        self.db = None

    def turn(self) -> None:
        """One transaction on lists."""
        made = Recorded(self.number, begin=CLOCK.monotonic(), is_snapshot=self.isolation == "snapshot")
        txn = self.db.transaction(isolation=self.isolation)
        try:
            try:
                for _ in range(self.rng.randrange(1, 5)):
                    self.one(txn, made)
                if self.rng.random() < 0.08:
                    txn.rollback()
                    made.outcome = ABORTED
            except BaseException:
                made.outcome = ABORTED
                with suppress(tm.Error):
                    txn.rollback()
                raise
            if made.outcome != ABORTED:
                self.commit(txn, made)
        finally:
            made.end = CLOCK.monotonic()
            self.recorder.note(made)

    def commit(self, txn: Any, made: Recorded) -> None:
        try:
            txn.commit()
            made.outcome = COMMITTED
        except (tm.OutcomeUnknown, tm.StoreFailed):
            with self.recorder.mutex:
                self.recorder.pending.append((made, txn.txid))
            raise
        except tm.Error:
            made.outcome = ABORTED
            raise

    def one(self, txn: Any, made: Recorded) -> None:
        recorder, rng = self.recorder, self.rng
        key = recorder.key(rng)
        if rng.random() < 0.5:
            row = txn.get(LISTS, key, lock=rng.choice((None, None, "shared")))
            made.operations.append((READ, key, listed(row and row.items)))
            return
        row = txn.get(LISTS, key, lock=self.lock)
        value = recorder.value()
        # Noted before it is done: a transaction that is lost may have done it.
        made.operations.append((APPEND, key, value))
        if row is None:
            txn.insert(LISTS, (key, str(value)))
        else:
            txn.update(LISTS, key, {"items": f"{row.items} {value}"})
            if row.items.count(" ") > APPENDS_MAX:
                slot = key % SLOTS
                recorder.generations[slot] = max(recorder.generations[slot], key // SLOTS + 1)


class Appender(Client):
    """A client of lists that meets the insert of another."""

    def turn(self) -> None:
        with suppress(tm.DuplicateKey):
            super().turn()


class SnapshotAppender(Appender):
    """An appender that locks nothing before it writes what it has read: the first committer wins."""

    isolation = "snapshot"
    lock = None

    def one(self, txn: Any, made: Recorded) -> None:
        if self.rng.random() < 0.6:  # reads more lists than it changes
            key = self.recorder.key(self.rng)
            row = txn.get(LISTS, key)
            made.operations.append((READ, key, listed(row and row.items)))
        else:
            super().one(txn, made)


class Reader(Client):
    """A client that reads lists only, in transactions that it commits, and one by one."""

    def one(self, txn: Any, made: Recorded) -> None:
        key = self.recorder.key(self.rng)
        row = txn.get(LISTS, key)
        made.operations.append((READ, key, listed(row and row.items)))


class Teller(Client):
    """Moves money; the sum stays."""

    def turn(self) -> None:
        one, other = self.rng.sample(range(ACCOUNT_ROWS), 2)
        with self.db.transaction() as txn:
            txn.update(ACCOUNTS, one, {"balance": tm.col("balance") - 1})
            txn.update(ACCOUNTS, other, {"balance": tm.col("balance") + 1})
        self.recorder.counts["transfers"] += 1


class Stamper(Client):
    """Writes one number into each row of a table, in one commit; only one of them may run."""

    stamp = 0

    def turn(self) -> None:
        row = self.db[STAMPS].get(0)
        self.stamp = max(self.stamp, row.n) + 1
        with self.db.transaction() as txn:
            txn.update_where(STAMPS, {"n": self.stamp})
        self.recorder.counts["stamps"] += 1


class Registrar(Client):
    """Counts the register up, each time with another token."""

    def turn(self) -> None:
        token = self.recorder.value()
        with self.db.transaction() as txn:
            number = txn.get(REGISTER, 1, lock="exclusive").n + 1
            txn.update(REGISTER, 1, {"n": number, "token": token, "pad": self.rng.randbytes(PAD_BYTES)})
        self.recorder.acknowledged[number].add(token)
        self.recorder.counts["registered"] += 1


class Watcher(Client):
    """Reads the register in transactions that are committed."""

    def turn(self) -> None:
        with self.db.transaction() as txn:
            row = txn.get(REGISTER, 1, lock=self.rng.choice((None, "shared")))
        self.recorder.seen[row.n].add(row.token)
        self.recorder.counts["watched"] += 1


class Auditor(Client):
    """Reads whole tables with one call, and two rows of one commit with two."""

    def turn(self) -> None:
        way = self.rng.choice(("sum", "like", "arrow", "iteration", "pairs", "stamps", "count"))
        total = ACCOUNT_ROWS * BALANCE
        self.recorder.counts["audits"] += 1
        if way == "pairs":
            self.pairs()
            return
        if way == "stamps":
            values = set(self.db[STAMPS].to_arrow(["n"])["n"].to_pylist())
            if len(values) > 1:
                self.torn("to_arrow of stamps", f"{sorted(values)[:3]}")
            return
        account = self.db[ACCOUNTS]
        if way == "count":
            found, total = account.scan().count(), ACCOUNT_ROWS
        elif way == "sum":
            found = account.scan().sum("balance")
        elif way == "like":
            found = account.scan(where=tm.col("owner").like("o%")).sum("balance")
        elif way == "arrow":
            found = sum(account.to_arrow(["balance"])["balance"].to_pylist())
        else:
            found = sum(row.balance for row in account.scan())
        if found != total:
            self.torn(way, f"{found}, right is {total}")

    def pairs(self) -> None:
        for _ in range(PAIRS):
            first, last = self.rng.choice(((0, STAMP_ROWS - 1), (STAMP_ROWS - 1, 0)))
            with self.db.transaction() as txn:
                one, other = txn.get(STAMPS, first).n, txn.get(STAMPS, last).n
            if other < one:
                self.recorder.see("half a commit", f"row {first} has stamp {one}, then row {last} has {other}")

    def torn(self, way: str, text: str) -> None:
        self.recorder.see("torn scan", f"{way}: {text}")


def clients(recorder: Recorder, connect: Connect, kinds: Counter[type[Client]]) -> list[threading.Thread]:
    """Start clients; return their threads."""
    made = [kind(number, recorder, connect) for number, kind in enumerate(kinds.elements())]
    threads = [threading.Thread(target=each.run, name=f"{type(each).__name__} {each.number}") for each in made]
    for each in threads:
        each.start()
    return threads


def judged(recorder: Recorder, db: Any) -> list[Anomaly]:
    """Ask for outcomes that are unknown, read the end, and return all anomalies."""
    for made, txid in recorder.pending:
        with suppress(tm.Error):
            outcome = db.outcome(txid)
            made.outcome = outcome if outcome in (COMMITTED, ABORTED) else UNKNOWN
    final = {row.id: listed(row.items) for row in db[LISTS].scan()}
    anomalies = [*recorder.found, *check(recorder.history, final), *of_register(recorder, db[REGISTER][1])]
    total = db[ACCOUNTS].scan().sum("balance")
    if total != ACCOUNT_ROWS * BALANCE:
        anomalies.append(Anomaly("sum", f"{total} at the end"))
    stamps = set(db[STAMPS].to_arrow(["n"])["n"].to_pylist())
    if len(stamps) != 1:
        anomalies.append(Anomaly("half a commit", f"stamps {sorted(stamps)[:4]} at the end"))
    return anomalies


def of_register(recorder: Recorder, final: Any) -> list[Anomaly]:
    """Return what is wrong with the register: each of its numbers has one token for ever."""
    found = []
    for number in {*recorder.acknowledged, *recorder.seen}:
        done, seen = recorder.acknowledged.get(number, set()), recorder.seen.get(number, set())
        if len(done) > 1 or (done and number > final.n):
            found.append(Anomaly("lost write", f"register {number} was acknowledged as {done}, the end is {final.n}"))
        elif len(done | seen) > 1 or number > final.n:
            text = f"register {number} was read as {seen}, written as {done or 'nothing'}, the end is {final.n}"
            found.append(Anomaly("read, then gone", text))
    return found


ALL: Counter[type[Client]] = Counter(
    {Appender: 3, SnapshotAppender: 2, Reader: 1, Teller: 1, Stamper: 1, Auditor: 1},
)


SWITCH_SECONDS = 0.0002


def in_threads(folder: str, seed: int, transactions: int, **options: Any) -> tuple[list[Anomaly], Recorder]:
    """Threads of this process on one store."""
    sys.setswitchinterval(SWITCH_SECONDS)  # more orders of threads
    recorder = Recorder(seed)
    recorder.transactions_max = transactions
    given = {"data_memory": "64 MiB", "redo_log": "64 MiB", "transaction_memory": "64 KiB", **options}
    with tm.open(f"{folder}/store", **given) as db:
        make_tables(db)
        for each in clients(recorder, lambda: db, ALL):
            each.join()
        return judged(recorder, db), recorder


@contextmanager
def ended(threads: list[threading.Thread], recorder: Recorder) -> Iterator[None]:
    """End the clients in any case."""
    try:
        yield
    finally:
        recorder.stop.set()
        for each in threads:
            each.join()
