"""Files of a store, of backups and of loads, each by the code that reads it, on a disk in memory."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

import tidemark as tm
from tests.backup.support import archived, take
from tests.fuzz.harness import Nothing, Reader
from tests.fuzz.mutations import Mutation, json_tree, octets, resealed, sealed_json, sealed_units, units_in
from tests.spool.support import insert_spooled, low_store
from tests.store.support import ACCOUNT, open_memory
from tidemark.engine.base.errors import (
    BackupDamaged,
    FileMissing,
    FileTruncated,
    ForeignFile,
    Incompatible,
    LcpDamaged,
    LoadDamaged,
    PageDamaged,
    RedoDamaged,
    Rejected,
    SpoolDamaged,
    UndoDamaged,
    ViewDamaged,
)
from tidemark.engine.disk.data_file import open_data_file
from tidemark.engine.disk.disk_layout import DATA_FILE, DOUBLE_WRITE, EXTENTS, UNDO_GROUP
from tidemark.engine.disk.double_write import rewrite_last_batch
from tidemark.engine.disk.undo_listing import list_undo_group
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.engine.disk.undo_ring import undo_ring
from tidemark.engine.log.geometry import Geometry, open_files
from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.log.listing import Dictionary, list_group, list_spooled
from tidemark.engine.log.load_layout import LOAD_MANIFEST
from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.spool_layout import SPOOL_ALIGN_WORDS, SPOOL_BLOCK, SPOOL_HEADER_WORDS
from tidemark.engine.log.spool_reader import Referred, SpoolReader, records_digest, referred
from tidemark.engine.rows.backup_layout import ARCHIVE_SEGMENT, BACKUP_UNIT
from tidemark.engine.rows.lcp_layout import LCP_BLOCK, LCP_CONTROL
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed import sealed_layout as s
from tidemark.engine.sealed.range_digests import xxh3_128
from tidemark.recovery.backup.chain import Chain
from tidemark.recovery.backup.level_file import read_level, write_level
from tidemark.recovery.backup.manifest import read_manifest
from tidemark.recovery.backup.segments import groups_of, read_segment
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.recovery.load.commit import LoadManifest, begin, publish
from tidemark.recovery.load.commit import read_manifest as read_load_manifest
from tidemark.recovery.load.directory import Directory
from tidemark.recovery.load.job import FragmentReport, LoadJob
from tidemark.recovery.load.tasks import write_fragment
from tidemark.recovery.local_checkpoint.control import Control, read_control
from tidemark.recovery.local_checkpoint.data_file import read_blocks
from tidemark.recovery.local_checkpoint.extents_file import read_extents
from tidemark.recovery.system_restart.load import DataFileDamaged
from tidemark.recovery.system_restart.sysfile import read_sysfile
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE
from tidemark.replication.node_group.view import Ballot, Member, Record, View
from tidemark.replication.node_group.view_file import ViewFile, read_record
from tidemark.replication.node_group.view_layout import VIEW

RING_FILE = 32 << 10  # of the rings of logs that inputs are the first file of


# --- one small store, and its files -------------------------------------------------------------------
@dataclass(frozen=True)
class Kept:
    """A closed store with a local checkpoint and changes after it; its UUID, table and newest checkpoint."""

    contents: dict[str, bytes]
    store: bytes
    table: TableDefinition
    lcp_id: int
    redo: Geometry


@cache
def kept() -> Kept:
    """Made once in a process, the same one each time."""
    files = MemoryFiles()
    db = open_memory(files)
    db.create_tablespace("main", size="256 KiB", page_size="4 KiB", extent="64 KiB")
    columns = [*ACCOUNT, tm.Column("far", tm.VarChar(300), nullable=True, storage="disk")]
    db.create_table("test.account", columns, "id", tm.HashPartition(1))
    rows = [(key, f"owner {key}", 0.5 + key, "n" * (key % 7 * 20) or None, "f" * (key % 5 * 40)) for key in range(40)]
    db["test.account"].insert_many(rows)
    db.checkpoint()
    db.add_column("test.account", tm.Column("more", tm.Int32, nullable=True))
    for key in range(5):
        db["test.account"].update(key, {"balance": 1.0, "far": "g" * 50})
    db.sync()
    db["test.account"].delete(7)
    table = db["test.account"].definition
    db.close()
    contents = files.snapshot()
    found = read_sysfile(MemoryFiles.from_snapshot(contents))
    assert found is not None
    lcp_id = max(int(name.rpartition("-")[2]) for name in contents if "/control-" in name)
    return Kept(contents, found.store, table, lcp_id, found.geometry)


def disk(files: dict[str, bytes]) -> MemoryFiles:
    """A disk with these files alone."""
    return MemoryFiles.from_snapshot(files)


def or_nothing(found: Any) -> Any:
    """What was found. Raises: Nothing for None."""
    if found is None:
        raise Nothing("no such thing is intact")
    return found


# --- sysfile, view, control file ------------------------------------------------------------------------
def _read_sysfile(data: bytes) -> object:
    """Also read the files of the log it names, most of which are missing."""
    found = or_nothing(read_sysfile(disk({"sysfile.0": data})))
    if found.geometry == kept().redo:
        return found
    return open_files(disk({"redo/0000.redo": b"", "redo/0001.redo": b""}), found.geometry, False)


def _view_members() -> list[bytes]:
    files = MemoryFiles()
    file = ViewFile(files, b"u" * 16)
    view = View(4, (Member(1, "a:1"), Member(2, "b:1")), 1, "c:1")
    file.write(Record(b"u" * 16, 1, view, True, Ballot(5, 1), Ballot(5, 1), View(5, view.members[:1], 1, "c:1"), 9, 3))
    return [files.snapshot()["view.0"]]


def _read_view(data: bytes) -> object:
    files = disk({"view.0": data})
    record = or_nothing(read_record(files))
    ViewFile(files, record.store).close()
    return record


def _control_name() -> str:
    return f"lcp/control-{kept().lcp_id}"


@cache
def _control() -> Control:
    """The newest control file of the store that is kept."""
    found: Control = or_nothing(read_control(disk(kept().contents), kept().store, kept().lcp_id))
    return found


def _read_control(data: bytes) -> object:
    return or_nothing(read_control(disk({_control_name(): data}), kept().store, kept().lcp_id)).body()


# --- data files and extents of a local checkpoint ---------------------------------------------------------
def _lcp_file(leaf: str) -> tuple[str, bytes]:
    name = next(name for name in kept().contents if name.startswith(f"lcp/{kept().lcp_id}-") and leaf in name)
    return name, kept().contents[name]


def _data_name() -> str:
    return f"lcp/{kept().lcp_id}-{kept().table.table_id}-0.data"


def _read_data(data: bytes) -> object:
    files = disk({_data_name(): data})
    blocks = read_blocks(files, _data_name(), kept().store, kept().lcp_id, kept().table.table_id, 0)
    return sum(block.stop for block in blocks)


def _extents() -> tuple[str, bytes]:
    return _lcp_file("extents")


def _read_extents(data: bytes) -> object:
    name, _ = _extents()
    return read_extents(disk({name: data}), kept().store, kept().lcp_id, (*_control().extents[:2], len(data) // 8 * 8))


# --- logs -----------------------------------------------------------------------------------------------
def _ring(geometry: Geometry, data: bytes) -> MemoryFiles:
    """A ring whose first file begins with an input."""
    rest = bytes(geometry.file_bytes)
    names = geometry.names()
    return disk({names[0]: data[: len(rest)].ljust(len(rest), b"\0"), **dict.fromkeys(names[1:], rest)})


def schema_records(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """A schema record of a log changed as a tree of JSON, in the room it has; the seals right."""
    places = [found.start() for found in re.finditer(rb'\{"(?:create|alter|tablespace|datafile|drop)', data)]
    if not places:
        return octets()(data, rng, others)
    at = places[rng.randrange(len(places))]
    size = int.from_bytes(data[at - 8 : at], "little")
    room = size + -size % 8
    for _ in range(9):
        changed = json_tree(data[at : at + size], rng, [data[at : at + size]])
        if len(changed) <= room:
            record = len(changed).to_bytes(8, "little") + changed.ljust(room, b"\0")
            return resealed(s.KIND_GROUP)(data[: at - 8] + record + data[at + room :])
    return data


def _redo_members() -> list[bytes]:
    return [kept().contents["redo/0000.redo"][:RING_FILE]]


def _read_redo(data: bytes) -> object:
    geometry = Geometry(RING_FILE, 3)
    reader = LogReader(_ring(geometry, data), geometry, kept().store, writable=True)
    dictionary, listed = Dictionary(), 0
    for group in reader.groups(0, 1):
        referred(group)
        listed += sum(1 for _ in list_group(group, dictionary))
    reader.seal_tail()
    return or_nothing(listed or None)


def _undo_members() -> list[bytes]:
    return [kept().contents["undo/0000.undo"][:RING_FILE]]


def _read_undo(data: bytes) -> object:
    geometry = undo_ring(RING_FILE, 3)
    reader = UndoReader(_ring(geometry, data), geometry, kept().store, writable=True)
    groups = reader.find_end(1, 0)
    dictionary = Dictionary()
    for group, offsets in reader.backward():
        list(list_undo_group(group, offsets, dictionary))
    return or_nothing(groups or None)


@cache
def _spooled() -> tuple[bytes, Referred, str, bytes, TableDefinition]:
    """(store, what the log says, name, content, table) of a spool file."""
    files = MemoryFiles()
    db = low_store(files)
    insert_spooled(db, count=320)
    db.sync()
    table = db["test.account"].definition
    killed = files.kill()
    content = or_nothing(read_sysfile(killed))
    reader = LogReader(killed, content.geometry, content.store)
    what = next(each for group in reader.groups(0, 1) if (each := referred(group)) is not None)
    db.close()
    return content.store, what, what.names[0], killed.snapshot()[what.names[0]], table


def _described(data: bytes, what: Referred) -> Referred:
    """What a log would say of a file as it is, so that its records are reached; as it says of the file that was written
    for every second one.
    """
    units = [int(at) for at in units_in(data, s.KIND_SPOOL) if at % SPOOL_ALIGN_WORDS == 0]
    found = np.frombuffer(data[: len(data) // 8 * 8], np.int64)
    if len(data) % 2 or not units or len(found) < units[-1] + SPOOL_HEADER_WORDS:
        return what
    headers = [s.header_of(found[at : at + SPOOL_HEADER_WORDS].copy(), SPOOL_BLOCK) for at in units]
    words = sum(int(header["records_words"]) for header in headers)
    file = replace(
        what.files[0], blocks=len(units), records_words=words, size_bytes=len(data), digest=records_digest(found[units])
    )
    return replace(what, files=(file,))


def _read_spool(data: bytes) -> object:
    store, what, name, _, table = _spooled()
    what = _described(data, what)
    dictionary = Dictionary()
    dictionary.add(table)
    reader = SpoolReader(disk({name: data}), store, what)
    reader.verify()
    group = _group_of(what)
    return sum(1 for _ in list_spooled(group, reader, dictionary))


def _group_of(what: Referred) -> Any:
    from tidemark.engine.log.reader import GroupRead

    return GroupRead(1, what.lsn, what.epoch, 0, 0, 1, 0, np.zeros(512, np.int64))


# --- disk columns ----------------------------------------------------------------------------------------
class _Places:
    """Where pages of one data file lie."""

    def __init__(self, files: MemoryFiles) -> None:
        self._file = files.open("space/1.data", writable=True)

    def place(self, page: int) -> tuple[Any, int]:
        if page >> 32 != 1:
            raise FileMissing("no such data file", page=page)
        return self._file, (page & 0xFFFFFFFF) * 4_096

    def sync_files(self) -> None:
        """Nothing is lost here."""


def _read_double_write(data: bytes) -> object:
    files = disk({"double-write": data, "space/1.data": kept().contents["space/1.data"]})
    return or_nothing(rewrite_last_batch(files, _Places(files), kept().store) + 1)


def _read_data_file(data: bytes) -> object:
    return open_data_file(disk({"space/1.data": data}), kept().store, _control().tablespaces[0], 1)[1]


# --- backups -----------------------------------------------------------------------------------------------
@cache
def _backed_up() -> tuple[dict[str, bytes], bytes, TableDefinition]:
    """(files of a place of backups, the store's UUID, its table)."""
    place = MemoryFiles()
    db = open_memory()
    db.create_table("test.account", ACCOUNT, "id", tm.HashPartition(1))
    db["test.account"].insert_many([(key, f"owner {key}", 0.5, "n" * (key % 7 * 20) or None) for key in range(40)])
    db.sync()
    take(db, place)
    db["test.account"].delete(3)
    db["test.account"].update(4, {"balance": 9.0})
    db.sync()
    take(db, place, True)
    archived(db, place)
    table, store = db["test.account"].definition, db.parts.opened.identity[0]
    db.close()
    return place.snapshot(), store, table


def _backup_name(ending: str, last: bool = False) -> str:
    names = sorted(name for name in _backed_up()[0] if name.endswith(ending))
    return names[-1 if last else 0]


def _read_backup_manifest(data: bytes) -> object:
    return read_manifest(disk({_backup_name("manifest"): data}), int(_backup_name("manifest").partition("/")[0]))


def _read_level(data: bytes) -> object:
    name = _backup_name(".level", True)
    return read_level(disk({name: data}), _backed_up()[1], name)


def _read_rows(data: bytes) -> object:
    """The rows of a Parquet file whose digests are right, whatever it has."""
    files, store, table = _backed_up()
    content = read_level(disk(files), store, _backup_name(".level"))
    level = replace(content.level, size_bytes=len(data))
    ends = [*(end for end, _ in content.ranges[:-1]), len(data)]
    if ends[-1] <= ends[-2]:
        raise FileTruncated("its tail has no byte")
    ranges = []
    for start, end in zip([0, *ends], ends, strict=False):
        words = np.frombuffer(data[start:end] + bytes(start - end & 7), dtype=np.int64).copy()
        ranges.append((end, xxh3_128(words, end - start)))
    made = disk({level.name: data})
    made.make_directory(str(level.backup))
    write_level(made, (store, 1), replace(content, level=level, ranges=ranges))
    chain = Chain(made, store, table, [level])
    return sum(batch.count for each in chain.contents for batch, _ in chain.entries(each))


def _read_segment(data: bytes) -> object:
    name = _backup_name(".redo")
    files = disk({name: data})
    return sum(1 for _ in groups_of(files, read_segment(files, name)))


# --- loads ---------------------------------------------------------------------------------------------------
@cache
def _loaded() -> tuple[str, dict[str, bytes], tuple[bytes, ...]]:
    """(name of a job, what its directory holds, the job and a report as JSON)."""
    from tests.load.support import NAME, batch, columns, rows

    files = MemoryFiles()
    db = open_memory(data_memory="32 MiB")
    db.create_table(NAME, columns(), "id", tm.HashPartition(1))
    place = Directory(files, "")
    job = LoadJob(5, db.parts.opened.identity[0], 3, db[NAME].definition.to_json(), "/tmp/x")
    begin(job, place)
    reports = [write_fragment(job, 0, 0, iter([batch(rows(0, 20))]), place=place)]
    publish(job, reports, place)
    db.close()
    return job.name, files.snapshot(), (job.to_json().encode(), reports[0].to_json().encode())


def _manifest_leaf() -> str:
    return next(name for name in _loaded()[1] if name.endswith(".manifest"))


def _read_load_manifest(data: bytes) -> object:
    name, files, _ = _loaded()
    return read_load_manifest(name, Directory(disk({**files, _manifest_leaf(): data}), ""))


def _read_load_text(data: bytes) -> object:
    for kind in (LoadJob, FragmentReport, LoadManifest):
        try:
            return kind.from_json(data)
        except Rejected as error:
            refused = error
    raise refused


def _json_unit(kind: int, layout: Any) -> tuple[Mutation, ...]:
    """Mutations of a unit whose content is JSON, most of them of that JSON."""
    body = sealed_json(kind, layout)
    return (*sealed_units(kind, layout), body, body, body, body)


def _one(content: Callable[[], bytes]) -> Callable[[], list[bytes]]:
    return lambda: [content()]


_TRUNCATED = (FileTruncated, ForeignFile, Incompatible)
READERS = (
    Reader(
        "sysfiles",
        _one(lambda: kept().contents["sysfile.0"]),
        _read_sysfile,
        (Nothing, Incompatible, FileMissing, FileTruncated),  # its log may be missing or shorter
        sealed_units(s.KIND_SYSFILE, SYSFILE),
        ("accepted", "Nothing", "FileTruncated", "VersionTooNew"),
        cost=2,
    ),
    Reader(
        "views of node groups",
        _view_members,
        _read_view,
        (Nothing, Incompatible, ForeignFile, ViewDamaged),
        sealed_units(s.KIND_VIEW, VIEW),
        ("accepted", "ViewDamaged", "VersionTooNew"),
        cost=2,
    ),
    Reader(
        "control files",
        _one(lambda: kept().contents[_control_name()]),
        _read_control,
        (Nothing, Incompatible, ForeignFile),
        _json_unit(s.KIND_LCP_CONTROL, LCP_CONTROL),
        ("accepted", "Nothing", "ForeignFile", "VersionTooNew"),
        cost=2,
    ),
    Reader(
        "data files of checkpoints",
        _one(lambda: kept().contents[_data_name()]),
        _read_data,
        (LcpDamaged, *_TRUNCATED),
        sealed_units(s.KIND_LCP_BLOCK, LCP_BLOCK, 8),
        (
            "accepted",
            "fails its checksum",
            "a block of another file",
            "an impossible block",
            "in the middle",
            "a damaged",
        ),
        cost=2,
    ),
    Reader(
        "extents of checkpoints",
        _one(lambda: _extents()[1]),
        _read_extents,
        (DataFileDamaged, ForeignFile, Incompatible),
        sealed_units(s.KIND_EXTENTS, EXTENTS, 8),
        ("accepted", "DataFileDamaged", "ForeignFile"),
        cost=2,
    ),
    Reader(
        "REDO logs",
        _redo_members,
        _read_redo,
        (Nothing, RedoDamaged, PageDamaged, ForeignFile, Incompatible),
        (*sealed_units(s.KIND_GROUP, GROUP, 24), schema_records),
        ("accepted", "Nothing", "after it is intact", "an impossible record", "ForeignFile"),
        cost=8,
    ),
    Reader(
        "UNDO logs",
        _undo_members,
        _read_undo,
        (Nothing, UndoDamaged, ForeignFile, Incompatible),
        sealed_units(s.KIND_UNDO_GROUP, UNDO_GROUP, 24),
        ("accepted", "Nothing", "after it is intact", "an impossible record", "ForeignFile"),
        cost=4,
    ),
    Reader(
        "spool files",
        _one(lambda: _spooled()[3]),
        _read_spool,
        (SpoolDamaged, RedoDamaged, PageDamaged, Incompatible),
        sealed_units(s.KIND_SPOOL, SPOOL_BLOCK, 16),
        ("accepted", "lacks block", "lacks a block", "an impossible block", "differs from its description in the log"),
        cost=10,
    ),
    Reader(
        "double-write files",
        _one(lambda: kept().contents["double-write"][: 64 << 10]),
        _read_double_write,
        (Nothing, ForeignFile, Incompatible),
        sealed_units(s.KIND_DOUBLE_WRITE, DOUBLE_WRITE),
        ("accepted", "ForeignFile", "VersionTooNew"),
        cost=3,
    ),
    Reader(
        "data files of tablespaces",
        _one(lambda: kept().contents["space/1.data"][:8_192]),
        _read_data_file,
        (PageDamaged, *_TRUNCATED),
        sealed_units(s.KIND_DATA_FILE, DATA_FILE),
        ("accepted", "PageDamaged", "ForeignFile", "VersionTooNew", "FileTruncated"),
        cost=14,
    ),
    Reader(
        "manifests of backups",
        _one(lambda: _backed_up()[0][_backup_name("manifest")]),
        _read_backup_manifest,
        (BackupDamaged, Incompatible),
        _json_unit(s.KIND_BACKUP_MANIFEST, BACKUP_UNIT),
        ("accepted", "fails its checksum", "is invalid (", "of another backup", "VersionTooNew"),
        cost=2,
    ),
    Reader(
        "levels of backups",
        _one(lambda: _backed_up()[0][_backup_name(".level", True)]),
        _read_level,
        (BackupDamaged, ForeignFile, Incompatible),
        _json_unit(s.KIND_BACKUP_LEVEL, BACKUP_UNIT),
        ("accepted", "fails its checksum", "is invalid (", "VersionTooNew"),
        cost=2,
    ),
    Reader(
        "rows of backups",
        _one(lambda: _backed_up()[0][_backup_name(".parquet")]),
        _read_rows,
        (BackupDamaged, *_TRUNCATED),
        (octets(),),
        ("accepted", "is invalid ("),
        cost=10,
    ),
    Reader(
        "segments of archives",
        _one(lambda: _backed_up()[0][_backup_name(".redo")]),
        _read_segment,
        (BackupDamaged, ForeignFile, Incompatible),
        (*sealed_units(s.KIND_ARCHIVE, ARCHIVE_SEGMENT), *sealed_units(s.KIND_GROUP, GROUP, 8)),
        ("accepted", "fails its checksum", "is incomplete", "holds another group", "has no group"),
        cost=2,
    ),
    Reader(
        "manifests of loads",
        _one(lambda: _loaded()[1][_manifest_leaf()]),
        _read_load_manifest,
        (LoadDamaged, Incompatible),
        _json_unit(s.KIND_LOAD_MANIFEST, LOAD_MANIFEST),
        ("accepted", "fails its checksum", "is invalid (", "VersionTooNew"),
        cost=3,
    ),
    Reader(
        "jobs and reports of loads",
        lambda: list(_loaded()[2]),
        _read_load_text,
        (Rejected,),
        (json_tree,),
        ("accepted", "not the manifest of a load"),
        cost=2,
    ),
)
