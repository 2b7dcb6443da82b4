"""Plans a read of one table: its files and tasks, fixed before any task runs (docs/spark.md, section 3).

The rows come from a backup, or from a local checkpoint of a store that may be open in another process; either has a
single epoch. A plan has the files and everything an executor must know about them: executors make no requests. Spark
pickles it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    FileMissing,
    LcpDamaged,
    NoSuchColumn,
    NoSuchTable,
    Rejected,
    SchemaInvalid,
    SnapshotTooOld,
    TypeMismatch,
    Unsupported,
)
from tidemark.engine.files.directory import PosixFiles
from tidemark.engine.programs.compiled import compile_filter
from tidemark.engine.programs.condition_ranges import known_of
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import is_system_table, qualified_name
from tidemark.engine.schema.partition_pruning import partitions_for
from tidemark.recovery.backup.plan import chosen_backup
from tidemark.recovery.backup.storage import at_place
from tidemark.recovery.local_checkpoint.control import control_name
from tidemark.recovery.spark.conditions import from_text
from tidemark.recovery.system_restart.load import shapes_of
from tidemark.recovery.system_restart.sysfile import NAMES
from tidemark.recovery.verification.log_listing import StoreListing

if TYPE_CHECKING:
    from tidemark.engine.files.directory import Pin
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.programs.expressions import Expression
    from tidemark.engine.schema.column import Column
    from tidemark.recovery.backup.rows_file import Level
    from tidemark.recovery.local_checkpoint.control import Control

ROWID, EPOCH, AUTHOR, FRAGMENT = HIDDEN = ("$ROWID", "$EPOCH", "$AUTHOR", "$FRAGMENT")
COPIES = -1  # fragment number of the part with the old rows that commits copied, of all fragments
# A task costs Spark about 30 ms; reading and decoding this much of a file takes about 150 ms.
TASK_BYTES = 32 << 20
OPTIONS = ("path", "table", "columns", "where", "backup", "lcp", "tasks", "taskBytes")
NAMES_SHOWN = 10


@dataclass(frozen=True)
class Origin:
    """The origin of a table's rows: a backup, or a local checkpoint of the store in a directory."""

    place: str
    is_backup: bool
    number: int
    epoch: int
    store: bytes
    table: bytes  # its definition, as JSON
    shapes: bytes  # of the entries of all tables that a file may have, as kernels take them

    @property
    def definition(self) -> TableDefinition:
        """The table's definition, created anew at each call."""
        return TableDefinition.from_json(self.table)


@dataclass(frozen=True)
class Part:
    """The smallest unit of a task: a fragment with all its levels, or one data file of a local checkpoint."""

    fragment: int
    size_bytes: int
    levels: tuple[Level, ...] = ()
    sizes: tuple[int, int, int] = (0, 0, 0)  # of a data file: entries, blocks, bytes


@dataclass(frozen=True)
class ReadPlan:
    """A read of one table (all of its parts) or one task of it (some parts), with the wanted columns and rows."""

    origin: Origin
    columns: tuple[str, ...]
    hidden: tuple[str, ...]
    parts: tuple[Part, ...]
    tasks: int | None
    task_bytes: int
    where: Expression | None = None

    def chosen(self) -> list[Column]:
        """Return the columns of the table that are read, in the order in which they are returned."""
        known = {column.name: column for column in self.origin.definition.columns}
        return [known[name] for name in self.columns]

    def split_into_tasks(self) -> list[ReadPlan]:
        """Return tasks of about equal size in bytes, without fragments in which no row can satisfy the condition."""
        known = {} if self.where is None else known_of(self.where)
        fragments = (*partitions_for(self.origin.definition, known), COPIES) if known else None
        parts = [each for each in self.parts if fragments is None or each.fragment in fragments]
        total = sum(each.size_bytes for each in parts)
        count = self.tasks or -(-total // self.task_bytes)
        return [replace(self, parts=tuple(bin_)) for bin_ in packed(parts, max(1, min(count, len(parts)))) if bin_]


def packed(parts: Sequence[Part], bins: int) -> list[list[Part]]:
    """Return the parts in this many bins of about equal size: each part, largest first, goes to the smallest bin."""
    filled: list[list[Part]] = [[] for _ in range(bins)]
    sizes = [0] * bins
    for part in sorted(parts, key=lambda each: -each.size_bytes):
        least = min(range(bins), key=sizes.__getitem__)
        filled[least].append(part)
        # Even an empty file has to be opened, so a thousand of them must not go to one bin.
        sizes[least] += part.size_bytes + 4_096
    return filled


# --- options --------------------------------------------------------------------------------------
def checked_options(options: Mapping[str, str], known: Sequence[str] = OPTIONS) -> dict[str, str]:
    """Return a user's options under the spelling in `known`, as Spark ignores case. Raises: SchemaInvalid."""
    names = {name.lower(): name for name in known}
    found = {}
    for name, value in options.items():
        if name.lower() not in names:
            raise SchemaInvalid(f"there is no option {name!r}; known: {', '.join(known)}", option=name)
        found[names[name.lower()]] = value
    if not found.get("path"):
        raise SchemaInvalid("say where to read: .load(path), with a place of backups or the directory of a store")
    return found


def whole_number(options: Mapping[str, str], name: str) -> int | None:
    """Return an option as a number from 1, None if it is not given. Raises: SchemaInvalid."""
    text = options.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise SchemaInvalid(f"option {name} is {text!r}; give a whole number from 1", option=name)
    return int(text)


# --- planning -------------------------------------------------------------------------------------
def make_plan(options: Mapping[str, str]) -> ReadPlan:
    """Return the plan of a read with these options. Raises: SchemaInvalid, FileMissing, NoSuchTable, NoSuchColumn,
    TypeMismatch for a condition, BackupDamaged, LcpDamaged, Unsupported for disk columns of a local checkpoint.
    """
    given = checked_options(options)
    place, backup, lcp = given["path"], whole_number(given, "backup"), whole_number(given, "lcp")
    with at_place(place, what="store or backup") as files:
        if files.exists(NAMES[0]) or files.exists(NAMES[1]):
            if backup is not None:
                raise SchemaInvalid(f"{place} is a store, which has no backups; leave the option out", option="backup")
            origin, parts = _of_store(files, place, given.get("table"), lcp)
        else:
            if lcp is not None:
                raise SchemaInvalid(f"{place} is not a store; leave option lcp out", option="lcp")
            origin, parts = _of_backup(files, place, given.get("table"), backup)
    columns, hidden = _columns(origin, given.get("columns"))
    tasks, task_bytes = whole_number(given, "tasks"), whole_number(given, "taskBytes") or TASK_BYTES
    where = None if "where" not in given else _condition(origin, given["where"])
    return ReadPlan(origin, columns, hidden, tuple(parts), tasks, task_bytes, where)


def _condition(origin: Origin, text: str) -> Expression:
    """Return the condition, checked by compiling it. Raises: SchemaInvalid, TypeMismatch, NoSuchColumn, Unsupported."""
    where, definition = from_text(text), origin.definition
    program = compile_filter(definition, where)
    for position in () if origin.is_backup else program.columns:
        _refuse_disk(definition, [definition.columns[position].name])
    return where


def _of_backup(files: Files, place: str, table: str | None, number: int | None) -> tuple[Origin, list[Part]]:
    manifest = chosen_backup(files, number)
    definition = find_table(manifest.tables, table)
    parts = [
        Part(fragment, sum(level.sizes.size_bytes for level in levels), tuple(levels))
        for (table_id, fragment), levels in sorted(manifest.levels.items())
        if table_id == definition.table_id
    ]
    shapes, _ = shapes_of([definition], lambda *_: 0)
    made = Origin(
        place, True, manifest.number, manifest.epoch, manifest.store, definition.to_json(), bytes(shapes.data)
    )
    return made, parts


def _of_store(files: Files, place: str, table: str | None, lcp: int | None) -> tuple[Origin, list[Part]]:
    listing = StoreListing(files)
    control = _control(listing.controls, lcp)
    definition = find_table(control.tables, table)
    parts = [
        Part(fragment, sizes[2], sizes=sizes)
        for (table_id, fragment), sizes in sorted(control.fragments.items())
        if table_id == definition.table_id
    ]
    if control.copies[0]:
        parts.append(Part(COPIES, control.copies[2], sizes=control.copies))
    shapes, _ = shapes_of(control.tables, lambda *_: 0)
    made = Origin(
        place,
        False,
        control.lcp_id,
        control.epoch,
        listing.sysfile.store,
        definition.to_json(),
        bytes(shapes.data),
    )
    return made, parts


def _control(controls: Sequence[Control], lcp: int | None) -> Control:
    if lcp is None:
        if not controls:
            raise FileMissing("the store has no local checkpoint yet, and only those are read; make one: checkpoint()")
        return controls[0]
    for each in controls:
        if each.lcp_id == lcp:
            return each
    raise _gone(lcp)


def _gone(lcp: int) -> SnapshotTooOld:
    return SnapshotTooOld(
        f"local checkpoint {lcp} is gone; read again, and keep it with tidemark.spark.pinned() while it is needed",
        lcp=lcp,
    )


def find_table(tables: Sequence[TableDefinition], name: str | None) -> TableDefinition:
    """Return the table of this name; without a name, the only table that is not a system table. Raises: NoSuchTable,
    SchemaInvalid.
    """
    users = sorted(each.name for each in tables if not is_system_table(each.name))
    shown = ", ".join(users[:NAMES_SHOWN]) + (f" and {len(users) - NAMES_SHOWN} more" if users[NAMES_SHOWN:] else "")
    if name is None:
        if len(users) != 1:
            raise SchemaInvalid(f"say which table with .option('table', name); known: {shown or 'none'}")
        name = users[0]
    qualified = qualified_name(name)
    for each in tables:
        if each.name == qualified:
            return each
    raise NoSuchTable(f"there is no table {qualified} here; known: {shown or 'none'}", table=qualified)


def _columns(origin: Origin, text: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the wanted columns, and the hidden ones among them, separately."""
    definition = origin.definition
    known = {column.name: column for column in definition.columns}
    names = list(known) if text is None else [each.strip() for each in text.split(",")]
    for name in names:
        if name not in known and name not in HIDDEN:
            raise NoSuchColumn(
                f"{definition.name} has no column {name!r}; it has {', '.join(known)}",
                table=definition.name,
                column=name,
            )
        if names.count(name) > 1:
            raise SchemaInvalid(f"{definition.name}: column {name} is asked for twice; name it once", column=name)
    if not origin.is_backup:
        _refuse_disk(definition, names)
    return tuple(name for name in names if name in known), tuple(name for name in names if name in HIDDEN)


def _refuse_disk(definition: TableDefinition, names: Sequence[str]) -> None:
    on_disk = [column.name for column in definition.columns if column.is_disk and column.name in names]
    if on_disk:
        in_memory = ", ".join(column.name for column in definition.columns if not column.is_disk)
        raise Unsupported(
            f"{definition.name}.{on_disk[0]} is on disk, and a local checkpoint has memory columns only; read a backup,"
            f" or these columns: {in_memory}",
            table=definition.name,
            column=on_disk[0],
        )


def narrowed(plan: ReadPlan, names: Sequence[str]) -> ReadPlan:
    """Return the plan for the columns of a user's own schema."""
    columns, hidden = _columns(plan.origin, ",".join(names))
    if [*columns, *hidden] != list(names):
        raise TypeMismatch("hidden columns come after the others; name them last", columns=list(names))
    return replace(plan, columns=columns, hidden=hidden)


# --- pins -----------------------------------------------------------------------------------------
def pin_local_checkpoint(files: Files, lcp: int) -> Pin:
    """Keep the owner of a store from removing a local checkpoint.

    Raises: SnapshotTooOld if it is gone, Unsupported if files cannot be locked, Rejected if the files are not in a
    directory.
    """
    if not isinstance(files, PosixFiles):
        raise Rejected("a store is read in a directory of this machine's file systems; give a path")
    pin = files.pin(control_name(lcp))
    if pin is None:
        raise _gone(lcp)
    return pin


def newest_local_checkpoint(files: Files) -> tuple[int, int, Pin]:
    """Return (number, epoch, pin) of the newest local checkpoint of a store. Raises: FileMissing, LcpDamaged."""
    for _ in range(PIN_ATTEMPTS):
        control = _control(StoreListing(files).controls, None)
        try:
            return control.lcp_id, control.epoch, pin_local_checkpoint(files, control.lcp_id)
        except SnapshotTooOld:
            continue  # retired between read and pin, so there is a newer one
    raise LcpDamaged(f"{PIN_ATTEMPTS} local checkpoints in turn were gone before they could be kept; try again")


PIN_ATTEMPTS = 20


def option_map(options: Mapping[str, Any]) -> dict[str, str]:
    """Return options in the form Spark takes: text."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
