"""Plays of two or three transactions, one for each anomaly or more, mostly those of Hermitage.

A play returns a function that says, after all transactions have ended, whether the anomaly has happened. Whatever
else a step reads must be what was committed before, or the function fails. `PLAYS` says how each play ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tidemark as tm
from tests.isolation import levels
from tests.isolation.levels import READ_COMMITTED, SNAPSHOT, Outcome
from tests.isolation.stage import Play, Stage, Step
from tests.isolation.ways import BY_KEY, FINDING, LOCKING, READING, WRITING, Lock, Way

Happened = Callable[[], bool]
N = tm.col("n")


# --- G0: dirty write ------------------------------------------------------------------------------
def dirty_write(stage: Stage) -> Happened:
    """Both write both rows: those of one must not stand beside those of the other."""
    one, two = stage.begin(), stage.begin()
    one.write(1, 11)
    two.write(1, 12)
    one.write(2, 21)
    one.commit()
    two.write(2, 22)
    two.commit()
    return lambda: stage.face.rows() not in ({1: 11, 2: 21}, {1: 12, 2: 22})


def dirty_write_of_all_rows(stage: Stage) -> Happened:
    """The same by one call each, without a condition."""
    one, two = stage.begin(), stage.begin()
    one.do(lambda txn: txn.update_where("t", {"n": 11, "g": 11}))
    two.do(lambda txn: txn.update_where("t", {"n": 12, "g": 12}))
    one.commit()
    two.commit()
    return lambda: len(set(stage.face.rows().values())) != 1


def dirty_insert(stage: Stage) -> Happened:
    """Both insert a row of one key, and of one key of a unique index: one row is left, of the first one."""
    one, two = stage.begin(), stage.begin()
    one.insert(3, 11)
    again = two.insert(3, 12)
    one.commit()
    two.commit()
    return lambda: stage.face.rows() != {1: 10, 2: 20, 3: 11} or again.error is None


# --- G1a: aborted read ----------------------------------------------------------------------------
def aborted_read(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.reader()
    one.write(1, 101)
    during = two.read(1)
    one.rollback()
    after = two.read(1)
    two.commit()
    return lambda: saw(101, during, after, before=10)


def aborted_insert(stage: Stage) -> Happened:
    """The same, of a row that a condition accepts."""
    one, two = stage.begin(), stage.reader()
    one.insert(3, 30)
    during = two.find()
    one.rollback()
    after = two.find()
    two.commit()
    return lambda: found(1, during, after, before=0)


def aborted_delete(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.reader()
    one.do(lambda txn: txn.delete_where("t", N == 10))
    during = two.read(1)
    one.rollback()
    after = two.read(1)
    two.commit()
    return lambda: any(step.value == {} for step in (during, after) if step.error is None)


def aborted_condition(stage: Stage) -> Happened:
    """A change by a condition that a row meets only as another transaction has changed it."""
    one, two = stage.begin(), stage.begin()
    one.write(1, 30)
    changed = two.do(lambda txn: txn.update_where("t", {"n": 99, "g": 99}, where=N == 30))
    one.rollback()
    two.commit()
    return lambda: changed.value != 0 or stage.face.rows() != {1: 10, 2: 20}


# --- G1b: intermediate read -----------------------------------------------------------------------
def intermediate_read(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.reader()
    one.write(1, 101)
    during = two.read(1)
    one.write(1, 11)
    one.commit()
    after = two.read(1)
    two.commit()
    last = 10 if stage.level == SNAPSHOT or stage.is_of_snapshots else 11
    return lambda: saw(101, during, before=11 if during.has_waited else 10) or saw(101, after, before=last)


def intermediate_condition(stage: Stage) -> Happened:
    """The same, of a row that a condition accepts meanwhile."""
    one, two = stage.begin(), stage.reader()
    one.insert(3, 30)
    during = two.find()
    one.write(3, 11)
    one.commit()
    after = two.find()
    two.commit()
    return lambda: found(1, during, after, before=0)


# --- G1c: circular information flow ---------------------------------------------------------------
def circular_flow(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.begin()
    one.write(1, 11)
    two.write(2, 22)
    of_one, of_two = one.read(2), two.read(1)
    one.commit()
    two.commit()
    return lambda: saw(22, of_one, before=20) and saw(11, of_two, before=10)


def circular_condition(stage: Stage) -> Happened:
    """The same, of rows that a condition accepts; each sees its own one."""
    one, two = stage.begin(), stage.begin()
    one.insert(3, 30)
    two.insert(4, 42)
    of_one, of_two = one.find(), two.find()
    one.commit()
    two.commit()
    return lambda: found(2, of_one, before=1) and found(2, of_two, before=1)


# --- OTV: observed transaction vanishes -----------------------------------------------------------
def vanishing(stage: Stage) -> Happened:
    """What the third has seen of the second, it sees all of from then on."""
    one, two, three = stage.begin(), stage.begin(), stage.reader()
    one.write(1, 11)
    one.write(2, 19)
    two.write(1, 12)
    one.commit()
    reads = [three.read(1)]
    two.write(2, 18)
    reads.append(three.read(2))
    two.commit()
    reads += [three.read(2), three.read(1)]
    three.commit()

    def happened() -> bool:
        states = [10, 20], [11, 19], [12, 18]
        order = [number for step in reads for n in read_of(step) for number, each in enumerate(states) if n in each]
        return order != sorted(order)

    return happened


def vanishing_condition(stage: Stage) -> Happened:
    """A condition finds the rows of two commits, which it finds all of or none."""
    reader = stage.reader()
    finds = [reader.find()]
    for ns in ((30, 60), (10, 20)):
        writer = stage.begin()
        writer.write(1, ns[0])
        writer.write(2, ns[1])
        finds.append(reader.find())
        writer.commit()
        finds.append(reader.find())
    reader.commit()
    return lambda: any(step.value == 1 for step in finds)


# --- PMP: predicate with many preceders -----------------------------------------------------------
def many_preceders(stage: Stage) -> Happened:
    one, two = stage.reader(), stage.begin()
    before = one.find()
    two.insert(3, 30)
    two.commit()
    after = one.find()
    one.commit()
    return lambda: before.value == 0 and after.value == 1


def many_preceders_of_a_change(stage: Stage) -> Happened:
    """The second waits for a row that then no longer meets its condition, and misses the row that now does."""
    one, two = stage.begin(), stage.begin()
    one.do(lambda txn: txn.update_where("t", {"n": N + 10, "g": tm.col("g") + 10}))
    two.do(lambda txn: txn.delete_where("t", N == 20))
    one.commit()
    two.commit()
    return lambda: stage.face.rows() == {1: 20, 2: 30} and two.has_committed


# --- P4: lost update ------------------------------------------------------------------------------
def lost_update(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.begin()
    of_one, of_two = one.read(1), two.read(1)
    one.write(1, lambda: of_one.value[1] + 1)
    two.write(1, lambda: of_two.value[1] + 1)
    one.commit()
    two.commit()
    return lambda: one.has_committed and two.has_committed and stage.face.rows()[1] == 11


# --- G-single: read skew --------------------------------------------------------------------------
def read_skew(stage: Stage) -> Happened:
    one, two = stage.reader(), stage.begin()
    before = one.read(1)
    two.write(1, 12)
    two.write(2, 18)
    two.commit()
    after = one.read(2)
    one.commit()
    return lambda: before.value == {1: 10} and saw(18, after, before=20)


def read_skew_of_a_condition(stage: Stage) -> Happened:
    """The condition is evaluated before a commit, and a row read after it."""
    one, two = stage.reader(), stage.begin()
    before = one.find()
    two.insert(3, 30)
    two.write(2, 19)
    two.commit()
    after = one.read(2)
    one.commit()
    return lambda: before.value == 0 and saw(19, after, before=20)


def read_skew_of_a_change(stage: Stage) -> Happened:
    """The change is made by a condition over the row as it is after a commit, after a read before it."""
    one, two = stage.begin(), stage.begin()
    before = one.read(1)
    two.write(1, 12)
    two.write(2, 18)
    two.commit()
    changed = one.do(lambda txn: txn.delete_where("t", N == 20))
    one.commit()
    return lambda: before.value == {1: 10} and one.has_committed and changed.value == 0


# --- G2-item: write skew --------------------------------------------------------------------------
def write_skew(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.begin()
    of_one, of_two = one.read(1, 2), two.read(1, 2)
    one.write(1, 11)
    two.write(2, 21)
    one.commit()
    two.commit()
    both = {1: 10, 2: 20}
    return lambda: one.has_committed and two.has_committed and of_one.value == of_two.value == both


def write_skew_with_a_reader(stage: Stage) -> Happened:
    """Two edges, of Fekete: the third has seen the second, and not the first, which has not seen the second."""
    one, two = stage.begin(), stage.begin()
    of_one = one.read(1, 2)
    two.write(2, 25)
    two.commit()
    three = stage.begin()
    of_three = three.read(1, 2)
    three.commit()
    one.write(1, 0)
    one.commit()
    return lambda: one.has_committed and of_one.value == {1: 10, 2: 20} and of_three.value == {1: 10, 2: 25}


# --- G2: anti-dependency cycle over a condition ---------------------------------------------------
def condition_cycle(stage: Stage) -> Happened:
    one, two = stage.begin(), stage.begin()
    of_one, of_two = one.find(), two.find()
    one.insert(3, 30)
    two.insert(4, 42)
    one.commit()
    two.commit()
    return lambda: one.has_committed and two.has_committed and of_one.value == of_two.value == 0


def condition_cycle_of_changes(stage: Stage) -> Happened:
    """The same by calls that change what a condition accepts: each inserts the row that the other would change."""
    one, two = stage.begin(), stage.begin()
    of_one, of_two = (each.do(lambda txn: txn.update_where("t", {"n": 99}, where=N % 3 == 0)) for each in (one, two))
    one.insert(3, 30)
    two.insert(4, 42)
    one.commit()
    two.commit()
    rows = {1: 10, 2: 20, 3: 30, 4: 42}
    return lambda: of_one.value == of_two.value == 0 and stage.face.rows() == rows


# --- what was read --------------------------------------------------------------------------------
def read_of(step: Step) -> list[int]:
    """The values that a step has read; none if its transaction had been rolled back."""
    return [] if step.value is None else list(step.value.values())


def saw(n: int, *steps: Step, before: int) -> bool:
    """Whether one of the steps has read this value of a row. All others must have read that of before."""
    values = [value for step in steps for value in read_of(step)]
    assert set(values) <= {n, before}, f"read {values}, not {n} or {before}"
    return n in values


def found(count: int, *steps: Step, before: int) -> bool:
    """Whether one of the steps has found so many rows. All others must have found as many as before."""
    values = [step.value for step in steps if step.value is not None]
    assert set(values) <= {count, before}, f"found {values}, not {count} or {before}"
    return count in values


# --- the table ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A play with how it must end.

    locked: by level and lock, if all that is read is locked. has_reader: one of its transactions only reads, and
    `db.snapshot()` may stand for it.
    """

    play: Play
    anomaly: str
    read_committed: Outcome
    snapshot: Outcome
    ways: Sequence[Way] = (BY_KEY,)
    locked: Mapping[str, Mapping[Lock, Outcome]] = field(default_factory=dict)
    has_reader: bool = False

    @property
    def name(self) -> str:
        return f"{self.anomaly}-{self.play.__name__}"

    def at(self, level: str) -> Outcome:
        """How it must end at a level."""
        return {READ_COMMITTED: self.read_committed, SNAPSHOT: self.snapshot}[level]

    def locking(self, lock: Lock) -> list[Way]:
        """The ways to read with a lock. Where a condition is evaluated, those that lock only what it accepts."""
        read = {way.reading for way in self.ways}
        if self.ways is FINDING:
            read = {"condition", "ordered index"}
        return [Way(f"{way.name}, {lock}", way.reading, lock=lock) for way in LOCKING if way.reading in read]


HAPPENS, WAITS, REFUSED, READS = Outcome


def locks(shared: Outcome, exclusive: Outcome) -> dict[Lock, Outcome]:
    """How a play ends with locks of both kinds."""
    return {"shared": shared, "exclusive": exclusive}


def committed(shared: Outcome, exclusive: Outcome) -> dict[str, dict[Lock, Outcome]]:
    """The same, at read committed alone."""
    return {READ_COMMITTED: locks(shared, exclusive)}


BOTH = [*READING, *WRITING]
PLAYS = [
    Case(dirty_write, levels.G0, WAITS, REFUSED, [BY_KEY, *WRITING]),
    Case(dirty_write_of_all_rows, levels.G0, WAITS, REFUSED),
    Case(dirty_insert, levels.G0, WAITS, REFUSED),
    Case(aborted_read, levels.G1A, READS, READS, BOTH, committed(WAITS, WAITS), has_reader=True),
    Case(aborted_insert, levels.G1A, READS, READS, FINDING, has_reader=True),
    Case(aborted_delete, levels.G1A, READS, READS, READING, committed(WAITS, WAITS), has_reader=True),
    Case(aborted_condition, levels.G1A, READS, READS),
    Case(intermediate_read, levels.G1B, READS, READS, BOTH, committed(WAITS, WAITS), has_reader=True),
    Case(intermediate_condition, levels.G1B, READS, READS, FINDING, has_reader=True),
    Case(circular_flow, levels.G1C, READS, READS, BOTH, committed(REFUSED, REFUSED)),
    Case(circular_condition, levels.G1C, READS, READS, FINDING),
    Case(vanishing, levels.OTV, WAITS, REFUSED, BOTH, has_reader=True),
    Case(vanishing_condition, levels.OTV, READS, READS, FINDING, has_reader=True),
    Case(many_preceders, levels.PMP, HAPPENS, READS, FINDING, committed(HAPPENS, HAPPENS), has_reader=True),
    Case(many_preceders_of_a_change, levels.PMP, HAPPENS, REFUSED),
    Case(lost_update, levels.P4, HAPPENS, REFUSED, BOTH, committed(REFUSED, WAITS)),
    Case(read_skew, levels.G_SINGLE, HAPPENS, READS, BOTH, committed(WAITS, WAITS), has_reader=True),
    Case(
        *(read_skew_of_a_condition, levels.G_SINGLE, HAPPENS, READS, FINDING),
        locked=committed(HAPPENS, HAPPENS),
        has_reader=True,
    ),
    Case(read_skew_of_a_change, levels.G_SINGLE, HAPPENS, REFUSED, READING),
    Case(
        *(write_skew, levels.G2_ITEM, HAPPENS, HAPPENS, BOTH),
        locked={READ_COMMITTED: locks(REFUSED, WAITS), SNAPSHOT: locks(REFUSED, REFUSED)},
    ),
    Case(write_skew_with_a_reader, levels.G2_ITEM, HAPPENS, HAPPENS, READING),
    Case(
        *(condition_cycle, levels.G2, HAPPENS, HAPPENS, FINDING),
        locked={level: locks(HAPPENS, HAPPENS) for level in (READ_COMMITTED, SNAPSHOT)},
    ),
    Case(condition_cycle_of_changes, levels.G2, HAPPENS, HAPPENS),
]
