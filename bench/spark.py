"""P14: TPC-H `lineitem` loaded, backed up, read, verified and restored, beside Spark's own Parquet and an older tree.

`python -m bench.spark [--scale 1] [--cores 1|2] [--rounds 5] [--old DIRECTORY]`. Figures are processor seconds of this
process, Java and all workers, and wall seconds beside them: medians of the rounds, A and B in turn in each, after two
rounds that are not counted. "Spark" is its own Parquet of the same rows, in as many files, partitioned by the key; what
we write is synced, and page checksums are verified, which Spark's are not. "old" is a checkout of an older tree with an
environment of its own, whose backup and restore are measured in a process beside ours (bench/spark_child.py). A run
with two cores is compared with the one of one core that was kept for the same commit and scale.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import tidemark as tm
import tidemark.spark as ts
from bench.report import OURS, RESULTS, Goal, Line, at_most, git_commit, keep, show
from bench.spark_child import COLUMNS, FRAGMENTS, KEY, OPTIONS
from tidemark.demo.data import generate
from tidemark.recovery.spark.load import load_frame, load_places

SPARK, OLD = "Spark", "old"
WALL = ", wall"
WARM_ROUNDS = 2
THREE = ["l_orderkey", "l_quantity", "l_shipdate"]
MONTH = "l_shipdate >= date'1995-03-01' and l_shipdate < date'1995-04-01'"
SOME_KEYS = 500  # of so many numbers, one: 0.2 %
UPDATED = 100  # of each so many orders, the rows of one are dead in the chain
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Cost(NamedTuple):
    """Seconds of all processors, and of the wall clock."""

    processor: float
    wall: float


class Used(NamedTuple):
    """Processor seconds of a process, and of its children that it has waited for."""

    parent: int
    own: float
    ended: float


def processes() -> dict[int, Used]:
    """Return this process and all below it."""
    found: dict[int, Used] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended
        own, ended = (sum(map(int, fields[first : first + 2])) * TICK_S for first in (11, 13))
        found[int(path.parent.name)] = Used(int(fields[1]), own, ended)
    wanted = {os.getpid()}
    while below := {pid for pid, each in found.items() if each.parent in wanted} - wanted:
        wanted |= below
    return {pid: found[pid] for pid in wanted}


def seconds_between(before: dict[int, Used], after: dict[int, Used]) -> float:
    """Return the processor seconds of a tree of processes between two looks at it. Those of a process that ended, and
    for which its parent has not waited, are missing.
    """
    total = sum(each.own + each.ended for each in after.values())
    total -= sum(each.own + each.ended for pid, each in before.items() if pid in after)
    waited = {pid: after[pid].ended - each.ended for pid, each in before.items() if pid in after}
    for pid in before.keys() - after.keys():  # its parent counts all of it, also what was used before
        each = before[pid]
        taken = min(each.own + each.ended, waited.get(each.parent, 0.0))
        waited[each.parent] = waited.get(each.parent, 0.0) - taken
        total -= taken
    return total


class Child:
    """A process that backs up, verifies and restores with the code of one tree; one request at a time."""

    def __init__(self, tree: Path, root: Path, source: str) -> None:
        program = Path(__file__).with_name("spark_child.py").absolute()
        python = tree / ".venv" / "bin" / "python"
        command = [python if python.exists() else sys.executable, program, root, source]
        environment = {**os.environ, "PYTHONPATH": str(tree), "NUMBA_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [str(each) for each in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=tree,
            env=environment,
        )

    def ask(self, what: str) -> dict[str, Any]:
        """Return what a request cost, as `processor` and `wall`, and what else the process says of it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process that was to {what} ended with code {self._process.wait()}")
        said: dict[str, Any] = json.loads(line)
        return said

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Bench:
    """One session of Spark: what is read, written and loaded in each round."""

    def __init__(self, spark: Any, root: Path, source: str) -> None:
        self.spark = spark
        self.root = root
        self.source = source
        self.costs: dict[tuple[str, str], list[Cost]] = {}
        self._numbers = 0
        self._place = str(root / "place")
        self._parquet = str(root / "parquet")
        self.rows = spark.read.parquet(source).count()

    def fresh(self) -> Path:
        """Return a directory that does not exist yet."""
        self._numbers += 1
        return self.root / f"d{self._numbers}"

    @contextmanager
    def timed(self, what: str, who: str) -> Iterator[None]:
        """Within the block, count the time."""
        before, began = processes(), time.perf_counter()
        yield
        wall = time.perf_counter() - began
        self.note(what, who, Cost(seconds_between(before, processes()), wall))

    def note(self, what: str, who: str, cost: Cost) -> None:
        """Keep what a work cost."""
        self.costs.setdefault((what, who), []).append(cost)

    def partitioned(self) -> Any:
        """The rows as Spark writes them for the comparison."""
        return self.spark.read.parquet(self.source).repartition(FRAGMENTS, *KEY)

    def made(self) -> None:
        """Make what is read in every round: Spark's Parquet, and a chain of two backups, the first of them whole."""
        self.partitioned().write.parquet(self._parquet)
        with self.opened() as (db, _):
            db.load("lineitem", self.source)
            db.backup(self._place, verify=False)
            keys = db["lineitem"].scan(columns=KEY, where=tm.col("l_orderkey") % UPDATED == 0).to_arrow()
            with db.transaction() as txn:
                for key in zip(*(keys[name].to_pylist() for name in KEY), strict=True):
                    txn.update("lineitem", key, {"l_comment": "changed"})
            db.backup(self._place, incremental=True, verify=False)

    @contextmanager
    def opened(self) -> Iterator[tuple[tm.Database, Path]]:
        """A new store with the table, for the block."""
        path = self.fresh()
        with tm.open(path, **OPTIONS) as db:
            db.create_table("lineitem", COLUMNS, KEY, partition=tm.HashPartition(FRAGMENTS))
            yield db, path
        shutil.rmtree(path)

    def reads(self) -> None:
        """Each read, of Spark's Parquet and of the backup."""
        from pyspark.sql import functions as f

        def whole(frame: Any) -> None:
            frame.write.format("noop").mode("overwrite").save()

        works: dict[str, tuple[int, Callable[[Any], Any]]] = {
            "read, all columns": (1, whole),
            "read, three of sixteen columns": (1, lambda frame: whole(frame.select(*THREE))),
            "read, one month of 84": (1, lambda frame: whole(frame.where(MONTH))),
            "read, group by": (1, lambda frame: self.grouped(frame, f).collect()),
            "read, 0.2 % by key": (1, lambda frame: whole(frame.where(self.some_keys()))),
            "chain with 1 % dead rows, all columns": (2, whole),
            "chain with 1 % dead rows, three columns": (2, lambda frame: whole(frame.select(*THREE))),
        }
        for what, (number, work) in works.items():
            with self.timed(what, SPARK):
                work(self.spark.read.parquet(self._parquet))
            with self.timed(what, OURS):
                work(ts.read(self.spark, self._place, "lineitem", number=number))

    def grouped(self, frame: Any, f: Any) -> Any:
        """Sums by two columns."""
        return frame.groupBy("l_returnflag", "l_linestatus").agg(f.sum("l_quantity"), f.sum("l_extendedprice"))

    def some_keys(self) -> str:
        """A range of keys with 0.2 % of the rows."""
        # Eight of each 32 numbers are orders, of four rows each: as many rows as numbers.
        begin = self.rows // 2
        return f"l_orderkey >= {begin} and l_orderkey < {begin + self.rows // SOME_KEYS}"

    def loads(self) -> None:
        """Spark's writes of Parquet, and loads into new stores."""
        for what, is_partitioned in (("Spark's write, as it comes", False), ("Spark's write, by key", True)):
            target = self.fresh()
            with self.timed(what, SPARK):
                frame = self.partitioned() if is_partitioned else self.spark.read.parquet(self.source)
                frame.write.parquet(str(target))
            shutil.rmtree(target)
        computed = self.spark.read.parquet(self.source).selectExpr(
            *(f"{each.name} + 0 {each.name}" if each.name == "l_linenumber" else each.name for each in COLUMNS)
        )
        for what, write in (
            ("load files from Parquet", lambda job: load_places(self.spark, [self.source], job)),
            ("load files of a computed DataFrame", lambda job: load_frame(computed, job)),
        ):
            with self.opened() as (db, _):
                job = db.plan_load("lineitem")
                with self.timed(what, OURS):
                    write(job)
                with self.timed(what.replace("load files", "adoption"), OURS):
                    db.adopt(job)
                assert len(db["lineitem"]) == self.rows

    def jobs(self) -> None:
        """Verification and restore on executors."""
        with self.timed("verify, on executors", OURS):
            assert ts.verify(self.spark, self._place, 1)["is_sound"]
        target = self.fresh()
        with self.timed("restore, on executors", OURS):
            report = ts.restore(self.spark, self._place, target, number=1, verify=False, **OPTIONS)
        assert report["rows"] == self.rows
        shutil.rmtree(target)

    def natives(self, children: dict[str, Child]) -> dict[str, int]:
        """Backup, verification and restores in a process of each tree, in turn; return bytes of the backups."""
        sizes = {}
        for what in ("backup", "verify", "restore", "restore and verify", "restore at 500 MB/s"):
            for who, child in children.items():
                said = child.ask(what)
                self.note(f"{what}, natively", who, Cost(said["processor"], said["wall"]))
                if what == "backup":
                    sizes[who] = said["size_bytes"]
        return sizes


def line_of(bench: Bench, what: str, pairs: dict[str, list[list[Cost]]]) -> Line:
    """A line of one figure; the costs of works that belong together are added, round by round."""
    line = Line("P14", what, "s", {})
    for who, parts in pairs.items():
        for name, at in ((who, 0), (who + WALL, 1)):
            rounds = [sum(each[at] for each in costs) for costs in zip(*parts, strict=True)]
            line.figures[name] = median(rounds)
            line.rounds[name] = rounds
    return line


def of_spark(line: Line, least: float) -> Line:
    """Add the goal: at least so many times the speed of Spark, in processor time."""
    reached = line.figures[SPARK] / line.figures[OURS]
    line.goals.append(Goal(f"≥ {least:g}× {SPARK}", reached, reached >= least))
    return line


def of_old(line: Line, most: float, name: str = "") -> Line:
    """Add the goal: at most so many times what the older tree needs."""
    if OLD + name in line.figures:
        at_most(line, f"of the older tree's{name}", line.figures[OURS + name] / line.figures[OLD + name], most)
    return line


def lines_of(bench: Bench, sizes: dict[str, int], cores: int) -> list[Line]:
    """All figures of a run, with their goals."""

    def costs(what: str, who: str) -> list[Cost]:
        return bench.costs[(what, who)]

    def both(what: str) -> Line:
        return line_of(bench, what, {who: [costs(what, who)] for who in (OURS, SPARK)})

    def load(what: str, *parts: str) -> Line:
        found = {OURS: [costs(part, OURS) for part in parts], SPARK: [costs("Spark's write, by key", SPARK)]}
        return line_of(bench, what, found)

    def native(what: str) -> Line:
        found = {who: [costs(f"{what}, natively", who)] for who in sizes}
        return line_of(bench, f"{what}, natively", found)

    least = {
        "read, all columns": 0.95,
        "read, three of sixteen columns": 0.95,
        "read, one month of 84": 0.90,
        "read, group by": 0.95,
        "read, 0.2 % by key": 0.80,
        "chain with 1 % dead rows, all columns": 0.70,
        "chain with 1 % dead rows, three columns": 0.50,
    }
    lines = [of_spark(both(what), limit) for what, limit in least.items()]
    files, computed = "load files from Parquet", "load files of a computed DataFrame"
    lines.append(of_spark(load(files, files), 2.5))
    whole = [files, "adoption from Parquet"]
    lines.append(of_spark(load("load from Parquet, with adoption", *whole), 1.4 if cores == 1 else 1.5))
    parts = [computed, "adoption of a computed DataFrame"]
    lines.append(of_spark(load("load of a computed DataFrame, with adoption", *parts), 0.60))
    plain = "Spark's write, as it comes"
    lines.append(line_of(bench, plain, {SPARK: [costs(plain, SPARK)]}))
    size = Line("P14", "backup, bytes", "B", {who: float(found) for who, found in sizes.items()})
    lines += [of_old(size, 0.20), of_old(native("backup"), 2.3), of_old(native("verify"), 0.5)]
    lines += [of_old(native("restore"), 1.7), of_old(native("restore and verify"), 1.4)]
    lines.append(of_old(native("restore at 500 MB/s"), 1.0, WALL))
    for what in ("verify, on executors", "restore, on executors"):
        lines.append(line_of(bench, what, {OURS: [costs(what, OURS)]}))
    return lines


def two_cores_against_one(lines: list[Line], scale: float) -> None:
    """Add the goals of wall time, if a run with one core was kept for this commit and scale."""
    commit = git_commit().rstrip("+")
    kept = sorted(RESULTS.glob(f"*-{commit}-{name_of(1, scale)}.json"))
    if not kept:
        return
    before = {line["what"]: line["figures"] for line in json.loads(kept[-1].read_text(encoding="utf-8"))["lines"]}
    for line in lines:
        if line.what in ("read, all columns", "load files from Parquet") and line.what in before:
            reached = before[line.what][OURS + WALL] / line.figures[OURS + WALL]
            line.goals.append(Goal("two cores against one, wall ≥ 1.6", reached, reached >= 1.6))


def name_of(cores: int, scale: float) -> str:
    """The name of the results of a run."""
    return f"spark-{cores}-core{'s' * (cores > 1)}-scale-{scale:g}"


def main() -> None:
    """Print the figures and keep them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of TPC-H; 1 is 6,001,215 rows")
    parser.add_argument("--cores", type=int, choices=(1, 2), default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--old", type=Path, help="a checkout of an older tree, for backup and restore")
    asked = parser.parse_args()
    began = os.getloadavg()
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as scratch, ExitStack() as ends:
        root = Path(scratch)
        (root / "data").mkdir()
        source = str(generate(root / "data", asked.scale)[1])
        settings = {"spark.driver.memory": "3g", "spark.log.level": "ERROR", "spark.local.dir": str(root / "local")}
        spark = ts.session(f"local[{asked.cores}]", "bench", settings)
        ends.callback(spark.stop)
        bench = Bench(spark, root, source)
        bench.made()
        trees = {OURS: Path(__file__).resolve().parents[1]} | ({OLD: asked.old.absolute()} if asked.old else {})
        children = {who: Child(tree, root / f"native-{who}", source) for who, tree in trees.items()}
        for child in children.values():
            ends.callback(child.close)
        for turn in range(WARM_ROUNDS + asked.rounds):
            if turn == WARM_ROUNDS:
                bench.costs.clear()
            bench.reads()
            bench.loads()
            bench.jobs()
            sizes = bench.natives(children)
            print(f"round {turn + 1} of {WARM_ROUNDS + asked.rounds}", file=sys.stderr, flush=True)
        lines = lines_of(bench, sizes, asked.cores)
        if asked.cores == 2:
            two_cores_against_one(lines, asked.scale)
        for line in lines:
            show(line)
        about = {"scale": asked.scale, "cores": asked.cores, "rounds": asked.rounds, "rows": bench.rows}
        about |= {"load_average": [began, os.getloadavg()], "old": OLD in sizes}
        print(keep(lines, about, name=name_of(asked.cores, asked.scale)).name)


if __name__ == "__main__":
    main()
