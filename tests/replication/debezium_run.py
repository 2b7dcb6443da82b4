"""`python -m tests.replication.debezium_run DIRECTORY`: Debezium follows a store under load, killed again and again.

The store in DIRECTORY has a table with every type and tables with keys of other types. A thread commits inserts,
updates and deletes at a rate. The engine reads a snapshot and then the stream, is killed within both, and continues
from its offsets. In the end what all its events add up to must be the store (`debezium_state.State`). Exit code 1 at
the first broken promise.
"""

from __future__ import annotations

import argparse
import datetime
import decimal
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import tidemark as tm
from tests.replication.debezium_rig import Run, heard, need_debezium, properties_of, running
from tests.replication.debezium_state import Broken, State
from tests.replication.mysql_port_rig import HOST, OPTIONS, USERS
from tests.replication.support import EXTREMES, every_type
from tidemark.engine import types as t

RATE = 200
FIRST_ROWS = 1_500
LAST_S = 240
LONG = 1_000  # longer values are rare, for the rate is of commits
END_KEY = (1 << 64) - 1
_PIECES = ("a", "Z", " ", "é", "ß", "\U0001f40b", "'", '"', "\\", "\n", "\t", "%", "`", "\x1f", "0")


# --- values ----------------------------------------------------------------------------------------
def value_of(kind: Any, rng: random.Random) -> Any:
    """Return NULL, an extreme, or any other value of a type."""
    if rng.random() < 0.1:
        return None
    other = _others(kind, rng)
    if other is not None and rng.random() < 0.6:
        return other
    while True:
        found = rng.choice(EXTREMES.get(kind) or kind.members)
        if len(str(found)) <= LONG or rng.random() < 0.02:
            return found


def _others(kind: Any, rng: random.Random) -> Any:
    """Return a random value; None for types whose extremes are all that matters."""
    if isinstance(kind, t.Integer):
        return rng.randint(kind.minimum, kind.maximum) >> rng.randrange(kind.bits)
    if isinstance(kind, t.Floating):
        return rng.choice([rng.gauss(0, 1e6), rng.random(), float("inf"), float("-inf"), float("nan")])
    if isinstance(kind, t.Decimal):
        return decimal.Decimal(rng.randint(1 - 10**kind.precision, 10**kind.precision - 1)).scaleb(
            -kind.scale, decimal.Context(prec=100)
        )
    if isinstance(kind, (t.Char, t.VarChar)):
        return "".join(rng.choices(_PIECES, k=rng.randint(0, min(kind.length, 40))))
    if isinstance(kind, (t.Binary, t.VarBinary)):
        return rng.randbytes(rng.randint(0, min(kind.length, 40))).rstrip(b"\0")
    if isinstance(kind, t.LongText):
        return "".join(rng.choices(_PIECES, k=rng.randint(0, 200)))
    if isinstance(kind, t.LongBinary):
        return rng.randbytes(rng.randint(0, 200))
    days = datetime.timedelta(days=rng.randrange(3_652_059), microseconds=rng.randrange(86_400_000_000))
    if isinstance(kind, t.CalendarDate):
        return (datetime.datetime.min + days).date()
    if isinstance(kind, t.TimeOfDay):
        return (datetime.datetime.min + days).time()
    if isinstance(kind, t.LocalDateTime):
        return datetime.datetime.min + days
    if isinstance(kind, t.Instant):
        return (datetime.datetime.min + days).replace(tzinfo=datetime.UTC)
    return None


# --- a store under load ----------------------------------------------------------------------------
# Debezium reads the members of an ENUM from the statement, and not as a server does: those with a comma or a backslash
# come from the stream with one more backslash.
EVERY = [*every_type(name="shop.every").columns]
PAIR = [
    *(tm.Column("word", tm.VarChar(20)), tm.Column("part", tm.Int16)),
    *(tm.Column("größe", tm.Float64, nullable=True), tm.Column("select", tm.Enum("it's", "a b", "é%"), nullable=True)),
]
BIG = [tm.Column("number", tm.UInt64), tm.Column("at", tm.Timestamp, nullable=True)]


def make_tables(db: tm.Database) -> None:
    db.create_table("shop.every", EVERY, "id")
    db.create_table("shop.pair", PAIR, ["word", "part"])
    db.create_table("shop.big", BIG, "number")


class Load:
    """Commits of one thread: mostly to the table with every type, each a change of one row or of a few."""

    def __init__(self, db: tm.Database, seed: int) -> None:
        self.db = db
        self._rng = random.Random(seed)
        self._keys: dict[str, list[Any]] = {name: [] for name in db.tables()}
        self._next = 0
        self.commits = 0
        self.seconds = 0.0  # of the thread
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def fill(self, rows: int) -> None:
        """Insert rows, in commits of a hundred."""
        for _ in range(rows // 100):
            with self.db.transaction() as txn:
                for _ in range(100):
                    self._insert(txn)

    def commit(self) -> None:
        rng = self._rng
        with self.db.transaction() as txn:
            for _ in range(rng.choice((1, 1, 1, 1, 2, 5))):
                rng.choice((self._insert, self._insert, self._update, self._update, self._delete))(txn)
        self.commits += 1

    def begin(self, rate: float = RATE) -> None:
        """Begin the thread; it commits at a rate until `end`."""
        self._thread = threading.Thread(target=self._run, args=(rate,), name="load")
        self._thread.start()

    def end(self) -> None:
        """End the thread. Raises: what the thread has raised."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, rate: float) -> None:
        begun_s = monotonic()
        try:
            while not self._stop.wait(max(0.0, begun_s + self.commits / rate - monotonic())):
                self.commit()
                self.seconds = monotonic() - begun_s
        except BaseException as error:
            self._error = error
            raise

    def _table(self) -> str:
        return self._rng.choice(("shop.every", "shop.every", "shop.every", "shop.pair", "shop.big"))

    def _values(self, name: str) -> dict[str, Any]:
        definition = self.db[name].definition
        columns = [each for each in self.db[name].columns if each.name not in definition.primary_key]
        return {each.name: value_of(each.type, self._rng) for each in columns}

    def _insert(self, txn: Any) -> None:
        name = self._table()
        self._next += 1
        keys = {
            "shop.every": {"id": self._next * self._rng.choice((1, -1, 1 << 40))},
            "shop.pair": {"word": f"wört {self._next}'", "part": self._next % 60_000 - 30_000},
            "shop.big": {"number": (1 << 63) - 700 + self._next},
        }[name]
        txn.table(name).insert(keys | self._values(name))
        self._keys[name].append(tuple(keys.values()) if len(keys) > 1 else next(iter(keys.values())))

    def _update(self, txn: Any) -> None:
        name = self._table()
        if self._keys[name]:
            values = self._values(name)
            few = self._rng.sample(sorted(values), self._rng.randint(1, len(values)))
            txn.table(name).update(self._rng.choice(self._keys[name]), {each: values[each] for each in few})

    def _delete(self, txn: Any) -> None:
        name = self._table()
        keys = self._keys[name]
        if keys:
            place = self._rng.randrange(len(keys))
            keys[place], keys[-1] = keys[-1], keys[place]
            txn.table(name).delete(keys.pop())


# --- a run -----------------------------------------------------------------------------------------
def kills_of(rng: random.Random, count: int, rows: int) -> list[str]:
    """Return where the lives end: the first within the snapshot, every other later one within the stream."""
    found = [f"r:{rng.randint(1, rows)}"]
    if count > 2:
        found += [f"r:{rng.randint(1, rows)}", "s:1"]
    found += [f"s:{rng.randint(1, 800)}" for _ in range(count - len(found))]
    return found[:count]


def wait_for(run: Run, state: State, is_so: Callable[[], bool], limit_s: float = LAST_S) -> None:
    """Take events until a condition holds. Raises: Broken if the engine ends or the time is over."""
    until = monotonic() + limit_s
    while not is_so():
        if state.take_all(run.new_events()):
            continue
        if run.process.poll() is not None:
            raise Broken(f"the engine ended with {run.process.returncode}:\n{run.log()[-3_000:]}")
        if monotonic() > until:
            raise Broken(f"nothing new within {limit_s} s:\n{run.log()[-3_000:]}")
        threading.Event().wait(0.05)


def killed_lives(
    folder: Path, properties: dict[str, str], state: State, kills: Sequence[str], say: Callable[[str], None]
) -> None:
    """Let the engine live and die at each of these places."""
    for kill in kills:
        state.begin_life()
        with running(folder, properties, kill) as run:
            try:
                code = run.wait()
            except subprocess.TimeoutExpired:
                raise Broken(f"no end at {kill}:\n{run.log()[-3_000:]}") from None
            if code != -9:
                raise Broken(f"the engine ended with {code}, not at {kill}:\n{run.log()[-3_000:]}")
            taken = state.take_all(run.new_events())
        say(f"killed at {kill}: {taken} events, {state.repeated} told again so far, snapshots {state.snapshots}")


def follow(
    folder: Path,
    seed: int,
    kills: int,
    *,
    has_gtids: bool,
    rows: int = FIRST_ROWS,
    rate: float = RATE,
    say: Callable[[str], None] = lambda text: None,
) -> list[tuple[str, int]]:
    """Make a store in a folder, let Debezium follow it under load, killed this many times; return what it has asked.
    Raises: Broken.
    """
    need_debezium()
    rng = random.Random(seed)
    with ExitStack() as stack:
        db = stack.enter_context(
            tm.open(folder / "store", **{**OPTIONS, "data_memory": "512 MiB"}, log_gtids=has_gtids)
        )
        make_tables(db)
        load = Load(db, seed)
        load.fill(rows)
        serving = stack.enter_context(tm.serve_mysql(db, f"{HOST}:0", USERS))
        asked = stack.enter_context(heard())
        properties = properties_of(folder, serving.address)
        state = State(db)
        load.begin(rate)
        try:
            killed_lives(folder, properties, state, kills_of(rng, kills, rows), say)
            db.add_column("shop.pair", tm.Column("later", tm.Int32, nullable=True))
            state.begin_life()
            with running(folder, properties) as run:
                before = state.streamed
                wait_for(run, state, lambda: state.streamed > before)
                load.end()
                db["shop.big"].insert({"number": END_KEY, "at": None})
                wait_for(run, state, lambda: (END_KEY,) in state.tables["shop.big"])
        finally:
            load.end()
        count = state.check()
        assert db.status()["snapshots"]["open"] == 0
        by = "GTID" if has_gtids else "position"
        say(
            f"by {by}: {load.commits} commits in {load.seconds:.0f} s, {kills} kills, {state.snapshots} snapshots,"
            f" {state.streamed} events of the stream, {state.repeated} more told again; {count} rows equal"
        )
        return asked


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.replication.debezium_run", description=__doc__)
    parser.add_argument("directory", type=Path, help="where the stores are made; it must exist")
    parser.add_argument("--by", choices=("position", "gtid"), action="append", help="this way; may be repeated")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rows", type=int, default=FIRST_ROWS, help="before the first snapshot")
    parser.add_argument("--rate", type=float, default=RATE, help="commits a second")
    asked = parser.parse_args(arguments)
    for way in asked.by or ("position", "gtid"):
        folder = asked.directory / way
        folder.mkdir()
        try:
            follow(
                folder,
                asked.seed,
                asked.kills,
                has_gtids=way == "gtid",
                rows=asked.rows,
                rate=asked.rate,
                say=lambda text: print(text, flush=True),
            )
        except Broken as broken:
            print(f"by {way}, seed {asked.seed}: {broken}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
