"""An order book: offers meet by price, then by time, and no cent and no share is lost.

    python docs/examples/order_book.py

DuckDB is needed for the report: in a checkout, pip install '.[duckdb]'.
"""

import random
import tempfile
from decimal import Decimal

import duckdb
import tidemark as tm

TRADERS, OFFERS, CASH, SHARES, SYMBOLS = 20, 600, Decimal(10_000), 100, ["ACME", "GLOBEX"]
MONEY, SIDE, ID = tm.Decimal(12, 2), tm.Enum("buy", "sell"), tm.Column("id", tm.Int64, default=tm.autoincrement)
ACCOUNT, SYMBOL, N = tm.Column("account", tm.Int64), tm.Column("symbol", tm.VarChar(8)), tm.Column("n", tm.Int64)
cash, left = tm.col("cash"), tm.col("n")


def create(db):
    account = [ID, tm.Column("name", tm.VarChar(20)), tm.Column("cash", MONEY)]
    db.create_table("account", account, "id", checks={"no debt": cash >= 0})
    db.create_index("account", "one_name", "name", unique=True)
    db.create_table("share", [ACCOUNT, SYMBOL, N], ["account", "symbol"], checks={"no short sale": left >= 0})
    offer = [ID, ACCOUNT, SYMBOL, N, tm.Column("side", SIDE), tm.Column("rank", MONEY)]  # of "buy": minus the price
    db.create_table("offer", offer, "id", checks={"some": left > 0})
    db.create_index("offer", "book", ["symbol", "side", "rank", "id"])  # the best first, then the oldest
    trade = [ID, SYMBOL, N, tm.Column("price", MONEY), tm.Column("buyer", tm.Int64), tm.Column("seller", tm.Int64)]
    db.create_table("trade", trade, "id")
    for number in range(1, TRADERS + 1):
        account = db["account"].insert({"name": f"trader {number}", "cash": CASH})
        db["share"].insert_many([(account, symbol, SHARES) for symbol in SYMBOLS])


def place(txn, account, symbol, is_buy, n, price):
    """Trade with the offers of the other side, and offer the rest. Return False if the account does not cover it."""
    if is_buy and not txn.update("account", account, {"cash": cash - price * n}, where=cash >= price * n):
        return False
    if not is_buy and not txn.update("share", (account, symbol), {"n": left - n}, where=left >= n):
        return False
    side, rank, other, worst = ("buy", -price, "sell", price) if is_buy else ("sell", price, "buy", -price)
    met = {"index": "book", "lower": (symbol, other), "upper": (symbol, other, worst), "lock": "exclusive", "limit": 1}
    while n and (offer := next(txn.scan("offer", **met), None)):
        dealt, at = min(n, offer.n), abs(offer.rank)
        n -= dealt
        txn.update("offer", offer.id, {"n": left - dealt}, where=left > dealt) or txn.delete("offer", offer.id)
        buyer, seller = (account, offer.account) if is_buy else (offer.account, account)
        txn.insert("trade", {"symbol": symbol, "n": dealt, "price": at, "buyer": buyer, "seller": seller})
        txn.update("account", seller, {"cash": cash + at * dealt})
        txn.upsert("share", (buyer, symbol, dealt), set={"n": left + dealt})
        if is_buy:  # this one had set aside its own price
            txn.update("account", buyer, {"cash": cash + (price - at) * dealt})
    if n:
        txn.insert("offer", {"account": account, "symbol": symbol, "n": n, "side": side, "rank": rank})
    return True


def report(trade, account):  # DuckDB finds them by their names
    bought = "select name, symbol, count(*), sum(n), sum(n * price) from trade join account on buyer = account.id"
    for row in duckdb.sql(f"{bought} group by all order by 5 desc limit 3").fetchall():
        print("{} bought {}: {} trades, {} shares for {}".format(*row))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, tm.open(f"{folder}/book", redo_log="16 MiB") as db:
        create(db)
        chosen, covered = random.Random(1), 0
        for _ in range(OFFERS):
            trader, symbol, is_buy = chosen.randint(1, TRADERS), chosen.choice(SYMBOLS), chosen.random() < 0.5
            with db.transaction() as txn:  # of several threads or clients: db.run, which repeats one that must wait
                covered += place(txn, trader, symbol, is_buy, chosen.randint(1, 20), Decimal(chosen.randint(90, 110)))
        print(f"{covered} offers, and {OFFERS - covered} that their account did not cover")
        with db.snapshot() as now:  # all tables as at one moment
            report(now["trade"].dataset(), now["account"].dataset())
            buy, sell = now["offer"].aggregate(by="side", n=("sum", "n"), cash=("sum", left * tm.col("rank")))
            assert now["account"].sum("cash") - buy.cash == CASH * TRADERS
            assert now["share"].sum("n") + sell.n == SHARES * TRADERS * len(SYMBOLS)
        print(f"offers left: to buy {buy.n} shares, to sell {sell.n}; no cent and no share is lost")
