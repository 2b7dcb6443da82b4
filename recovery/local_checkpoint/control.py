"""Control files: the commit point of a local checkpoint, with the description that its load needs.

`lcp/control-<id>` is one sealed unit. It is written after all files that it names are durable, and gets its name after
its own content is durable. A control file that is not intact counts as damage and is not used. The two newest are kept.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import ForeignFile, IoFailed, Rejected, StorageFull
from tidemark.engine.base.limits import TABLE_ID_MAX
from tidemark.engine.disk.disk_layout import OWNER_FRAGMENT_SHIFT
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.files.durable_files import write_again, write_whole
from tidemark.engine.files.opened import Opened
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows.lcp_layout import LCP_CONTROL, UNIT_WORDS_MIN
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed.sealed_layout import KIND_LCP_CONTROL, header_of, store_of
from tidemark.engine.sealed.units import read_unit, sealed_text, text_of
from tidemark.recovery.local_checkpoint.data_file import FOLDER

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files

_log = logging.getLogger("tidemark.recovery")

PREFIX = "control-"
NEW = ".new"
_HEADER_FIELDS = ("lcp_id", "epoch", "start_lsn", "start_sequence", "next_table_id")
NUMBER_DIGITS_MAX = 15  # digits of a local checkpoint's number: more do not fit its field


@dataclass(frozen=True)
class UndoMark:
    """The place of a local checkpoint's UNDO_LCP record: its LSN, and the group that the record begins."""

    lsn: int
    sequence: int
    position: int


@dataclass
class Control:
    """One complete local checkpoint."""

    lcp_id: int
    epoch: int
    start_lsn: int
    start_sequence: int
    next_table_id: int
    tables: list[TableDefinition]
    # (table, fragment) -> (entries, blocks, bytes) of its data file.
    fragments: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    copies: tuple[int, int, int] = (0, 0, 0)
    tablespaces: list[TablespaceDefinition] = field(default_factory=list)
    next_tablespace_id: int = 1
    next_file_id: int = 1
    # Extent headers, blocks and bytes of the extents file.
    extents: tuple[int, int, int] = (0, 0, 0)
    undo: UndoMark | None = None  # None: there was no UNDO log yet

    def owners(self) -> list[int]:
        """Return all fragments of the checkpoint, encoded as extents name their owners."""
        return [table | number << OWNER_FRAGMENT_SHIFT for table, number in self.fragments]

    def body(self) -> bytes:
        """Return the JSON after the header; it has no fields for tablespaces until the first one is created."""
        value: dict[str, Any] = {
            "copies": list(self.copies),
            "fragments": [[*place, *sizes] for place, sizes in sorted(self.fragments.items())],
            "tables": [json.loads(table.to_json()) for table in self.tables],
        }
        if self.next_tablespace_id > 1:
            value["tablespaces"] = {
                "definitions": [json.loads(each.to_json()) for each in self.tablespaces],
                "extents": list(self.extents),
                "next_file_id": self.next_file_id,
                "next_tablespace_id": self.next_tablespace_id,
            }
        if self.undo is not None:
            value["undo"] = [self.undo.lsn, self.undo.sequence, self.undo.position]
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def control_name(lcp_id: int) -> str:
    return f"{FOLDER}/{PREFIX}{lcp_id}"


def unnamed_control(lcp_id: int) -> str:
    """Return the name that a control file has until its content is durable."""
    return control_name(lcp_id) + NEW


def write_control(files: Files, identity: tuple[bytes, int], control: Control) -> None:
    """Make the checkpoint valid. Durable on return: content and name.

    The file is renamed into place: no crash leaves a torn control file, so a bad one is damage. Otherwise an opening
    that found a torn one numbered 2 or more would have to assume that the log was truncated.
    """
    fields = {name: getattr(control, name) for name in _HEADER_FIELDS}
    words = sealed_text(LCP_CONTROL, KIND_LCP_CONTROL, identity, UNIT_WORDS_MIN, control.body(), **fields)
    write_whole(files, unnamed_control(control.lcp_id), control_name(control.lcp_id), words)


def make_newest_durable(files: Files, controls: list[Control]) -> None:
    """Write the newest control file again, if there is one, with identical bytes: after a failed sync it may be only in
    the page cache (F39), and files that only older checkpoints need are removed next. Durable on return, unless the
    disk is full or the write fails: content and name.
    """
    if not controls:
        return
    files.sync_directory(FOLDER)
    with Opened(files, files.open(control_name(controls[0].lcp_id), writable=True)) as file:
        file.read_errors_latch = False
        try:
            write_again(files, file)
        except (IoFailed, StorageFull) as error:
            # A store on a full disk must open; its control file stays as it is.
            _log.warning("%s could not be written again (%s)", control_name(controls[0].lcp_id), error.message)


def control_ids(files: Files) -> list[int]:
    """Return the numbers of all control files that have a name, newest first."""
    leaves = [name.rpartition("/")[2] for name in files.list(FOLDER)]
    found = (plain_number(leaf[len(PREFIX) :]) for leaf in leaves if leaf.startswith(PREFIX))
    return sorted((number for number in found if number is not None), reverse=True)


def plain_number(text: str) -> int | None:
    """Return the number in the name of a file, None if the name is not one that the store writes (F74)."""
    is_plain = text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX
    return int(text) if is_plain and str(int(text)) == text else None


def used_ids(files: Files) -> list[int]:
    """Return the numbers of all files, of complete checkpoints or leftovers: they are never used again (D14)."""
    leaves = [name.rpartition("/")[2] for name in files.list(FOLDER)]
    found = [plain_number(leaf.split("-")[0]) for leaf in leaves] + [_unnamed_number(leaf) for leaf in leaves]
    return [*control_ids(files), *(number for number in found if number is not None)]


def _unnamed_number(leaf: str) -> int | None:
    """Return the number of a control file that does not have its name yet."""
    return plain_number(leaf[len(PREFIX) : -len(NEW)]) if leaf.startswith(PREFIX) and leaf.endswith(NEW) else None


def sweep(files: Files) -> None:
    """Remove the files of a local checkpoint that a crash interrupted: its control file, which does not have its name
    yet, and data files that no control file names.
    """
    named = set(control_ids(files))
    for name in files.list(FOLDER):
        leaf = name.rpartition("/")[2]
        number = plain_number(leaf.split("-")[0])
        is_unnamed_data = leaf.endswith(".data") and number is not None and number not in named
        if is_unnamed_data or _unnamed_number(leaf) is not None:
            files.unlink(f"{FOLDER}/{leaf}")


def read_control(files: Files, store: bytes, lcp_id: int) -> Control | None:
    """Return an intact control file, or None if it is damaged or unreadable.

    Raises: FileMissing, ForeignFile, VersionTooNew, VersionTooOld.
    """
    name = control_name(lcp_id)
    words = read_unit(files, name, KIND_LCP_CONTROL)
    if words is None:
        return None
    if store_of(words) != store:
        raise ForeignFile(f"{name} belongs to another store; put the right one back", file=name)
    header = header_of(words, LCP_CONTROL)
    found: dict[str, Any] = {name: int(header[name]) for name in _HEADER_FIELDS}
    if found["lcp_id"] != lcp_id or max(found.values()) >= 1 << 63 or found["next_table_id"] > TABLE_ID_MAX + 1:
        return None
    try:
        parts = _parse_body(text_of(words, LCP_CONTROL))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, Rejected):
        return None
    return Control(**found, **parts)


def _parse_body(body: bytes) -> dict[str, Any]:
    """Return tables, fragments, copies and tablespaces of a body, as fields of a `Control`.

    The content of an intact file is checked too (F112): a fragment left out would be loaded as an empty one. Raises:
    SchemaInvalid, ValueError and other errors of invalid values.
    """
    value = json.loads(body)
    tables = [TableDefinition.from_json(json.dumps(table).encode()) for table in value["tables"]]
    fragments = {tuple(_numbers(row[:2])): _sizes(row[2:]) for row in value["fragments"]}
    places = {(table.table_id, number) for table in tables for number in table.partition.numbers}
    identities = {table.table_id for table in tables}, {table.name for table in tables}
    if any(len(each) != len(tables) for each in identities):
        raise ValueError("two tables of one number or name")
    if fragments.keys() != places or len(value["fragments"]) != len(places):
        raise ValueError("fragments are not those of the tables")
    if any(entries * ENTRY_WORDS * 8 > size_bytes for entries, _, size_bytes in fragments.values()):
        raise ValueError("more entries than bytes")
    parts: dict[str, Any] = {"tables": tables, "fragments": fragments, "copies": _sizes(value["copies"])}
    if "tablespaces" in value:
        parts.update(_parse_tablespaces(value["tablespaces"]))
    spaces = {each.name for each in parts.get("tablespaces", ())}
    if any(table.has_disk and table.tablespace not in spaces for table in tables):
        raise ValueError("a table is in a tablespace that does not exist")
    if "undo" in value:
        lsn, sequence, position = _sizes(value["undo"])
        parts["undo"] = UndoMark(lsn, sequence, position)
    return parts


def _parse_tablespaces(value: dict[str, Any]) -> dict[str, Any]:
    """Return the tablespaces of a body. Raises: as `_parse_body`."""
    definitions = [TablespaceDefinition.from_json(json.dumps(each).encode()) for each in value["definitions"]]
    file_ids = [each for definition in definitions for each in definition.file_ids]
    numbers = [each.tablespace_id for each in definitions]
    unique = numbers, [each.name for each in definitions], file_ids
    if any(len(set(each)) != len(each) for each in unique):
        raise ValueError("two tablespaces of one number or name, or two of one file")
    next_tablespace_id, next_file_id = _numbers([value["next_tablespace_id"], value["next_file_id"]])
    if next_tablespace_id <= max(numbers, default=0) or next_file_id <= max(file_ids, default=0):
        raise ValueError("numbers that were used would be used again")
    return {
        "tablespaces": definitions,
        "extents": _sizes(value["extents"]),
        "next_tablespace_id": next_tablespace_id,
        "next_file_id": next_file_id,
    }


def _sizes(values: list[int]) -> tuple[int, int, int]:
    """Return entries, blocks and bytes of a file. Raises: ValueError."""
    entries, blocks, size_bytes = _numbers(values)
    return entries, blocks, size_bytes


def _numbers(values: list[int]) -> list[int]:
    """Return the same values. Raises: ValueError if one does not fit a field; 1.0 does not, though it equals 1."""
    if not all(type(each) is int and 0 <= each < 1 << 63 for each in values):
        raise ValueError("counts are whole numbers from 0")
    return values


@dataclass(frozen=True)
class LogStart:
    """The place from which a restart may need the log, and the reason."""

    lsn: int = 0
    sequence: int = 1
    what: str = "a restart: there are no two local checkpoints yet"


def log_start(controls: list[Control], has_been_cut: bool) -> LogStart:
    """Return the place from which the local checkpoints `controls`, newest first, need the log: the start of the older
    of the two newest, because the newest may be damaged. With a single checkpoint, the log is kept from its beginning,
    unless it has been cut.
    """
    if len(controls) > 1:
        older, what = controls[1], f"local checkpoint {controls[1].lcp_id}, the older of two"
    elif controls and has_been_cut:
        older, what = controls[0], f"local checkpoint {controls[0].lcp_id}, the only one that is intact"
    else:
        return LogStart()
    return LogStart(older.start_lsn, older.start_sequence, what)


def has_been_cut(files: Files) -> bool:
    """Whether the log may have been cut: a second local checkpoint was written once."""
    return max(control_ids(files), default=1) > 1


def read_controls(files: Files, store: bytes) -> list[Control]:
    """Return all intact control files, newest first. Raises: as `read_control`."""
    found = [read_control(files, store, lcp_id) for lcp_id in control_ids(files)]
    return [control for control in found if control is not None]
