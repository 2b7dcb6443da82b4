"""P7: whole scans, to a sum, to groups and to Arrow; with 1, 4 and 16 fragments; beside SQLite and DuckDB."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench import peers
from bench.context import Context
from bench.report import OURS, Line, at_least, line_of, times_faster
from bench.rounds import Timing, Work, interleave, timed
from bench.rows import COLUMNS
from tidemark.engine.memory.arena_layout import ROW_HEADER_WORDS

try:
    import duckdb
except ImportError:
    duckdb = None  # type: ignore[assignment]

FRAGMENTS = (1, 4, 16)
LINE_BYTES = 64
GROUPS = 100
GROUP_COLUMNS = [tm.Column("id", tm.Int64), tm.Column("k", tm.Int64), tm.Column("quantity", tm.Int64)]
GROUP_FUNCTIONS = {"n": ("count",), "total": ("sum", "quantity")}
DUCKDB_SETTINGS = "DuckDB, its own table, one thread"


def _store(context: Context, fragments: int) -> tuple[tm.Database, tm.TableHandle]:
    db = context.open(f"scans{fragments}", durability="epoch")
    table = db.create_table("t", COLUMNS, "id", partition=tm.HashPartition(fragments))
    table.insert_many(context.table)
    return db, table


def _memory_bandwidth() -> float:
    """Bytes a second one thread reads: the sum of words that are far more than caches hold."""
    words = np.ones(512 << 20 >> 3, dtype=np.int64)
    run = timed(words.sum)
    return words.nbytes / min(run() for _ in range(7))


def _touched_bytes(table: tm.TableHandle) -> int:
    """Bytes of one row that a sum of b brings in: the cache lines of its header and of b, on average over the page."""
    row_bytes = (ROW_HEADER_WORDS + table.table.format.fixed_words) * 8
    return min(row_bytes, 2 * LINE_BYTES)


def _peers(context: Context, works: dict[str, list[Work]]) -> object:
    """Add SQLite, and DuckDB if it is installed, with the same rows; return the objects that must stay alive."""
    sqlite = peers.sqlite_open(context.folder / "scans.sqlite", "normal")
    peers.sqlite_load(sqlite, context.tuples)
    settings = peers.sqlite_settings("normal")

    def ask(sql: str) -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = sqlite.execute(sql).fetchall()
        return found

    works["sum"].append(Work("SQLite", timed(lambda: ask("select sum(b) from t")), settings))
    works["filter"].append(Work("SQLite", timed(lambda: ask("select sum(b) from t where b > 0.5")), settings))
    works["arrow"].append(Work("SQLite", timed(lambda: ask("select * from t")), settings + ", fetchall"))
    if duckdb is None:
        return sqlite
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    connection.register("rows", context.table)
    connection.execute("create table t as select * from rows")

    def duck(sql: str) -> object:
        return connection.execute(sql).fetchall()

    works["sum"].append(Work("DuckDB", timed(lambda: duck("select sum(b) from t")), DUCKDB_SETTINGS))
    works["filter"].append(Work("DuckDB", timed(lambda: duck("select sum(b) from t where b > 0.5")), DUCKDB_SETTINGS))
    works["arrow"].append(
        Work("DuckDB", timed(lambda: connection.sql("select * from t").to_arrow_table()), DUCKDB_SETTINGS)
    )
    return sqlite, connection


def _sum(table: tm.TableHandle, where: tm.Expression | None) -> None:
    table.scan(where=where).sum("b")


def _line(what: str, works: list[Work], context: Context, factor: float) -> tuple[Line, dict[str, Timing]]:
    found = interleave(works, context.scale.rows, context.scale.rounds + 2)
    line = line_of("P7", f"{what}, a row", found)
    times_faster(line, "SQLite", factor)
    return line, found


def _groups(context: Context) -> list[Line]:
    """Count and sum of 100 groups, by a column of integers and by one of characters."""
    if duckdb is None:
        return []
    numbers = context.table.column("id").to_numpy() % GROUPS
    rows = pa.table(
        {
            "id": context.table.column("id"),
            "k": numbers,
            "symbol": pa.array([f"SYM{number:03}" for number in range(GROUPS)]).take(pa.array(numbers)),
            "quantity": context.table.column("ts"),
        }
    )
    connection = duckdb.connect()
    connection.execute("set threads = 1")
    connection.execute("create table t as select * from rows")
    db = context.open("groups", durability="epoch")
    table = db.create_table("t", [tm.Column("symbol", tm.VarChar(20)), *GROUP_COLUMNS], "id")
    table.insert_many(rows)
    lines = []
    for by in ("k", "symbol"):
        sql = f"select {by}, count(*), sum(quantity) from t group by {by}"
        mine = Work(OURS, timed(partial(table.aggregate, by=by, **GROUP_FUNCTIONS)), f'aggregate(by="{by}")')
        peer = Work("DuckDB", timed(lambda sql=sql: connection.execute(sql).fetchall()), DUCKDB_SETTINGS)
        lines.append(_line(f"count and sum of {GROUPS} groups by {by}", [mine, peer], context, 0)[0])
        times_faster(lines[-1], "DuckDB", 1 / 3)
    db.close()
    return lines


def measure(context: Context) -> list[Line]:
    """For 1, 4 and 16 fragments: sum of a column, sum of what a condition accepts, all rows to Arrow; groups."""
    peer_works: dict[str, list[Work]] = {"sum": [], "filter": [], "arrow": []}
    kept = _peers(context, peer_works)
    bandwidth = _memory_bandwidth()
    lines = []
    for fragments in FRAGMENTS:
        db, table = _store(context, fragments)
        shown = f"{fragments} fragment{'s' if fragments > 1 else ''}"

        mine = Work(OURS, timed(partial(_sum, table, None)), 'scan().sum("b")')
        line, found = _line(f"sum of a column, {shown}", [mine, *peer_works["sum"]], context, 5)
        share = _touched_bytes(table) / found[OURS].median_s / bandwidth
        at_least(line, "of memory bandwidth", share, 0.5)
        line.notes.append(f"{_touched_bytes(table)} bytes a row, {bandwidth / 1e9:.1f} GB/s by one thread")
        lines.append(line)
        mine = Work(OURS, timed(partial(_sum, table, tm.col("b") > 0.5)), 'scan(where=col("b") > 0.5).sum("b")')
        lines.append(_line(f"sum with a condition, {shown}", [mine, *peer_works["filter"]], context, 5)[0])
        mine = Work(OURS, timed(table.to_arrow), "scan().to_arrow()")
        lines.append(_line(f"all rows to Arrow, {shown}", [mine, *peer_works["arrow"]], context, 3)[0])
        db.close()
    del kept
    return lines + _groups(context)
