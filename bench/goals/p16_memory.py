"""P16: bytes kept per byte of value, fixed-size rows; peers on disk or in memory, whatever they keep."""

from __future__ import annotations

from bench.context import Context
from bench.report import OURS, Line, at_most
from bench.rows import ROW_BYTES


def measure(context: Context) -> list[Line]:
    """One line."""
    loaded = context.loaded
    values = context.scale.rows * ROW_BYTES
    line = Line("P16", "bytes per byte of value, primary index included", "ratio", {})
    line.figures[OURS] = loaded.db.status()["memory"]["used_bytes"] / values
    line.settings[OURS] = "data_memory in use, inserted at once in random order"
    pages = loaded.sqlite.execute("pragma page_count").fetchone()[0]
    line.figures["SQLite"] = pages * loaded.sqlite.execute("pragma page_size").fetchone()[0] / values
    line.settings["SQLite"] = "pages of the database file"
    information = loaded.lmdb.info()
    line.figures["LMDB"] = information["last_pgno"] * loaded.lmdb.stat()["psize"] / values
    line.settings["LMDB"] = "pages of the map"
    if loaded.rocksdb is not None:
        line.figures["RocksDB"] = sum(each["size"] for each in loaded.rocksdb.live_files()) / values
        line.settings["RocksDB"] = "live table files, default compression"
    if loaded.redis is not None:
        line.figures["Redis"] = (loaded.redis.info(b"used_memory") - loaded.redis_empty_bytes) / values
        line.settings["Redis"] = "used_memory, without what the empty server uses"
    at_most(line, "bytes per byte", line.figures[OURS], 1.55)
    return [line]
