"""Two stores in one process: the groups of one are applied to the other, and both must be equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.store.history import ROOM, World
from tests.store.support import open_memory
from tidemark.engine.log.group import Group
from tidemark.engine.memory import arena_layout as a
from tidemark.engine.memory.arena import address_of
from tidemark.engine.sealed.sealed_layout import KIND_GROUP, is_sealed
from tidemark.engine.store.group_apply import GroupApplier
from tidemark.recovery.crash_harness.disks.memory import MemoryFiles
from tidemark.replication.node_group.codec import decode, encode
from tidemark.replication.node_group.messages import Groups

Slot = tuple[int, int, int]  # table, fragment, ROWID


class Stream:
    """A commit partner: when a commit waits for it, it applies the groups received so far to a member."""

    def __init__(self, applier: GroupApplier, sources: Any, files: Any) -> None:
        """sources, files: of the primary and of the member."""
        self.applier = applier
        self.sources, self.files = sources, files
        self.groups: dict[int, Any] = {}
        self.closings: list[tuple[int, int]] = []
        self.words: list[Any] = []  # every group, as it was sent
        self.before: Callable[[Any], None] = lambda words: None
        self.after: Callable[[int], None] = lambda sequence: None
        self.offered: list[tuple[str, ...]] = []

    def send(self, group: Group) -> None:
        if group.sequence not in self.groups:
            assert is_sealed(group.words, KIND_GROUP, group.written_words)
            if group.files:
                self.offered.append(tuple(group.files))
            for name in group.files:
                copy_file(self.sources, self.files, name)
            self.groups[group.sequence] = group.words[: group.written_words].copy()

    def wait(self, sequence: int) -> None:
        for number in sorted(self.groups):
            sent = encode(Groups(1, number, (self.groups.pop(number),)))  # as between processes
            (words,) = decode(bytearray(b"".join(sent))).groups
            self.words.append(words.copy())
            self.post(number)
            self.before(words)
            assert self.applier.apply(words) == number
            self.applier.store.log.flush()
            self.after(number)

    def share(self, sequence: int) -> None:
        if sequence in self.groups:
            self.wait(sequence)

    def epoch_closed(self, epoch: int, sequence: int) -> None:
        self.closings.append((epoch, sequence))

    def post(self, sequence: int) -> None:
        """Report to the member the epochs that were closed before a group."""
        while self.closings and self.closings[0][1] <= sequence:
            self.applier.close_epoch(*self.closings.pop(0))


def copy_file(source: Any, target: Any, name: str) -> None:
    """Copy a file from one store's directory to another's and sync it."""
    folder, _, _ = name.rpartition("/")
    if not target.exists(folder):
        target.make_directory(folder)
        target.sync_directory("")
    file = source.open(name)
    content = bytearray(source.size(file))
    source.pread_into(file, 0, content)
    source.close(file)
    made = target.create(name)
    target.pwrite(made, 0, content)
    target.fdatasync(made)
    target.close(made)
    target.sync_directory(folder)


class Pair:
    """A primary and a member."""

    def __init__(self, files: tuple[Any, Any] | None = None, **options: Any) -> None:
        self.files = files or (MemoryFiles(), MemoryFiles())
        self.options = options
        self.primary: Any = open_memory(self.files[0], **options)
        self.member: Any = open_memory(self.files[1], **options)
        self.join()

    def join(self) -> None:
        """Let the member follow the primary from here on."""
        self.applier = GroupApplier(self.member.parts.store)
        self.stream = Stream(self.applier, self.primary.parts.files, self.member.parts.files)
        self.primary.parts.store.log.partner = self.stream
        self.member.parts.store.epochs.on_wanted = self.close_epoch

    def close_epoch(self) -> None:
        """Close an epoch at the primary and report it to the member."""
        with self.primary.parts.store.latch:
            self.primary.parts.store.epochs.close()
        self.pump()

    def pump(self) -> None:
        """Bring the member up to date with the primary."""
        self.primary.parts.store.log.flush()
        self.stream.post(self.primary.parts.store.log.sequence)

    def verify(self, said: str = "") -> None:
        """Check that both stores are equal, and sound."""
        self.pump()
        same_slots(self.primary, self.member, said)
        for db in (self.primary, self.member):
            assert db.check()["problems"] == [], said

    def close(self) -> None:
        self.primary.close()
        self.applier.end_stream()
        self.member.close()


def slots_of(db: Any) -> tuple[dict[Slot, Any], dict[Slot, int]]:
    """Return rows by slot (epoch, author, words of the fixed image that refer to no page), and epochs of empty
    slots.
    """
    rows: dict[Slot, Any] = {}
    empty: dict[Slot, int] = {}
    store = db.parts.store
    mem = store.mem
    for table_id, table in store.tables.by_id.items():
        for number, fragment in table.by_number.items():
            words = int(mem[address_of(fragment) + a.F_ROW_WORDS])
            plain = int(mem[address_of(fragment) + a.F_FIXED_WORDS] - mem[address_of(fragment) + a.F_HAS_DISK])
            for logical in range(int(mem[address_of(fragment) + a.F_PAGES])):
                page = page_of(mem, fragment, logical)
                if page <= 0:
                    continue
                base = page << a.PAGE_SHIFT
                for slot in range(int(mem[base + a.PG_FRESH])):
                    at = base + a.PAGE_HEADER_WORDS + slot * words
                    head = int(mem[at])
                    place = (table_id, number, logical << 16 | slot)
                    state = head >> a.STATE_SHIFT & a.STATE_MASK
                    if state == a.LIVE:
                        image = mem[at + a.ROW_HEADER_WORDS :][:plain].tobytes()
                        rows[place] = (int(mem[at + 1]), head >> a.AUTHOR_SHIFT & a.AUTHOR_MASK, image)
                    elif state == a.FREE:
                        empty[place] = int(mem[at + 1])
    return rows, empty


def page_of(mem: Any, fragment: int, logical: int) -> int:
    middle = int(mem[address_of(fragment) + a.F_MAP + (logical >> 18)])
    leaf = int(mem[middle + (logical >> 9 & 511)]) if middle else 0
    return int(mem[leaf + (logical & 511)]) if leaf else 0


def same_slots(one: Any, other: Any, said: str = "", is_joined: bool = False) -> None:
    """Check that both stores have equal definitions, and in each slot equal images, epochs and authors, or no row.

    is_joined: one of the stores may be a copy. Then epochs of empty slots are not compared: a slot that a slice reports
    as empty gets the slice's epoch, which may be higher than that of the delete, never lower.
    """
    definitions = [
        {each.table_id: each.definition for each in db.parts.store.tables.by_name.values()} for db in (one, other)
    ]
    assert {key: each.to_json() for key, each in definitions[0].items()} == {
        key: each.to_json() for key, each in definitions[1].items()
    }, said
    (rows, empty), (others, empties) = slots_of(one), slots_of(other)
    assert sorted(rows) == sorted(others), said
    different = [place for place in rows if rows[place] != others[place]]
    assert not different, f"{said}: {[(place, rows[place], others[place]) for place in different[:3]]}"
    for place in () if is_joined else set(empty) & set(empties):
        # A local checkpoint has no empty slots: after a restart their epoch is 0, which counts as changed.
        assert empty[place] == empties[place] or not empty[place] * empties[place], f"{said}: {place}"
    for name in one.parts.store.tables.by_name:
        assert contents(one, name) == contents(other, name), f"{said}: {name}"


def contents(db: Any, name: str) -> list[str]:
    """Return all rows of a table, with large values and disk columns."""
    return sorted(repr(tuple(row)) for row in db[name].scan())


class PairWorld(World):
    """A primary that carries out the steps of a history, and its member."""

    def __init__(
        self, columns: list[Any], fragments: Any, page_size: str | None = None, indexes: Any = (), **options: Any
    ) -> None:
        self.pair = Pair(**{**ROOM, **options})
        self.files, self.options = self.pair.files[0], options
        self.db = self.pair.primary
        if page_size is not None:
            self.db.create_tablespace("main", "1 MiB", page_size=page_size, extent="256 KiB")
        self.columns, self.fragments = columns, fragments
        self.indexes = indexes
        self.txn: Any = None
        self._create()

    def _create(self) -> None:
        super()._create()
        for name, columns, is_unique in self.indexes:
            self.db[self.name].create_index(name, columns, unique=is_unique)

    name = "test.t"

    def _checkpoint(self, seed: int) -> None:
        self._rollback(None)
        self.db.checkpoint()
        if seed % 2:
            self.pair.member.checkpoint()
        self.pair.verify("checkpoint")

    def _reopen(self, _: Any) -> None:
        self._rollback(None)
        self.db.parts.clockwork.advance_gci()
        self.pair.member.parts.clockwork.advance_gci()
        self.pair.verify("reopen")

    def _crash(self, _: Any) -> None:
        self._rollback(None)
        self.pair.member.checkpoint()
        with self.pair.member.snapshot() as snapshot:
            assert sorted(repr(tuple(row)) for row in snapshot[self.name].scan()) == contents(self.db, self.name)
