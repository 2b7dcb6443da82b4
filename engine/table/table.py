"""A table in memory: its definition, its row format and the places of its fragments in the arena.

A `Table` is one version of the columns (`engine/store/schema_changes.py`). A caller that holds an older version
continues with its format and names; `newest` is the version in force. All versions share everything that does not
depend on columns.

A change of its partitions is prepared, logged, and then published by one kernel call (D13, D15): anything that can fail
for lack of memory fails before the log has the change.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tidemark.engine.base import limits
from tidemark.engine.base.errors import (
    LockTimeout,
    MemoryExhausted,
    NoSuchIndex,
    NoSuchPartition,
    NoSuchTable,
    SnapshotTooOld,
    Unsupported,
)
from tidemark.engine.disk.cache_layout import TS_PAYLOAD
from tidemark.engine.disk.disk_layout import PIECE_HEADER_WORDS
from tidemark.engine.disk.extents_kernels import drop_fragment_extents, join_new_fragment, join_tablespace
from tidemark.engine.index.key_values import KeyShape
from tidemark.engine.index.lists_kernels import announce_index, publish_index, withdraw_index
from tidemark.engine.index.ordered import OrderedIndex
from tidemark.engine.index.stored import AnyIndex, StoredIndex, StoredUnique
from tidemark.engine.index.unique import UniqueHash
from tidemark.engine.memory.arena import Arena, memory_full
from tidemark.engine.memory.arena_layout import (
    BLOCK_WORDS,
    F_FIXED_PAGES,
    F_INDEX_BLOCKS,
    F_ROWS,
    F_VAR_PAGES,
    MODE_BITS,
    OK,
    PAGE_BYTES,
    ST_MORE,
    T_PARTITION,
    X_GENERATION,
)
from tidemark.engine.memory.handles_kernels import set_descriptor_word
from tidemark.engine.programs.checks import Checks, check_definitions
from tidemark.engine.programs.expressions import col
from tidemark.engine.rows.column_words import column_place
from tidemark.engine.rows.growth_kernels import reserve_index
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.rows.side_pages_kernels import change_format
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.schema.names import alternatives, as_names
from tidemark.engine.schema.partition_words import fragments_of_keys, hash_header
from tidemark.engine.schema.partitions_kernels import drop_partition_words
from tidemark.engine.schema.partitions_layout import HH_PARTITION
from tidemark.engine.schema.row_shape import disk_part_words
from tidemark.engine.table import fragments
from tidemark.engine.table.setup_kernels import change_partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidemark.engine.disk.columns import DiskColumns
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.check_definition import CheckDefinition
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.index_definition import IndexDefinition

EXTENTS_PER_CALL = 64
GATE_SHARE = 2  # of the time of a lock
GATE_POLL_SECONDS = 0.000_5


def is_same(one: TableDefinition, other: TableDefinition) -> bool:
    """Whether two definitions have the same canonical JSON."""
    return one.to_json() == other.to_json()


def _compiled(definition: TableDefinition, announced: tuple[CheckDefinition, ...]) -> Checks | None:
    """Return the checks of a definition, and others, compiled; None if there are none. Raises: as `Checks`."""
    every = (*definition.checks, *announced)
    return Checks(definition, every) if every else None


def _always_true(definition: TableDefinition) -> Checks:
    """Return a check that no row breaks: with it every update brings a whole image."""
    key = definition.primary_key[0]
    return Checks(definition, check_definitions({key: ~col(key).is_null()}))


def shown_key(key: Any) -> str:
    """Return a key for a message, shortened."""
    text = repr(key)
    return text if len(text) <= 60 else text[:57] + "..."


class TableAltered(Exception):
    """Rows were encoded for an older version of the table: nothing was done; encode them for the newest."""


class Gate:
    """Where transactions that bring images wait while rows of a table must not change. They wait for less time than a
    lock would let them: the change of the table may wait for a row that they have locked.
    """

    def __init__(self, generation: int) -> None:
        self._generation = generation

    def wait(self, txn: Any, table: Table) -> None:
        """Wait until the gate is open. Raises: LockTimeout, at once if the change waits for this one's end."""
        resources = txn.store
        is_older = txn.desc and int(txn.mem[txn.desc + X_GENERATION]) < self._generation
        deadline = resources.clock.monotonic() + resources.options.lock_timeout_ms / 1_000 / GATE_SHARE
        while table.newest.gate is self:
            if is_older or resources.clock.monotonic() >= deadline:
                raise LockTimeout(
                    f"a column of {table.name} gets a wider type, for which its writers wait; try again",
                    table=table.name,
                )
            resources.clock.sleep(GATE_POLL_SECONDS)


@dataclass(frozen=True)
class PartitionChange:
    """A prepared change of a table: its new definition, and the memory for it."""

    definition: TableDefinition
    header: Words
    number: int
    fragment: int  # handle of the new fragment with that number; 0: it is dropped
    words: int  # partition words in the arena
    gone: int  # handle of the fragment the table loses; 0: none


@dataclass(slots=True, eq=False)
class DroppedFragment:
    """The fragment of a dropped partition, kept until no reader uses it."""

    table: Table
    fragment: int

    def drop(self) -> None:
        """Free all its memory, after the index entries of its rows."""
        for index in self.table.newest.listed_indexes():
            index.forget(self.fragment)
        self.table.drop_fragment(self.fragment)


class Table:
    """One table of an open store."""

    __slots__ = (
        "handle",
        "arena",
        "gate",
        "announced",
        "building",
        "by_number",
        "checks",
        "definition",
        "format",
        "fragments",
        "hash_header",
        "indexes",
        "is_dropped",
        "mem",
        "opened",
        "plan",
        "seed",
        "stamp",
        "tablespace",
        "unique_columns",
        "uniques",
        "views",
        "superseded_by",
        "_columns_of",
        "_views",
        "__weakref__",
    )

    def __init__(
        self,
        arena: Arena,
        definition: TableDefinition,
        seed: int,
        disk: DiskColumns | None,
        views: Any,
        tablespace: int | None = None,
    ) -> None:
        """Create an empty table. views: of the store (`engine/txn/views.py`). tablespace: address of the descriptor of
        the tablespace of its disk columns, if it has any.
        """
        self.arena = arena
        self.opened = disk
        self.mem = arena.mem
        self.views = views
        self.definition = definition
        self.format = RowFormat(definition)
        self.seed = seed
        self.tablespace = tablespace
        self.hash_header = hash_header(definition, self.format.fixed_words, seed)
        numbers = definition.partition.numbers
        self.handle, self.fragments = fragments.make_table(
            arena.mem,
            [
                definition.table_id,
                definition.partition.next_number,
                self.format.fixed_words,
                int(self.format.has_var and not self.format.layout.var_since),
                0 if self.format.key_in_var else self.format.key_words,
                seed,
                definition.version,
                int(self.format.has_disk),
                *numbers,
            ],
        )
        # Handles by fragment number; `fragments` has them in the same order. Both are replaced, never changed in place.
        self.by_number = dict(zip(numbers, self.fragments, strict=True))
        self.is_dropped = False
        self.gate: Gate | None = None  # where writers wait while a column gets wider; the same in all versions
        # Those of the definition in force and those being added, which no definition has yet; the same in all versions.
        self.announced: tuple[CheckDefinition, ...] = ()
        self.checks = _compiled(definition, ())
        self.plan: Any = None  # how kernels answer calls of one row (`engine/point/plan.py`), once it is made
        self.superseded_by: Table | None = None  # None, not itself: a view must not be part of a cycle
        self._views = [weakref.ref(self)]
        self._columns_of: dict[AnyIndex, tuple[Column, ...] | None] = {}
        self._set_format()
        # The trees and the hashes of indexes by name, and the parts of those being built. Replaced, never changed in
        # place. An index may be in both.
        self.indexes: dict[str, StoredIndex] = {}
        self.uniques: dict[str, StoredUnique] = {}
        self.building: tuple[AnyIndex, ...] = ()
        # Columns of unique indexes, also of those being built: an update of one of them must pass the whole image.
        self.unique_columns: frozenset[str] = frozenset()
        try:
            set_descriptor_word(self.mem, self.handle, T_PARTITION, self._put_words(self.hash_header))
        except MemoryExhausted:
            fragments.drop_table(arena.mem, fragments.withdraw_table(arena.mem, self.handle))
            raise
        if tablespace is not None:
            join_tablespace(self.mem, self.handle, tablespace, *self._piece_words(tablespace))

    def _set_format(self) -> None:
        """Make kernels accept only images of this version."""
        layout = self.format.layout
        version = self.definition.format_version
        self.stamp = version << MODE_BITS  # combined with the mode of a call that passes images
        change_format(self.mem, self.handle, int(layout.has_var), layout.var_since, version, self.definition.version)

    def hold(self, generation: int) -> None:
        """Make kernels accept no images but those with `held_stamp`, and every change bring an image. generation: of
        the transactions that wait at the gate; older ones are refused there.
        """
        layout, version = self.format.layout, self.definition.version
        self._share(gate=Gate(generation))
        self._share_checks(self.checks)
        format_version = self.held_stamp >> MODE_BITS
        change_format(self.mem, self.handle, int(layout.has_var), layout.var_since, format_version, version)

    @property
    def held_stamp(self) -> int:
        """A stamp that no version of any table has."""
        return self.definition.version + limits.SCHEMA_VERSION_MAX << MODE_BITS

    def let_go(self) -> None:
        """Undo `hold`, in whatever version is in force. Repeating the call changes nothing."""
        newest = self.newest
        if not newest.is_dropped:
            newest._set_format()
        newest._share(gate=None)
        newest._share_checks(_compiled(newest.definition, newest.announced))

    def in_force(self, txn: Any, error: Exception | None = None) -> Table:
        """Return the newest version for a call whose images were of an older one; wait at the gate. error: with which
        the call ended. Raises: LockTimeout; a SnapshotTooOld that no other version avoids.
        """
        if isinstance(error, SnapshotTooOld) and (txn.view is not None or self.superseded_by is None):
            raise error
        gate = self.newest.gate
        if gate is not None:
            gate.wait(txn, self.newest)
        return self.newest

    @property
    def moved(self) -> int:
        """The version in which a column last took the place of a narrower one, 0 without one."""
        return max(column.shown for column in self.definition.columns)

    @property
    def is_moved(self) -> bool:
        """Whether a column has got a wider type since this version: rows written since have nothing where it reads."""
        newest = self.superseded_by
        return newest is not None and newest.moved > self.moved

    def refuse_moved(self) -> None:
        """Check that what was read up to now is what the rows are. Raises: SnapshotTooOld if `is_moved`."""
        if self.is_moved:
            raise SnapshotTooOld(f"a column of {self.name} got a wider type since the call began; run it again")

    @property
    def newest(self) -> Table:
        """The version in force."""
        return self if self.superseded_by is None else self.superseded_by

    def _share(self, **values: Any) -> None:
        """Set attributes that are the same in all versions of the table."""
        for view in self._live():
            for name, value in values.items():
                setattr(view, name, value)

    def _share_checks(self, checks: Checks | None) -> None:
        """Set what changes are asked in all versions. While writers wait there is always a check, and in a version
        from before a move for ever: then every change brings an image, with a stamp that kernels refuse.
        """
        moved = self.newest.moved
        for view in self._live():
            if checks is None and (view.gate is not None or view.moved < moved):
                view.checks = view.checks or _always_true(view.definition)
            else:
                view.checks = checks

    def _live(self) -> list[Table]:
        """Return the versions that are in use."""
        return [view for each in self._views if (view := each()) is not None]

    def altered(self, definition: TableDefinition) -> Table:
        """Return this table with other columns, checks or another name; not visible to callers before `publish`.
        Raises: SchemaInvalid; as `Checks`.
        """
        view = object.__new__(Table)
        for name in Table.__slots__:
            if name != "__weakref__":
                setattr(view, name, getattr(self, name))
        view.definition = definition
        view.format = RowFormat(definition)
        view._columns_of = {}
        view.announced = tuple(check for check in self.announced if check not in definition.checks)
        view.checks = _compiled(definition, view.announced)
        return view

    def announce_checks(self, announced: tuple[CheckDefinition, ...]) -> None:
        """Ask these checks about changes from now on, beside those of the definition. Raises: as `Checks`."""
        checks = _compiled(self.newest.definition, announced)
        self._share(announced=announced)
        self._share_checks(checks)

    def publish(self) -> None:
        """Become the version in force. It cannot fail, and a second call, as after Ctrl-C, changes nothing."""
        self._set_format()
        self._views[:] = [each for each in self._views if each() not in (None, self)] + [weakref.ref(self)]
        definitions = {each.name: each for each in self.definition.indexes}
        for index in self.listed_indexes():  # at restart there are none yet
            index.definition, index.table_name = definitions[index.name], self.name
        self.superseded_by = None
        self._follow_uniques()
        self._share(announced=self.announced)
        self._share_checks(self.checks)
        for view in self._live():
            if view is not self:
                view.superseded_by = self

    def _put_words(self, header: Words, makes_room: bool = False) -> int:
        """Copy the partition words of a hash header into the arena; return their address, 0 if it has none. Raises:
        MemoryExhausted.
        """
        start = int(header[HH_PARTITION])
        return fragments.put_words(self.mem, header, start, makes_room) if start else 0

    def _piece_words(self, tablespace: int) -> tuple[int, int]:
        """Return the largest size of a piece of a disk part, and the size of all pieces if they are equal, in words: 0
        if they differ, -1 with Text or Blob columns on disk.
        """
        payload = int(self.mem[tablespace + TS_PAYLOAD])
        words = disk_part_words(self.definition) + PIECE_HEADER_WORDS
        equal = self.format.disk_words and self.format.disk_words + PIECE_HEADER_WORDS
        # Dropped ones too: rows keep their values.
        if any(column.type.is_lob for _, column in self.definition.physical if column.is_disk):
            # Pieces of up to half a page share pages; larger ones, and chunks, begin on an empty page.
            words, equal = payload // 2, -1
        return words, equal

    @property
    def disk(self) -> DiskColumns:
        """Its disk columns. Raises: Unsupported in a view of a local checkpoint, which has columns in memory only."""
        if self.opened is None:
            raise Unsupported(
                f"disk columns of {self.name} cannot be read from a read-only view, which shows what a local checkpoint"
                " has of memory; name memory columns only, open the store for writing, or restore a backup",
                table=self.name,
            )
        return self.opened

    @property
    def name(self) -> str:
        """Qualified name, "database.table"."""
        return self.definition.name

    @property
    def table_id(self) -> int:
        """The number of the table, never reused."""
        return self.definition.table_id

    def count(self) -> int:
        """Return the number of committed rows in its fragments; 0 after a drop."""
        return self.arena.sum_words(self.fragments, F_ROWS)

    def memory_bytes(self) -> int:
        """Return the bytes of the pages of its rows and of the blocks of its primary index; 0 after a drop."""
        pages = sum(self.arena.sum_words(self.fragments, word) for word in (F_FIXED_PAGES, F_VAR_PAGES))
        return pages * PAGE_BYTES + self.arena.sum_words(self.fragments, F_INDEX_BLOCKS) * BLOCK_WORDS * 8

    def drop(self) -> None:
        """Free all memory; the caller has ensured that no reader or writer uses the table."""
        indexes = self.newest.listed_indexes()
        self._share(is_dropped=True, indexes={}, uniques={})
        for index in indexes:
            index.drop()
        table = fragments.withdraw_table(self.mem, self.handle)
        if self.format.has_disk:
            for fragment in fragments.fragments_of(self.mem, table):
                self._drop_extents(fragment)
        fragments.drop_table(self.mem, table)

    def _drop_extents(self, fragment: int) -> None:
        while drop_fragment_extents(self.mem, fragment, EXTENTS_PER_CALL) == ST_MORE:
            pass

    def view_for(self, txn: Any, is_one_call: bool = False) -> Any:
        """Return the view by which a call reads, for `with`: that of the transaction, or one of the present moment.

        is_one_call: one kernel call reads all rows, without disk parts; the caller asks `refuse_moved` after it.
        Raises: SnapshotTooOld if `is_moved`; as `Views.open`.
        """
        if txn is not None:
            if txn.view is not None:
                return txn.view.for_call(txn)
            if is_one_call and txn.desc and txn.spool is not None:
                is_one_call = False  # not all its records are in memory
        if is_one_call:
            return self.views.now(txn)
        view = self.views.open(self.handle, txn, self)
        if self.is_moved:  # asked after the view was opened: what it shows was written before the move, or is refused
            view.close()
            self.refuse_moved()
        return view

    def check(self) -> None:
        """Raise NoSuchTable if the table was dropped since the caller got it."""
        if self.is_dropped:
            raise self.gone()

    def gone(self) -> NoSuchTable:
        """Return the error for a caller of a dropped table."""
        return NoSuchTable(f"table {self.name} was dropped; see tables()", table=self.name)

    def mark_dropped(self) -> None:
        """Mark all versions as dropped, so that no caller begins to use one."""
        self._share(is_dropped=True)

    # --- indexes ---------------------------------------------------------------------------------
    def parts_of(self, name: str) -> list[AnyIndex]:
        """Return the parts of the index of this name, one or two. Raises: NoSuchIndex."""
        found = self._parts_of(name) if isinstance(name, str) else []
        if not found:
            raise self._no_index(name)
        return found

    def _no_index(self, name: str) -> NoSuchIndex:
        what = alternatives(name, dict.fromkeys([*self.indexes, *self.uniques]))
        return NoSuchIndex(f"table {self.name} has no index {name!r}; {what}", table=self.name, index=name)

    def _parts_of(self, name: str) -> list[AnyIndex]:
        parts = (self.indexes.get(name), self.uniques.get(name))
        return [part for part in parts if part is not None]

    def index(self, name: str) -> StoredIndex:
        """Return the tree of the index of this name. Raises: NoSuchIndex, Unsupported for one without an order;
        SnapshotTooOld if a newer version of the table has made it anew.
        """
        found = self.indexes.get(name) if isinstance(name, str) else None
        if found is not None:
            if self.definition.version < found.since:
                raise found.made_anew()
            return found
        # Asked of the definition: the other part may be there alone while the index is being published or removed.
        if not any(each.name == name and not each.is_ordered for each in self.definition.indexes):
            raise self._no_index(name)
        raise Unsupported(
            f"index {name} of {self.name} is unique and finds whole keys only; use get() or get_many() with index=,"
            " or make the index with ordered=True",
            table=self.name,
            index=name,
        )

    def unique(self, name: str) -> StoredUnique:
        """Return the hash of the index of this name. Raises: NoSuchIndex, Unsupported for one that is not unique;
        SnapshotTooOld if a newer version of the table has made it anew.
        """
        found = self.uniques.get(name) if isinstance(name, str) else None
        if found is not None:
            if self.definition.version < found.since:
                raise found.made_anew()
            return found
        if not any(each.name == name and not each.is_unique for each in self.definition.indexes):
            raise self._no_index(name)
        raise Unsupported(
            f"index {name} of {self.name} is not unique and finds no single rows; scan with index=",
            table=self.name,
            index=name,
        )

    def columns_of(self, index: AnyIndex) -> tuple[Column, ...] | None:
        """Return the columns that an index reads, in its order, as this version names them; None if it lacks one.

        They are found by where their bytes are: names may have moved to other columns since the index was created.
        """
        if index not in self._columns_of:
            columns = self.definition.columns
            here = {column_place(self.format.layout, place): each for place, each in enumerate(columns)}
            known: dict[AnyIndex, tuple[Column, ...] | None] = {}
            for each in (*self.indexes.values(), *self.uniques.values(), index):
                found = [here.get(place) for place in each.tree.shape.places]
                there = tuple(column for column in found if column is not None)
                known[each] = there if len(there) == len(found) else None
            self._columns_of = known
            return known[index]
        return self._columns_of[index]

    def make_index(self, definition: IndexDefinition, kind: type[AnyIndex], state: int) -> AnyIndex:
        """Create an empty part of an index, which is in no list. state: INDEX_READY, or INDEX_ANNOUNCED for one that is
        built while rows change. Raises: MemoryExhausted, SchemaInvalid.
        """
        shape = (self.arena, KeyShape(self.definition, self.format.layout, definition.columns), self.fragments)
        if kind is StoredUnique:
            return StoredUnique(self.name, definition, UniqueHash(*shape, self.seed, state))
        return StoredIndex(self.name, definition, OrderedIndex(*shape, state))

    def announce(self, index: AnyIndex) -> None:
        """List a part of an index that is being built; called before the kernel that announces it."""
        self._share(building=(*self.building, index))
        self._follow_uniques()

    def withdraw(self, index: AnyIndex) -> None:
        """Remove a part of an index from the list of those being built."""
        self._share(building=tuple(each for each in self.building if each is not index))
        self._follow_uniques()

    def _follow_uniques(self) -> None:
        every = (*self.uniques.values(), *self.building)
        columns = (each.definition.columns for each in every if each.definition.is_unique)
        names = frozenset().union(*columns)
        for view in self._live():
            # Older versions may use other column names. Keep those: passing the whole image is always correct.
            view.unique_columns = names if view is self else view.unique_columns | names

    def is_change_of_indexes(self, definition: TableDefinition) -> bool:
        """Whether a definition differs from this table's in its indexes only."""
        before = self.definition
        if before.indexes == definition.indexes:
            return False
        # Compare without indexes: an index of one may name columns that the other does not have.
        return is_same(replace(before, version=definition.version, indexes=()), replace(definition, indexes=()))

    def publish_definition(self, definition: TableDefinition, built: Sequence[AnyIndex]) -> None:
        """Publish a version with other indexes; the parts in `built` were announced, and are ready. It cannot fail."""
        indexes, uniques = self._including(built)
        building = tuple(each for each in self.building if each not in built)
        for index in built:
            publish_index(self.mem, self.handle, index.tree.handle, definition.version)
        publish_index(self.mem, self.handle, 0, definition.version)
        self.definition = definition
        self._share(indexes=indexes, uniques=uniques, building=building)

    def with_parts(self, definition: TableDefinition, built: Sequence[AnyIndex]) -> Table:
        """Do `altered`; the new version has these parts, which were announced, for those of the same names."""
        view = self.altered(definition)
        view.indexes, view.uniques = self._including(built)
        view.building = tuple(each for each in self.building if each not in built)
        return view

    def publish_parts(self, built: Sequence[AnyIndex]) -> None:
        """Let kernels use parts of a version that is published next. It cannot fail, and may be repeated."""
        for index in built:
            publish_index(self.mem, self.handle, index.tree.handle, self.definition.version)
            index.since = self.definition.version

    def withdraw_parts(self, replaced: Sequence[AnyIndex]) -> None:
        """Remove parts, for which this version, just published, has others. It cannot fail, and may be repeated."""
        for index in replaced:
            index.is_replaced = True
        self._share(indexes=self.indexes, uniques=self.uniques, building=self.building)
        for index in replaced:
            withdraw_index(self.mem, self.handle, index.tree.handle)
        self._follow_uniques()

    def _including(self, built: Sequence[AnyIndex]) -> tuple[dict[str, StoredIndex], dict[str, StoredUnique]]:
        ordered = {each.name: each for each in built if isinstance(each, StoredIndex)}
        unique = {each.name: each for each in built if isinstance(each, StoredUnique)}
        return {**self.indexes, **ordered}, {**self.uniques, **unique}

    def remove_index(self, definition: TableDefinition, parts: Sequence[AnyIndex]) -> None:
        """Publish a version without an index, whose parts are removed from all lists. It cannot fail."""
        for index in parts:
            withdraw_index(self.mem, self.handle, index.tree.handle)
        self._share(
            indexes={name: each for name, each in self.indexes.items() if each not in parts},
            uniques={name: each for name, each in self.uniques.items() if each not in parts},
        )
        self.publish_definition(definition, ())
        self._follow_uniques()

    def adopt_index(self, index: AnyIndex) -> None:
        """List a part of an index of its definition that was filled before any caller used the table. Raises:
        MemoryExhausted.
        """
        if announce_index(self.mem, self.handle, index.tree.handle) != OK:
            raise memory_full(self.mem, "another index")
        indexes, uniques = self._including([index])
        self._share(indexes=indexes, uniques=uniques)
        self._follow_uniques()

    def reserve_index(self, fragment: int, rows: int) -> None:
        """Grow the primary index of a fragment to hold `rows` rows, as far as memory allows."""
        at = 0
        while at >= 0:  # each call is short: it holds the GIL
            at = int(reserve_index(self.mem, fragment, rows, at))

    def listed_indexes(self) -> list[AnyIndex]:
        """Return the parts of the indexes of its definition, in order of creation."""
        return [part for each in self.definition.indexes for part in self._parts_of(each.name)]

    # --- partitions ------------------------------------------------------------------------------
    def numbers_of(self, partitions: Sequence[str] | None) -> list[int]:
        """Return the fragment numbers of partitions by name, ascending; all if None. Raises: NoSuchPartition."""
        partition = self.definition.partition
        if partitions is None:
            return list(partition.numbers)
        try:
            return sorted({partition.number_of(name) for name in as_names(partitions, "partitions")})
        except NoSuchPartition as error:
            raise NoSuchPartition(f"table {self.name}: {error.message}", table=self.name) from None

    def fragments_of(self, keys: Any) -> Words:
        """Return the fragment number of each key, -1 for a key that no partition takes; `keys` as for `get_many`.

        Shapes: (keys,) int64.
        """
        from tidemark.engine.rows.columnar import encode_keys

        encoded = encode_keys(self.format, keys)
        return fragments_of_keys(self.hash_header, encoded.keys, encoded.key_offsets, encoded.key_stride, encoded.count)

    def is_change_of_partitions(self, definition: TableDefinition) -> bool:
        """Whether a definition differs from this table's only in one added or dropped partition."""
        before, after = self.definition, definition
        numbers = set(before.partition.numbers) ^ set(after.partition.numbers)
        return len(numbers) == 1 and is_same(replace(before, version=after.version, partition=after.partition), after)

    def prepare(self, definition: TableDefinition) -> PartitionChange:
        """Allocate all memory for a definition with one partition added or dropped; the table does not change.

        Raises: MemoryExhausted, SchemaInvalid.
        """
        before, after = self.definition.partition.numbers, definition.partition.numbers
        (number,) = set(before) ^ set(after)
        header = hash_header(definition, self.format.fixed_words, self.seed)
        words = self._put_words(header, makes_room=number in before)
        fragment = 0
        if number in after:
            try:
                fragment = fragments.add_fragment(self.mem, self.handle, number)
            except MemoryExhausted:
                drop_partition_words(self.mem, words)
                raise
            if self.tablespace is not None:
                join_new_fragment(self.mem, fragment, self.tablespace, *self._piece_words(self.tablespace))
        gone = 0 if fragment else self.by_number[number]
        return PartitionChange(definition, header, number, fragment, words, gone)

    def discard_change(self, change: PartitionChange) -> None:
        """Free the memory of a prepared change that was not applied."""
        if change.fragment:
            self.drop_fragment(change.fragment)
        drop_partition_words(self.mem, change.words)

    def apply(self, change: PartitionChange) -> None:
        """Publish a prepared change in one step. Cannot fail; a second call, as after Ctrl-C, changes nothing."""
        change_partitions(
            self.mem, self.handle, change.number, change.fragment, change.words, change.definition.version
        )
        by_number = {**self.by_number, change.number: change.fragment}
        if not change.fragment:
            del by_number[change.number]
        self._share(by_number=by_number, fragments=list(by_number.values()), hash_header=change.header)
        self.definition = change.definition

    def drop_fragment(self, fragment: int) -> None:
        """Withdraw a fragment that the table does not list and nothing pins, and free all its memory."""
        fragment = fragments.withdraw_fragment(self.mem, fragment)
        if self.format.has_disk:
            self._drop_extents(fragment)
        fragments.drop_fragment(self.mem, fragment)

    def format_key(self, key: Any) -> str:
        """Return a key for a message, shortened."""
        return shown_key(key)
