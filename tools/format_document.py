"""Generate `docs/format.md` from the dtypes: `python -m tools.format_document [--write | --check]`.

Tables between markers are generated; the prose around them is written by hand. A field without a note, or a document
that differs, is an error, so the document always agrees with the code.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.disk import disk_layout as disk
from tidemark.engine.disk.disk_layout import DATA_FILE, DISK_PAGE, DOUBLE_WRITE, EXTENTS, UNDO_GROUP
from tidemark.engine.log import redo_layout as redo
from tidemark.engine.log.group_layout import GROUP
from tidemark.engine.log.load_layout import LOAD_MANIFEST
from tidemark.engine.log.spool_layout import SPOOL_BLOCK
from tidemark.engine.rows.backup_layout import ARCHIVE_SEGMENT, BACKUP_UNIT
from tidemark.engine.rows.lcp_layout import LCP_BLOCK, LCP_CONTROL
from tidemark.engine.schema.catalog_layout import CATALOG_SEAL, CATALOG_VALUE
from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION, SEAL
from tidemark.recovery.system_restart.sysfile_layout import SYSFILE
from tidemark.replication.binlog import binlog_layout as binlog
from tidemark.replication.node_group.view_layout import VIEW
from tools.format_notes import NOTES, bit_fields, constants

STRUCTURES: dict[str, np.dtype[Any]] = {
    "seal": SEAL,
    "redo group": GROUP,
    "undo group": UNDO_GROUP,
    "sysfile": SYSFILE,
    "lcp block": LCP_BLOCK,
    "lcp control": LCP_CONTROL,
    "disk page": DISK_PAGE,
    "double-write file": DOUBLE_WRITE,
    "catalog value": CATALOG_VALUE,
    "catalog seal": CATALOG_SEAL,
    "data file": DATA_FILE,
    "extents": EXTENTS,
    "spool block": SPOOL_BLOCK,
    "load manifest": LOAD_MANIFEST,
    "backup unit": BACKUP_UNIT,
    "archive segment": ARCHIVE_SEGMENT,
    "view": VIEW,
    **binlog.STRUCTURES,
}
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "format.md"


def structure_table(name: str) -> list[str]:
    """Return the rows of one structure: offset, size, type, field, meaning."""
    layout = STRUCTURES[name]
    notes = NOTES[name]
    common = set(SEAL.names or ()) if name != "seal" else set()
    lines = ["| offset | bytes | type | field | meaning |", "|---:|---:|---|---|---|"]
    for field in layout.names or ():
        kind, offset = layout.fields[field][:2]  # type: ignore[index]
        note = NOTES["seal"][field] if field in common else notes.get(field)
        if note is None:
            raise SchemaInvalid(f"field {field} of {name} has no note in tools/format_notes.py; add one")
        base = kind.base.str + (f" × {kind.shape[0]}" if kind.shape else "")
        lines.append(f"| {offset} | {kind.itemsize} | `{base}` | `{field}` | {note} |")
    lines.append(f"| {layout.itemsize} | | | | end |")
    return lines


def bit_table(name: str) -> list[str]:
    """Return the rows of a word's bit fields."""
    lines = ["| word | bits | meaning |", "|---:|---|---|"]
    lines += [f"| {word} | {bits} | {meaning} |" for word, bits, meaning in bit_fields()[name]]
    return lines


def record_kinds() -> list[str]:
    """Return the record kinds of the REDO log."""
    kinds = sorted(
        (value, name) for name, value in vars(redo).items() if name.startswith("KIND_") and value <= redo.KIND_MAX
    )
    shown = [(value, name) for value, name in kinds if name not in ("KIND_MASK", "KIND_MAX")]
    return ["| code | kind |", "|---:|---|", *[f"| {value} | {name.removeprefix('KIND_')} |" for value, name in shown]]


def undo_kinds() -> list[str]:
    """Return the record kinds of the UNDO log."""
    names = ("UNDO_ALLOC", "UNDO_UPDATE", "UNDO_FREE", "UNDO_CREATE", "UNDO_DROP", "UNDO_LCP", "UNDO_RESTART")
    kinds = [f"| {getattr(disk, name)} | {name.removeprefix('UNDO_')} |" for name in names]
    return ["| code | kind |", "|---:|---|", *kinds]


def sections() -> dict[str, list[str]]:
    """Return every generated part by the name of its marker."""
    made = {name: structure_table(name) for name in STRUCTURES}
    made.update({name: bit_table(name) for name in bit_fields()})
    made["record kinds"] = record_kinds()
    made["undo record kinds"] = undo_kinds()
    return made


def fingerprint() -> str:
    """Return a hex digest of the format version, every constant of the layouts, and every generated table without its
    column of meanings.
    """
    bits = bit_fields()
    digest = hashlib.sha256(str(FORMAT_VERSION).encode())
    for name, value in sorted(constants().items()):
        digest.update(f"{name}={value};".encode())
    for name, lines in sorted(sections().items()):
        if name in binlog.STRUCTURES:
            continue  # MySQL's format, which the version of the store does not change
        digest.update(name.encode())
        for line in lines:
            # Words may be improved without changing the format; offsets, sizes, types, bits and kinds may not.
            digest.update("|".join(line.split("|")[: 3 if name in bits else 5]).encode())
    return digest.hexdigest()[:32]


def render(text: str) -> str:
    """Return the document with every generated part renewed. Raises: SchemaInvalid if a marker is missing."""
    for name, lines in sections().items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            raise SchemaInvalid(f"docs/format.md lacks the markers of {name!r}; add them")
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + "\n" + "\n".join(lines) + "\n" + end + after
    return text


def main(arguments: list[str]) -> int:
    """Check (the default) or write the document; return 1 if it differs."""
    held = DOCUMENT.read_text(encoding="utf-8")
    wanted = render(held)
    if held == wanted:
        return 0
    if "--write" not in arguments:
        sys.stderr.write("docs/format.md has drifted; run `python -m tools.format_document --write`\n")
        return 1
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


assert WORD_BYTES == 8

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
