"""Adopts a published load: takes all of it into its table in one transaction, or nothing (docs/load.md, section 4).

Order of writes: the mark with the transaction's id; links to files from elsewhere, or copies, synced; then rows in
memory, placed and locked; then the commit by reference. A crash before its group is durable leaves files, which the
next opening sweeps; after it, replay reads them. The task that wrote a file has synced it before it gave it its name,
so a link needs no sync of its content. From then on the file has two names, and either may be removed.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access.statuses import refused as unique_refused
from tidemark.engine.access.statuses import settle
from tidemark.engine.base.errors import (
    FileMissing,
    ForeignFile,
    LoadDamaged,
    LoadRefused,
    Rejected,
    SpoolDamaged,
)
from tidemark.engine.files.durable_files import copy_file
from tidemark.engine.log.load_arena_layout import LR_AT, LR_WORDS
from tidemark.engine.log.load_blocks import InvalidRecords, OtherFragment, Surveyor
from tidemark.engine.log.load_files import FOLDER
from tidemark.engine.log.spool_layout import SPOOL_HEADER_WORDS
from tidemark.engine.log.spool_reader import records_of
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.store.outcome import find_outcome
from tidemark.engine.txn.adopted_records import AdoptedRecords, Block, Part
from tidemark.engine.types.base import counted
from tidemark.recovery.load.commit import FoundLoad, end, find_loads, read_manifest, sweep
from tidemark.recovery.load.directory import ADOPTING, Directory, directory_of, own_directory
from tidemark.recovery.load.job import EXAMPLES_MAX
from tidemark.recovery.load.tasks import REFUSED_MAX, Refusals, shown

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction
    from tidemark.recovery.load.commit import LoadManifest
    from tidemark.recovery.load.job import LoadJob

_log = logging.getLogger("tidemark.load")

Progress = Callable[[int, int, str], None]
SLICE_ROWS = 1_000  # about 200 µs of one kernel call that holds the GIL
UNIQUE_SHARE = 2  # an entry in a unique index takes as long as this many rows
RESERVE_ROWS_MIN = 4_096
COMMITTED = "committed"


@dataclass
class AdoptReport:
    """Result of an adoption."""

    job: int
    table: str
    rows: int
    files: int
    size_bytes: int
    txid: int
    is_repeated: bool = False  # the load had been adopted before


class Adopter:
    """Adopts the loads of one store."""

    def __init__(self, store: Store, files: Files, identity: tuple[bytes, int]) -> None:
        self._store = store
        self._files = files
        self._identity = identity

    def adopt(
        self, job: LoadJob | str, place: Directory | None = None, progress: Progress | None = None
    ) -> AdoptReport:
        """Adopt a published load. Durable on return: all of it. job: the job, or its name. place: the job's directory;
        None: the store's own for a name. progress: called with rows done, rows in all, and "rows".

        Raises: FileMissing if it is not published; LoadRefused (`duplicates`, `examples`); LoadDamaged, ForeignFile;
        Rejected if the outcome of an earlier adoption is no longer in the log; LockTimeout, MemoryExhausted,
        LimitExceeded, StorageFull, RedoOverloaded, with nothing done;
        CommitOnFailedStore, CommitInterrupted.
        """
        own = own_directory(self._files)
        if place is None and (isinstance(job, str) or job.is_own):
            place = own
        if place is None:
            assert not isinstance(job, str)
            with directory_of(job) as opened:
                return self._adopt(job, opened, own, progress)
        return self._adopt(job, place, own, progress)

    def _adopt(self, job: LoadJob | str, place: Directory, own: Directory, progress: Progress | None) -> AdoptReport:
        before = self._adopted_before(job if isinstance(job, str) else job.name, place)
        if before is not None:
            return before
        manifest = read_manifest(job, place)
        table = self._table_of(manifest)
        is_own = place.files is own.files and place.folder == own.folder
        store = self._store
        txn: Transaction = store.transactions.begin()
        taken: list[str] = []
        try:
            place.write(manifest.job.name + ADOPTING, mark_of(manifest.job.name, txn.txid, manifest.rows))
            if not is_own:
                self._take_files(manifest, place, own, taken)
            self._place(txn, table, manifest, progress)
            txn.commit(True)
        except BaseException:
            txn.rollback()  # a commit that was handed to the log is completed
            if store.failure.first is None and (txn.group is None or not txn.group.sequence):
                place.sync()  # Ctrl-C may have come between the creation of the mark and its sync
                place.remove(manifest.job.name + ADOPTING)
                for leaf in taken:
                    own.remove(leaf)
            raise
        store.sequences.look_again(table.table_id)
        sweep(manifest.job.name, place, self._store.spools.names_of(txn.txid) if is_own else frozenset())
        return self._report(manifest, txn.txid)

    def sweep(self, place: Directory) -> list[FoundLoad]:
        """Remove the loads of this store in a directory elsewhere, except those whose outcome is unknown; return what
        is removed. Durable on return.
        """
        removed = []
        for found in find_loads(place):
            if found.store not in (None, self._identity[0].hex()):
                continue
            try:
                is_gone = self._adopted_before(found.name, place) is not None
            except (LoadDamaged, Rejected) as error:
                _log.warning("load %s stays: %s", found.name, error.message)
                continue
            if not is_gone:
                end(found.name, place)
            removed.append(found)
        return removed

    def _report(self, manifest: LoadManifest, txid: int) -> AdoptReport:
        table = manifest.job.table
        return AdoptReport(manifest.job.number, table, manifest.rows, len(manifest.files), manifest.size_bytes, txid)

    def _adopted_before(self, name: str, place: Directory) -> AdoptReport | None:
        """Return the report of an earlier adoption that the caller may not know of; None if there was none, or it had
        no effect.
        """
        if not place.exists(name + ADOPTING):
            return None
        mark = place.read(name + ADOPTING)
        words = mark.split()
        txid, rows = (int(word) if word.isdigit() else -1 for word in (words + [b"", b""])[:2])
        if mark != mark_of(name, txid, rows):
            raise LoadDamaged(
                f"{name + ADOPTING}, which tells whether the load was adopted, is damaged; check whether its rows are"
                " in the table, and plan another load if they are not",
                file=name + ADOPTING,
            )
        outcome = find_outcome(self._store, self._files, self._identity[0], txid)
        if outcome == "unknown":
            raise Rejected(
                f"load {name} was adopted as transaction {txid}, whose outcome is no longer in the log; check whether"
                " its rows are in the table, then abort the load, or plan another one if they are not",
                load=name,
                txid=txid,
            )
        if outcome != COMMITTED:
            return None
        report = AdoptReport(int(name, 16), "", rows, 0, 0, txid, is_repeated=True)
        try:
            report = replace(self._report(read_manifest(name, place), txid), is_repeated=True)
        except FileMissing:
            pass  # the first call had already removed it
        is_own = place.folder == FOLDER and place.files is self._files
        sweep(name, place, self._store.spools.names_of(txid) if is_own else frozenset())
        return report

    def _table_of(self, manifest: LoadManifest) -> Table:
        """Return the table a load is for. Raises: ForeignFile, LoadRefused if the table has changed or is gone."""
        job = manifest.job
        if job.store != self._identity[0]:
            raise ForeignFile(f"load {job.name} was planned by another store; adopt it there", load=job.name)
        table = self._store.tables.by_id.get(job.definition.table_id)
        if table is None:
            raise LoadRefused(
                f"table {job.table} was dropped since load {job.name} was planned; abort the load", table=job.table
            )
        table = table.newest
        if job.format_version << a.MODE_BITS != table.stamp:
            raise _altered(job)
        return table

    def _take_files(self, manifest: LoadManifest, place: Directory, own: Directory, taken: list[str]) -> None:
        """Link files from elsewhere, or copy them; note them in `taken`. Durable on return. Their content is verified
        when the rows are placed.
        """
        kept = self._store.spools.kept_names()
        for file in manifest.files:
            if file.name in kept:
                name, table = manifest.job.name, manifest.job.table
                raise LoadRefused(f"load {name} was adopted before; abort it", load=name, table=table)
            own.remove(file.leaf)
            taken.append(file.leaf)
            target, source = own.name(file.leaf), place.name(file.leaf)
            try:
                if own.files.link(target, source, place.files):
                    got = own.files.size(target)
                else:
                    got = copy_file(place.files, source, own.files, target, file.size_bytes)
            except Rejected as error:
                text = f"{file.leaf} cannot be opened ({error.message}); abort the load and load again"
                raise LoadDamaged(text, file=file.leaf) from error
            if got != file.size_bytes:
                text = f"{file.leaf} has {got} of {file.size_bytes} bytes; abort the load and load again"
                raise LoadDamaged(text, file=file.leaf, offset=got)
        own.sync()

    def _place(self, txn: Transaction, table: Table, manifest: LoadManifest, progress: Progress | None) -> None:
        """Place all rows for a transaction; they are not visible yet. Raises: as `adopt`."""
        if not manifest.files:
            return
        # Asked after the begin: a check that is added later waits for this transaction, and reads its rows.
        if not {*table.newest.definition.checks, *table.newest.announced} <= set(manifest.job.definition.checks):
            raise _altered(manifest.job)
        records = AdoptedRecords(self._files, self._identity[0], txn.txid, manifest.files)
        txn.begin_to_adopt(records)
        placing = _Placing(txn, table, manifest, records, progress)
        for part in records.parts:
            placing.file(part)
        placing.finish()


def mark_of(name: str, txid: int, rows: int) -> bytes:
    """Return the content of an adoption's mark, with a checksum: a damaged id would name another transaction, with
    another outcome.
    """
    text = f"{txid} {rows}"
    return f"{text} {zlib.crc32(f'{name} {text}'.encode()):08x}".encode()


def _altered(job: LoadJob) -> LoadRefused:
    return LoadRefused(
        f"columns, checks or partitions of {job.table} were changed after load {job.name} was planned; plan another"
        " one",
        table=job.table,
        load=job.name,
    )


class _Placing:
    """Places the rows of a load into the pages of a table."""

    def __init__(
        self,
        txn: Transaction,
        table: Table,
        manifest: LoadManifest,
        records: AdoptedRecords,
        progress: Progress | None,
    ) -> None:
        self._txn = txn
        self._table = table
        self._job = manifest.job
        self._manifest = manifest
        self._records = records
        self._progress = progress
        self._shape = manifest.job.shape
        self._refused = Refusals()
        self._done = 0
        self._surveyor = Surveyor()
        self._expected: dict[int, int] = {}
        for file in manifest.files:
            self._expected[file.fragment] = self._expected.get(file.fragment, 0) + file.rows

    def file(self, part: Part) -> None:
        """Place the rows of one file."""
        self._begin(part)
        shape = self._shape.words(part.file.fragment)
        done = 0
        try:
            for unit, offset in part.reader.units(lambda offset, words: self._records.room_for(part, offset, words)):
                first = part.start + offset // 8
                start = first + SPOOL_HEADER_WORDS
                rows = self._survey(part, shape, start, start + records_of(unit), done)
                count = rows.size // LR_WORDS
                self._place_block(part, rows, count, done)
                images = np.zeros(0, dtype=np.int32)
                if self._shape.format.has_disk:
                    at = rows[LR_AT::LR_WORDS]
                    images = (at + (self._shape.format.fixed_words - 1 - first)).astype(np.int32)
                self._records.placed(Block(part, first, first + unit.size, int(unit[0]), images))
                done += count
                self._done += count
                self._txn.check()
                if self._progress is not None:
                    self._progress(self._done, self._manifest.rows, "rows")
        except SpoolDamaged as error:
            raise _damaged(part, error.message.partition(";")[0], error.evidence.get("offset")) from error
        if done != part.file.rows:
            raise _damaged(part, f"has {counted(done, 'row')} instead of {part.file.rows}")
        part.close_page(self._txn.mem)

    def _begin(self, part: Part) -> None:
        """Reserve page numbers for a file, and room in the index for the rows of its fragment."""
        file = part.file
        fragment = self._table.by_number.get(file.fragment, 0)
        if fragment == 0:
            raise _altered(self._job)
        expected = self._expected.pop(file.fragment, 0)
        if expected >= RESERVE_ROWS_MIN:
            self._table.reserve_index(fragment, self._table.arena.word(fragment, a.F_INDEX_COUNT) + expected)
        if not part.reserve(self._table, fragment, self._job.format_version):
            raise _altered(self._job)
        if self._refused.is_at_least:
            part.only_look_up()

    def _survey(self, part: Part, shape: Words, start: int, stop: int, done: int) -> Words:
        """List the rows of a block, fully checked. Raises: LoadDamaged, LoadRefused."""
        header = self._table.newest.hash_header
        try:
            return self._surveyor.rows_of(shape, header, self._records.words, start, stop, done, part.file.rows)
        except OtherFragment:
            raise _altered(self._job) from None
        except InvalidRecords:
            raise _damaged(part, "has records that no task writes", (start - part.start) * 8) from None

    def _place_block(self, part: Part, rows: Words, count: int, before: int) -> None:
        txn, table = self._txn, self._table
        slice_rows = SLICE_ROWS // (1 + UNIQUE_SHARE * len(table.uniques))
        position = 0
        deadline: float | None = None
        while position < count:
            stop = min(position + slice_rows, count)
            status, position = part.put(table, txn.desc, txn.buf, rows, position, stop)
            if status in (a.OK, a.ST_MORE):
                deadline = None
            elif status in (a.ST_DUPLICATE, a.ST_UNIQUE):
                self._refuse(part, rows, position, before + position, status)
                position += 1
                deadline = None
            elif status in (a.ST_ALTERED, a.ST_PARTITION):
                raise _altered(self._job)
            else:
                deadline = settle(txn, table, status, 0, deadline)

    def _refuse(self, part: Part, rows: Words, position: int, row: int, status: int) -> None:
        """Count a row whose key another row has."""
        refused = self._refused
        refused.count += 1
        if len(refused.examples) < EXAMPLES_MAX:
            refused.examples.append(self._example(part, rows, position, row, status))
        if self._shape.format.has_disk or refused.count >= REFUSED_MAX:
            # With disk parts an operation covers a whole record, so no single row of it can be skipped. From here on no
            # row is placed, only keys are looked up.
            refused.is_at_least = True
            part.only_look_up()

    def _example(self, part: Part, rows: Words, position: int, row: int, status: int) -> dict[str, Any]:
        words, row_format = self._records.words, self._shape.format
        at = int(rows[position * LR_WORDS + LR_AT])
        image = words[at:]
        values = row_format.decode_present(words.data.cast("B"), at, row_format.has_var, row_format.has_disk)
        index, key = None, row_format.decode_key(row_format.image_key(image))
        if status == a.ST_UNIQUE:
            error = unique_refused(self._txn, self._table, image)
            index, key = error.evidence.get("index"), error.evidence.get("key", key)
        return {
            "file": part.file.leaf,
            "fragment": part.file.fragment,
            "part": part.file.part,
            "row": row,
            "index": index,
            "key": key,
            "values": {name: shown(value) for name, value in values.items()},
        }

    def finish(self) -> None:
        """Raise LoadRefused if rows were refused."""
        refused = self._refused
        refused.count += sum(part.found for part in self._records.parts)
        if not refused.count:
            return
        first = refused.examples[0]
        least = "at least " if refused.is_at_least else ""
        where = f"index {first['index']}" if first["index"] else "the primary key"
        raise LoadRefused(
            f"{self._table.name}: {least}{counted(refused.count, 'row has', 'rows have')} a key that"
            f" exists or appears twice in the load, the first: {first['key']!r} in {where}; nothing was loaded",
            table=self._table.name,
            refused=0,
            duplicates=refused.count,
            is_at_least=refused.is_at_least,
            examples=refused.examples,
        )


def _damaged(part: Part, what: str, offset: object = None) -> LoadDamaged:
    return LoadDamaged(
        f"{part.file.leaf}: {what}; nothing was loaded, abort the load and load again",
        file=part.file.leaf,
        offset=offset,
    )
