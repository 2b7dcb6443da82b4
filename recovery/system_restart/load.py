"""Loads local checkpoints into memory, fragments in parallel, with the previous checkpoint as the fallback (F58-F60).

Every file is read once: its blocks are verified as they are loaded. If a file is damaged, the caller loads everything
again without it. Memory is private until the load succeeds, so nothing has to be undone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tidemark.engine.base.errors import (
    Damaged,
    FileTruncated,
    ForeignFile,
    IoFailed,
    LcpDamaged,
    LimitExceeded,
    MemoryExhausted,
)
from tidemark.engine.base.options import format_size
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.rows import lcp_layout as e
from tidemark.engine.schema.row_shape import compute_layout
from tidemark.engine.store.fragment_load import CopiesLoad, EntryDoesNotFit, FragmentLoad, end_load
from tidemark.engine.store.replay import PartsOutOfMemory
from tidemark.recovery.local_checkpoint.data_file import copies_name, data_name, read_blocks

if TYPE_CHECKING:
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.store.store import Store
    from tidemark.engine.table.table import Table
    from tidemark.recovery.local_checkpoint.control import Control

PARTS = 2
COPIES = (e.COPIES_TABLE, e.COPIES_FRAGMENT)
EXTENTS = (e.EXTENTS_TABLE, e.EXTENTS_FRAGMENT)
Progress = Callable[[int, int, str], None]
# A data file: (local checkpoint, table, fragment).
Place = tuple[int, int, int]


@dataclass
class Loaded:
    """Result of loading."""

    rows: int = 0
    size_bytes: int = 0
    fallbacks: int = 0


class DataFileDamaged(Exception):
    """A data file is unusable; load again without it."""

    def __init__(self, place: Place, cause: Exception) -> None:
        super().__init__(str(cause))
        self.place = place


def run_parts(parts: int, work: Callable[[int], None]) -> None:
    """Run work(part) for each part, in threads if there are several. The first error is raised after all have ended."""
    if parts == 1:
        work(0)
        return
    errors: list[BaseException] = []

    def guarded(part: int) -> None:
        try:
            work(part)
        except BaseException as error:  # thread entry: after any error the restart must not continue without this part
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(part,), name=f"restart-{part}") for part in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Loader:
    """Loads each fragment from the newest usable checkpoint."""

    def __init__(
        self,
        store: Store,
        files: Files,
        identity: bytes,
        controls: list[Control],
        parts: int,
        damaged: frozenset[Place] = frozenset(),
        progress: Progress | None = None,
    ) -> None:
        """progress: called with (rows loaded, rows in all, "rows") for each block, by one loading thread at a time."""
        self._progress = progress
        self._rows_done = 0
        self._progress_turn = threading.Lock()
        self._store = store
        self._files = files
        self._identity = identity
        self._controls = controls
        self._damaged = damaged
        self.parts = parts
        self.result = Loaded()
        # None: there is nothing to load, and the log is replayed from its start.
        self.chosen: dict[tuple[int, int], Control | None] = {}
        # The one checkpoint for all tables with disk columns: their pages are undone to one point.
        self.disk_control: Control | None = None

    def _prepare(self) -> None:
        """Split the arena's free pages between the threads and give each its fragments."""
        if self.parts > 1 and not self._store.arena.split_pool():
            self.parts = 1
        for table in self._store.tables.by_name.values():
            self.adopt(table)

    def adopt(self, table: Table) -> None:
        """Give each fragment of a table the pool of its thread."""
        for number, fragment in table.by_number.items():
            pool = a.S_POOL_TOP if self.parts > 1 and number % self.parts == 1 else a.S_POOL
            self._store.arena.set_word(fragment, a.F_POOL, pool)

    def release(self) -> None:
        """Join the pools again after load and replay."""
        for table in self._store.tables.by_name.values():
            for fragment in table.fragments:
                self._store.arena.set_word(fragment, a.F_POOL, a.S_POOL)
        self._store.arena.join_pools()

    # --- which checkpoint ------------------------------------------------------------------------
    def _choose(self) -> None:
        """Choose the checkpoint for each fragment. Raises: LcpDamaged."""
        if not self._controls:
            return
        tables = list(self._store.tables.by_name.values())
        on_disk = [(table, number) for table in tables if table.format.has_disk for number in table.by_number]
        if on_disk or self._controls[0].tablespaces:
            self.disk_control = self._choose_one(on_disk, [EXTENTS])
        for table in tables:
            for number in table.by_number:
                one = self.disk_control if table.format.has_disk else self._choose_one([(table, number)], [])
                self.chosen[table.table_id, number] = one

    def _choose_one(self, fragments: list[tuple[Table, int]], others: list[tuple[int, int]]) -> Control | None:
        """Return the newest checkpoint with no known damage in its files of the fragments or its copies file.

        others: more files that must be undamaged. None: no checkpoint is usable, and the empty store from before the
        first one is the base; the log must then reach back to its start.
        """
        wanted = [(table.table_id, number) for table, number in fragments]
        for control in self._controls:
            if not {(control.lcp_id, *place) for place in [*wanted, *others, COPIES]} & self._damaged:
                return control
            self.result.fallbacks += 1
        if self._controls[-1].lcp_id == 1:
            return None
        if not fragments:
            raise LcpDamaged("no intact local checkpoint with extent headers is left; restore from a backup")
        lost = {place[1:] for place in self._damaged}
        table, number = next((each for each in fragments if (each[0].table_id, each[1]) in lost), fragments[0])
        raise LcpDamaged(
            f"no intact local checkpoint of fragment {number} of {table.name} is left; restore from a backup",
            table=table.name,
            fragment=number,
        )

    # --- loading ---------------------------------------------------------------------------------
    def load(self) -> None:
        """Load every fragment from the checkpoint chosen for it. Raises: DataFileDamaged, LcpDamaged,
        PartsOutOfMemory.
        """
        self._prepare()
        self._choose()
        results = [Loaded() for _ in range(self.parts)]
        run_parts(self.parts, lambda part: self._load_part(part, results[part]))
        for control in {each.lcp_id: each for each in self.chosen.values() if each is not None}.values():
            results.append(self._reading((control.lcp_id, *COPIES), partial(self._load_copies, control)))
        for result in results:
            self.result.rows += result.rows
            self.result.size_bytes += result.size_bytes
        for place, held in self.chosen.items():
            fragment = self._store.tables.by_id[place[0]].by_number[place[1]]
            epoch = 0 if held is None else held.epoch
            self._store.arena.set_word(fragment, a.F_REPLAY_EPOCH, epoch)
            end_load(self._store.mem, fragment, epoch)

    def _load_part(self, part: int, result: Loaded) -> None:
        for table in list(self._store.tables.by_name.values()):
            for number, fragment in table.by_number.items():
                control = self.chosen.get((table.table_id, number))
                place = (table.table_id, number)
                if number % self.parts != part or control is None or place not in control.fragments:
                    continue
                done = self._reading(
                    (control.lcp_id, *place),
                    partial(self._load_data, fragment, control, place),
                )
                result.rows += done.rows
                result.size_bytes += done.size_bytes

    def _advance(self, rows: int) -> None:
        if self._progress is not None:
            with self._progress_turn:
                self._rows_done += rows
                total = sum(
                    control.fragments[place][0] for place, control in self.chosen.items() if control is not None
                )
                self._progress(self._rows_done, total, "rows")

    def _reading(self, place: Place, work: Callable[[], Loaded]) -> Loaded:
        """Call work(); raise an error of damaged or unreadable data as DataFileDamaged with the place."""
        try:
            return work()
        except ForeignFile:
            raise  # the files belong to different stores: an older checkpoint does not help (F73)
        except (Damaged, IoFailed) as error:
            raise DataFileDamaged(place, error) from error

    def _load_data(self, fragment: int, control: Control, place: tuple[int, int]) -> Loaded:
        name = data_name(control.lcp_id, *place)
        definition = next(each for each in control.tables if each.table_id == place[0])
        self._store.arena.set_word(fragment, a.F_LCP_HAS_VAR, int(compute_layout(definition).has_var))
        self._store.tables.by_id[place[0]].reserve_index(fragment, control.fragments[place][0])
        load = FragmentLoad(self._store.mem, fragment)
        for block in read_blocks(self._files, name, self._identity, control.lcp_id, *place):
            before = load.rows
            with refused(name):
                load.take(block.words, e.BLOCK_HEADER_WORDS, block.stop)
            self._advance(load.rows - before)
        with refused(name):
            load.finish()
        check_counts(name, (load.rows, block.blocks, block.size_bytes), control.fragments[place])
        return Loaded(load.rows, block.size_bytes)

    def _load_copies(self, control: Control) -> Loaded:
        """Load old rows copied by commits: entries of all tables in one file."""
        name = copies_name(control.lcp_id)

        def target_of(definition: TableDefinition, number: int) -> int:
            # Skip tables dropped since, and fragments that are loaded from another checkpoint (F59).
            table = self._store.tables.by_id.get(definition.table_id)
            is_wanted = self.chosen.get((definition.table_id, number)) is control
            return table.by_number[number] if is_wanted and table is not None else 0

        load = CopiesLoad(self._store.mem, *shapes_of(control.tables, target_of))
        for block in read_blocks(self._files, name, self._identity, control.lcp_id, *COPIES):
            with refused(name):
                load.take(block.words, e.BLOCK_HEADER_WORDS, block.stop)
        check_counts(name, (load.entries, block.blocks, block.size_bytes), control.copies)
        return Loaded(load.rows, block.size_bytes)


def shapes_of(
    definitions: Iterable[TableDefinition], target_of: Callable[[TableDefinition, int], int]
) -> tuple[Words, Words]:
    """Return the shapes and targets of a checkpoint's tables for `load_copies`. target_of(table, fragment number)
    returns the target of the fragment's rows.
    """
    known = list(definitions)
    shapes = np.zeros((max((each.table_id for each in known), default=0) + 1) * a.ENTRY_SHAPE_WORDS, dtype=np.int64)
    targets: list[int] = []
    for definition in known:
        layout = compute_layout(definition)
        count = definition.partition.next_number
        at = definition.table_id * a.ENTRY_SHAPE_WORDS
        shapes[at : at + a.ENTRY_SHAPE_WORDS] = (layout.fixed_words, int(layout.has_var), count, len(targets))
        targets.extend(target_of(definition, number) for number in range(count))
    return shapes, np.array(targets, dtype=np.int64)


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Within the block, raise EntryDoesNotFit as LcpDamaged with the file's name."""
    try:
        yield
    except EntryDoesNotFit as error:
        at = error.at * 8
        raise LcpDamaged(
            f"{name} has an impossible row at {at} of a block (status {error.status})", file=name, offset=at
        ) from error


def check_counts(name: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Check that entries, blocks and bytes are those in the control file. Raises: FileTruncated."""
    if found != expected:
        raise FileTruncated(
            f"{name} has (entries, blocks, bytes) {found}, its control file says {expected}; restore the store from a"
            " backup",
            file=name,
        )


@contextmanager
def must_fit(what: str, held_bytes: int, options: Options) -> Iterator[None]:
    """Within the block, raise running out of memory as LimitExceeded: during an opening or a restore no transaction
    frees memory, so a retry with the same options never helps (F86). what: the rows that are loaded, of `held_bytes`.
    """
    try:
        yield
    except PartsOutOfMemory as error:
        # In memory, rows take up to half as much again as in the files.
        would_do = max(2 * options.data_memory_bytes, -(-held_bytes * 3 // 2 // (1 << 20)) << 20)
        raise LimitExceeded(
            f"{what} ({held_bytes} bytes) do not fit into data_memory ({options.data_memory_bytes} bytes); open it with"
            f' data_memory="{format_size(would_do)}"',
            held_bytes=held_bytes,
            data_memory_bytes=options.data_memory_bytes,
        ) from error
    except MemoryExhausted as error:
        raise LimitExceeded(error.message, **error.evidence) from error
