"""The life of an UNDO log: its records are read backward, over many laps, filtered or not, through any power loss."""

from __future__ import annotations

import random

import pytest

from tests.log.undo_support import TRANSACTION, Made, Undo, geometry_of, read, reader
from tests.shares import few
from tidemark.engine.disk.disk_layout import UNDO_ALLOC, UNDO_CREATE, UNDO_DROP, UNDO_FREE, UNDO_LCP, UNDO_UPDATE
from tidemark.engine.disk.undo_ring import UndoPosition
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Rule
from tidemark.recovery.crash_harness.disks.memory import CRASH_POLICIES, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor


class Life:
    """A log, the facts a local checkpoint has durably recorded about it, and the checks after a power loss."""

    def __init__(self, seed: int, is_filtering: bool, buffer_words: int) -> None:
        self.rng = random.Random(seed)
        self.is_filtering = is_filtering
        self.buffer_words = buffer_words
        self.images = 0
        self.restarts = 0
        self.is_checking = False
        # As a control file has it: the older and the newer complete local checkpoint.
        self.tail: tuple[int, int] = (1, 0)
        self.mark: tuple[int, int] = (1, 0)
        self.tail_lsn = 0
        self.mark_lsn = 0
        self.epoch = 1
        self.undo = self.open(None, None, 1)

    def open(self, memory: MemoryFiles | None, position: UndoPosition | None, incarnation: int) -> Undo:
        stall = Rule("fdatasync", "undo/*", once=False, stall=self.look)
        return Undo(
            geometry_of(1 << 16, 3),
            self.buffer_words,
            memory,
            position,
            incarnation,
            lambda files: OrderMonitor(FaultFiles(files, [stall])),
            self.is_filtering,
        )

    def look(self) -> None:
        """A power loss between a write and its sync."""
        if self.is_checking:
            policy = CRASH_POLICIES[self.rng.randrange(len(CRASH_POLICIES))]
            self.check(self.undo.memory.crash(self.rng, policy))

    def check(self, image: MemoryFiles) -> list[Made]:
        """Every durable record that could not be filtered is read, and every record read was made. Return the records,
        oldest first.
        """
        undo = self.undo
        needed = self.mark[0] if self.mark_lsn else 0
        _, found = read(image, undo.geometry, *self.tail, needed)
        kept = [made for made in undo.made if made.lsn >= self.tail_lsn]
        assert [made for made in kept if made in set(found)] == found, "read backward, in the order they were made"
        present = {made.lsn for made in found}
        for made in kept:
            if made.lsn < undo.log.durable_lsn and not (self.is_filtering and undo.filterable(made)):
                assert made.lsn in present, made
        self.images += 1
        return found

    def step(self) -> None:
        undo, rng = self.undo, self.rng
        what = rng.randrange(20)
        if what < 12:
            self.transaction()
        elif what < 15:
            undo.log.flush_through(undo.made[rng.randrange(len(undo.made))].lsn if undo.made else 0)
        elif what < 17:
            self.epoch += 1
            undo.restorable = max(undo.restorable, self.epoch - rng.randrange(4))
        elif what < 18:
            self.local_checkpoint()
        elif what < 19:
            self.check(undo.memory.crash(rng, "sectors"))
        elif rng.random() < 0.3:
            self.restart()

    def transaction(self) -> None:
        """Reserve, then commit; if refused, wait for a local checkpoint."""
        undo, rng = self.undo, self.rng
        pieces = [rng.randrange(1, 60) for _ in range(rng.randrange(1, 25))]
        if not all(undo.promise(5 + size) for size in pieces):
            undo.end()
            self.local_checkpoint()
            return
        if rng.random() < 0.9:  # else it rolls back
            for size in pieces:
                kind = rng.choice([UNDO_ALLOC, UNDO_UPDATE, UNDO_UPDATE, UNDO_FREE])
                piece = [rng.getrandbits(60) for _ in range(0 if kind == UNDO_ALLOC else size)]
                undo.append(kind, *piece, epoch=self.epoch)
        undo.end(TRANSACTION)

    def local_checkpoint(self) -> None:
        """Make a mark durable. Sometimes the local checkpoint is abandoned; if complete, the older one's mark is the
        tail.
        """
        undo = self.undo
        mark = undo.mark(1, self.epoch)
        if self.rng.random() < 0.5:
            self.undo.append(UNDO_ALLOC, epoch=self.epoch)
        undo.log.flush_through(mark.lsn)
        if self.rng.random() < 0.2:
            return
        place = undo.log.mark_place(mark.lsn)
        self.tail, self.tail_lsn = self.mark, self.mark_lsn
        self.mark, self.mark_lsn = place, mark.lsn
        with undo.latch:
            undo.log.set_tail(*self.tail)
            undo.log.set_mark(place[1])

    def restart(self) -> None:
        """Lose power, and continue with the log."""
        old = self.undo
        image = old.memory.crash(self.rng, CRASH_POLICIES[self.rng.randrange(len(CRASH_POLICIES))])
        found = self.check(image)
        ring = reader(image, old.geometry)
        ring.find_end(*self.tail, self.mark[0] if self.mark_lsn else 0)
        ring.seal_tail()
        position = ring.next_position(self.mark[0] if self.mark_lsn else 0)
        ring.close()
        self.is_checking = False
        self.restarts += 1
        self.undo = self.open(image, position, self.restarts + 1)
        self.undo.made = found
        self.undo.restorable = old.restorable
        assert position.lsn >= old.log.durable_lsn, "no LSN a page may have is given again"
        assert position.tail_position == self.tail[1] and position.mark_position == self.mark[1]
        self.is_checking = True


@pytest.mark.parametrize("is_filtering", [True, False])
@pytest.mark.parametrize("seed", range(few(2, 6)))
def test_any_life_with_power_losses_keeps_every_durable_record(seed: int, is_filtering: bool) -> None:
    print(f"seed {seed}, filter {is_filtering}")
    life = Life(seed, is_filtering, (700, 1_500)[seed % 2])
    life.is_checking = True
    head = 0
    for _ in range(500):
        life.step()
        head = max(head, life.undo.log.head)
    life.is_checking = False
    life.undo.log.flush_through(1 << 60)
    life.check(life.undo.after_power_loss())
    assert life.images > 100 and life.restarts > 2
    assert head > 3 * life.undo.geometry.capacity_bytes, "several laps"
    if is_filtering:
        assert life.undo.log.counters()["records_filtered"] > 0


@pytest.mark.parametrize("seed", range(10))
def test_reserved_records_never_reach_the_tail_whatever_the_groups(seed: int) -> None:
    """Every reservation is used, each transaction is flushed by itself, nothing is filtered: the worst padding there
    is.
    """
    print(f"seed {seed}")
    rng = random.Random(seed)
    undo = Undo(geometry_of(1 << 16, 3), 700)
    capacity = undo.geometry.capacity_bytes
    refused = marks = 0
    places: list[tuple[int, int]] = []
    for _ in range(1_500):
        open_now: list[tuple[int, list[int]]] = []
        for number in range(rng.randrange(1, 4)):
            sizes = [rng.choice([1, 1, 1, 40]) for _ in range(rng.choice([1, 1, 2, 9, 20]))]
            at = TRANSACTION + 32 * number
            if all(undo.promise(5 + size, at) for size in sizes):
                open_now.append((at, sizes))
            else:
                undo.end(at)
                refused += 1
        for at, sizes in open_now:
            undo.log.make_room(sum(5 + size for size in sizes))
            for size in sizes:
                undo.append(UNDO_FREE, *range(size))
            undo.end(at)
            assert undo.promised <= max(undo.free, 0) + undo.log.private_words // 2
            undo.log.flush_through(undo.made[-1].lsn)
            written = 2 * undo.log.head - undo.log.tail - undo.log.mark
            assert written <= capacity, "all since the mark could be made again"
        if open_now and rng.random() < 0.97:
            continue
        made = undo.mark(1, 1)
        undo.log.flush_through(made.lsn)
        marks += 1
        if rng.random() < 0.3:
            continue  # abandoned
        places.append(undo.log.mark_place(made.lsn))
        with undo.latch:
            undo.log.set_tail(*places[-2:][0])
            undo.log.set_mark(places[-1][1])
    assert refused and marks and undo.log.head > 5 * capacity
    assert undo.files.failure.first is None


def test_mark_is_refused_when_marks_alone_have_filled_the_log_and_the_tail_stays() -> None:
    from tidemark.engine.base.errors import StorageFull

    undo = Undo(geometry_of(1 << 16, 3), 700)
    while undo.promise(100):
        pass  # everything that may be reserved is, for ever
    with pytest.raises(StorageFull):
        for lcp_id in range(1_000):
            undo.log.flush_through(undo.mark(lcp_id, 1).lsn)
    assert undo.log.counters()["groups_written"] >= 4
    with pytest.raises(StorageFull), undo.latch:
        undo.log.record_table(UNDO_CREATE, 5)
    _, found = read(undo.after_power_loss(), undo.geometry)
    assert found == undo.made and {made.kind for made in found} == {UNDO_LCP}


def test_records_of_tables_come_back_in_order() -> None:
    undo = Undo()
    with undo.latch:
        lsns = [
            undo.log.record_table(UNDO_CREATE, 7),
            undo.log.record_table(UNDO_DROP, 7),
            undo.log.record_table(UNDO_CREATE, 8),
        ]
    undo.log.flush_through(lsns[-1])
    _, found = read(undo.after_power_loss(), undo.geometry)
    assert [(made.kind, made.values[0]) for made in found] == [(4, 7), (5, 7), (4, 8)]


def test_restart_record_points_to_the_mark_alone_and_what_is_older() -> None:
    undo = Undo()
    older = undo.write(UNDO_ALLOC)
    mark = undo.mark(1, 5)
    undo.append(UNDO_FREE, 1)
    undo.write(UNDO_FREE, 2)
    undo.write(UNDO_FREE, 3)
    sequence, position = undo.log.mark_place(mark.lsn)
    lsn = undo.log.mark_restart(1, mark.lsn, sequence, position)
    after = undo.write(UNDO_FREE, 4)
    found, records = read(undo.after_power_loss(), undo.geometry)
    assert [made.lsn for made in records] == [older.lsn, mark.lsn, lsn, after.lsn]
    assert found.place_of(sequence) == position
    again = undo.log.mark_restart(1, mark.lsn, sequence, position)
    last = undo.write(UNDO_FREE, 5)
    _, records = read(undo.after_power_loss(), undo.geometry)
    assert [made.lsn for made in records] == [older.lsn, mark.lsn, again, last.lsn]


def test_records_before_a_restart_record_in_its_own_group_are_not_undone_again() -> None:
    undo = Undo()
    mark = undo.mark(1, 5)
    undo.log.flush_through(mark.lsn)
    undo.append(UNDO_FREE, 1)
    lsn = undo.log.mark_restart(1, mark.lsn, *undo.log.mark_place(mark.lsn))
    _, records = read(undo.after_power_loss(), undo.geometry)
    assert [made.lsn for made in records] == [mark.lsn, lsn]


def filtered_only(undo: Undo, count: int) -> None:
    for number in range(count):
        undo.write(UNDO_UPDATE, number, epoch=1)


def test_filtered_records_are_not_written_and_their_lsns_are_not_given_again() -> None:
    """Story: after a run that wrote no group the next run used the same LSNs again. A page on disk with the LSN of a
    filtered record would have been undone by a new record that never reached it.
    """
    undo = Undo()
    undo.restorable = 1
    filtered_only(undo, 20)
    counters = undo.log.counters()
    assert (counters["groups_written"], counters["bytes_written"], counters["records_filtered"]) == (0, 0, 20)
    seen = undo.log.durable_lsn
    for incarnation in range(2, 6):
        image = undo.after_power_loss()
        found, records = read(image, undo.geometry)
        assert records == []
        position = found.next_position()
        assert position.lsn > seen
        undo = Undo(undo.geometry, memory=image, position=position, incarnation=incarnation)
        undo.restorable = 1
        filtered_only(undo, 3)
        assert undo.log.counters()["groups_written"] == 1, "a group without records says how far LSNs have come"
        seen = undo.log.durable_lsn
