"""The golden store: `python -m tests.golden.make` writes it for the current format.

A store with every column type, in memory and on disk pages, two local checkpoints with old rows copied by commits, and
REDO and UNDO after them, as a kill leaves it. Clock and seed are fixed and the disk is simulated, so the same program
makes the same bytes; the test compares them. An archive of an older format is never made again: it shows that stores of
that format still open.
"""

from __future__ import annotations

import datetime
import io
import json
import lzma
import random
import sys
import tarfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import tidemark as tm
from tests.store.support import SMALL
from tidemark.database import Database
from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.options import Options
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tools.format_document import fingerprint

FOLDER = Path(__file__).resolve().parent
SEED = 20_260
OPTIONS = {**SMALL, "redo_log": "4 MiB", "undo_log": "4 MiB", "page_buffer": "128 KiB"}
TYPES: dict[str, Any] = {
    "i8": tm.Int8,
    "i16": tm.Int16,
    "i32": tm.Int32,
    "i64": tm.Int64,
    "u8": tm.UInt8,
    "u16": tm.UInt16,
    "u32": tm.UInt32,
    "u64": tm.UInt64,
    "f32": tm.Float32,
    "f64": tm.Float64,
    "flag": tm.Bool,
    "day": tm.Date,
    "clock": tm.Time,
    "moment": tm.DateTime,
    "stamp": tm.Timestamp,
    "money": tm.Decimal(9, 2),
    "long_money": tm.Decimal(38, 10),
    "code": tm.Char(7),
    "raw": tm.Binary(13),
    "state": tm.Enum("open", "shut", "größer"),
    "name": tm.VarChar(40),
    "bytes": tm.VarBinary(60),
    "text": tm.Text,
    "blob": tm.Blob,
}
EVERYTHING = [tm.Column("id", tm.Int64), *(tm.Column(name, kind, nullable=True) for name, kind in TYPES.items())]
ON_DISK = [
    tm.Column("id", tm.Int64),
    tm.Column("in_memory", tm.VarChar(30), nullable=True),
    *(tm.Column(name, kind, nullable=True, storage="disk") for name, kind in TYPES.items()),
]
LONG_KEY = 7  # key of a row whose disk part fills more than a page
LINES = [
    tm.Column("order", tm.VarChar(20)),
    tm.Column("line", tm.UInt16),
    tm.Column("price", tm.Decimal(18, 4), default=Decimal("1.5")),
    tm.Column("note", tm.Text, nullable=True),
]


def value_of(kind: Any, rng: random.Random) -> Any:
    """A value of a type: extremes, ordinary ones, NULL."""
    if rng.random() < 0.15:
        return None
    text = "".join(rng.choice("abc äß漢😀") for _ in range(rng.randrange(7)))
    made: dict[str, Any] = {
        "Bool": rng.random() < 0.5,
        "Date": datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randrange(-90_000, 90_000)),
        "Time": datetime.time(rng.randrange(24), rng.randrange(60), rng.randrange(60), rng.randrange(1_000_000)),
        "DateTime": datetime.datetime(1969, 12, 31) + datetime.timedelta(microseconds=rng.randrange(1 << 52)),
        "Timestamp": datetime.datetime.fromtimestamp(rng.randrange(1 << 31), datetime.UTC),
        "Decimal(9, 2)": Decimal(rng.randrange(-(10**9) + 1, 10**9)).scaleb(-2),
        "Decimal(38, 10)": Decimal(rng.randrange(-(10**27), 10**27)).scaleb(-10),
        "Char(7)": text[:7],
        "Binary(13)": rng.randbytes(rng.randrange(14)),
        "VarChar(40)": text * 2,
        "VarBinary(60)": rng.randbytes(rng.randrange(60)),
        "Text": text * rng.choice([0, 1, 20, 200]),
        "Blob": rng.randbytes(rng.choice([0, 1, 100, 700])),
    }
    name = repr(kind)
    if name in made:
        return made[name]
    if name.startswith("Enum"):
        return rng.choice(kind.members)
    if name.startswith("Float"):
        return rng.choice([0.0, -0.0, 1.5, -(2.0**-10), float("inf"), float(rng.randrange(1 << 20))])
    return rng.choice([kind.minimum, kind.maximum, rng.randrange(100)])


def rows_of(count: int, first: int, rng: random.Random) -> list[tuple[Any, ...]]:
    """Rows of the table of everything."""
    return [(key, *(value_of(kind, rng) for kind in TYPES.values())) for key in range(first, first + count)]


def disk_rows_of(count: int, first: int, rng: random.Random) -> list[tuple[Any, ...]]:
    """Rows of the table of everything on disk; one of them is chained over several pages."""
    found = []
    for key in range(first, first + count):
        values = {name: value_of(kind, rng) for name, kind in TYPES.items()}
        if key == LONG_KEY:
            values |= {"text": "long äß漢😀 " * 900}
        found.append((key, None if key % 5 == 0 else f"row {key}", *values.values()))
    return found


def lines_of(count: int, rng: random.Random) -> list[tuple[Any, ...]]:
    """Rows of the table with a part of variable size in its key."""
    return [(f"order {n // 3}", n % 3, Decimal(n) / 4, "n" * rng.randrange(60) or None) for n in range(count)]


def open_golden(files: MemoryFiles) -> Any:
    """A store on simulated files with the fixed clock."""
    return Database(files, Options.from_keywords(OPTIONS), ManualClock(seed=SEED))


def build() -> tuple[dict[str, bytes], dict[str, Any]]:
    """The files of the store, and what a reader must find in them."""
    rng = random.Random(SEED)
    files = MemoryFiles()
    db = open_golden(files)
    everything = db.create_table("golden.everything", EVERYTHING, "id", tm.HashPartition(3))
    lines = db.create_table("golden.lines", LINES, ["order", "line"], tm.HashPartition(2))
    db.create_table("golden.dropped", [tm.Column("id", tm.Int64)], "id")
    db["golden.dropped"].insert_many([(key,) for key in range(20)])
    db.create_tablespace("golden", "192 KiB", page_size="4 KiB", extent="64 KiB")
    disk = db.create_table("golden.disk", ON_DISK, "id", tm.HashPartition(2), tablespace="golden")
    db.create_table("golden.gone", ON_DISK, "id", tablespace="golden")

    def changes(done: int, total: int, unit: str) -> None:
        with db.transaction() as txn:
            for key in range(0, 60, 4):
                txn.write("golden.everything", rows_of(1, key, rng)[0])
            txn.write("golden.lines", ("order 1", 1, Decimal(done), "during"))
            for key in range(1, 40, 6):
                txn.write("golden.disk", disk_rows_of(1, key, rng)[0])

    everything.insert_many(rows_of(60, 0, rng))
    lines.insert_many(lines_of(45, rng))
    disk.insert_many(disk_rows_of(40, 0, rng))
    db["golden.gone"].insert_many(disk_rows_of(10, 0, rng))
    db.checkpoint(changes)
    everything.delete_many([(key,) for key in range(5, 60, 11)])
    everything.write_many(rows_of(20, 50, rng))
    disk.delete_many([(key,) for key in range(3, 40, 8)])
    disk.write_many(disk_rows_of(15, 30, rng))
    db.drop_table("golden.gone")
    db.sync()
    db.checkpoint(changes)
    db.drop_table("golden.dropped")
    db.add_datafile("golden", "64 KiB")
    disk.write_many(disk_rows_of(9, 41, rng))
    disk.update_many([{"id": key, "i64": key, "in_memory": "behind"} for key in range(30, 33)])
    disk.delete(36)
    db.parts.store.disk.flush()  # pages newer than the local checkpoint: a restart undoes them
    disk.update(31, {"u8": 200, "text": "newest"})
    missing = {column.name: column.missing for column in EVERYTHING}
    changed = [missing | {"id": key, "text": "behind", "i32": key} for key in range(20, 30)]
    everything.update_many([row for row in changed if everything.get(row["id"])])
    everything.insert_many(rows_of(10, 200, rng))
    everything.delete(2)
    with db.transaction() as txn:
        txn.delete("golden.lines", ("order 0", 0))
        txn.insert("golden.lines", ("order 0", 0, Decimal("9.9999"), "again"))
    db.create_table("golden.young", [tm.Column("id", tm.Int64)], "id")
    db["golden.young"].insert_many([(key,) for key in range(7)])
    contents = {name: content for name, content in files.kill().snapshot().items() if name != "LOCK"}
    manifest = {"format": FORMAT_VERSION, "fingerprint": fingerprint(), "tables": tables_of(db)}
    return contents, manifest


def tables_of(db: Any) -> dict[str, Any]:
    """Every table as plain values: its definition, and each row with its hidden columns as Python writes it."""
    found = {}
    for name in db.tables():
        definition = db[name].definition
        names = [column.name for column in definition.columns]
        hidden = db[name].to_arrow([*definition.primary_key, tm.ROWID, tm.EPOCH, tm.AUTHOR]).to_pylist()
        places = {tuple(row.values())[: len(definition.primary_key)]: list(row.values())[-3:] for row in hidden}
        rows = []
        for row in db[name].scan():
            key = tuple(row[names.index(part)] for part in definition.primary_key)
            rows.append(repr((tuple(row), places[key])))
        found[name] = {"definition": json.loads(definition.to_json()), "rows": sorted(rows)}
    return found


def archive_name(version: int) -> Path:
    """The archive of a format; its manifest has the same name with `.json`."""
    return FOLDER / f"store-format-{version}.tar.xz"


def pack(contents: dict[str, bytes]) -> bytes:
    """The files as .tar.xz."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, content in sorted(contents.items()):
            if not name.endswith("/"):
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return lzma.compress(made.getvalue(), preset=9)


def unpack(path: Path) -> dict[str, bytes]:
    """The files of an archive."""
    found = {}
    with tarfile.open(path) as archive:
        for entry in archive:
            source = archive.extractfile(entry)
            assert source is not None
            found[entry.name] = source.read()
    return found


def main() -> int:
    """Write archive and manifest of the current format."""
    contents, manifest = build()
    path = archive_name(FORMAT_VERSION)
    path.write_bytes(pack(contents))
    text = json.dumps(manifest, indent=0, ensure_ascii=False, sort_keys=True)
    path.with_suffix("").with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    rows = sum(len(each["rows"]) for each in manifest["tables"].values())
    print(f"{path.name}: {path.stat().st_size:,} bytes, {rows} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
