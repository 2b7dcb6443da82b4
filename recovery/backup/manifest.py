"""Manifests: a manifest makes a folder of rows files a backup, and has everything that a restore needs to know.

`<number>/manifest` is written after all files it names are durable. A damaged manifest is no backup,
and is never ignored silently: the files that its backup needs are unknown.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import BackupDamaged, FileMissing, VersionTooOld
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.files.durable_files import write_whole
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed.sealed_layout import KIND_BACKUP_MANIFEST
from tidemark.recovery.backup.rows_file import Level
from tidemark.recovery.backup.units import read_json, refused, unit_of
from tidemark.recovery.local_checkpoint.control import plain_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.engine.files.protocol import Files

NAME = "manifest"
FULL = "full"
INCREMENTAL = "incremental"
LAYOUT = 2  # of the files of a backup; 1, without this number: rows files of blocks


@dataclass
class Manifest:
    """One complete backup."""

    number: int
    epoch: int
    store: bytes
    incarnation: int
    timeline: int
    kind: str
    parent: int  # number of the backup that an incremental one is based on, 0 for a full one
    wall_us: int
    server_id: int  # of the store in replication, 0 for none
    log: tuple[int, int]  # LSN and sequence at which the log continues after the epoch
    next_table_id: int
    tables: list[TableDefinition]
    tablespaces: list[tuple[TablespaceDefinition, int]]  # with the bytes of its files
    # (table, fragment) -> its levels, newest first.
    levels: dict[tuple[int, int], list[Level]] = field(default_factory=dict)

    def definition(self, table_id: int) -> TableDefinition:
        """Return a table's definition. Raises: KeyError."""
        return {each.table_id: each for each in self.tables}[table_id]

    def files(self) -> Iterator[tuple[tuple[int, int], Level]]:
        """Yield every rows file that the backup needs, with its fragment."""
        for place, levels in self.levels.items():
            for level in levels:
                yield place, level

    @property
    def rows(self) -> int:
        return sum(levels[0].rows for levels in self.levels.values())

    @property
    def own_bytes(self) -> int:
        """The number of bytes of the files that were written for this backup."""
        return sum(level.size_bytes for _, level in self.files() if level.backup == self.number)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all files that the backup needs."""
        return sum(level.size_bytes for _, level in self.files())

    def value(self) -> dict[str, Any]:
        """Return the JSON after the header."""
        return {
            "incarnation": self.incarnation,
            "kind": self.kind,
            "layout": LAYOUT,
            "levels": [[level.values() for level in levels] for _, levels in sorted(self.levels.items())],
            "log": list(self.log),
            "next_table_id": self.next_table_id,
            "parent": self.parent,
            "server_id": self.server_id,
            "tables": [json.loads(each.to_json()) for each in self.tables],
            "tablespaces": [[json.loads(each.to_json()), size] for each, size in self.tablespaces],
            "timeline": self.timeline,
            "wall_us": self.wall_us,
        }

    def summary(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "kind": self.kind,
            "parent": self.parent,
            "epoch": self.epoch,
            "wall_us": self.wall_us,
            "timeline": self.timeline,
            "server_id": self.server_id,
            "tables": len(self.tables),
            "rows": self.rows,
            "own_bytes": self.own_bytes,
            "size_bytes": self.size_bytes,
            "files": sum(1 for _ in self.files()),
            "log": list(self.log),
        }


def manifest_name(number: int) -> str:
    return f"{number}/{NAME}"


def write_manifest(files: Files, manifest: Manifest) -> None:
    """Make the backup valid. Durable on return: content and name."""
    identity = (manifest.store, manifest.incarnation)
    words = unit_of(KIND_BACKUP_MANIFEST, identity, manifest.number, manifest.epoch, manifest.value())
    # A crash never leaves a half-written manifest: an invalid one is always damage.
    write_whole(files, f"{manifest.number}/{NAME}.new", manifest_name(manifest.number), words)


def folders(files: Files) -> list[int]:
    """Return the numbers of all folders of backups, finished or not, newest first."""
    return sorted((number for name in files.list() if (number := plain_number(name))), reverse=True)


def read_manifest(files: Files, number: int) -> Manifest:
    """Return the manifest of a backup. Raises: FileMissing if there is none, BackupDamaged, VersionTooNew,
    VersionTooOld.
    """
    name = manifest_name(number)
    if not files.exists(name):
        raise FileMissing(f"backup {number} has no manifest: it was not finished; use another one", file=name)
    store, backup, epoch, value = read_json(files, name, KIND_BACKUP_MANIFEST)
    if backup != number:
        raise BackupDamaged(f"{name} is the manifest of another backup; put the right one back", file=name)
    if isinstance(value, dict) and value.get("layout", 1) == 1:
        raise VersionTooOld(
            f"{name} is of a backup before backups were Parquet files, which this program does not read; restore it"
            " with the program that made it, and make backups in another place",
            file=name,
        )
    with refused(name):
        return _parse(number, epoch, store, value)


def _parse(number: int, epoch: int, store: bytes, value: dict[str, Any]) -> Manifest:
    """Return a manifest. The content of an intact file is not trusted either (F112). Raises: ValueError and the like,
    SchemaInvalid.
    """
    tables = [TableDefinition.from_json(json.dumps(each).encode()) for each in value["tables"]]
    spaces = [
        (TablespaceDefinition.from_json(json.dumps(each).encode()), int(size)) for each, size in value["tablespaces"]
    ]
    timeline = value["timeline"]
    levels: dict[tuple[int, int], list[Level]] = {}
    for chain in ([Level.of(each) for each in some] for some in value["levels"]):
        levels[chain[0].table_id, chain[0].fragment] = chain
    places = {(each.table_id, part) for each in tables for part in each.partition.numbers}
    if levels.keys() != places or len(value["levels"]) != len(places):
        raise ValueError("fragments are not those of the tables")
    for place, chain in levels.items():
        meets = all(newer.since == older.epoch for newer, older in zip(chain, chain[1:], strict=False))
        # The newest level may be older than the backup: a fragment without changes keeps its levels.
        if not meets or chain[-1].since or chain[0].epoch > epoch:
            raise ValueError("levels are not consecutive")
        if any(each.timeline != timeline or each.since >= each.epoch for each in chain):
            raise ValueError("levels of another timeline")
        if any((each.table_id, each.fragment) != place for each in chain):
            raise ValueError("levels of several fragments")
    lsn, sequence = value["log"]
    return Manifest(
        number,
        epoch,
        store,
        int(value["incarnation"]),
        int(timeline),
        str(value["kind"]),
        int(value["parent"]),
        int(value["wall_us"]),
        int(value["server_id"]),
        (int(lsn), int(sequence)),
        int(value["next_table_id"]),
        tables,
        spaces,
        levels,
    )


@dataclass
class Found:
    """The content of a place: intact backups, newest first; numbers of unfinished ones; errors of damaged ones."""

    manifests: list[Manifest] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)
    damaged: dict[int, str] = field(default_factory=dict)


def find_backups(files: Files) -> Found:
    """Return all backups in a place. Raises: Incompatible if a manifest is of another format; StoreFailed."""
    found = Found()
    for number in folders(files):
        try:
            found.manifests.append(read_manifest(files, number))
        except FileMissing:
            found.unfinished.append(number)
        except BackupDamaged as error:
            found.damaged[number] = error.message
    # Folders older than the newest backup hold leftovers, and files of removed backups that later backups need.
    newest = max([0, *(each.number for each in found.manifests), *found.damaged])
    found.unfinished = [number for number in found.unfinished if number > newest]
    return found
