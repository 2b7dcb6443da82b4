"""A level file: what the rows file of a level is, the digests of its ranges, and which older rows are dead.

It is one sealed unit, written when its rows file is durable. So the two need no other file to be verified: the next
backup uses those of an interrupted one.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import ForeignFile
from tidemark.engine.files.opened import Opened
from tidemark.engine.sealed.sealed_layout import KIND_BACKUP_LEVEL
from tidemark.recovery.backup.roaring import pack, unpack
from tidemark.recovery.backup.rows_file import Level, Ranges
from tidemark.recovery.backup.units import read_json, refused, unit_of

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition

DIGEST_BYTES = 16


@dataclass(frozen=True)
class LevelFile:
    """The content of a level file."""

    level: Level
    columns: Any  # those of the table, by which the rows were written
    ranges: Ranges
    # By the epoch of an older level of the fragment, the positions in its file of rows that are gone or replaced.
    dead: dict[int, Words] = field(default_factory=dict)


def columns_of(definition: TableDefinition) -> Any:
    """Return what the rows of a table look like, as JSON has it: levels with other columns cannot be continued."""
    value = json.loads(definition.to_json())
    return [value["columns"], value.get("dropped", []), value["primary_key"]]


def write_level(files: Files, identity: tuple[bytes, int], content: LevelFile) -> None:
    """Write a level file, whose rows file must be durable. Durable on return: content and name.

    identity: UUID and incarnation of the store. Raises: StorageFull, Rejected, IoFailed, SyncFailed.
    """
    level = content.level
    value = {
        "columns": content.columns,
        "dead": [[epoch, base64.b64encode(pack(dead)).decode()] for epoch, dead in sorted(content.dead.items())],
        "level": level.values(),
        "ranges": [[end, digest.hex()] for end, digest in content.ranges],
    }
    words = unit_of(KIND_BACKUP_LEVEL, identity, level.backup, level.epoch, value)
    with Opened(files, files.create(level.level_name)) as file:
        files.pwrite(file, 0, words.data.cast("B"))
        files.fdatasync(file)
    files.sync_directory(str(level.backup))


def read_level(files: Files, store: bytes, name: str, level: Level | None = None) -> LevelFile:
    """Return the content of a level file. level: what a manifest says of it.

    Raises: FileMissing, BackupDamaged, ForeignFile, VersionTooNew, VersionTooOld.
    """
    owner, *_, value = read_json(files, name, KIND_BACKUP_LEVEL)
    if owner != store:
        raise ForeignFile(f"{name} belongs to another store; put the right one back", file=name)
    with refused(name):
        found = Level.of(value["level"])
        if level not in (None, found) or found.level_name != name:
            raise ValueError("it is another level than the manifest says")
        ranges = [(end, bytes.fromhex(digest)) for end, digest in value["ranges"]]
        _check_ranges(ranges, found)
        dead = {int(epoch): unpack(base64.b64decode(text, validate=True)) for epoch, text in value["dead"]}
        return LevelFile(found, value["columns"], ranges, dead)


def _check_ranges(ranges: Ranges, level: Level) -> None:
    ends = [end for end, _ in ranges]
    ascends = all(before < after for before, after in zip([0, *ends], ends, strict=False))
    if len(ends) != level.groups + 1 or not ascends or ends[-1] != level.size_bytes:
        raise ValueError("its ranges are not those of the rows file")
    if any(len(digest) != DIGEST_BYTES for _, digest in ranges):
        raise ValueError("it has a digest of another length")
