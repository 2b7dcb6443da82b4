"""The files of a store as plain dicts, for display: its logs, its local checkpoints, its tables.

Reads only, and takes no lock: it works while another process has the store open. A file that the other process is
writing or removing may look damaged; a second read tells the difference. A group with an intact successor is intact at
the second read (L1), unless newer local checkpoints have freed its part of the log and it was overwritten. A data file
without its control file was retired.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.engine.base.errors import (
    Damaged,
    FileMissing,
    IoFailed,
    LcpDamaged,
    RedoDamaged,
    Rejected,
    SpoolDamaged,
    SysfileDamaged,
)
from tidemark.engine.disk.data_file import FOLDER as SPACE_FOLDER
from tidemark.engine.disk.data_file import file_name
from tidemark.engine.disk.tablespaces import TablespaceDefinition
from tidemark.engine.disk.undo_listing import list_undo_group
from tidemark.engine.disk.undo_reader import UndoReader
from tidemark.engine.disk.undo_ring import FOLDER as UNDO_FOLDER
from tidemark.engine.log.geometry import FOLDER as REDO_FOLDER
from tidemark.engine.log.listing import Dictionary, Entry, decode_image, image_size, key_of, list_group, list_spooled
from tidemark.engine.log.load_files import FOLDER as LOAD_FOLDER
from tidemark.engine.log.reader import GroupRead, LogReader
from tidemark.engine.log.spool_files import FOLDER as SPOOL_FOLDER
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.engine.memory.arena_layout import ENTRY_WORDS
from tidemark.engine.rows import lcp_layout as e
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.sealed.sealed_layout import header_of
from tidemark.recovery.local_checkpoint.control import (
    Control,
    control_ids,
    has_been_cut,
    log_start,
    read_control,
    read_controls,
)
from tidemark.recovery.local_checkpoint.data_file import FOLDER as LCP_FOLDER
from tidemark.recovery.local_checkpoint.data_file import copies_name, data_name, read_blocks
from tidemark.recovery.system_restart.place import FOLDERS, check_exists
from tidemark.recovery.system_restart.replay import definition_in, schema_changes
from tidemark.recovery.system_restart.sysfile import read_sysfile

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words

T = TypeVar("T")
ATTEMPTS = 5
# The kinds of files by folder; of two, the first ends in `.data`.
KINDS = (
    (REDO_FOLDER, ("redo",)),
    (UNDO_FOLDER, ("undo",)),
    (LCP_FOLDER, ("local checkpoint data", "local checkpoint control")),
    ("catalog", ("catalog",)),
    (SPACE_FOLDER, ("data files",)),
    (SPOOL_FOLDER, ("spool files",)),
    (LOAD_FOLDER, ("load files",)),
    ("", ("other",)),
)


class StoreListing:
    """Reads the files of one store; no file is kept open between calls."""

    def __init__(self, files: Files) -> None:
        """Raises: FileMissing if there is no store, SysfileDamaged, Incompatible."""
        self._files = files
        files.read_errors_latch = False
        found = read_sysfile(files)
        if found is None:
            check_exists(files)
            raise SysfileDamaged("both copies of the sysfile are damaged; restore the store from a backup")
        self.sysfile = found
        self.controls = self._read_controls()

    def _read_controls(self) -> list[Control]:
        """Return the intact control files, newest first; the owner may remove one between its listing and its
        reading.
        """
        for attempt in range(ATTEMPTS):
            try:
                return read_controls(self._files, self.sysfile.store)
            except FileMissing:
                if attempt == ATTEMPTS - 1:
                    raise
        return []

    # --- tables ----------------------------------------------------------------------------------
    def tables(self) -> list[TableDefinition]:
        """Return the definitions of all tables, from the newest local checkpoint and the log after it, by number.

        Raises: RedoDamaged.
        """
        return self._retry_if_overtaken(self._tables)

    def tablespaces(self) -> list[TablespaceDefinition]:
        """Return the definitions of all tablespaces, from the same sources, by number. Raises: RedoDamaged."""
        return self._retry_if_overtaken(self._tablespaces)

    def _retry_if_overtaken(self, read: Callable[[], T]) -> T:
        for _ in range(ATTEMPTS):
            try:
                return read()
            except RedoDamaged:
                if not self._is_overtaken():
                    raise
        return read()

    def _tablespaces(self) -> list[TablespaceDefinition]:
        newest = self.controls[0] if self.controls else None
        found = {each.tablespace_id: each for each in (newest.tablespaces if newest is not None else ())}
        for change in self._changes(newest):
            if "tablespace" in change:
                definition = TablespaceDefinition.from_json(json.dumps(change["tablespace"]).encode())
                found[definition.tablespace_id] = definition
            elif "datafile" in change and change["tablespace_id"] in found:
                definition = found[change["tablespace_id"]]
                file_ids = tuple(sorted({*definition.file_ids, change["datafile"]}))
                found[definition.tablespace_id] = replace(definition, file_ids=file_ids)
            elif "drop_tablespace" in change:
                found.pop(change["drop_tablespace"], None)
        return [found[number] for number in sorted(found)]

    def data_files(self, definition: TablespaceDefinition) -> dict[str, int]:
        """Return the bytes of the data files of a tablespace, by name; 0 for a file that does not exist now."""
        return {name: self._size_of(name) for name in map(file_name, definition.file_ids)}

    def _changes(self, newest: Control | None) -> Iterator[dict[str, Any]]:
        """Yield the schema changes after a local checkpoint; all changes if it is None."""
        start = (0, 1) if newest is None else (newest.start_lsn, newest.start_sequence)
        for group in self.groups(*start):
            yield from (change for _, change in schema_changes([group]))

    def _tables(self) -> list[TableDefinition]:
        newest = self.controls[0] if self.controls else None
        found = {each.table_id: each for each in (newest.tables if newest is not None else ())}
        for change in self._changes(newest):
            if "create" in change:
                definition = definition_in(change)
                found[definition.table_id] = definition
            elif "alter" in change:
                definition = definition_in(change)
                if definition.table_id in found and definition.version > found[definition.table_id].version:
                    found[definition.table_id] = definition
            elif "drop" in change:
                found.pop(change["drop"], None)
        return [found[table_id] for table_id in sorted(found)]

    def sizes_bytes(self) -> dict[str, int]:
        """Return bytes by kind of file; a file that vanishes meanwhile counts as 0."""
        sizes = dict.fromkeys([kind for _, kinds in KINDS for kind in kinds], 0)
        for folder, kinds in KINDS:
            for name in self._files.list(folder) if not folder or self._files.exists(folder) else ():
                if folder or (name not in FOLDERS and name != "catalog"):
                    kind = kinds[0] if name.endswith(".data") else "catalog" if name == "catalog.seal" else kinds[-1]
                    sizes[kind] += self._size_of(f"{folder}/{name}" if folder else name)
        return sizes

    def _size_of(self, path: str) -> int:
        try:
            return self._files.size(path)
        except (FileMissing, IoFailed, Rejected):  # Rejected: a socket or the like, not a regular file
            return 0

    # --- REDO ------------------------------------------------------------------------------------
    def redo(self, from_lsn: int | None = None) -> Iterator[Entry]:
        """Yield groups, transactions and operations from the older kept local checkpoint, or from an LSN, to the end.

        From an LSN before the kept log, the remains of older groups come first; "retired" entries show where groups are
        missing. Raises: RedoDamaged if the kept log continues after a bad group.
        """
        dictionary = Dictionary(definition for control in self.controls for definition in control.tables)
        start = self._start() if from_lsn is None else self._first_from(from_lsn)
        if from_lsn is not None:
            # Definitions created before are needed to read later groups.
            for definition in self.tables():
                dictionary.add(definition)
        while start is not None:
            try:
                for group in self.groups(*start):
                    yield from list_group(group, dictionary)
                    yield from self._spooled(group, dictionary)
                return
            except RedoDamaged as error:
                broken_lsn = error.evidence.get("lsn")
                if not isinstance(broken_lsn, int) or not (self._is_overtaken() or broken_lsn < self._start()[0]):
                    raise
                text = "overwritten by later groups: newer local checkpoints are complete"
                yield {"kind": "retired", "lsn": broken_lsn, "text": text}
                start = self._first_from(broken_lsn + 1)

    def _spooled(self, group: GroupRead, dictionary: Dictionary) -> Iterator[Entry]:
        """Yield the content of the spool file that a group refers to, if it does."""
        what = referred(group)
        if what is None:
            return
        reader = SpoolReader(self._files, self.sysfile.store, what)
        try:
            reader.verify()
            yield from list_spooled(group, reader, dictionary)
        except SpoolDamaged as error:
            kind, text = "damage", error.message
            if self._is_overtaken() or what.lsn < self._start()[0]:
                kind, text = "retired", "its file is gone: newer local checkpoints are complete"
            yield {"kind": kind, "lsn": what.lsn, "file": what.names[0], "text": text}

    def _is_overtaken(self) -> bool:
        """Whether the owner has completed local checkpoints since the last read: older log may then be overwritten."""
        known = [each.lcp_id for each in self.controls]
        self.controls = self._read_controls()
        return known != [each.lcp_id for each in self.controls]

    def _start(self) -> tuple[int, int]:
        """Return LSN and sequence of the first group of the kept log."""
        start = log_start(self.controls, has_been_cut(self._files))
        return start.lsn, start.sequence

    def _first_from(self, lsn: int) -> tuple[int, int] | None:
        """Return LSN and sequence of the first intact group at or after an LSN, None if there is none."""
        with closing(self._reader()) as reader:
            for at, sequence in sorted(reader.candidates()):
                if at >= lsn and reader.group_at(at, sequence) is not None:
                    return at, sequence
        return None

    def _reader(self) -> LogReader:
        return LogReader(self._files, self.sysfile.geometry, self.sysfile.store)

    def groups(self, lsn: int, sequence: int) -> Iterator[GroupRead]:
        """Yield the intact groups from (lsn, sequence) to the end of the log. Raises: RedoDamaged."""
        with closing(self._reader()) as reader:
            while True:
                group = reader.group_at(lsn, sequence)
                if group is None and self._has_more_groups(reader, lsn, sequence):
                    group = reader.group_at(lsn, sequence)
                    if group is None:
                        reader.end_before(lsn, sequence)
                        raise reader.damage("is damaged or was overwritten, but a later group is intact")
                if group is None:
                    return
                yield group
                lsn, sequence = group.end_lsn, group.sequence + 1

    @staticmethod
    def _has_more_groups(reader: LogReader, lsn: int, sequence: int) -> bool:
        return any(
            at >= lsn and number >= sequence and reader.group_at(at, number) is not None
            for at, number in reader.candidates()
        )

    # --- UNDO ------------------------------------------------------------------------------------
    def undo(self, from_lsn: int | None = None) -> Iterator[Entry]:
        """Yield UNDO groups and their records, oldest first, from the mark of the older kept local checkpoint or from
        an LSN. Groups that the ring no longer has are left out.

        "retired" entries show where groups between two others are missing: overwritten, or damaged (`check` tells
        which). A store without an UNDO log gives no entries. Raises: RedoDamaged.
        """
        geometry = self.sysfile.undo_geometry
        if geometry is None:
            return
        dictionary = Dictionary(self.tables())
        with closing(UndoReader(self._files, geometry, self.sysfile.store, self.sysfile.undo_void)) as reader:
            next_sequence = 0
            marks = [each.undo.sequence for each in self.controls if each.undo is not None]
            first = min(marks) if marks and from_lsn is None and len(marks) == len(self.controls) else 0
            for position, sequence in sorted(reader.candidates()):
                if sequence < first:
                    continue
                group = reader.group_at(position, sequence)
                if group is None or (from_lsn is not None and group.next_lsn <= from_lsn):
                    continue
                if next_sequence and sequence != next_sequence:
                    text = f"groups {next_sequence} to {sequence - 1} are overwritten or damaged"
                    yield {"kind": "retired", "position": position, "text": text}
                yield from list_undo_group(group, reader.offsets_of(group), dictionary)
                next_sequence = sequence + 1

    # --- local checkpoints -----------------------------------------------------------------------
    def local_checkpoints(self) -> Iterator[Entry]:
        """Yield control files, newest first, each followed by its data files, their blocks and rows.

        A damaged file gives an entry of the kind "damage"; listing continues with the next file.
        """
        for lcp_id in control_ids(self._files):
            try:
                control = read_control(self._files, self.sysfile.store, lcp_id)
            except FileMissing:
                continue
            if control is None:
                yield {"kind": "damage", "file": f"{LCP_FOLDER}/control-{lcp_id}", "text": "not intact"}
                continue
            yield _control_entry(control)
            dictionary = Dictionary(control.tables)
            for (table_id, fragment), sizes in sorted(control.fragments.items()):
                name = data_name(lcp_id, table_id, fragment)
                yield from self._data_file(control, name, (table_id, fragment), sizes, dictionary)
            copies = (e.COPIES_TABLE, e.COPIES_FRAGMENT)
            yield from self._data_file(control, copies_name(lcp_id), copies, control.copies, dictionary)

    def _data_file(
        self,
        control: Control,
        name: str,
        place: tuple[int, int],
        sizes: tuple[int, int, int],
        dictionary: Dictionary,
    ) -> Iterator[Entry]:
        is_copies = place[0] == e.COPIES_TABLE
        table = {} if is_copies else {"table": dictionary.name(place[0]), "fragment": place[1]}
        entries, blocks, size_bytes = sizes
        kind = "copies file" if is_copies else "data file"
        yield {"kind": kind, "file": name, **table, "entries": entries, "blocks": blocks, "bytes": size_bytes}
        try:
            for block in read_blocks(self._files, name, self.sysfile.store, control.lcp_id, *place):
                header = header_of(block.words, e.LCP_BLOCK)
                yield {
                    "kind": "block",
                    "file": name,
                    "number": int(header["number"]),
                    "offset": block.size_bytes - block.words.nbytes,
                    "bytes": block.words.nbytes,
                    "is_last": bool(header["is_last"]),
                }
                yield from _rows(name, block.words, block.stop, dictionary, "old row" if is_copies else "row")
        except (Damaged, IoFailed) as error:
            if self._files.failure.first is not None:
                raise
            if control.lcp_id in control_ids(self._files):
                yield {"kind": "damage", "file": name, "text": str(error)}
            else:
                yield {"kind": "retired", "file": name, "text": "removed while it was listed: a newer one is complete"}


def _control_entry(control: Control) -> Entry:
    return {
        "kind": "control",
        "lcp_id": control.lcp_id,
        "epoch": control.epoch,
        "start_lsn": control.start_lsn,
        "start_sequence": control.start_sequence,
        "next_table_id": control.next_table_id,
        "tables": [each.name for each in control.tables],
        **({} if control.undo is None else {"undo_lsn": control.undo.lsn, "extents": control.extents[0]}),
    }


def _rows(name: str, words: Words, stop: int, dictionary: Dictionary, kind: str) -> Iterator[dict[str, Any]]:
    at = e.BLOCK_HEADER_WORDS
    while at < stop:
        if at + ENTRY_WORDS > stop:
            raise LcpDamaged(f"{name} has an impossible row at word {at} of a block", file=name)
        place = int(words[at + 2])
        row_format = dictionary.get(e.entry_table(place))
        size = -1 if row_format is None else image_size(row_format, words, at + ENTRY_WORDS, stop, has_disk=False)
        if row_format is None or size < 0:
            raise LcpDamaged(f"{name} has an impossible row at word {at} of a block", file=name)
        values = decode_image(row_format, words, at + ENTRY_WORDS, has_disk=False)
        yield {
            "kind": kind,
            "table": row_format.definition.name,
            "fragment": e.entry_fragment(place),
            "rowid": int(words[at]),
            "epoch": int(words[at + 1]),
            "author": place & e.ENTRY_AUTHOR_MASK,
            "key": key_of(row_format, values),
            "values": values,
        }
        at += ENTRY_WORDS + size
