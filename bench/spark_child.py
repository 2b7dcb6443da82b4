"""Backup, verification and restore of `lineitem` in a process of its own, for bench/spark.py.

It runs with the code of one tree, ours or an older one, by calls that both have. It reads requests from its input and
answers each with a line of JSON: processor and wall seconds, and the bytes of a backup.
"""

from __future__ import annotations

import json
import resource
import shutil
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as arrow_fs
from pyarrow import PythonFile

import tidemark as tm
import tidemark.backup
from tidemark.demo.data import LINEITEM

FRAGMENTS = 16
COLUMNS = [replace(column, storage="memory") for column in LINEITEM]
KEY = ["l_orderkey", "l_linenumber"]
OPTIONS: dict[str, Any] = {
    "data_memory": "6 GiB",
    "redo_log": "256 MiB",
    "undo_log": "64 MiB",
    "background": False,
    "durability": "epoch",
}
BYTES_PER_S = 500e6


class Rate:
    """Lets so many bytes a second pass, for all threads together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, size_bytes: int) -> None:
        """Wait until the bytes have come."""
        with self._lock:
            self._free_at = max(self._free_at, time.perf_counter()) + size_bytes / BYTES_PER_S
            wait_s = self._free_at - time.perf_counter()
        if wait_s > 0:
            threading.Event().wait(wait_s)


class LimitedFile:
    """A file whose bytes come at a limited rate."""

    def __init__(self, path: str, rate: Rate) -> None:
        self._file = open(path, "rb", buffering=0)
        self._rate = rate
        self.seek, self.tell, self.close = self._file.seek, self._file.tell, self._file.close

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def read(self, size: int = -1) -> bytes:
        found = self._file.read(size) or b""
        self._rate.take(len(found))
        return found


def limited_filesystem() -> Any:
    """The local filesystem, whose files are read at a limited rate."""
    local, rate = arrow_fs.LocalFileSystem(), Rate()

    def passed(name: str) -> Any:
        return lambda self, *arguments, **options: getattr(local, name)(*arguments, **options)

    def opened(self: Any, path: str) -> Any:
        return PythonFile(LimitedFile(path, rate), mode="r")

    names = arrow_fs.FileSystemHandler.__abstractmethods__
    calls: dict[str, Any] = {name: passed(name) for name in names}
    calls["get_type_name"] = lambda self: "limited"
    calls["get_file_info_selector"] = lambda self, selector: local.get_file_info(selector)
    calls["open_input_file"] = calls["open_input_stream"] = opened
    handler = type("Limited", (arrow_fs.FileSystemHandler,), calls)
    return arrow_fs.PyFileSystem(handler())


def processor_seconds() -> float:
    """Of this process and of those it has waited for."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in both)


class Tree:
    """One open store with the rows, and its backup."""

    def __init__(self, root: Path, source: str) -> None:
        self._root = root
        self._place = root / "place"
        root.mkdir(parents=True)
        self._db = tm.open(root / "store", **OPTIONS)
        self._db.create_table("lineitem", COLUMNS, KEY, partition=tm.HashPartition(FRAGMENTS))
        self.rows = self._db.load("lineitem", source)

    def backup(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self._db.backup(self._place, verify=False)

    def verify(self) -> None:
        assert tidemark.backup.verify(self._place)["is_sound"]

    def restore(self, place: Any = None, verify: bool = False) -> None:
        report = tidemark.backup.restore(place or self._place, self._root / "copy", verify=verify, **OPTIONS)
        assert report["rows"] == self.rows

    def do(self, what: str) -> dict[str, Any]:
        """Carry out a request; return its answer."""
        works: dict[str, Any] = {
            "backup": self.backup,
            "verify": self.verify,
            "restore": self.restore,
            "restore and verify": lambda: self.restore(verify=True),
            "restore at 500 MB/s": lambda: self.restore((limited_filesystem(), str(self._place))),
        }
        used, began = processor_seconds(), time.perf_counter()
        works[what]()
        wall = time.perf_counter() - began
        answer = {"processor": processor_seconds() - used, "wall": wall}
        shutil.rmtree(self._root / "copy", ignore_errors=True)
        if what == "backup":
            sizes = [path.stat().st_size for path in self._place.rglob("*") if path.is_file()]
            answer["size_bytes"] = sum(sizes)
        return answer


def main() -> None:
    """Answer requests until the input ends."""
    tree = Tree(Path(sys.argv[1]), sys.argv[2])
    for line in sys.stdin:
        sys.stdout.write(json.dumps(tree.do(line.strip())) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
