"""A shop with two active sites: both sell from one stock row, and the primary refuses one sale as a whole.

Site A is this process, B a second one; each follows the other over TCP. A finds conflicts with NDB$EPOCH_TRANS.
"""

import multiprocessing
import tempfile

import tidemark as tm

A, B, STOCK, SALE, SECRET, WAIT_MS = 1, 2, "shop.stock", "shop.sale", b"both sites know it", 60_000
# What NDB$EPOCH_TRANS needs at both sites: positions are passed on, rows name their transaction, updates are updates.
OPTIONS = {"log_bin": "binlog", "log_apply_status": True, "log_transaction_id": True, "log_update_as_write": False}


def sell(db, sale, item, pieces):
    """One transaction: pieces leave the stock, and the sale is written down."""
    with db.transaction() as txn:
        assert txn.update(STOCK, item, {"pieces": tm.col("pieces") - pieces}, where=tm.col("pieces") >= pieces)
        txn.insert(SALE, (sale, item, pieces))


def shown(db):
    stock, sales = ({key: count for key, *_, count in db[table].scan()} for table in (STOCK, SALE))
    return f"stock {dict(sorted(stock.items()))}, sales {dict(sorted(sales.items()))}"


def site_b(path, address_of_a, pipe):
    """The second process: it does what A asks for, call by call."""
    with tm.open(path, server_id=B, **OPTIONS) as db, tm.serve(db, "127.0.0.1:0", SECRET) as serving:
        channel = tm.Channel(address_of_a, db, secret=SECRET, skip_start=False)
        pipe.send(serving.address)
        calls = {"stop": channel.stop, "start": channel.start, "shown": lambda: shown(db)}
        calls |= {"sell": lambda *sale: sell(db, *sale), "wait": lambda: db.wait_applied(db.sync(), WAIT_MS, at=[A])}
        for name, *given in iter(pipe.recv, None):
            pipe.send(calls[name](*given))


def main(folder):
    spawn = multiprocessing.get_context("spawn")  # a store must not be open across a fork
    pipe, pipe_of_b = spawn.Pipe()
    with tm.open(f"{folder}/a", server_id=A, **OPTIONS) as db, tm.serve(db, "127.0.0.1:0", SECRET) as serving:
        stock = [tm.Column("item", tm.VarChar(9)), tm.Column("pieces", tm.Int32)]  # B receives the tables of A
        db.create_table(STOCK, stock, "item").insert_many([("chair", 10), ("lamp", 10)])
        db.create_table(SALE, [tm.Column("id", tm.VarChar(9)), *stock], "id")
        for table in (STOCK, SALE):
            db.set_conflict_function(table, "NDB$EPOCH_TRANS", exceptions=True)  # what A refuses is in table$EX
        process = spawn.Process(target=site_b, args=(f"{folder}/b", serving.address, pipe_of_b), daemon=True)
        process.start()
        channel = tm.Channel(pipe.recv(), db, secret=SECRET, skip_start=False)

        def ask(*call):
            return pipe.send(call) or pipe.recv()  # send returns None

        def exchange(when):
            for _ in range(2):  # the second time for the rows that A sends again when it refuses some
                db.wait_applied(db.sync(), WAIT_MS, at=[B])
                ask("wait")
            assert shown(db) == ask("shown"), "the sites differ"
            print(f"{when}, at A and at B: {shown(db)}")

        exchange("before")
        channel.stop(), ask("stop")  # neither site hears of the other while both sell
        sell(db, "a-1", "lamp", 4), ask("sell", "b-1", "lamp", 3), ask("sell", "b-2", "chair", 2)
        print(f"apart, A: {shown(db)}\napart, B: {ask('shown')}")
        channel.start(), ask("start")
        exchange("together")
        for table, key in ((STOCK, "item"), (SALE, "id")):
            print(f"A has refused, in {table}$EX: {list(map(tuple, db[f'{table}$EX'].scan([key, 'NDB$CFT_CAUSE'])))}")
        ask("sell", "b-3", "lamp", 3)  # B sells once more, now from the stock that A knows
        exchange("at the end")
        channel.close()
        pipe.send(None)  # B closes its store and ends
        process.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(temporary)
