"""A register of telephone subscribers: the tables and transactions of the TATP benchmark, and a crash.

    python docs/examples/subscribers.py [FOLDER]

A seed chooses the transactions, in TATP's mix, and their arguments: a second run does the same. Then a child process
goes on with another seed and is killed with SIGKILL. Every transaction that was acknowledged in the child must be in
the store: it must equal a copy in which this process runs the same transactions up to that one.
"""

import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter, namedtuple
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import tidemark as tm

SUBSCRIBERS, TRANSACTIONS, ACKNOWLEDGED = 2_000, 10_000, 2_000
SUBSCRIBER, ACCESS = "tatp.subscriber", "tatp.access_info"
FACILITY, FORWARDING = "tatp.special_facility", "tatp.call_forwarding"
TYPES, STARTS = (1, 2, 3, 4), (0, 8, 16)  # of access and of facilities; hours at which calls begin to be forwarded
OPTIONS = {"data_memory": "64 MiB", "redo_log": "16 MiB"}  # durability="commit" is the default
number = "{:015}".format  # of a subscriber, from its id
SMALL = {f"{kind}_{n}": end for kind, end in (("bit", 2), ("hex", 16), ("byte2", 256)) for n in range(1, 11)}


# --- tables and first rows ---
def create(db: tm.Database) -> None:
    def table(name: str, keys: int, **columns: object) -> None:
        made = [tm.Column(column, kind) for column, kind in columns.items()]
        db.create_table(name, made, primary_key=list(columns)[:keys])

    byte, word, text = tm.UInt8, tm.UInt32, tm.Char
    small = dict.fromkeys(SMALL, byte)
    table(SUBSCRIBER, 1, s_id=word, sub_nbr=text(15), **small, msc_location=word, vlr_location=word)
    table(ACCESS, 2, s_id=word, ai_type=byte, data1=byte, data2=byte, data3=text(3), data4=text(5))
    table(FACILITY, 2, s_id=word, sf_type=byte, is_active=tm.Bool, error_cntrl=byte, data_a=byte, data_b=text(5))
    table(FORWARDING, 3, s_id=word, sf_type=byte, start_time=byte, end_time=byte, numberx=text(15))
    db.create_index(SUBSCRIBER, "by_number", ["sub_nbr"], unique=True)
    db.create_index(FORWARDING, "by_facility", ["s_id", "sf_type", "start_time"])  # ordered: a scan by prefix


def fill(db: tm.Database, rng: random.Random) -> None:
    """One to four rows of access and of facilities for a subscriber, up to three forwardings for a facility."""
    rows = {table: [] for table in (SUBSCRIBER, ACCESS, FACILITY, FORWARDING)}
    for s_id in range(1, SUBSCRIBERS + 1):
        small = [rng.randrange(end) for end in SMALL.values()]
        rows[SUBSCRIBER].append((s_id, number(s_id), *small, rng.getrandbits(32), rng.getrandbits(32)))
        for kind in rng.sample(TYPES, rng.randint(1, 4)):
            rows[ACCESS].append((s_id, kind, rng.randrange(256), rng.randrange(256), "abc", "abcde"))
        for kind in rng.sample(TYPES, rng.randint(1, 4)):
            rows[FACILITY].append((s_id, kind, rng.random() < 0.85, 0, rng.randrange(256), "abcde"))
            for start in rng.sample(STARTS, rng.randint(0, 3)):
                rows[FORWARDING].append((s_id, kind, start, start + rng.randint(1, 8), number(s_id)))
    with db.transaction() as txn:
        for table, made in rows.items():
            txn.insert_many(table, made)


# --- the seven transactions: true if they found what they wanted ---
Call = namedtuple("Call", "s_id kind start end hour byte place")  # arguments; each transaction uses some


def id_of(txn: tm.Transaction, call: Call) -> int:
    return txn.get(SUBSCRIBER, number(call.s_id), index="by_number").s_id


def get_new_destination(txn: tm.Transaction, call: Call) -> bool:
    facility = txn.get(FACILITY, (call.s_id, call.kind))
    rows = txn.scan(FORWARDING, index="by_facility", prefix=(call.s_id, call.kind))
    is_active = facility is not None and facility.is_active
    return is_active and any(row.start_time <= call.start and call.hour < row.end_time for row in rows)


def update_subscriber_data(txn: tm.Transaction, call: Call) -> bool:
    txn.update(SUBSCRIBER, call.s_id, {"bit_1": call.byte % 2})  # rolled back if there is no such facility
    return txn.update(FACILITY, (call.s_id, call.kind), {"data_a": call.byte})


def update_location(txn: tm.Transaction, call: Call) -> bool:
    return txn.update(SUBSCRIBER, number(call.s_id), {"vlr_location": call.place}, index="by_number")


def delete_call_forwarding(txn: tm.Transaction, call: Call) -> bool:
    return txn.delete(FORWARDING, (id_of(txn, call), call.kind, call.start))


def insert_call_forwarding(txn: tm.Transaction, call: Call) -> bool:
    s_id = id_of(txn, call)
    if txn.get(FACILITY, (s_id, call.kind), lock="shared") is None:  # a forwarding belongs to a facility
        return False
    txn.insert(FORWARDING, (s_id, call.kind, call.start, call.end, number(call.s_id)))
    return True


WORK = {  # with TATP's shares in percent
    "get_subscriber_data": (35, lambda txn, call: txn.get(SUBSCRIBER, call.s_id) is not None),
    "get_new_destination": (10, get_new_destination),
    "get_access_data": (35, lambda txn, call: txn.get(ACCESS, (call.s_id, call.kind)) is not None),
    "update_subscriber_data": (2, update_subscriber_data),
    "update_location": (14, update_location),
    "insert_call_forwarding": (2, insert_call_forwarding),
    "delete_call_forwarding": (2, delete_call_forwarding),
}


def chosen(seed: int) -> Iterator[tuple[str, Call]]:
    """Transactions without end. TATP's formula prefers some subscribers to others."""
    rng = random.Random(seed)
    while True:
        (name,) = rng.choices(list(WORK), [share for share, _ in WORK.values()])
        s_id = (rng.randrange(65_536) | rng.randint(1, SUBSCRIBERS)) % SUBSCRIBERS + 1
        start, hours, hour = rng.choice(STARTS), rng.randint(1, 8), rng.randint(1, 24)
        yield name, Call(s_id, rng.choice(TYPES), start, start + hours, hour, rng.randrange(256), rng.getrandbits(32))


def run(db: tm.Database, name: str, call: Call) -> bool:
    """Run one transaction. What it changed is on disk on return."""
    try:
        return db.run(lambda txn: WORK[name][1](txn, call))
    except (tm.RowNotFound, tm.DuplicateKey):  # rolled back
        return False


def check(db: tm.Database) -> str:
    """Rows have the rows they belong to; pages, indexes and log are sound."""
    subscribers = {row.s_id for row in db[SUBSCRIBER].scan(["s_id"])}
    facilities = {(row.s_id, row.sf_type) for row in db[FACILITY].scan(["s_id", "sf_type"])}
    assert subscribers == {s_id for s_id, _ in facilities} == {row.s_id for row in db[ACCESS].scan(["s_id"])}
    assert {(row.s_id, row.sf_type) for row in db[FORWARDING].scan(["s_id", "sf_type"])} <= facilities
    assert len(subscribers) == SUBSCRIBERS and db.check()["is_sound"]
    return "consistent"


def child(path: Path) -> None:
    """Acknowledge transactions until the kill."""
    with tm.open(path, **OPTIONS) as db:
        for done, each in enumerate(chosen(seed=2), 1):
            run(db, *each)
            print(done, flush=True)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    register, twin = folder / "register", folder / "twin"
    with tm.open(register, **OPTIONS) as db:
        create(db)
        fill(db, random.Random(0))
        forwardings = len(db[FORWARDING])
        print(f"{SUBSCRIBERS:,} subscribers, {len(db[FACILITY]):,} facilities, {forwardings:,} forwardings\n")
        results = Counter((name, run(db, name, call)) for name, call in islice(chosen(seed=1), TRANSACTIONS))
        print("transaction             count  successes  misses")
        for name in WORK:
            hits, misses = results[name, True], results[name, False]
            print(f"{name:22} {hits + misses:6} {hits:10} {misses:7}")
        change = results["insert_call_forwarding", True] - results["delete_call_forwarding", True]
        assert len(db[FORWARDING]) == forwardings + change
        print(f"\nthe register is {check(db)}")
        db.backup(folder / "backups")
    tm.restore(folder / "backups", twin, **OPTIONS)

    acknowledged = 0
    with subprocess.Popen([sys.executable, __file__, "child", register], stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:  # after the kill, what the child had written before it
            acknowledged = int(line)
            if acknowledged == ACKNOWLEDGED:
                process.send_signal(signal.SIGKILL)
    assert acknowledged >= ACKNOWLEDGED and process.returncode == -signal.SIGKILL
    print(f"killed after at least {ACKNOWLEDGED:,} acknowledged transactions")

    with tm.open(register, **OPTIONS) as db, tm.open(twin, **OPTIONS) as copy:
        print(f"opened again, the register is {check(db)}")
        transactions = chosen(seed=2)
        for each in islice(transactions, acknowledged):
            run(copy, *each)
        if not tm.diff(db, copy)["is_equal"]:  # the transaction that was under way has committed too
            run(copy, *next(transactions))
        assert tm.diff(db, copy)["is_equal"]
        print("every acknowledged transaction is there, and nothing else but the one that was under way")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
