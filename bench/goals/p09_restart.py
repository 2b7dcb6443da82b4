"""P9, memory tables: restart from a local checkpoint, with and without REDO after it, next to Redis with the same rows.

Each restart is timed cold: the store's files are dropped from the page cache before it, Redis' files too.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

import tidemark as tm
from bench import peers
from bench.context import Context, slices
from bench.peers import command
from bench.report import OURS, Line, at_least, times_faster
from bench.rows import COLUMNS, PACK, make_table, packed

PIECE_ROWS = 500_000
UPDATE_ROWS = 100_000
ROUNDS = 3
SEED = 9
READ_BYTES = 1 << 20
OPTIONS: dict[str, Any] = {
    "data_memory": "3 GiB",
    "redo_log": "1 GiB",
    "durability": "epoch",
    "background": False,
}
INDEXED = {"ts": "an integer, 8 bytes, the whole key in the entry", "name": "20 random bytes"}


def drop_from_cache(folder: Path) -> int:
    """Drop the pages of a folder's files from the page cache; returns their bytes."""
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            total += os.fstat(descriptor).st_size
            os.close(descriptor)
    return total


def read_files(paths: list[Path]) -> tuple[float, int]:
    """Seconds and bytes of a sequential read."""
    buffer = bytearray(READ_BYTES)
    total = 0
    began = time.perf_counter()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return time.perf_counter() - began, total


def redis_commands(keys: np.ndarray, rows: np.ndarray) -> bytes:
    """SET commands of packed rows in Redis' protocol, without Python per row."""
    template = command(b"SET", bytes(8), bytes(PACK.size))
    out = np.tile(np.frombuffer(template, dtype="u1"), (len(keys), 1))
    key_at = template.index(b"$8\r\n") + 4
    row_at = len(template) - 2 - PACK.size
    out[:, key_at : key_at + 8] = keys.view("u1").reshape(-1, 8)
    out[:, row_at : row_at + PACK.size] = rows.view("u1").reshape(-1, PACK.size)
    return out.tobytes()


def updates(context: Context) -> Any:
    """Yield the operations after the checkpoint, piece by piece: Arrow tables of id and b."""
    rng = np.random.default_rng(SEED)
    rows = context.scale.restart_rows
    for _, count in slices(0, context.scale.restart_operations, UPDATE_ROWS):
        # Each key occurs once in a transaction, so that there are as many operations as rows.
        ids = (
            rng.choice(rows, count, replace=False) if rows <= 4 * count else np.unique(rng.integers(0, rows, 2 * count))
        )
        ids = rng.permutation(ids)[:count]
        yield pa.table({"id": ids, "b": rng.random(len(ids))})


def build_ours(context: Context) -> tuple[Path, Path]:
    """Build two stores: one closed right after a local checkpoint, one with the operations after it."""
    folder = context.folder / "restart"
    with context.open("restart", **OPTIONS) as db:
        table = db.create_table("t", COLUMNS, "id")
        for first, count in slices(0, context.scale.restart_rows, PIECE_ROWS):
            table.insert_many(make_table(first, count))
        db.checkpoint()
        db.checkpoint()  # two local checkpoints are kept, and both now hold the rows
    copy = context.folder / "restart-lcp"
    peers.remove(copy)
    shutil.copytree(folder, copy)
    with tm.open(folder, **OPTIONS) as db:
        for piece in updates(context):
            db["t"].update_many(piece)
    return copy, folder


def build_indexed(context: Context, rows_folder: Path) -> tuple[list[Path], list[float]]:
    """Build the checkpointed store with an ordered index over ts, and with one over name; return both build times."""
    folders, seconds = [], []
    for column in INDEXED:
        folder = context.folder / f"restart-{column}"
        peers.remove(folder)
        shutil.copytree(rows_folder, folder)
        with tm.open(folder, **OPTIONS) as db:
            began = time.perf_counter()
            db.create_index("t", f"by_{column}", column)
            seconds.append(time.perf_counter() - began)
            db.checkpoint()
            db.checkpoint()
        folders.append(folder)
    return folders, seconds


def restart_ours(folder: Path) -> tuple[float, dict[str, Any]]:
    """Open cold; seconds and the phases."""
    drop_from_cache(folder)
    began = time.perf_counter()
    db = tm.open(folder, data_memory=OPTIONS["data_memory"], background=False)
    seconds = time.perf_counter() - began
    report = db.restart_report
    db.close()
    return seconds, report


def build_redis(context: Context) -> tuple[Path, Path]:
    """Build two folders: an RDB file of the rows, and an append-only file of the rows and the operations after them."""
    rdb, aof = context.folder / "restart-rdb", context.folder / "restart-aof"
    with peers.redis(aof, "no") as server:
        # The append-only file is enabled after the load, so its base is the rows in RDB form, as by Redis' default.
        for first, count in slices(0, context.scale.restart_rows, PIECE_ROWS):
            keys, rows = packed(make_table(first, count))
            server.client.pipeline(redis_commands(keys, rows), count)
        server.client.ask(b"SAVE")
        peers.remove(rdb)
        rdb.mkdir()
        (aof / "dump.rdb").rename(rdb / "dump.rdb")
        server.client.ask(b"CONFIG", b"SET", b"appendonly", b"yes")
        server.wait_until_zero(b"aof_rewrite_in_progress")
        server.client.ask(b"CONFIG", b"SET", b"appendfsync", b"no")
        for piece in updates(context):
            ids = piece.column("id").to_numpy()
            rows = np.zeros(len(ids), dtype=packed(make_table(0, 1))[1].dtype)
            rows["id"], rows["b"] = ids, piece.column("b").to_numpy()
            server.client.pipeline(redis_commands(ids.astype(">i8"), rows), len(ids))
    return rdb, aof


def restart_redis(folder: Path, append_only: str, rows: int) -> float:
    """Start cold; seconds until it answers, with all rows in it."""
    drop_from_cache(folder)
    with peers.redis(folder, append_only, is_new=False) as server:
        count = server.client.ask(b"DBSIZE")
        if count != rows:
            raise RuntimeError(f"Redis came back with {count} of {rows} rows")
        return server.start_s


def measure(context: Context) -> list[Line]:
    """Restart from the checkpoint, restart with REDO after it, and the load phase next to a raw read."""
    rows = context.scale.restart_rows
    lcp_folder, redo_folder = build_ours(context)
    redis = build_redis(context) if peers.REDIS_BINARY else None
    rounds: dict[str, list[float]] = {name: [] for name in ("lcp", "redo", "rdb", "aof", "load", "read", "replay")}
    phases: dict[str, Any] = {}
    for number in range(ROUNDS + 1):
        if number == 1:  # the previous round was untimed: it only touched the memory
            rounds = {name: [] for name in rounds}
        seconds, phases["lcp"] = restart_ours(lcp_folder)
        rounds["lcp"].append(seconds)
        rounds["load"].append(_phase(phases["lcp"], "load")["ms"] / 1_000)
        seconds, phases["redo"] = restart_ours(redo_folder)
        rounds["redo"].append(seconds)
        rounds["replay"].append(
            (_phase(phases["redo"], "read log")["ms"] + _phase(phases["redo"], "redo")["ms"]) / 1_000
        )
        newest = phases["lcp"]["lcp_id"]
        drop_from_cache(lcp_folder)
        seconds, size = read_files(sorted((lcp_folder / "lcp").glob(f"{newest}-*.data")))
        rounds["read"].append(seconds)
        if redis is not None:
            rounds["rdb"].append(restart_redis(redis[0], "no", rows))
            rounds["aof"].append(restart_redis(redis[1], "everysec", rows))
    return [*_lines(context, rounds, phases, size), *_index_lines(context, lcp_folder)]


def _index_lines(context: Context, rows_folder: Path) -> list[Line]:
    """Measure separately what an ordered index adds to a restart, as the goal asks."""
    lines = []
    for folder, built_s, (column, what) in zip(*build_indexed(context, rows_folder), INDEXED.items(), strict=True):
        rounds: dict[str, list[float]] = {"rebuild": [], "restart": []}
        for number in range(ROUNDS + 1):
            seconds, report = restart_ours(folder)
            if number > 0:
                rounds["restart"].append(seconds)
                rounds["rebuild"].append(_phase(report, "build indexes")["ms"] / 1_000)
        rows = context.scale.restart_rows
        line = Line(
            "P9", f"rebuilding an ordered index of {rows:,} rows over {column}", "s", {OURS: median(rounds["rebuild"])}
        )
        line.rounds[OURS] = rounds["rebuild"]
        line.notes.append(f"{what}; {rows / median(rounds['rebuild']) / 1e6:.1f} M entries/s")
        line.notes.append(f"the whole restart, cold: {median(rounds['restart']):.2f} s")
        line.notes.append(f"built online on the open store: {built_s:.2f} s")
        lines.append(line)
    return lines


def _phase(report: dict[str, Any], name: str) -> dict[str, Any]:
    return next(phase for phase in report["phases"] if phase["name"] == name)


def _shown(report: dict[str, Any]) -> str:
    return ", ".join(f"{each['name']} {each['ms']:.0f} ms" for each in report["phases"])


def _lines(context: Context, rounds: dict[str, list[float]], phases: dict[str, Any], size: int) -> list[Line]:
    rows, operations = context.scale.restart_rows, _phase(phases["redo"], "redo")["rows"]
    first = Line(
        "P9", f"system restart, {rows:,} rows from a local checkpoint, cold", "s", {OURS: median(rounds["lcp"])}
    )
    second = Line(
        "P9", f"the same with {operations:,} REDO operations after it, cold", "s", {OURS: median(rounds["redo"])}
    )
    first.notes.append("phases of the last: " + _shown(phases["lcp"]))
    second.notes.append("phases of the last: " + _shown(phases["redo"]))
    first.notes.append(
        "reading the log continues for a step of 16 MiB past its end, to prove that nothing valid is there"
    )
    second.notes.append(
        f"reading the log and replaying: {operations / median(rounds['replay']) / 1e6:.2f} M operations/s"
    )
    first.rounds, second.rounds = {OURS: rounds["lcp"]}, {OURS: rounds["redo"]}
    for line, name, key in ((first, "Redis RDB", "rdb"), (second, "Redis AOF", "aof")):
        if rounds[key]:
            line.figures[name] = median(rounds[key])
            line.rounds[name] = rounds[key]
            line.settings[name] = "process start to first answer; AOF base in RDB form, operations as SET commands"
        else:
            line.notes.append(peers.REDIS_MISSING)
        times_faster(line, name, 5)
    third = Line("P9", "loading the checkpoint, primary index included, cold", "MB/s", {})
    third.figures = {OURS: size / median(rounds["load"]) / 1e6, "sequential read": size / median(rounds["read"]) / 1e6}
    third.rounds = {OURS: [size / each / 1e6 for each in rounds["load"]]}
    third.rounds["sequential read"] = [size / each / 1e6 for each in rounds["read"]]
    at_least(
        third, "share of a cold sequential read of the same bytes", median(rounds["read"]) / median(rounds["load"]), 0.5
    )
    return [first, second, third]
