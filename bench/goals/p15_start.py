"""P15: start-up of a fresh process: import and open of a small store, warm; the very first run, kernels compiling."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import peers
from bench.context import Context
from bench.report import OURS, Line, at_most, line_of
from bench.rounds import Work, interleave
from bench.rows import COLUMNS

ROWS = 1_000
ROOT = str(Path(__file__).resolve().parents[2])

PROGRAM = """
import time
began = time.perf_counter()
{body}
print(time.perf_counter() - began)
"""
BODIES = {
    OURS: "import tidemark\ndb = tidemark.open({path!r}, background=False)\nassert len(db['t']) == {rows}",
    "SQLite": "import sqlite3\n"
    "assert sqlite3.connect({path!r}).execute('select count(*) from t').fetchone()[0] == {rows}",
    "LMDB": "import lmdb\nassert lmdb.open({path!r}).stat()['entries'] == {rows}",
    "RocksDB": "import rocksdict\n"
    "assert rocksdict.Rdict({path!r}, rocksdict.Options(raw_mode=True)).get({key!r}) is not None",
}
FIRST_RUN = """
import tidemark as tm
for _ in range(2):
    with tm.open({path!r}) as db:
        if 'main.t' not in db:
            db.create_table('t', [tm.Column('id', tm.Int64), tm.Column('s', tm.VarChar(20))], 'id')
        t = db['t']
        n = 1_000 * len(t)
        t.insert((n, 'a'))
        t.insert_many([(n + i, 'b') for i in range(1, 100)])
        t.update(n, {{'s': 'c'}})
        assert t.get(n).s == 'c'
        assert len(t.get_many([n, n + 1])) == 2
        t.delete(n)
        assert len(t.to_arrow()) == len(t)
        db.checkpoint()
"""


def run_program(text: str, cache: str | None = None) -> tuple[float, str, str]:
    """Run a program in a fresh interpreter: wall seconds, its output, its messages."""
    environment = {**os.environ, "PYTHONPATH": ROOT}
    if cache is not None:
        environment["TIDEMARK_CACHE"] = cache
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=environment)
    return time.perf_counter() - began, done.stdout, done.stderr


def _small_stores(context: Context) -> dict[str, Path]:
    rows = context.tuples[:ROWS]
    paths = {name: context.folder / f"small-{name.lower()}" for name in BODIES}
    with context.open(paths[OURS].name, redo_log="256 MiB") as db:
        db.create_table("t", COLUMNS, "id").insert_many(context.table.slice(0, ROWS))
        db.checkpoint()
    connection = peers.sqlite_open(paths["SQLite"], "full")
    peers.sqlite_load(connection, rows)
    connection.close()
    pairs = peers.encode(rows)
    with peers.lmdb_open(paths["LMDB"]) as environment:
        peers.lmdb_load(environment, pairs)
    if peers.rocksdict is not None:
        database = peers.rocksdb_open(paths["RocksDB"])
        peers.rocksdb_load(database, pairs, True)
        database.close()
    else:
        del paths["RocksDB"]
    return paths


def measure(context: Context) -> list[Line]:
    """Warm start, first run."""
    paths = _small_stores(context)
    works = []
    for name, path in paths.items():
        text = PROGRAM.format(
            body=BODIES[name].format(path=str(path), rows=ROWS, key=peers.key_bytes(context.tuples[0][0]))
        )

        def run(text: str = text) -> float:
            return float(run_program(text)[1])

        works.append(
            Work(name, run, "fresh interpreter: import, open, look at the rows; interpreter start not counted")
        )
    warm = line_of(
        "P15", f"import and open of a store of {ROWS:,} rows, warm", interleave(works, 1, context.scale.rounds + 2), "s"
    )
    at_most(warm, "seconds", warm.figures[OURS], 0.8)
    if peers.REDIS_BINARY is not None:
        with peers.redis(context.folder / "small-redis", "everysec") as server:
            warm.figures["Redis server"] = server.start_s
            warm.settings["Redis server"] = "process start of an empty server to its first answer"
    with tempfile.TemporaryDirectory(dir=context.folder) as cache:
        text = FIRST_RUN.format(path=str(context.folder / "first"))
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds, _, messages = run_program(text, cache)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        again, _, _ = run_program(FIRST_RUN.format(path=str(context.folder / "second")), cache)
    first = Line(
        "P15", "the very first run: make a store, every usual call, local checkpoint, reopen", "s", {OURS: seconds}
    )
    first.figures["the same with kernels kept"] = again
    at_most(first, "seconds", seconds, 30)
    first.notes.append(f"processor time {after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime:.1f} s")
    first.notes.append("message: " + (messages.strip().splitlines()[0].split(";")[0] if messages.strip() else "none"))
    return [warm, first]
