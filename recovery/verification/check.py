"""Verification of every file of a store, and of every row of a store in memory. It changes nothing.

A closed store is checked file by file, then loaded into memory as a restart does it, stopping before the first write,
and its rows are verified there. A live store is checked while it is in use: rows in bounded slices, local checkpoints
and log as far as they are kept. Files that a running store retires meanwhile are not damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING

from tidemark.engine.access.values_check import CHECK_BROKEN, ValueFault, ValuesCheck, key_of_place
from tidemark.engine.base.errors import (
    CatalogDamaged,
    Damaged,
    Error,
    ForeignFile,
    Incompatible,
    IoFailed,
    LimitExceeded,
    MemoryExhausted,
    NoSuchTable,
)
from tidemark.engine.disk.double_write import FILE_NAME
from tidemark.engine.index.index_layout import FAULT_KEY, FAULT_MISSING, FAULT_TWICE
from tidemark.engine.index.stored import StoredUnique, kinds_of
from tidemark.engine.log.reader import LogReader
from tidemark.engine.log.spool_files import loads_in, spool_ids, spool_name
from tidemark.engine.log.spool_reader import Referred, SpoolReader, referred
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import F_ROWS
from tidemark.engine.rows import check_layout as w
from tidemark.engine.rows import values_layout as v
from tidemark.engine.rows.lcp_layout import BLOCK_HEADER_WORDS, COPIES_FRAGMENT, COPIES_TABLE
from tidemark.engine.store.fragment_load import CopiesLoad
from tidemark.engine.store.row_check import RowCheck
from tidemark.engine.types.base import counted
from tidemark.recovery.local_checkpoint.control import (
    Control,
    control_ids,
    control_name,
    has_been_cut,
    log_start,
    read_control,
)
from tidemark.recovery.local_checkpoint.data_file import FOLDER as LCP_FOLDER
from tidemark.recovery.local_checkpoint.data_file import copies_name, data_name, read_blocks
from tidemark.recovery.local_checkpoint.extents_file import read_extents
from tidemark.recovery.system_restart.load import DataFileDamaged, check_counts, refused, shapes_of
from tidemark.recovery.system_restart.place import check_exists
from tidemark.recovery.system_restart.restart import Restart
from tidemark.recovery.system_restart.sysfile import NAMES, Sysfile, read_copy, read_sysfile
from tidemark.recovery.verification.disk_check import FragmentCheck
from tidemark.recovery.verification.disk_files_check import DiskFileCheck
from tidemark.recovery.verification.findings import PROBLEMS_MAX, CheckReport

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.index.ordered import Fault
    from tidemark.engine.index.stored import AnyIndex
    from tidemark.engine.log.reader import GroupRead
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.catalog import Catalog
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table

Progress = Callable[[int, int, str], None]

VALUES_SHOWN = 10  # of each fragment, so that a table that is wrong as a whole leaves room for others
LCPS_KEPT = 2  # neither log nor pages need older ones

VALUE_FAULTS = {
    v.VALUE_LENGTHS: "has lengths that contradict each other",
    v.VALUE_RANGE: "has a value that its type does not have",
    v.VALUE_TEXT: "has bytes that are not UTF-8",
    v.VALUE_UNDER_NULL: "has bytes under a NULL",
    v.VALUE_NULL: "is NULL or missing, and may not be",
    v.VALUE_PADDING: "has bytes where zeros must be",
}
FAULTS = {
    w.FAULT_PAGE: "its page belongs elsewhere or counts its rows wrong",
    w.FAULT_STATE: "its header has no state a row can have",
    w.FAULT_LOCK: "its lock refers to no operation on it",
    w.FAULT_EPOCH: "its epoch is in the future",
    w.FAULT_VAR: "its variable part is incomplete",
    w.FAULT_INDEX: "the primary index does not refer to it, or refers to it twice",
    w.FAULT_SEGMENT: "a segment of the primary index counts its entries wrong",
    w.FAULT_COUNT: "the primary index does not have as many entries as there are rows",
}


# --- files ----------------------------------------------------------------------------------------
class FileCheck:
    """Verifies the files of one store. Read errors and damage become problems of the report."""

    def __init__(self, files: Files, report: CheckReport) -> None:
        self._files = files
        self._report = report
        self._referred: list[Referred] = []

    def sysfile(self) -> Sysfile | None:
        """Check both copies; return the newer intact one."""
        for name in NAMES:
            self._report.files += 1
            try:
                self._copy(name)
            except (Damaged, Incompatible) as error:
                self._report.add(error.message)
                return None
        try:
            return read_sysfile(self._files)
        except ForeignFile as error:
            self._report.add(error.message)
            return None

    def _copy(self, name: str) -> None:
        if not self._files.exists(name):
            self._report.add(f"{name} is missing; the other copy is used, and the next opening rewrites it")
        elif read_copy(self._files, name) is None and read_copy(self._files, name) is None:  # perhaps half written
            self._report.add(f"{name} is damaged; the other copy is used, unless it is damaged too")

    def local_checkpoints(self, store: bytes) -> list[Control]:
        """Check control files, newest first, and the data files they name; return the intact ones."""
        intact: list[Control] = []
        torn: list[tuple[str, int]] = []  # the problem, and how many newer ones are intact
        for lcp_id in control_ids(self._files):
            problems: list[str] = []
            control = None
            try:
                control = read_control(self._files, store, lcp_id)
                if control is None:
                    problems.append(
                        f"{control_name(lcp_id)} is damaged; another local checkpoint is used, if there is one"
                    )
                else:
                    problems += self._data_files(control, store)
            except (Damaged, Incompatible, IoFailed) as error:
                problems.append(error.message)
            self._report.files += 1
            for problem in problems:
                # A power loss may bring the name of a retired one back, but not the files it names.
                if len(intact) >= LCPS_KEPT:
                    self._report.notes.append(f"{problem} (local checkpoint {lcp_id}, which two newer ones replace)")
                elif control is None:
                    torn.append((problem, len(intact)))
                else:
                    self._report.add(problem)
            if control is not None and not problems:
                intact.append(control)
        for problem, newer in torn:
            # No older checkpoint was retired for a control file that a crash tore before it was durable: two older ones
            # are still there.
            if len(intact) - newer >= LCPS_KEPT:
                self._report.notes.append(f"{problem} (a local checkpoint that was not finished)")
            else:
                self._report.add(problem)
        self._leftovers()
        return intact

    def _data_files(self, control: Control, store: bytes) -> Iterator[str]:
        parts = [(data_name(control.lcp_id, *place), place, sizes) for place, sizes in control.fragments.items()]
        parts.append((copies_name(control.lcp_id), (COPIES_TABLE, COPIES_FRAGMENT), control.copies))
        # Compute the shapes once for all files: with thousands of tables this takes longer than reading the files.
        shapes = shapes_of(control.tables, lambda *_: 0)
        for name, place, expected in parts:
            try:
                check_counts(name, self._read_blocks(name, store, control, place, shapes), expected)
            except (Damaged, Incompatible, IoFailed) as error:
                if self._files.failure.first is not None:
                    raise
                yield error.message
            self._report.files += 1
            self._report.bytes += expected[2]
        if control.undo is not None:
            self._report.files += 1
            self._report.bytes += control.extents[2]
            try:
                read_extents(self._files, store, control.lcp_id, control.extents)
            except DataFileDamaged as damage:
                yield str(damage)
            except (Damaged, Incompatible) as error:
                yield error.message

    def _read_blocks(
        self, name: str, store: bytes, control: Control, place: tuple[int, int], of_tables: tuple[Words, Words]
    ) -> tuple[int, int, int]:
        """Return entries, blocks and bytes of a data file; every entry is checked, and none is loaded."""
        load = CopiesLoad(NOTHING, *of_tables)
        for block in read_blocks(self._files, name, store, control.lcp_id, *place):
            with refused(name):
                load.take(block.words, BLOCK_HEADER_WORDS, block.stop)
        return load.entries, block.blocks, block.size_bytes

    def _leftovers(self) -> None:
        named = set(control_ids(self._files))
        for name in self._files.list(LCP_FOLDER):
            leaf = name.rpartition("/")[2]
            number = leaf.split("-")[0]
            if leaf.endswith(".data") and number.isdigit() and int(number) not in named:
                self._report.notes.append(f"{LCP_FOLDER}/{leaf} is left of an unfinished local checkpoint")

    def log(self, sysfile: Sysfile, lsn: int, sequence: int, until: int | None = None) -> None:
        """Check every group from (lsn, sequence) to the end of the log, or to the group before sequence `until`."""
        with (
            self._report.noting(self._files),
            closing(LogReader(self._files, sysfile.geometry, sysfile.store)) as reader,
        ):
            self._report.files += sysfile.geometry.made_count
            is_before_seam = sysfile.is_before_seam(lsn, sequence)
            if until is None or is_before_seam:
                floor_lsn, reach_lsn = sysfile.bounds(lsn, sequence)
                for group in reader.groups(lsn, sequence, 0, reach_lsn if is_before_seam else 0):
                    self._group(group)
                if reader.end_lsn < floor_lsn:
                    raise reader.damage(f"is damaged, and the log was durable through LSN {floor_lsn}")
            else:
                self._kept_log(reader, lsn, sequence, until)

    def _kept_log(self, reader: LogReader, lsn: int, sequence: int, until: int) -> None:
        while sequence < until:
            group = reader.group_at(lsn, sequence)
            if group is None:
                reader.end_before(lsn, sequence)
                raise reader.damage("is damaged")
            self._group(group)
            lsn, sequence = group.end_lsn, group.sequence + 1

    def _group(self, group: GroupRead) -> None:
        self._report.groups += 1
        self._report.bytes += group.words.nbytes
        what = referred(group)
        if what is not None:
            self._referred.append(what)

    def spool_files(self, store: bytes, is_live: bool) -> None:
        """Check the files that the groups of the log refer to, after `log` has read it."""
        for what in self._referred:
            self._report.files += 1
            with self._report.noting(self._files):
                self._report.bytes += SpoolReader(self._files, store, what).verify()
        known = {name for what in self._referred for name in what.names}
        if not is_live:
            self._report.notes.extend(
                f"{name} is left of a transaction that never committed"
                for name in [*map(spool_name, spool_ids(self._files)), *loads_in(self._files)]
                if name not in known
            )

    def catalog(self, catalog: Catalog | None) -> None:
        """Check the catalog. It is a cache: the next opening repairs it."""
        if catalog is not None:
            self._report.files += 1
            try:
                catalog.read()
            except CatalogDamaged as error:
                self._report.notes.append(error.message)


# --- rows -----------------------------------------------------------------------------------------
def check_memory(
    store: Store,
    files: Files,
    identity: bytes,
    report: CheckReport,
    is_live: bool,
    progress: Progress | None = None,
) -> None:
    """Check every row, value, reference and index entry of a store in memory, in slices that do not block writers for
    long, and every disk page.

    is_live: the store has a log and users; otherwise it was only loaded for this check.
    """
    pin = object()
    store.users.pin(pin)  # before the list is read: tables dropped later stay
    try:
        tables = list(store.tables.by_name.values())
        total = sum(table.count() for table in tables)
        for table in tables:
            for number, fragment in table.by_number.items():
                where = f"{table.name}, fragment {number}"
                before = len(report.problems)
                _check_fragment(store, fragment, where, report, is_live)
                if table.format.has_disk:
                    FragmentCheck(store, files, identity, fragment, where, report, is_live).run()
                if len(report.problems) == before <= PROBLEMS_MAX:  # otherwise rows cannot be read safely
                    _check_values(store, table, number, where, report)
                if progress is not None:
                    progress(min(report.rows, total), total, "rows")
            check_indexes(store, table, report.add)
    except MemoryExhausted as error:
        report.notes.append(f"disk columns were not verified to their end: {error.message}")
    finally:
        store.users.unpin(pin)


def _check_fragment(store: Store, fragment: int, where: str, report: CheckReport, is_live: bool) -> None:
    began = _quiet_mark(store) if is_live else ()
    found = RowCheck(store, fragment, is_live)
    for fault, rowid in found.row_faults():
        report.add(f"{where}: row {rowid}: {FAULTS[fault]}")
    report.rows += found.rows
    # Commits change the count, so it is compared only if nothing was committed since the scan began.
    in_descriptor = store.arena.word(fragment, F_ROWS)
    is_quiet = not is_live or (began is not None and began == _quiet_mark(store))
    if is_quiet and found.rows != in_descriptor:
        report.add(f"{where}: {counted(found.rows, 'row')} found, the fragment counts {in_descriptor}")
    for fault, place in found.index_faults():
        report.add(f"{where}: {FAULTS[fault]} ({place})")


def _check_values(store: Store, table: Table, number: int, where: str, report: CheckReport) -> None:
    """Check each value of a fragment's rows, and that the rows belong to it."""
    is_whole = False
    while not is_whole:
        check = ValuesCheck(table.newest, number)
        count = 0
        try:
            for found in check.faults():
                store.failure.check()
                count += 1
                if count <= VALUES_SHOWN:
                    report.add(f"{where}: {_said(table.newest, found)}")
        except NoSuchTable:
            return
        except (Damaged, IoFailed) as error:
            store.failure.check()
            report.add(f"{where}: {error.message}")
        if count > VALUES_SHOWN:
            report.add(f"{where}: {counted(count - VALUES_SHOWN, 'more row')} with such faults")
        is_whole = check.is_whole


def _said(table: Table, found: ValueFault) -> str:
    key = "" if found.key is None else f" with key {table.format_key(found.key)}"
    if found.fault == CHECK_BROKEN:
        return f"row {found.rowid}{key} breaks check {found.check}"
    if found.fault == v.VALUE_PARTITION:
        return f"row {found.rowid}{key} belongs to another partition"
    if found.column is None:
        return f"row {found.rowid}{key} {VALUE_FAULTS[found.fault]}"
    name = f"{'dropped ' if found.is_dropped else ''}column {found.column.name}, {found.column.type!r},"
    return f"row {found.rowid}{key}: {name} {VALUE_FAULTS[found.fault]}"


def _quiet_mark(store: Store) -> tuple[int, ...] | None:
    """Return a mark: two equal ones mean that nothing was committed in between. None while a transaction is open."""
    with store.latch:
        return None if store.locks.by_slot else (store.log.sequence, int(store.log.fill[0]))


# --- indexes --------------------------------------------------------------------------------------
def check_indexes(store: Store, table: Table, report: Callable[[str], None]) -> None:
    """Check every index of a table, in slices that do not block writers for long; `report` gets each problem. The
    caller holds a pin.
    """
    with store.schema.latch:
        table = table.newest
        defined = [each.name for each in table.definition.indexes for _ in kinds_of(each)]
        indexes = table.listed_indexes()
        there = len(table.indexes) + len(table.uniques)
    if table.is_dropped:
        return
    if defined != [index.name for index in indexes] or len(defined) != there:
        report(f"{table.name}: parts of indexes {defined} are defined, {[index.name for index in indexes]} are there")
    for index in indexes:
        _check_index(store, table, index, report)


def _check_index(store: Store, table: Table, index: AnyIndex, report: Callable[[str], None]) -> None:
    found = None
    while True:
        # Rows of a dropped partition keep their entries until no reader uses it any more. Read this under the latch:
        # between the partition's publication and its entry in the list of kept partitions there is a sync.
        with store.schema.latch:
            fragments = table.fragments
            is_counted = not store.users.has_dropped_fragments(table)
        if isinstance(index, StoredUnique):
            found = index.tree.check(store.failure.check, fragments)
        else:
            found = index.tree.check(is_counted, store.failure.check, fragments)
        if index.is_dropped or table.fragments is fragments:
            break
    if found is not None and not index.is_dropped:
        report(f"{table.name}, index {index.name}: {found.what} ({_evidence(table, found)})")
    newest = table.newest
    moved = index.moved_columns(newest.definition, newest.format.layout)
    if moved and not index.is_dropped and table.newest is newest:
        names = ", ".join(moved)
        report(
            f"{newest.name}, index {index.name}: its entries were made from other places in rows than those where"
            f" {names} {'is' if len(moved) == 1 else 'are'} now"
        )


def _evidence(table: Table, found: Fault) -> str:
    """Return the row of a fault, or its place in memory if it is of no row."""
    if found.number not in (FAULT_KEY, FAULT_MISSING, FAULT_TWICE):
        return str(found.evidence)
    rowid, key = key_of_place(table, found.evidence)
    return f"row {rowid}" if key is None else f"row {rowid} with key {table.format_key(key)}"


# --- whole stores ---------------------------------------------------------------------------------
def check_closed(
    files: Files, options: Options, clock: Clock, catalog_of: Callable[[Sysfile], Catalog], progress: Progress | None
) -> CheckReport:
    """Verify a store that no process has open; the caller holds its lock. Nothing is written. Raises: FileMissing if
    there is no store.
    """
    began = clock.monotonic()
    files.read_errors_latch = False
    report = CheckReport()
    check = FileCheck(files, report)
    check_exists(files)
    sysfile = check.sysfile()
    if sysfile is None:
        report.add("no copy of the sysfile is intact: the store cannot be opened; restore it from a backup")
    else:
        intact = check.local_checkpoints(sysfile.store)
        start = log_start(intact, has_been_cut(files))
        check.log(sysfile, start.lsn, start.sequence)
        check.spool_files(sysfile.store, False)
        check.catalog(catalog_of(sysfile))
        disk = DiskFileCheck(files, sysfile, report)
        disk.closed(intact)
        if disk.torn_pages:
            report.notes.append(
                f"rows were not verified: {counted(disk.torn_pages, 'torn page')},"
                f" which the next opening repairs from {FILE_NAME}; open and close the store, then check again"
            )
        else:
            _check_with_restart(files, options, clock, sysfile, report, progress)
    report.seconds = clock.monotonic() - began
    return report


def _check_with_restart(
    files: Files, options: Options, clock: Clock, sysfile: Sysfile, report: CheckReport, progress: Progress | None
) -> None:
    """Load the store into memory and verify its rows there."""
    try:
        store = Restart(files, options, clock).run_without_writes()
    except LimitExceeded as error:
        report.notes.append(f"rows were not verified: {error.message}")
    except Error as error:
        report.add(f"the store cannot be opened: {error.message}")
    else:
        with closing(store.disk):
            check_memory(store, files, sysfile.store, report, False, progress)


def check_live(
    store: Store,
    files: Files,
    sysfile: Sysfile,
    catalog: Catalog | None,
    lcp_turn: AbstractContextManager[object],
    progress: Progress | None,
) -> CheckReport:
    """Verify an open store while it is in use. lcp_turn: while held, no local checkpoint is written or retired."""
    began = store.clock.monotonic()
    report = CheckReport()
    check = FileCheck(files, report)
    check.sysfile()
    with lcp_turn:
        check.local_checkpoints(sysfile.store)
    log = store.log
    with store.latch:
        place = log.tail_lsn, log.tail_sequence, log.durable_sequence + 1
    problems = len(report.problems)
    check.log(sysfile, *place)
    check.spool_files(sysfile.store, True)
    with store.latch:
        is_cut = log.tail_lsn != place[0]
    if is_cut:
        # Local checkpoints have freed log meanwhile, so newer groups may have overwritten what was read.
        del report.problems[problems:]
        report.notes.append("the log was cut while it was read; what was cut was not verified to its end")
    if store.disk.is_started:
        DiskFileCheck(files, sysfile, report).live(store, lcp_turn)
    check.catalog(catalog)
    check_memory(store, files, sysfile.store, report, True, progress)
    report.seconds = store.clock.monotonic() - began
    return report
