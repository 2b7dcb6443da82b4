"""Loading local checkpoints into memory, by fragment in parallel, with the checkpoint before as the fallback
(F58-F60).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.errors import Damaged, LcpDamaged, MemoryExhausted
from engine.kernels.lcp import finish_load, load_entries
from engine.kernels.setup import join_pools, set_pool, split_pool
from engine.layout.arena import F_REPLAY_EPOCH, OK, S_POOL, S_POOL_TOP, ST_MEMORY
from engine.layout.lcp import BLOCK_HEADER_WORDS, COPIES_FRAGMENT, COPIES_TABLE
from recovery.local_checkpoint.data_file import copies_name, data_name, read_blocks

if TYPE_CHECKING:
    from engine.file_protocol import Files
    from engine.memory.arena import Words
    from engine.store import Store
    from engine.table import Table
    from recovery.local_checkpoint.control import Control

PARTS = 2
COPIES = (COPIES_TABLE, COPIES_FRAGMENT)


@dataclass
class Loaded:
    """What loading did."""

    rows: int = 0
    size_bytes: int = 0
    fallbacks: int = 0


class PartsOutOfMemory(Exception):
    """One loader's half of the arena is full; loading by one thread may still fit."""


def run_parts(parts: int, work: Callable[[int], None]) -> None:
    """Run work(part) for each part, in threads if there are several; the first error is raised when all have ended."""
    if parts == 1:
        work(0)
        return
    errors: list[BaseException] = []

    def guarded(part: int) -> None:
        try:
            work(part)
        except BaseException as error:  # thread entry: whatever it is, restart must not go on without this part
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(part,), name=f"restart-{part}") for part in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Loader:
    """Loads what the newest intact checkpoint of each fragment holds."""

    def __init__(self, store: Store, files: Files, identity: bytes, controls: list[Control], parts: int) -> None:
        self._store = store
        self._files = files
        self._identity = identity
        self._controls = controls
        self.parts = parts
        self.result = Loaded()
        self.chosen: dict[tuple[int, int], Control | None] = {}

    def prepare(self) -> None:
        """Split the arena's free pages between the loaders and give each its fragments."""
        if self.parts > 1 and split_pool(self._store.mem) != OK:
            self.parts = 1
        for table in self._store.tables.values():
            self.adopt(table)

    def adopt(self, table: Table) -> None:
        """Give a table's fragments to their loaders."""
        for number, fragment in enumerate(table.fragments):
            pool = S_POOL_TOP if self.parts > 1 and number % self.parts == 1 else S_POOL
            set_pool(self._store.mem, fragment, pool)

    def release(self) -> None:
        """Loading and replay are over: one pool again."""
        for table in self._store.tables.values():
            for fragment in table.fragments:
                set_pool(self._store.mem, fragment, S_POOL)
        join_pools(self._store.mem)

    def choose(self) -> None:
        """Verify data files and decide which checkpoint each fragment comes from. Raises: LcpDamaged.

        The copies file belongs to all fragments of its checkpoint, so damage to it drops the whole checkpoint.
        """
        newest = self._controls[0] if self._controls else None
        older = self._controls[1] if len(self._controls) > 1 else None
        if newest is None:
            return
        if not self._is_intact(newest, *COPIES, copies_name(newest.lcp_id)):
            newest, older = self._fallback(newest, older, "its copies file"), None
        for table in self._store.tables.values():
            for number in range(len(table.fragments)):
                place = (table.table_id, number)
                self.chosen[place] = self._choose_one(place, newest, older)

    def _choose_one(self, place: tuple[int, int], newest: Control | None, older: Control | None) -> Control | None:
        if newest is None or place not in newest.fragments:
            return newest
        if self._is_intact(newest, *place, data_name(newest.lcp_id, *place)):
            return newest
        chosen = self._fallback(newest, older, f"fragment {place[1]} of table {place[0]}")
        if chosen is not None and place in chosen.fragments:
            name = data_name(chosen.lcp_id, *place)
            copies = self._is_intact(chosen, *COPIES, copies_name(chosen.lcp_id))
            if not copies or not self._is_intact(chosen, *place, name):
                raise LcpDamaged(
                    f"both local checkpoints of fragment {place[1]} of table {place[0]} are damaged;"
                    " restore from a backup",
                    table=place[0],
                    fragment=place[1],
                )
        return chosen

    def _fallback(self, newest: Control, older: Control | None, what: str) -> Control | None:
        """The checkpoint before; None means "nothing, replay the log from its start", right only for the first one."""
        self.result.fallbacks += 1
        if older is not None or newest.lcp_id == 1:
            return older
        raise LcpDamaged(
            f"local checkpoint {newest.lcp_id} is damaged ({what}) and none before it is kept; restore from a backup"
        )

    def _is_intact(self, control: Control, table_id: int, fragment: int, name: str) -> bool:
        try:
            for _ in read_blocks(self._files, name, self._identity, control.lcp_id, table_id, fragment):
                pass
        except Damaged:
            return False
        return True

    def load(self) -> None:
        """Load every fragment from the checkpoint chosen for it."""
        run_parts(self.parts, self._load_part)
        for place, control in self.chosen.items():
            fragment = self._store.by_id[place[0]].fragments[place[1]]
            epoch = 0 if control is None else control.epoch
            self._store.mem[fragment + F_REPLAY_EPOCH] = epoch
            finish_load(self._store.mem, fragment, epoch)

    def _load_part(self, part: int) -> None:
        state = np.zeros(2, dtype=np.int64)
        for table in self._store.tables.values():
            fragments = np.array(table.fragments, dtype=np.int64)
            for number in range(len(table.fragments)):
                control = self.chosen.get((table.table_id, number))
                if number % self.parts != part or control is None:
                    continue
                if (table.table_id, number) in control.fragments:
                    name = data_name(control.lcp_id, table.table_id, number)
                    for words, used in read_blocks(
                        self._files, name, self._identity, control.lcp_id, table.table_id, number
                    ):
                        self._load_block(fragments, words, used, part, state, name)
        self._load_copies(part, state)
        self.result.rows += int(state[1])

    def _load_block(self, fragments: Words, words: Words, used: int, part: int, state: Words, name: str) -> None:
        stop = BLOCK_HEADER_WORDS + used
        status = load_entries(self._store.mem, fragments, words, BLOCK_HEADER_WORDS, stop, part, self.parts, state)
        self.result.size_bytes += words.size * 8
        check_load_status(status, name, int(state[0]))

    def _load_copies(self, part: int, state: Words) -> None:
        """Old rows copied by commits: entries of all tables in one file, taken table by table."""
        for control in {each.lcp_id: each for each in self.chosen.values() if each is not None}.values():
            if control.copies[2] == 0:
                continue
            name = copies_name(control.lcp_id)
            for words, used in read_blocks(self._files, name, self._identity, control.lcp_id, *COPIES):
                self._load_mixed(words, used, part, state, name, control)

    def _load_mixed(self, words: Words, used: int, part: int, state: Words, name: str, control: Control) -> None:
        at = BLOCK_HEADER_WORDS
        stop = at + used
        while at < stop:
            table_id = (int(words[at + 2]) >> 16) & 0x7FFFFFFF
            number = (int(words[at + 2]) >> 47) & 0xFFF
            table = self._store.by_id.get(table_id)
            if table is None or number >= len(table.fragments):
                raise LcpDamaged(f"{name} has a row of an unknown table at {at * 8}", file=name, offset=at * 8)
            size = entry_size(table, words, at)
            if number % self.parts == part and self.chosen.get((table_id, number)) is control:
                fragments = np.array(table.fragments, dtype=np.int64)
                status = load_entries(self._store.mem, fragments, words, at, at + size, part, self.parts, state)
                check_load_status(status, name, int(state[0]))
            at += size


def entry_size(table: Table, words: Words, at: int) -> int:
    """Words of the entry at `at`."""
    size = 3 + table.format.fixed_words
    if table.format.has_var:
        size += int(words[at + size]) & 0xFFFFFFFF
    return size


def check_load_status(status: int, name: str, at: int) -> None:
    """Raise what a load kernel found."""
    if status == OK:
        return
    if status == ST_MEMORY:
        raise PartsOutOfMemory
    raise LcpDamaged(f"{name} has an impossible row at {at * 8} (status {status})", file=name, offset=at * 8)


def out_of_memory(data_memory_bytes: int) -> MemoryExhausted:
    """The store's rows do not fit."""
    return MemoryExhausted(
        f"the store's rows do not fit into data_memory ({data_memory_bytes} bytes); open it with a larger data_memory"
    )
