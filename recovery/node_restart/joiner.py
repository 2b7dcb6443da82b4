"""The returning node: takes definitions, slices and groups into a store that is not open yet
(docs/internals/node-group.md, *Node restart*).

Messages are handled in order. Each fragment has a position. Slots before it are copied: there the stream's groups are
replayed strictly, as at a restart. Changes at or past the position are left to the scan. Only rows there can be stale,
and only such rows are ever removed to make place for others.

Nothing is logged and nothing is durable: the node's own files keep its last state, and a crash leads back to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tidemark.engine.base.errors import InvariantBroken, MemoryExhausted, RedoDamaged
from tidemark.engine.log.reader import GroupRead
from tidemark.engine.log.records import InvalidRecord, transactions
from tidemark.engine.log.redo_layout import (
    KIND_DELETE,
    KIND_SCHEMA,
    OPERATION_WORDS,
    TRANSACTION_WORDS,
    pack_identity,
    pack_kind,
)
from tidemark.engine.memory.arena_layout import COUNT_SHIFT, F_REPLAY_EPOCH, OK, ST_SPACE
from tidemark.engine.rows.lcp_kernels import finish_load
from tidemark.engine.store.disk_replay import DiskReplay
from tidemark.engine.store.node_copy_layout import (
    DELETED_WORDS,
    F_UNCOPIED,
    N_NEXT,
    N_POSITION,
    N_USED,
    NODE_COPY_STATE_WORDS,
    ROWID_END,
)
from tidemark.engine.store.node_join_kernels import (
    executed_records,
    find_deleted,
    find_in_the_way,
    find_stale,
    records_of_slice,
    set_uncopied,
    stamp_slice,
)
from tidemark.engine.store.replay import PartsOutOfMemory, RecordDoesNotFit, Replay
from tidemark.recovery.node_restart.messages import (
    REPLAY_LOG,
    ROWID_SYNC,
    Begin,
    Deletes,
    End,
    GroupPart,
    Plan,
    Ready,
    Slice,
    Taken,
)
from tidemark.recovery.node_restart.progress import Progress
from tidemark.recovery.system_restart.catch_up import CaughtUp
from tidemark.recovery.system_restart.load import OnePool
from tidemark.recovery.system_restart.replay import alter_table, apply_schema, schema_change

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table
    from tidemark.recovery.node_restart.messages import FragmentPlace, FromJoiner, FromLive, TablespaceShape, Welcome
    from tidemark.recovery.system_restart.catch_up import PrivateStore

ROWS_NOTED = 4_096


class Link(Protocol):
    """Carries messages between joiner and live node, in order."""

    def send(self, message: FromJoiner) -> None:
        """Send one message. Raises: any error that ends the join."""
        ...

    def receive(self) -> FromLive:
        """Wait for the next message and return it. Raises: any error that ends the join."""
        ...


class Join:
    """Lets a restart catch up with a live node over a link."""

    def __init__(
        self, welcome: Welcome, link: Link, through: int, variant: str = ROWID_SYNC, why: str = "full copy"
    ) -> None:
        """through: the epoch to which the restart goes back, the last one that the group completed with this node. If
        it is 0, the node's rows are not used and everything is copied; `why` is the reason.
        """
        self.store = welcome.store
        self.incarnation = welcome.incarnation
        self._link = link
        self._through = through
        self._variant = variant
        self._why = "" if through else why
        self.joiner: Joiner | None = None

    def run(self, private: PrivateStore) -> CaughtUp:
        """Catch up, as `CatchUp.run` says. Raises: InvariantBroken if the copies cannot be made equal, MemoryExhausted,
        StorageFull, and the errors of the link.
        """
        joiner = self.joiner = Joiner(private)
        self._link.send(Ready(self._through, private.next_sequence, self._variant, self._why))
        while joiner.caught_up is None:
            for answer in joiner.take(self._link.receive(), self._through):
                self._link.send(answer)
        return joiner.caught_up


class Joiner:
    """Takes messages of the live node, one by one."""

    def __init__(self, private: PrivateStore) -> None:
        self._private = private
        self._store = private.store
        self._mem = private.store.mem
        self._pool = OnePool(private.store)
        self._noted: Words = np.empty(ROWS_NOTED, dtype=np.int64)
        self.caught_up: CaughtUp | None = None
        self.progress = Progress(private.clock, private.clock.monotonic())
        self._is_replaying = False
        self._store.disk.declare_undo = private.disk.declare_undo
        self._look_at_tables()

    def _look_at_tables(self) -> None:
        self._all = self._store.directory()
        self._replays: list[Replay | DiskReplay] = [Replay(self._store, self._all)]
        on_disk = DiskReplay(self._store, self._all)
        if on_disk.has_tables:
            self._replays.append(on_disk)

    def take(self, message: FromLive, through: int) -> list[FromJoiner]:
        """Handle a message and return the answers. through: the rows are those at the end of this epoch. Raises: as
        `Join.run`.
        """
        if isinstance(message, Begin):
            return self.begin_copy(message, through)
        if isinstance(message, Slice):
            self.apply_slice(message)
            return [Taken(message.size_words)]
        if isinstance(message, Deletes):
            self.apply_deletes(message)
            return [Taken(message.size_words)]
        if isinstance(message, GroupPart):
            self.apply_group(message)
            if self._is_replaying:
                return [Taken(message.stop - message.start)]
        elif isinstance(message, End):
            self.end_copy(message)
        return []

    # --- definitions -----------------------------------------------------------------------------
    def begin_copy(self, begin: Begin, through: int) -> list[FromJoiner]:
        self.progress.variant, self.progress.why = begin.variant, begin.why
        self._is_replaying = begin.variant == REPLAY_LOG
        if self._is_replaying:
            return []  # the log has the changes of definitions too
        store = self._store
        wanted = {definition.table_id for definition in begin.tables}
        for table in list(store.by_id.values()):
            if table.table_id not in wanted:
                store.remove_table(table)
        since: dict[FragmentPlace, int] = {}
        try:
            self._take_tablespaces(begin)
            for definition in begin.tables:
                kept = self._take_definition(definition)
                for number, fragment in store.by_id[definition.table_id].by_number.items():
                    since[definition.table_id, number] = through if number in kept else 0
                    set_uncopied(self._mem, fragment, 0)
                    store.arena.set_word(fragment, F_REPLAY_EPOCH, 0)  # rows of a full copy may have any epochs
        except MemoryExhausted as error:
            raise self._no_memory() from error
        store.next_table_id = max(store.next_table_id, begin.next_table_id)
        self._look_at_tables()
        self.progress.fragments = len(since)
        return [Plan(since)]

    def _take_tablespaces(self, begin: Begin) -> None:
        """Create the tablespaces and data files that the live node has and this one lacks, with the live node's
        numbers. Forget those that the live node no longer has: they hold no table. Durable on return: the files; a
        crash leaves them for the next opening.
        """
        space = self._store.space
        wanted = {shape.definition.tablespace_id for shape in begin.tablespaces}
        for tablespace in space.tablespaces():
            if tablespace.definition.tablespace_id not in wanted:
                space.forget(tablespace)
                space.release(tablespace)
        for shape in begin.tablespaces:
            self._make_files(shape)
        space.next_tablespace_id = max(space.next_tablespace_id, begin.next_tablespace_id)
        space.next_file_id = max(space.next_file_id, begin.next_file_id)

    def _make_files(self, shape: TablespaceShape) -> None:
        """Create a tablespace, or its missing files."""
        space, definition = self._store.space, shape.definition
        number, now_us = definition.tablespace_id, self._private.clock.wall_us()
        files = list(zip(definition.file_ids, shape.extents, strict=True))
        held = next((each for each in space.tablespaces() if each.definition.tablespace_id == number), None)
        if held is None:
            self._store.disk.begin_first()
            space.next_tablespace_id, space.next_file_id = number, files[0][0]
            held = space.make(definition, files[0][1] * definition.extent_bytes, now_us)
            space.publish(held)
        for file_id, extents in files:
            if file_id not in held.definition.file_ids:
                space.next_file_id = file_id
                made = space.make_file(held, extents * definition.extent_bytes, now_us)
                space.publish_file(held, made)

    def _take_definition(self, definition: TableDefinition) -> set[int]:
        """Give a table the live node's definition; return the numbers of the fragments whose rows are kept. If the
        columns or partitions are more than one step older, no rows are kept.
        """
        store = self._store
        table = store.by_id.get(definition.table_id)
        if table is not None and table.definition.version != definition.version:
            before = set(table.by_number)
            if table.is_change_of_indexes(definition):
                table.take_definition(definition, {})
                return before
            try:
                alter_table(store, self._pool, definition)
                return before & set(store.by_id[definition.table_id].by_number)
            except RedoDamaged:
                store.remove_table(table)
                table = None
        if table is not None:
            return set(table.by_number)
        self._pool.adopt(store.install_table(definition))
        return set()

    # --- the delete log, slices ------------------------------------------------------------------
    def apply_deletes(self, message: Deletes) -> None:
        """Delete the rows. No slot was copied yet: the rows are those of the joiner's epoch, or fewer, in any order."""
        words, stop = message.words, message.words.size
        self._delete_found(
            lambda out, state: find_deleted(self._mem, self._all, words, stop, out, state), message.epoch
        )
        self.progress.deletes += stop // DELETED_WORDS
        self.progress.bytes += words.nbytes

    def apply_slice(self, message: Slice) -> None:
        table = self._store.by_id.get(message.place[0])
        fragment = 0 if table is None else table.by_number.get(message.place[1], 0)
        if table is None or not fragment or table.definition.version != message.version:
            raise self._differ(f"a slice of table number {message.place[0]} is not of the current definition")
        if self._store.arena.word(fragment, F_UNCOPIED) != message.start + 1:
            raise self._differ(
                f"a slice of {table.name} begins at {message.start}, which the copy has not reached or has passed"
            )
        words, stop = message.words, message.words.size
        identity = pack_identity(*message.place, message.version)
        gone = self._find(
            1, lambda out, state: find_in_the_way(self._mem, fragment, words, stop, out, state), message.start
        )
        self._replay_deletes([(identity, np.unique(gone))], message.epoch)
        state = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
        records: Words = np.empty(2 * stop, dtype=np.int64)
        self._settled(records_of_slice(self._mem, fragment, words, stop, identity, records, state), table)
        self._replay(records, 0, int(state[N_USED]), message.epoch)
        self._settled(stamp_slice(self._mem, fragment, words, stop), table)
        set_uncopied(self._mem, fragment, message.stop)
        self.progress.rows += message.rows
        self.progress.bytes += words.nbytes
        if message.stop == ROWID_END:
            # The live node did not send the epoch of each empty slot: none is higher than that of the slice.
            finish_load(self._mem, fragment, message.epoch)
            self.progress.fragments_done += 1

    def _settled(self, status: int, table: Table) -> None:
        if status != OK:
            raise self._differ(f"a slice of {table.name} does not fit the rows it meets (status {status})")

    def _find(self, unit: int, find: Callable[[Words, Words], int], position: int = 0) -> Words:
        """Return the words that `find` notes, in units of `unit` words, from a large enough array; `find` changes
        nothing.
        """
        while True:
            state = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
            state[N_POSITION] = position
            status = int(find(self._noted, state))
            if status == OK:
                return self._noted[: int(state[N_USED])].copy()
            if status > ST_SPACE:
                raise self._differ(f"the record at word {int(state[N_NEXT])} does not fit the rows (status {status})")
            self._noted = np.empty(2 * self._noted.size + unit, dtype=np.int64)

    # --- groups ----------------------------------------------------------------------------------
    def apply_group(self, part: GroupPart) -> None:
        at = part.start
        try:  # the blocks of a file have no transaction records, and no changes of the schema
            changes = list(transactions(part.words, at, part.stop, KIND_SCHEMA)) if part.is_last else []
        except InvalidRecord as error:
            raise self._differ(f"group {part.sequence} is not made of transactions") from error
        for change in changes:
            self._operations(part.words, at, change.at, part.epoch)
            self._change_schema(part, change.at + TRANSACTION_WORDS, change.end)
            at = change.end
        self._operations(part.words, at, part.stop, part.epoch)
        if part.is_last:
            self.progress.groups += 1

    def _operations(self, words: Words, start: int, stop: int, epoch: int) -> None:
        """Execute operations on copied slots, strictly; the scan brings the others. Remove stale rows that are in their
        way first.
        """
        if start == stop:
            return
        place = (self._mem, self._all, words, start, stop)
        self._delete_found(lambda out, state: find_stale(*place, out, state), epoch)
        state = np.zeros(NODE_COPY_STATE_WORDS, dtype=np.int64)
        records: Words = np.empty(stop - start, dtype=np.int64)
        if executed_records(*place, records, state) != OK:
            raise self._differ(f"a group has an impossible record at word {int(state[N_NEXT])}")
        self._replay(records, 0, int(state[N_USED]), epoch)

    def _delete_found(self, find: Callable[[Words, Words], int], epoch: int) -> None:
        """Delete the rows that `find` notes as pairs of word 1 of a record and ROWID, some perhaps twice."""
        pairs = self._find(2, find).reshape(-1, 2)
        self._replay_deletes(
            [(int(each), np.unique(pairs[pairs[:, 0] == each, 1])) for each in np.unique(pairs[:, 0])], epoch
        )

    def _change_schema(self, part: GroupPart, at: int, stop: int) -> None:
        """Change the schema. A table or partition created now is complete: the stream has all operations on it."""
        group = GroupRead(part.sequence, 0, part.epoch, 0, 0, 0, part.stop - part.start, part.words)
        change = schema_change(group, at, stop)
        try:
            if "tablespace" in change or "datafile" in change:
                for shape in part.tablespaces:
                    self._make_files(shape)
            else:
                apply_schema(self._store, self._pool, [(part.epoch, change)], 0)
        except MemoryExhausted as error:
            raise self._no_memory() from error
        self._look_at_tables()

    # --- the end ---------------------------------------------------------------------------------
    def end_copy(self, end: End) -> None:
        for table in self._store.by_id.values():
            if any(self._store.arena.word(fragment, F_UNCOPIED) for fragment in table.fragments):
                raise self._differ(f"{table.name} was not copied to its end")
        self.progress.is_done = True
        if self._store.deletes is not None:
            self._store.deletes.begin_behind(end.epoch)  # the copy's own deletes are in no log of this node
        self.caught_up = CaughtUp(end.sequence + 1, end.epoch, end.next_epoch)

    # --- replay ----------------------------------------------------------------------------------
    def _replay_deletes(self, rows: list[tuple[int, Words]], epoch: int) -> None:
        """Delete rows, given by word 1 of a record and their ROWIDs."""
        for identity, rowids in rows:
            records: Words = np.empty(rowids.size * OPERATION_WORDS, dtype=np.int64)
            records[0::OPERATION_WORDS] = pack_kind(KIND_DELETE, 0, OPERATION_WORDS)
            records[1::OPERATION_WORDS] = identity
            records[2::OPERATION_WORDS] = rowids | 1 << COUNT_SHIFT
            records[3::OPERATION_WORDS] = 0
            self._replay(records, 0, records.size, epoch)

    def _replay(self, records: Words, start: int, stop: int, epoch: int) -> None:
        if start == stop:
            return
        try:
            for replay in self._replays:
                replay.run(records, start, stop, epoch)
        except PartsOutOfMemory as error:
            raise self._no_memory() from error
        except RecordDoesNotFit as error:
            rowid = int(records[error.at + 2])
            raise self._differ(f"a record for ROWID {rowid} does not fit (status {error.status})") from error

    def _no_memory(self) -> MemoryExhausted:
        return MemoryExhausted(
            "the rows of the live node do not fit into data_memory; give this node as much as that one"
        )

    @staticmethod
    def _differ(what: str) -> InvariantBroken:
        return InvariantBroken(f"{what}: the copies differ; let this node join again with a full copy")
