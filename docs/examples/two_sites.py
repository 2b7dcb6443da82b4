"""A shop with two active sites: both sell from one stock row, and the primary refuses one sale as a whole.

    python docs/examples/two_sites.py [FOLDER]

Site A is this process, site B a second one. Each serves its binlog over TCP and follows the other. A is the primary: it
finds conflicts with NDB$EPOCH_TRANS.
"""

import multiprocessing
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path

import tidemark as tm

A, B = 1, 2  # server ids
STOCK, SALE = "shop.stock", "shop.sale"
SECRET, HOST, WAIT_MS = b"both sites know it", "127.0.0.1:0", 60_000
# NDB$EPOCH_TRANS needs positions that are passed on, and transactions that can be told apart, at both sites.
OPTIONS = {"log_bin": "binlog", "log_apply_status": True, "log_transaction_id": True, "data_memory": "64 MiB"}
CAUSES = tm.Enum("ROW_DOES_NOT_EXIST", "ROW_ALREADY_EXISTS", "DATA_IN_CONFLICT", "TRANS_IN_CONFLICT")


def opened(path: Path, server_id: int, function: bytes | None) -> tm.Database:
    """A new store with its rows of mysql.ndb_replication, which come before the tables they are about."""
    db = tm.open(path, server_id=server_id, **OPTIONS)
    db.create_replication_table()
    for table in (b"stock", b"sale"):
        db["mysql.ndb_replication"].insert((b"shop", table, server_id, 7, function))  # 7: whole rows are logged
    return db


def create_tables(db: tm.Database) -> None:
    """At A; B receives them. An exceptions table comes before the table it is about, and has its key."""
    key = {"NDB$server_id": tm.UInt32, "NDB$master_server_id": tm.UInt32, "NDB$master_epoch": tm.UInt64}
    key["NDB$count"] = tm.UInt32
    stock = {"item": tm.VarChar(9), "pieces": tm.Int32}
    sale = {"id": tm.VarChar(9), "item": tm.VarChar(9), "pieces": tm.Int32}
    for name, columns in ((STOCK, stock), (SALE, sale)):
        first = next(iter(columns))
        refused = {**key, "NDB$CFT_CAUSE": CAUSES, first: columns[first]}
        db.create_table(f"{name}$EX", [tm.Column(*each) for each in refused.items()], primary_key=list(key))
        db.create_table(name, [tm.Column(*each) for each in columns.items()], primary_key=first)
    db[STOCK].insert_many([("chair", 10), ("lamp", 10)])


def sell(db: tm.Database, sale: str, item: str, pieces: int) -> None:
    """One transaction: pieces leave the stock, and the sale is written down."""
    with db.transaction() as txn:
        assert txn.update(STOCK, item, {"pieces": tm.col("pieces") - pieces}, where=tm.col("pieces") >= pieces)
        txn.insert(SALE, (sale, item, pieces))


def shown(db: tm.Database) -> str:
    stock, sales = ({key: count for key, *_, count in db[table].scan()} for table in (STOCK, SALE))
    return f"stock {dict(sorted(stock.items()))}, sales {dict(sorted(sales.items()))}"


def site_b(path: Path, address_of_a: tuple[str, int], pipe: Connection) -> None:
    """The second process: it does what A asks for, call by call."""
    with opened(path, B, None) as db, tm.serve(db, HOST, SECRET) as serving:
        channel = tm.Channel(address_of_a, db, secret=SECRET, skip_start=False)
        pipe.send(serving.address)
        calls = {"stop": channel.stop, "start": channel.start, "shown": lambda: shown(db)}
        calls["sell"] = lambda *sale: sell(db, *sale)
        calls["wait"] = lambda: db.wait_applied(db.sync(), WAIT_MS, at=[A])
        while call := pipe.recv():
            pipe.send(calls[call[0]](*call[1:]))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    spawn = multiprocessing.get_context("spawn")  # a store must not be open across a fork
    pipe, pipe_of_b = spawn.Pipe()

    def ask(*call: object) -> object:
        pipe.send(call)
        return pipe.recv()

    with opened(folder / "a", A, b"NDB$EPOCH_TRANS()") as db, tm.serve(db, HOST, SECRET) as serving:
        create_tables(db)
        process = spawn.Process(target=site_b, args=(folder / "b", serving.address, pipe_of_b), daemon=True)
        process.start()
        pipe_of_b.close()  # B has it now; if B ends, recv() raises EOFError
        channel = tm.Channel(pipe.recv(), db, secret=SECRET, skip_start=False)

        def exchange(when: str) -> None:
            """All epochs of A are applied at B, then all of B at A. The second round is for the rows that A sends again
            when it refuses some: after it A knows that B has them."""
            for _ in range(2):
                db.wait_applied(db.sync(), WAIT_MS, at=[B])
                ask("wait")
            assert shown(db) == ask("shown"), "the sites differ"
            print(f"{when}, at A and at B: {shown(db)}")

        exchange("before")
        channel.stop()  # neither site hears of the other while both sell
        ask("stop")
        sell(db, "a-1", "lamp", 4)
        ask("sell", "b-1", "lamp", 3)
        ask("sell", "b-2", "chair", 2)
        print(f"apart, A: {shown(db)}\napart, B: {ask('shown')}")
        channel.start()
        ask("start")
        exchange("together")
        for table, key, row in ((STOCK, "item", "lamp"), (SALE, "id", "b-1")):
            refused = [tuple(each) for each in db[f"{table}$EX"].scan([key, "NDB$CFT_CAUSE"])]
            print(f"A has refused, in {table}$EX: {refused}")
            assert refused == [(row, "TRANS_IN_CONFLICT")]

        ask("sell", "b-3", "lamp", 3)  # B sells once more, now from the stock that A knows
        exchange("at the end")
        assert len(db[f"{SALE}$EX"]) == 1 and db[STOCK]["lamp"].pieces == 3
        channel.close()
        pipe.send(None)  # B closes its store and ends
        process.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
