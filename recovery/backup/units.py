"""Manifests and level files: each is one sealed unit, a header and JSON. An intact one is not trusted either (F112)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import BackupDamaged, Error, FileTruncated, StoreFailed
from tidemark.engine.rows.backup_layout import BACKUP_UNIT, BACKUP_UNIT_WORDS_MIN
from tidemark.engine.sealed.sealed_layout import header_of, store_of
from tidemark.engine.sealed.units import read_unit, sealed_text, text_of

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words


def unit_of(kind: int, identity: tuple[bytes, int], backup: int, epoch: int, value: Any) -> Words:
    """Return a unit. identity: UUID and incarnation of the store. value: its JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    return sealed_text(BACKUP_UNIT, kind, identity, BACKUP_UNIT_WORDS_MIN, text, backup=backup, epoch=epoch)


def read_json(files: Files, name: str, kind: int) -> tuple[bytes, int, int, Any]:
    """Return store, backup, epoch and JSON of a file. Raises: FileMissing, BackupDamaged, VersionTooNew,
    VersionTooOld.
    """
    words = read_unit(files, name, kind)
    if words is None or words.size < BACKUP_UNIT_WORDS_MIN:
        raise BackupDamaged(f"{name} fails its checksum; use another copy", file=name)
    with refused(name):
        header = header_of(words, BACKUP_UNIT)
        value = json.loads(text_of(words, BACKUP_UNIT))
        return store_of(words), int(header["backup"]), int(header["epoch"]), value


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Within the block, an error of JSON or pyarrow, or of a value that no column takes, is damage."""
    try:
        yield
    except (BackupDamaged, FileTruncated, StoreFailed):
        raise
    except (
        Error,
        ArithmeticError,
        AttributeError,
        LookupError,
        NotImplementedError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        said = str(error).strip().partition("\n")[0]
        raise BackupDamaged(f"{name} is invalid ({said}); use another copy", file=name) from error
