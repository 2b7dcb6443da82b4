"""TPC-H `orders` and `lineitem`, by the published generator if it is installed, and the rule for an order's total."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.demo.rows import make
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.partition import HashPartition
from tidemark.engine.types import Char, Date, Decimal, Int32, Int64, VarChar

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.database import Database

MONEY = Decimal(15, 2)
COMMENT_STORAGE = "disk"  # comments are most of the bytes of orders and lines, much more than the page buffer
PAGE_BUFFER_BYTES = 4 << 20
LOAD_ROWS = 20_000  # of one transaction: its changes reserve space in the UNDO log
ORDERS = [
    Column("o_orderkey", Int64),
    Column("o_custkey", Int64),
    Column("o_orderstatus", Char(1)),
    Column("o_totalprice", MONEY),
    Column("o_orderdate", Date),
    Column("o_orderpriority", VarChar(15)),
    Column("o_clerk", VarChar(15)),
    Column("o_shippriority", Int32),
    Column("o_comment", VarChar(79), storage=COMMENT_STORAGE),
]
LINEITEM = [
    Column("l_orderkey", Int64),
    Column("l_partkey", Int64),
    Column("l_suppkey", Int64),
    Column("l_linenumber", Int32),
    Column("l_quantity", MONEY),
    Column("l_extendedprice", MONEY),
    Column("l_discount", MONEY),
    Column("l_tax", MONEY),
    Column("l_returnflag", Char(1)),
    Column("l_linestatus", Char(1)),
    Column("l_shipdate", Date),
    Column("l_commitdate", Date),
    Column("l_receiptdate", Date),
    Column("l_shipinstruct", VarChar(25)),
    Column("l_shipmode", VarChar(10)),
    Column("l_comment", VarChar(44), storage=COMMENT_STORAGE),
]
# One row per transaction, written inside it, says what it did, so that its effects can be checked after a crash.
REFRESH_LOG = [
    Column("thread", Int32),
    Column("sequence", Int64),
    Column("operation", Char(6)),
    Column("order_key", Int64),
    Column("lines", Int32),
    Column("total_cents", Int64),
]
LINE_KEY = ("l_orderkey", "l_linenumber")
GENERATOR = "tpchgen-cli"
DATA_MEMORY = "6 GiB"  # of the bulk half: scale 1 takes a fifth of it
CHANGED = "refresh: now "
AMOUNT_DIGITS = 14


def generate(folder: Path, scale: float) -> tuple[Path, Path]:
    """Return Parquet files of orders and lineitem at a scale. Unless both exist, they are made, by the published
    generator if it is installed, otherwise by `rows`.
    """
    orders, lines = folder / "orders.parquet", folder / "lineitem.parquet"
    if orders.exists() and lines.exists():
        return orders, lines
    if has_generator():
        command = [str(_generator()), "parquet", "-s", str(scale), "--tables=orders,lineitem", f"--output-dir={folder}"]
        subprocess.run(command, check=True, capture_output=True)
        return orders, lines
    import pyarrow.parquet as parquet

    for path, table in zip((orders, lines), make(scale, totals), strict=True):
        parquet.write_table(table, path)
    return orders, lines


def has_generator() -> bool:
    """Whether TPC-H's published generator is installed (the extra bench has it)."""
    return _generator().exists()


def _generator() -> Path:
    return Path(sysconfig.get_path("scripts")) / GENERATOR


def read(path: Path, columns: list[Column]) -> pa.Table:
    """Read a generated file with the columns of the demo's table."""
    import pyarrow.parquet as parquet

    return parquet.read_table(path, columns=[column.name for column in columns])


def load(db: Database, orders: pa.Table, lines: pa.Table) -> None:
    """Create the tables and fill them, LOAD_ROWS rows per transaction."""
    partition = HashPartition(4)
    tables = (
        (db.create_table("tpch.orders", ORDERS, "o_orderkey", partition), orders),
        (db.create_table("tpch.lineitem", LINEITEM, LINE_KEY, partition), lines),
    )
    for table, rows in tables:
        for first in range(0, rows.num_rows, LOAD_ROWS):
            table.insert_many(rows.slice(first, LOAD_ROWS))
    db.create_table("tpch.refresh_log", REFRESH_LOG, ("thread", "sequence"), partition)


def disk_figures(db: Database) -> dict[str, Any]:
    """Return what disk pages hold, and the counters of page buffer and UNDO log since the store was opened."""
    status, report = db.status()["disk"], db.space_report()
    (buffer,), undo = status["page_buffer"].values(), status["undo"]
    (tablespace,) = report["tablespaces"].values()
    fill = [table["pages_by_fill"] for table in report["tables"].values()]
    return {
        "pages": sum(sum(each[1:]) for each in fill),  # at least a tenth full
        "page_bytes": tablespace["page_bytes"],
        "frames": buffer["frames"],
        "hits": buffer["hits"],
        "misses": buffer["misses"],
        "undo_records": undo["records_made"],
        "undo_records_filtered": undo["records_filtered"],
        "undo_bytes": undo["bytes_made"],
        "undo_bytes_filtered": undo["bytes_filtered"],
    }


def cents(column: Any) -> Any:
    """Return an Arrow column of Decimal(15, 2) as int64 cents."""
    array = column.combine_chunks()
    # A decimal128 is 16 little-endian bytes; 15 digits fit the low eight.
    words = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return words[2 * array.offset : 2 * (array.offset + len(array)) : 2]


def changed_comment(amount_cents: int, before: str = "") -> str:
    """Return the comment of a row that refresh work has written. It repeats the row's price, so a check can verify it.

    It is no shorter than the comment before, so most comments stay in their places on their pages.
    """
    return f"{CHANGED}{amount_cents:0{AMOUNT_DIGITS}d}".ljust(len(before))


def line_cents(price: Any, discount: Any, tax: Any) -> Any:
    """Return a line's share of its order's total in cents, rounded down at each step as in the benchmark."""
    return price * (100 - discount) // 100 * (100 + tax) // 100


def totals(lines: pa.Table) -> tuple[Any, Any, Any]:
    """(order keys, lines per order, total cents per order) of a lineitem table."""
    amount = line_cents(
        cents(lines.column("l_extendedprice")), cents(lines.column("l_discount")), cents(lines.column("l_tax"))
    )
    keys, place, count = np.unique(np.asarray(lines.column("l_orderkey")), return_inverse=True, return_counts=True)
    total = np.zeros(keys.size, dtype=np.int64)
    np.add.at(total, place, amount)
    return keys, count, total
