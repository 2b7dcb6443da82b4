"""Many rows loaded, backed up, restored to a point in time and read by Spark once: seconds of each step, and the peak
memory of every process that took part.

`python -m bench.large_load [ROWS] [spark|native]` (100,000,000, spark; native ends after the checks of the store). Rows
have three columns of eight bytes; the process that writes them generates them. Verified: the count, the expected sums,
with `db.check` every row, index entry and file, and every byte of the backup. After the backup come transactions that
the restore leaves out.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

import tidemark as tm
import tidemark.spark as ts

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 100_000_000
BATCH_ROWS = 100_000
FRAGMENTS = 8
FACTOR, MODULUS = 48_271, 2_147_483_647
COLUMNS = [tm.Column("id", tm.Int64), tm.Column("amount", tm.Int64), tm.Column("half", tm.Float64)]
OPTIONS: dict[str, Any] = {"data_memory": "14 GiB", "background": False}
SAMPLE_SECONDS = 0.5
SUMS = ["count(1)", "sum(amount)", "sum(half)"]
CHANGES = 20  # transactions after the backup, half of them restored


class Peaks:
    """The peak memory of this process and its descendants, by kind of process."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        own = psutil.Process()
        while not self._stop.wait(SAMPLE_SECONDS):
            self._note("store and driver", own)
            for child in own.children(recursive=True):
                try:
                    self._note("java" if child.name() == "java" else "python worker", child)
                except psutil.Error:
                    continue

    def _note(self, name: str, process: psutil.Process) -> None:
        self.bytes[name] = max(self.bytes.get(name, 0), process.memory_info().rss)

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()


def reader(rows: int) -> pa.RecordBatchReader:
    """The rows, as `frame` makes them."""
    import pyarrow as pa

    schema = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("half", pa.float64())])
    return pa.RecordBatchReader.from_batches(schema, _batches(rows))


def _batches(rows: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for first in range(0, rows, BATCH_ROWS):
        ids = np.arange(first, min(first + BATCH_ROWS, rows), dtype=np.int64)
        yield pa.RecordBatch.from_arrays(
            [pa.array(ids), pa.array(ids * FACTOR % MODULUS), pa.array(ids / 2)], names=["id", "amount", "half"]
        )


def frame(spark: Any, rows: int) -> Any:
    """The rows as a DataFrame."""
    return spark.range(rows).selectExpr("id", f"id * {FACTOR} % {MODULUS} AS amount", "id / 2 AS half")


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def sums_of(table: Any) -> tuple[Any, ...]:
    """What identifies the rows of a table."""
    return len(table), table.scan().sum("amount"), table.scan().sum("half")


def check(what: str, found: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """End the run unless the rows are the expected ones."""
    if found != expected:
        raise SystemExit(f"{what}: {found} instead of {expected}")


def change_after_backup(db: tm.Database, place: Path) -> int:
    """Back up and archive a store, and delete and insert a row in each of some transactions. Return the epoch at which
    the rows are the expected ones again.
    """
    db.backup(place)
    db.archive(place)
    epoch = 0
    for number in range(CHANGES):
        with db.transaction() as txn:
            row = txn.get("many", number)
            txn.delete("many", number)
        with db.transaction() as txn:
            txn.insert("many", row)
        epoch = db.archive()["last_epoch"] if number == CHANGES // 2 else epoch
    db["many"].delete(0)
    db.archive()
    return epoch


def load_and_check(timed: Callable[..., Any], spark: Any, root: Path, expected: tuple[Any, ...]) -> Any:
    """Load a store, check it, and with Spark back it up; return the epoch of `change_after_backup`, else 0."""
    with tm.open(root / "store", **OPTIONS) as db:
        table = db.create_table("many", COLUMNS, "id", partition=tm.HashPartition(FRAGMENTS))
        if spark is None:
            timed("load", lambda: db.load("many", reader(expected[0])))
        else:
            timed("load", lambda: ts.load(db, frame(spark, expected[0]), "many"))
        check("the store", timed("sums", lambda: sums_of(table)), expected)
        timed("local checkpoint", db.checkpoint)
        report = timed("check", db.check)
        if not report["is_sound"]:
            raise SystemExit(f"the store is not sound: {report['problems']}")
        return 0 if spark is None else timed("backup", lambda: change_after_backup(db, root / "backups"))


def restore_and_read(timed: Callable[..., Any], spark: Any, root: Path, epoch: int, expected: tuple[Any, ...]) -> None:
    """Verify the backup, restore it to an epoch, and read it by Spark."""
    place, restored = root / "backups", root / "restored"
    if not timed("verify the backup", lambda: ts.verify(spark, place))["is_sound"]:
        raise SystemExit("the backup is not sound")
    timed("restore", lambda: ts.restore(spark, place, restored, epoch, **OPTIONS))
    with timed("open what was restored", lambda: tm.open(restored, **OPTIONS)) as db:
        check("the restored store", timed("sums again", lambda: sums_of(db["many"])), expected)
    rows = timed("read by Spark", lambda: ts.read(spark, place, "many").selectExpr(*SUMS).first())
    check("the backup", tuple(rows), expected)
    spark.stop()


def main(rows: int, how: str) -> dict[str, Any]:
    """One run in a scratch directory."""
    root = Path(tempfile.mkdtemp(prefix="large-load-"))
    figures: dict[str, Any] = {"rows": rows, "how": how}
    peaks = Peaks()

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        figures[name] = round(time.perf_counter() - began, 1)
        sys.stdout.write(f"{name}: {figures[name]} s\n")
        sys.stdout.flush()
        return result

    try:
        spark = timed("session", lambda: ts.session("local[2]", "large load")) if how == "spark" else None
        amounts = sum(int(batch.column("amount").to_numpy().sum()) for batch in _batches(rows))
        expected = (rows, amounts, float(rows) * (rows - 1) / 4)
        epoch = load_and_check(timed, spark, root, expected)
        timed("restart", lambda: tm.open(root / "store", **OPTIONS).close())
        if spark is not None:
            figures["backup_bytes"] = size_of(root / "backups")
            shutil.rmtree(root / "store")
            restore_and_read(timed, spark, root, epoch, expected)
    finally:
        peaks.close()
        figures["store_bytes"] = size_of(root)
        shutil.rmtree(root, ignore_errors=True)
    figures["peak_mib"] = {name: size >> 20 for name, size in peaks.bytes.items()}
    return figures


if __name__ == "__main__":
    given = sys.argv[1:]
    found = main(int(given[0]) if given else ROWS, given[1] if len(given) > 1 else "spark")
    sys.stdout.write(json.dumps(found) + "\n")
