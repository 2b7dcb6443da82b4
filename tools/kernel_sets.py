"""Write engine/jit/kernel_sets.py, the kernels that programs meet together: `python -m tools.kernel_sets`.

The programs below run one after another, each part in a process of its own. A kernel is of the set of the first program
that meets it, and stays there: which ones threads meet depends on time. How long it takes to compile is told by the
size of its code.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tidemark.engine.jit import registry
from tidemark.engine.jit.code_cache import source_digest
from tidemark.engine.jit.kept_code import CACHE_FOLDER
from tidemark.engine.jit.kernel_sets import SETS

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "engine" / "jit" / "kernel_sets.py"
PACKAGE = "tidemark."
# In one process, where the compiler was made ready in 0.29 s, 48 kernels of ordinary calls took 119 s of processor time
# (docs/adr/0042-the-first-minute.md).
SECONDS_OF_A_KB = 0.03

ROWS = """
import os
from datetime import datetime
from decimal import Decimal
import tidemark as tm

options = {"data_memory": "64 MiB", "redo_log": "16 MiB"}
columns = [
    tm.Column("id", tm.Int64),
    tm.Column("owner", tm.VarChar(40)),
    tm.Column("balance", tm.Float64),
    tm.Column("count", tm.Int32, default=0),
    tm.Column("price", tm.Decimal(10, 2), nullable=True),
    tm.Column("seen", tm.DateTime, nullable=True),
    tm.Column("note", tm.Text, nullable=True)  # storage,
]


def row(number):
    seen = datetime(2026, 1, 1 + number % 28)
    note = None if number % 3 else "note " * (number % 50)
    return number, f"owner {number}", number / 2, number, Decimal(number), seen, note


def call_all(db, name):
    rows = db[name]
    with db.transaction() as txn:
        txn.insert(name, dict(zip(rows.to_arrow().schema.names, row(1))))
        txn.insert(name, row(2))
        found = txn.get(name, 1, lock="exclusive")
        txn.write(name, found._replace(balance=7.0))
        txn.update(name, 2, {"balance": 3.5, "note": "longer " * 20})
        assert len(list(txn.scan(name))) == 2 and txn.get(name, 3) is None
        txn.delete(name, 2)
    try:
        with db.transaction() as txn:
            txn.insert(name, row(2))
            with txn.savepoint():
                txn.update(name, 1, {"balance": 1.0})
            raise KeyError
    except KeyError:
        pass
    rows.insert(row(2))
    rows.write(row(2))
    rows[3] = row(3)
    rows.update(1, {"balance": tm.col("balance") - 1, "count": 5}, where=tm.col("balance") > 0)
    rows.update(1, {"note": "other"})
    rows.upsert(row(4), set={"count": tm.col("count") + 1})
    rows.upsert(row(4), set={"count": tm.col("count") + 1})
    rows.insert_many([row(number) for number in range(10, 1_000)])
    rows.delete(20)
    assert rows[1].note == "other" and 5_000 not in rows and len(rows) == 993
    assert rows.scan(where=tm.col("owner").like("owner 1%")).sum("balance") > 0
    assert rows.count() == len(list(rows.scan())) == len(list(rows.scan(["id"])))
    assert [each.id for each in rows.scan(where=tm.col("price") == Decimal(30))] == [30]
    assert list(rows.scan(where=(tm.col("id") == 7_000) | tm.col("note").is_null(), limit=3))
    for table in (rows.to_arrow(), rows.to_arrow(columns=["id", "balance"])):
        assert table.num_rows == len(rows)
    db.sync()


def call_more(db, name):
    rows = db[name]
    rows.insert_many([row(number) for number in range(5_000, 5_100)])
    rows.write_many([row(number) for number in range(900, 1_100)])
    rows.upsert_many([row(number) for number in range(1_000, 1_200)])
    rows.update_many([{"id": number, "count": 1} for number in range(50, 70)])
    rows.delete_many(list(range(10, 20)))
    assert len(rows.get_many([1, 2, 30])) == 3
    assert rows.min("id") == 1 and rows.max("owner") and rows.mean("count") and rows.sum("price")
    rows.aggregate(n=("count",), total=("sum", "balance"))
    rows.aggregate(by="count", n=("count",))
    rows.update_where({"balance": tm.col("balance") + 1}, where=tm.col("id") > 500)
    rows.delete_where(tm.col("id") > 5_000)
    rows.write_many(rows.to_arrow())
    rows.to_numpy(["id", "balance"])
    with db.snapshot() as snapshot:
        before = snapshot[name].sum("balance")
        rows.update_where({"balance": tm.col("balance") + 1})
        rows.delete(30)
        assert snapshot[name].sum("balance") == before and snapshot[name].get(30) and list(snapshot[name].scan())
        assert snapshot[name].to_arrow().num_rows == len(rows) + 1
    with db.transaction(isolation="snapshot") as txn:
        assert txn.get(name, 1) and list(txn.scan(name)) and txn.update(name, 1, {"count": 9})
    db.sync()


def change_again(db, name):
    # After the checkpoint: a restart reads this from the log.
    rows = db[name]
    rows.insert(row(2_000))
    rows.update(40, {"balance": 0.5})
    rows.delete(41)
    rows.insert_many([row(number) for number in range(3_000, 3_500)])
    db.sync()
"""
# By name of the set: the parts of a program, each a process that ends as in a crash, so that the next one restarts.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "ordinary calls": (
        ROWS
        + """
db = tm.open("ordinary", **options)
db.create_table("test.account", columns, primary_key="id")
call_all(db, "test.account")
db.create_table("test.word", [tm.Column("word", tm.VarChar(20)), tm.Column("n", tm.Int64)], primary_key="word")
for word in ("a", "b", "a"):
    db["test.word"].upsert({"word": word, "n": 1}, set={"n": tm.col("n") + 1})
assert db["test.word"]["a"].n == 2
db.create_table("test.pair", [tm.Column("a", tm.Int64), tm.Column("b", tm.Date)], primary_key=["a", "b"])
db["test.pair"].insert((1, datetime(2026, 1, 1).date()))
db.checkpoint()
change_again(db, "test.account")
db.checkpoint()
db["test.word"].delete("b")
db["test.account"].delete(42)
db.sync()
""",
        """
import tidemark as tm
with tm.open("ordinary", data_memory="64 MiB", redo_log="16 MiB") as db:
    assert len(db["test.account"]) > 1_000
    db["test.account"].update(43, {"balance": 1.0})
with tm.open("ordinary", data_memory="64 MiB", read_only=True) as db:
    assert list(db["test.word"].scan()) and db["test.word"].get("a")
""",
    ),
    "batches, sums and snapshots": (
        ROWS
        + """
db = tm.open("more", **options)
db.create_table("test.account", columns, primary_key="id")
call_all(db, "test.account")
call_more(db, "test.account")
db.checkpoint()
change_again(db, "test.account")
""",
        """
import tidemark as tm
with tm.open("more", data_memory="64 MiB", redo_log="16 MiB") as db:
    assert len(db["test.account"]) > 1_000
""",
    ),
    "indexes": (
        ROWS
        + """
db = tm.open("indexes", **options)
db.create_table("test.account", columns, primary_key="id")
db["test.account"].insert_many([row(number) for number in range(5_000, 5_500)])
db["test.account"].delete_many(list(range(5_000, 5_500)))
db.create_index("test.account", "by_count", ["count"])
db.create_index("test.account", "by_owner", ["owner"], unique=True)
call_all(db, "test.account")
call_more(db, "test.account")
db.create_index("test.account", "by_seen", ["seen", "id"], unique=True, ordered=True)
rows = db["test.account"]
assert rows.get("owner 50", index="by_owner").id == 50
assert rows.get_many(["owner 50", "owner 51"], index="by_owner")
assert rows.update("owner 50", {"count": 77}, index="by_owner")
assert list(rows.scan(index="by_count", lower=0, upper=100)) and list(rows.scan(index="by_count", reverse=True))
assert list(rows.scan(["count"], index="by_count")) and list(rows.scan(where=tm.col("count") == 77))
assert rows.count(where=tm.col("owner") == "owner 51") == 1
with db.transaction() as txn:
    assert list(txn.scan("test.account", index="by_count", limit=1, lock="exclusive", skip_locked=True))
with db.snapshot() as snapshot:
    rows.delete(51)
    assert snapshot["test.account"].get("owner 51", index="by_owner")
    assert list(snapshot["test.account"].scan(index="by_count"))
rows.upsert_many([row(number) for number in range(100, 110)], index="by_owner")
try:
    rows.insert((9, *row(100)[1:]))
except tm.DuplicateKey:
    pass
db.checkpoint()
change_again(db, "test.account")
""",
        """
import tidemark as tm
with tm.open("indexes", data_memory="64 MiB", redo_log="16 MiB") as db:
    assert db["test.account"].get("owner 52", index="by_owner").id == 52
    db.drop_index("test.account", "by_count")
""",
    ),
    "columns on disk": (
        ROWS.replace(")  # storage", ', storage="disk")')
        + """
db = tm.open("disk", page_buffer="8 MiB", **options)
db.create_table("test.account", columns, primary_key="id")
call_all(db, "test.account")
call_more(db, "test.account")
db.checkpoint()
change_again(db, "test.account")
db["test.account"].update(45, {"note": "long " * 20_000})
db.sync()
""",
        """
import tidemark as tm
with tm.open("disk", data_memory="64 MiB", redo_log="16 MiB", page_buffer="8 MiB") as db:
    assert db["test.account"].get(45).note.startswith("long ")
    db.create_index("test.account", "by_count", ["count"])
    assert list(db["test.account"].scan(where=tm.col("note").like("long%")))
    db["test.account"].delete(45)
    db.checkpoint()
""",
    ),
    "loads": (
        """
import pyarrow as pa
import pyarrow.parquet
import tidemark as tm
numbers = range(10_000)
table = pa.table({"id": numbers, "name": [f"name {n}" for n in numbers], "n": [n / 3 for n in numbers]})
pa.parquet.write_table(table, "rows.parquet")
with open("rows.csv", "w") as file:
    file.write("id,name,n\\n" + "".join(f"{n},name {n},0.5\\n" for n in range(10_000, 12_000)))
db = tm.open("loads", data_memory="64 MiB", redo_log="16 MiB")
columns = [tm.Column("id", tm.Int64), tm.Column("name", tm.VarChar(40)), tm.Column("n", tm.Float64)]
db.create_table("test.item", columns, primary_key="id")
db.load("test.item", "rows.parquet")
db.load("test.item", "rows.csv")
assert len(db["test.item"]) == 12_000
db.create_table("test.indexed", columns, primary_key="id")
db.create_index("test.indexed", "by_name", ["name"])
db.load("test.indexed", "rows.parquet")
numbers = range(100_000, 160_000)  # so many are written into load files, which the log adopts
batch = pa.record_batch({"id": numbers, "name": [f"name {n}" for n in numbers], "n": [0.5 for n in numbers]})
db.create_table("test.adopted", columns, primary_key="id")
db.load("test.adopted", pa.RecordBatchReader.from_batches(batch.schema, [batch]))
db.sync()
""",
        """
import tidemark as tm
with tm.open("loads", data_memory="64 MiB", redo_log="16 MiB") as db:
    assert len(db["test.item"]) == 12_000 and len(db["test.adopted"]) == 60_000
with tm.open("loads", data_memory="64 MiB", redo_log="16 MiB", transaction_memory="1 MiB") as db:
    with db.transaction() as txn:  # past transaction_memory, to a file
        txn.insert_many("test.item", [(n, f"name {n}", 0.5) for n in range(20_000, 60_000)])
    db.sync()
""",
        """
import tidemark as tm
with tm.open("loads", data_memory="64 MiB", redo_log="16 MiB") as db:
    assert len(db["test.item"]) == 52_000
""",
    ),
    "backups and comparisons": (
        """
import tidemark as tm
from tidemark.cli.commands import commands
with tm.open("backups", data_memory="64 MiB", redo_log="16 MiB") as db:
    columns = [tm.Column("id", tm.Int64), tm.Column("name", tm.VarChar(40)), tm.Column("n", tm.Float64)]
    db.create_table("test.item", columns, primary_key="id")
    db.create_index("test.item", "by_name", ["name"])
    db["test.item"].insert_many([(n, f"name {n}", n / 3) for n in range(1_000)])
    db.archive("place")
    db.backup("place")
    epoch = db.sync()
    db["test.item"].delete_where(tm.col("id") > 500)
    db.backup("place", incremental=True)
    db["test.item"].insert((2_000, "new", 1.0))
    db.sync()
    db.archive()
tm.restore("place", "then", until=epoch)
tm.restore("place", "now")
with tm.open("then", data_memory="64 MiB") as db:
    assert len(db["test.item"]) == 1_000
    assert not tm.diff(db, ("place", 2))["is_equal"]
    tm.repair(("place", 2), db, side="a")
commands.main(["check", "backups", "--data-memory", "64 MiB"], "tidemark", standalone_mode=False)
""",
    ),
    "calls of clients": (
        """
import tidemark as tm
secret = b"sixteen bytes or more"
with tm.open("clients", data_memory="64 MiB") as db, tm.serve_calls(db, "127.0.0.1:0", secret) as serving:
    with tm.connect([serving.address], secret) as remote:
        remote.create_table("price", [tm.Column("id", tm.Int64), tm.Column("cents", tm.Int64)], primary_key="id")
        prices = remote["price"]
        prices.insert_many([(n, 950) for n in range(1_000)])
        prices.update(1, {"cents": tm.col("cents") + 50})
        with remote.transaction() as txn:
            txn.update("price", 2, {"cents": 5})
            assert txn.get("price", 1)
        with remote.snapshot() as snapshot:
            assert snapshot["price"].sum("cents") and list(snapshot["price"].scan())
        assert list(prices.scan(where=tm.col("id") > 5)) and prices.get_many([1, 2]) and prices.to_arrow()
""",
    ),
    "replication": (
        """
import tidemark as tm
columns = [tm.Column("id", tm.Int64), tm.Column("price", tm.Float64), tm.Column("name", tm.VarChar(40), nullable=True)]
small = {"data_memory": "64 MiB", "redo_log": "16 MiB"}
with tm.open("source", server_id=1, log_bin="binlog", **small) as source, tm.open("copy", server_id=2, **small) as copy:
    source.create_table("shop.item", columns, primary_key="id")
    since = source.sync()
    source["shop.item"].insert_many([(n, n / 2, f"name {n}") for n in range(1_000)])
    source["shop.item"].update_where({"price": 1.0}, where=tm.col("id") < 100)
    source["shop.item"].delete(3)
    source.sync()
    with tm.Channel(source, copy, skip_start=False):
        source.wait_applied(source.sync(), timeout_ms=60_000, at=[2])
    assert len(copy["shop.item"]) == 999
    with source.changes(since) as changes:
        assert [change.operation for epoch in changes for change in epoch]
options = {"log_bin": "binlog", "log_apply_status": True, "log_transaction_id": True, "log_update_as_write": False}
with tm.open("a", server_id=1, **options, **small) as a, tm.open("b", server_id=2, **options, **small) as b:
    a.create_table("shop.item", columns, primary_key="id")
    a.set_conflict_function("shop.item", "NDB$EPOCH_TRANS", exceptions=True)
    with tm.Channel(a, b, skip_start=False), tm.Channel(b, a, skip_start=False):
        a["shop.item"].insert({"id": 1, "price": 9.5, "name": None})
        a.wait_applied(a.sync(), timeout_ms=60_000, at=[2])
        b["shop.item"].update(1, {"price": 3.0})
        b.wait_applied(b.sync(), timeout_ms=60_000, at=[1])
""",
    ),
}
# What a process runs after its program: the names of the kernels it has met, and its end, as in a crash.
SAY = """
import os
from tidemark.engine.jit.registry import REGISTRY
with open({out!r}, "w") as file:
    file.write("\\n".join(name for name, (dispatcher, _) in REGISTRY.items() if dispatcher.signatures))
os._exit(0)
"""
HEAD = '''"""The kernels that programs meet together, with about how many seconds each takes to compile.

Written by `python -m tools.kernel_sets`, whose programs name the sets.

A kernel that is in no set is compiled with those of its module.
"""

from __future__ import annotations

# To make the compiler ready.
READYING_SECONDS = 0.34
SETS: dict[str, dict[str, float]] = {
'''


def met(program: str, folder: Path) -> list[str]:
    """Return the kernels that a program meets, which runs in a folder as a process of its own."""
    out = folder / "met"
    text = f"{program}\n{SAY.format(out=str(out))}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-c", text], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return out.read_text(encoding="utf-8").split()


def sets() -> dict[str, list[str]]:
    """Run the programs; return the kernels of each set, sorted, without the name of the package."""
    found: dict[str, list[str]] = {}
    known: set[str] = set()
    registry.import_all()
    for what, parts in PROGRAMS.items():
        with tempfile.TemporaryDirectory() as folder:
            new = {name for part in parts for name in met(part, Path(folder))}
        new = (new | {PACKAGE + name for name in SETS.get(what, ())} & registry.declared().keys()) - known
        known |= new
        found[what] = sorted(name.removeprefix(PACKAGE) for name in new)
    return found


def seconds_of(names: list[str]) -> dict[str, float]:
    """Return about how long each kernel takes to compile, by the size of its code in the cache."""
    found = {}
    for name in names:
        module, _, kernel = name.rpartition(".")
        files = Path(CACHE_FOLDER).glob(f"{module.rpartition('.')[2]}-{source_digest(PACKAGE + module)}/*.{kernel}-.*")
        size = max(each.stat().st_size for each in files)
        found[name] = SECONDS_OF_A_KB * size / 1_000
    return found


def lines(found: dict[str, list[str]]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield HEAD
    for what, names in found.items():
        yield f'    "{what}": {{\n'
        for name, seconds in seconds_of(names).items():
            yield f'        "{name}": {max(seconds, 0.01):.2f},\n'
        yield "    },\n"
    yield "}\n"


if __name__ == "__main__":
    TABLE.write_text("".join(lines(sets())), encoding="utf-8")
