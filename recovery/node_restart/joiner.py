"""The returning node: takes definitions, slices and groups into a store that is not open yet
(docs/internals/node-group.md, *Node restart*).

Messages are handled in order; `engine/store/node_join.py` changes the rows. Nothing is logged and nothing is durable:
the node's own files keep its last state, and a crash returns to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidemark.engine.base.errors import MemoryExhausted, RedoDamaged
from tidemark.engine.log.reader import GroupRead
from tidemark.engine.log.records import InvalidRecord, transactions
from tidemark.engine.log.redo_layout import KIND_SCHEMA, TRANSACTION_WORDS
from tidemark.engine.store.fragment_load import end_load
from tidemark.engine.store.node_copy_layout import DELETED_WORDS, ROWID_END
from tidemark.engine.store.node_join import JoinedRows, copies_differ, join_memory_error
from tidemark.recovery.node_restart import messages as m
from tidemark.recovery.system_restart.replay import alter_table, apply_schema, schema_change
from tidemark.recovery.system_restart.restart import CaughtUp

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.recovery.node_restart.messages import FragmentPlace, FromJoiner, FromLive, TablespaceShape, Welcome
    from tidemark.recovery.system_restart.restart import PrivateStore


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
        self,
        welcome: Welcome,
        link: Link,
        through: int,
        variant: str = m.ROWID_SYNC,
        why: str = "full copy",
        begun: Callable[[m.Progress], None] = lambda progress: None,
    ) -> None:
        """through: the last epoch that the group completed with this node; the restart goes back to its end. If it is
        0, the node's rows are not used and everything is copied; `why` is the reason. begun: called before the first
        message, with the counters, which are updated in place.
        """
        self.store = welcome.store
        self.incarnation = welcome.incarnation
        self._link = link
        self._through = through
        self._variant = variant
        self._why = "" if through else why
        self._begun = begun
        self.joiner: Joiner | None = None

    def run(self, private: PrivateStore) -> CaughtUp:
        """Catch up, as `CatchUp.run` says. Raises: InvariantBroken if the copies cannot be made equal, MemoryExhausted,
        StorageFull, and the errors of the link.
        """
        joiner = self.joiner = Joiner(private)
        joiner.progress.variant, joiner.progress.why = self._variant, self._why
        self._begun(joiner.progress)
        self._link.send(m.Ready(self._through, private.next_sequence, self._variant, self._why))
        while joiner.caught_up is None:
            for answer in joiner.take(self._link.receive(), self._through):
                self._link.send(answer)
        return joiner.caught_up


class Joiner:
    """Takes messages of the live node, one by one."""

    def __init__(self, private: PrivateStore) -> None:
        self._private = private
        self._store = private.store
        self._rows = JoinedRows(private.store)
        self.caught_up: CaughtUp | None = None
        self.progress = m.Progress(private.clock, private.clock.monotonic())
        self._is_replaying = False
        self._store.disk.declare_undo = private.disk.declare_undo

    def take(self, message: FromLive, through: int) -> list[FromJoiner]:
        """Handle a message and return the answers. through: the rows are those at the end of this epoch. Raises: as
        `Join.run`.
        """
        if isinstance(message, m.Begin):
            return self.begin_copy(message, through)
        if isinstance(message, m.Slice):
            self.apply_slice(message)
            return [m.Taken(m.size_words(message))]
        if isinstance(message, m.Deletes):
            self.apply_deletes(message)
            return [m.Taken(m.size_words(message))]
        if isinstance(message, m.GroupPart):
            self.apply_group(message)
            if self._is_replaying:
                return [m.Taken(message.stop - message.start)]
        elif isinstance(message, m.End):
            self.end_copy(message)
        return []

    # --- definitions -----------------------------------------------------------------------------
    def begin_copy(self, begin: m.Begin, through: int) -> list[FromJoiner]:
        self.progress.variant, self.progress.why = begin.variant, begin.why
        self._is_replaying = begin.variant == m.REPLAY_LOG
        if self._is_replaying:
            return []  # the log has the changes of definitions too
        store = self._store
        wanted = {definition.table_id for definition in begin.tables}
        for table in list(store.tables.by_id.values()):
            if table.table_id not in wanted:
                store.tables.remove(table)
        since: dict[FragmentPlace, int] = {}
        try:
            self._take_tablespaces(begin)
            for definition in begin.tables:
                kept = self._take_definition(definition)
                for number, fragment in store.tables.by_id[definition.table_id].by_number.items():
                    since[definition.table_id, number] = through if number in kept else 0
                    self._rows.begin(fragment)
        except MemoryExhausted as error:
            raise join_memory_error() from error
        store.tables.next_id = max(store.tables.next_id, begin.next_table_id)
        self._rows.refresh_tables()
        self.progress.fragments = len(since)
        return [m.Plan(since)]

    def _take_tablespaces(self, begin: m.Begin) -> None:
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
        table = store.tables.by_id.get(definition.table_id)
        if table is not None and table.definition.version != definition.version:
            before = set(table.by_number)
            if table.is_change_of_indexes(definition):
                table.publish_definition(definition, ())
                return before
            try:
                alter_table(store, definition)
                return before & set(store.tables.by_id[definition.table_id].by_number)
            except RedoDamaged:
                store.tables.remove(table)
                table = None
        if table is not None:
            return set(table.by_number)
        store.tables.install(definition)
        return set()

    # --- the delete log, slices ------------------------------------------------------------------
    def apply_deletes(self, message: m.Deletes) -> None:
        """Delete the rows. No slot was copied yet: the rows are those of the joiner's epoch, or fewer, in any order."""
        self._rows.take_deletes(message.words, message.epoch)
        self.progress.deletes += message.words.size // DELETED_WORDS
        self.progress.bytes += message.words.nbytes

    def apply_slice(self, message: m.Slice) -> None:
        table = self._store.tables.by_id.get(message.place[0])
        fragment = 0 if table is None else table.by_number.get(message.place[1], 0)
        if table is None or not fragment or table.definition.version != message.version:
            raise copies_differ(f"a slice of table number {message.place[0]} is not of the current definition")
        slots = (message.start, message.stop)
        self._rows.take_slice(table, message.place[1], slots, message.words, message.epoch)
        self.progress.rows += message.rows
        self.progress.bytes += message.words.nbytes
        if message.stop == ROWID_END:
            # The live node did not send the epoch of each empty slot: none is higher than that of the slice.
            end_load(self._store.mem, fragment, message.epoch)
            self.progress.fragments_done += 1

    # --- groups ----------------------------------------------------------------------------------
    def apply_group(self, part: m.GroupPart) -> None:
        at = part.start
        try:  # the blocks of a file have no transaction records, and no changes of the schema
            changes = list(transactions(part.words, at, part.stop, KIND_SCHEMA)) if part.is_last else []
        except InvalidRecord as error:
            raise copies_differ(f"group {part.sequence} is not made of transactions") from error
        for change in changes:
            self._rows.take_records(part.words, at, change.at, part.epoch)
            self._change_schema(part, change.at + TRANSACTION_WORDS, change.end)
            at = change.end
        self._rows.take_records(part.words, at, part.stop, part.epoch)
        if part.is_last:
            self.progress.groups += 1

    def _change_schema(self, part: m.GroupPart, at: int, stop: int) -> None:
        """Change the schema. A table or partition created now is complete: the stream has all operations on it."""
        group = GroupRead(part.sequence, 0, part.epoch, 0, 0, 0, part.stop - part.start, part.words)
        change = schema_change(group, at, stop)
        try:
            if "tablespace" in change or "datafile" in change:
                for shape in part.tablespaces:
                    self._make_files(shape)
            else:
                apply_schema(self._store, [(part.epoch, change)], 0)
        except MemoryExhausted as error:
            raise join_memory_error() from error
        self._rows.refresh_tables()

    # --- the end ---------------------------------------------------------------------------------
    def end_copy(self, end: m.End) -> None:
        for table in self._store.tables.by_id.values():
            if not all(self._rows.is_copied(fragment) for fragment in table.fragments):
                raise copies_differ(f"{table.name} was not copied to its end")
        self.progress.is_done = True
        if self._store.deletes is not None:
            self._store.deletes.begin_after(end.epoch)  # the copy's own deletes are in no log of this node
        self.caught_up = CaughtUp(end.sequence + 1, end.epoch, end.next_epoch)
