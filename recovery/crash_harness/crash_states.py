"""The possible states of a disk after a power loss in a recorded run: every crash point, and at each a choice of the
pieces that had reached the disk.

One run of the program is recorded with all its writes and syncs, under the order monitor. Then the disk is rebuilt step
by step. Before every call that changed it, the pieces that are not durable yet (single sectors of a write, the growth
of a file, a truncation, a directory entry) are kept or dropped in many ways. States are distinguished by content. A
store is restarted on each, and the program's verification judges it against the acknowledgements before the crash
point.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CrashPolicy, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor
from tidemark.recovery.crash_harness.disks.power_loss import Piece
from tidemark.recovery.crash_harness.disks.trace import Event, Replay, TraceFiles
from tidemark.recovery.crash_harness.places import Places
from tidemark.recovery.crash_harness.program import (
    Ledger,
    PowerOff,
    Verify,
    Violation,
    Work,
    digest_of,
    judge,
    judging,
    open_simulated,
    power_off,
    probe,
    probed,
    state_of,
)

CHANGES = frozenset(
    {"create", "pwrite", "truncate", "fdatasync", "sync_directory", "make_directory", "rename", "unlink"}
)
# Up to this many pieces, every subset is a candidate.
EXHAUSTIVE_PIECES = 8
# With more pieces, only this many, drawn at random, are each dropped or kept alone: a file filled with zeros has
# thousands.
SINGLE_PIECES = 256
STATES_PER_POINT = 12
RANDOM_SUBSETS = 8
# One state in this many is used further: work after the restart, a second power loss, a second restart (F11, F31).
AGAIN_EVERY = 4
# One state in BROKEN_OFF_EVERY loses power during its restart, BROKEN_OFF_TIMES times in succession.
BROKEN_OFF_EVERY = 5
BROKEN_OFF_TIMES = 2
# One restarted store in this many is verified completely, as by `Database.check`.
CHECK_EVERY = 3
# Stop after this many: if a program fails at every seed, more violations show nothing new.
VIOLATIONS_MAX = 20

POLICIES: tuple[CrashPolicy, ...] = ("drop", "sectors", "torn", "keep")

Choice = tuple[frozenset[Piece], bool]


class _Recorder(Ledger):
    """The disk of the recorded program; entries in its ledger become marks in the record."""

    def __init__(self) -> None:
        super().__init__()
        self._disk = MemoryFiles().disk
        self.traces = [TraceFiles(MemoryFiles(self._disk))]
        self._stores: list[Any] = []

    def open_store(self, **options: Any) -> Any:
        self.traces.append(TraceFiles(MemoryFiles(self._disk)))
        self._stores.append(open_simulated(OrderMonitor(self.traces[-1]), **options))
        return self._stores[-1]

    def add_figures(self, figures: dict[str, int]) -> None:
        """Add up the work of the run's stores: it shows what the enumeration has exercised."""
        for db in self._stores:
            status = db.status()
            undo = status["disk"].get("undo") or {}
            caches = (status["disk"].get("page_buffer") or {}).values()
            found = {
                "stores": 1,
                "groups": status["log"]["groups_written"],
                "batches": status["log"]["batches_written"],
                "local_checkpoints": status["lcp"]["completed"],
                "undo_records": undo.get("records_made", 0),
                "undo_filtered": undo.get("records_filtered", 0),
                "pages_written": sum(cache["pages_written"] for cache in caches),
            }
            for name, value in found.items():
                figures[name] = figures.get(name, 0) + value

    def begin(self, text: str) -> None:
        super().begin(text)
        self.traces[-1].mark("ledger.begin", text=text)

    def acknowledge(self, text: str) -> None:
        super().acknowledge(text)
        self.traces[-1].mark("ledger.acknowledge", text=text)


def record(work: Work, seed: int, figures: dict[str, int] | None = None) -> tuple[Event, ...]:
    """Run the program once to its end; return everything that reached the disk, with the ledger's lines as marks. The
    work of its stores is added to `figures`.

    Raises: OrderViolation if the store wrote in a wrong order, and the errors of the program.
    """
    recorder = _Recorder()
    work(recorder.open_store, seed, recorder)
    if figures is not None:
        recorder.add_figures(figures)
    return tuple(event for trace in recorder.traces for event in trace.events)


@dataclass
class StatesReport:
    """Result of an enumeration."""

    seeds: list[int] = field(default_factory=list)
    points: int = 0
    judged: int = 0
    kills: int = 0
    failed_syncs: int = 0  # reads still show the writes that the sync lost
    second_restarts: int = 0
    interrupted: int = 0  # restarts that lost power
    restarts: int = 0
    checks: int = 0  # stores verified completely
    figures: dict[str, int] = field(default_factory=dict)  # of the recorded runs
    places: Counter[str] = field(default_factory=Counter)  # states by kind of cut and place (`places.py`)
    violations: list[str] = field(default_factory=list)  # if the enumeration continues after them
    seconds: float = 0.0
    digests: set[str] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        """The number of disks of different content."""
        return len(self.digests)

    def to_dict(self) -> dict[str, Any]:
        return {**self.__dict__, "digests": sorted(self.digests), "distinct": self.distinct}


def crash_points(
    events: Iterable[Event], places: Places | None = None
) -> Iterator[tuple[MemoryFiles, Ledger, Event | None]]:
    """Yield (disk, ledger, call that did not happen) before every change and at the end. places: gets every call that
    was carried out.
    """
    replay = Replay()
    ledger = Ledger()
    for event in events:
        if event.operation == "mark" and event.name == "ledger.begin":
            ledger.begin(event.values["text"])
        elif event.operation == "mark" and event.name == "ledger.acknowledge":
            ledger.acknowledge(event.values["text"])
        elif event.operation in CHANGES and not event.error:
            yield replay.files, ledger, event
            if places is not None:
                places.step(event.operation, event.name, event.data)
        replay.step(event)
    yield replay.files, ledger, None


def choices(pieces: list[Piece], rng: random.Random, limit: int) -> list[Choice]:
    """Return at most `limit` ways to keep some pieces, with grown areas filled with garbage or zeros.

    Always includes keeping nothing and keeping everything. The others are drawn from all subsets if there are few,
    otherwise from prefixes, single losses, single survivors, torn writes and random subsets.
    """
    everything = frozenset(pieces)
    grows = any(piece.kind == "grow" for piece in pieces)
    found: list[Choice] = [(frozenset(), False), (everything, False)] if pieces else [(frozenset(), False)]
    known = set(found)
    others = [(make, fill) for make in _subsets(pieces, rng) for fill in ((False, True) if grows else (False,))]
    for make, fill in rng.sample(others, len(others)):
        if len(found) >= limit:
            break
        choice = (make(), fill)
        if choice not in known:
            known.add(choice)
            found.append(choice)
    return found


def _subsets(pieces: list[Piece], rng: random.Random) -> list[Callable[[], frozenset[Piece]]]:
    """Return a function that makes each candidate: few of them are used, and a set of a thousand pieces is slow to
    build.
    """
    everything = frozenset(pieces)
    if len(pieces) <= EXHAUSTIVE_PIECES:
        sizes = range(len(pieces) + 1)
        subsets = [frozenset(some) for size in sizes for some in itertools.combinations(pieces, size)]
        return [functools.partial(frozenset, subset) for subset in subsets]
    few = len(pieces) <= SINGLE_PIECES
    places = range(len(pieces)) if few else sorted(rng.sample(range(len(pieces)), SINGLE_PIECES))
    made: list[Callable[[], frozenset[Piece]]] = []
    for place in places:
        made.append(functools.partial(lambda place: frozenset(pieces[:place]), place))
        made.append(functools.partial(lambda piece: everything - {piece}, pieces[place]))
        made.append(functools.partial(lambda piece: frozenset({piece}), pieces[place]))
    for share in [rng.choice((0.1, 0.5, 0.9)) for _ in range(RANDOM_SUBSETS)]:
        made.append(functools.partial(lambda share: frozenset(each for each in pieces if rng.random() < share), share))
    return made + _torn(pieces)


def _torn(pieces: list[Piece]) -> list[Callable[[], frozenset[Piece]]]:
    """Return choices that tear one write of several sectors: they keep all other pieces, and of this write only the
    front or only the end.
    """
    everything = frozenset(pieces)
    writes: dict[int, list[Piece]] = {}
    for piece in pieces:
        if piece.kind == "write" and piece.sectors > 1:
            writes.setdefault(piece.change, []).append(piece)
    made: list[Callable[[], frozenset[Piece]]] = []
    for own in writes.values():
        for cut in sorted({1, len(own) // 2, len(own) - 1}):
            made.append(functools.partial(lambda lost: everything - frozenset(lost), own[cut:]))
            made.append(functools.partial(lambda lost: everything - frozenset(lost), own[:cut]))
    return made


def _is_pending(pieces: list[Piece], name: str) -> bool:
    """Whether a file has pieces that are not durable; a file whose name was removed has none."""
    return any(piece.name == name for piece in pieces)


def image_of(files: MemoryFiles, choice: Choice, rng: random.Random) -> MemoryFiles:
    """Return the disk of one choice."""
    kept, is_garbage = choice
    return files.image(kept.__contains__, rng.randbytes if is_garbage else bytes)


@dataclass
class _Restarted:
    """A store after its restart and verification."""

    db: Any
    seen: str | None  # digest of its rows, if the verification computed it

    @property
    def shown(self) -> str:
        """Digest of its rows right after the restart."""
        if self.seen is None:
            self.seen = digest_of(state_of(self.db))
        return self.seen


class _Judge:
    """Restarts stores on disks and raises their violations."""

    def __init__(self, verify: Verify, rng: random.Random, report: StatesReport, where: str) -> None:
        self._verify = verify
        self._rng = rng
        self._report = report
        self._where = where

    def judge(self, disk: MemoryFiles, ledger: Ledger, place: str) -> None:
        """Judge one restart; for some disks also work after it, a power loss and another restart. Raises: Violation."""
        self._report.judged += 1
        if self._report.judged % BROKEN_OFF_EVERY == 0:
            disk = self._interrupted(disk, ledger, place)
        store = self._restart(disk, ledger, place)
        if self._report.judged % AGAIN_EVERY == 0:
            self._again(store, disk, ledger, place)

    def judge_kill(self, disk: MemoryFiles, ledger: Ledger, place: str) -> None:
        """Judge a kill of the process on a live machine. The restart reads unsynced data; then the power fails.
        Raises: Violation.
        """
        self._report.judged += 1
        self._report.kills += 1
        self._again(self._restart(disk, ledger, place), disk, ledger, place)

    def judge_failed_sync(self, disk: MemoryFiles, name: str, ledger: Ledger, place: str) -> None:
        """Judge a failed sync of a file, with any part of its unsynced writes on the disk. The next process reads the
        whole file and continues; then the power fails (F39). Raises: Violation.
        """
        self._report.judged += 1
        self._report.failed_syncs += 1
        share = self._rng.choice((0.0, 0.5, 0.9))
        disk.lose_sync(name, lambda _: self._rng.random() < share)
        self._again(self._restart(disk, ledger, place), disk, ledger, place)

    def _interrupted(self, disk: MemoryFiles, ledger: Ledger, place: str) -> MemoryFiles:
        """Return the disk after restarts that lost power at any write or sync; the next restart must show the same rows
        as an undisturbed one. Raises: Violation.
        """
        plan = Plan([Rule("pwrite", nth=1 << 40)])
        undisturbed = self._restart(disk.kill(), ledger, place, plan).shown
        for _ in range(BROKEN_OFF_TIMES):
            at = self._rng.randrange(1, plan.calls + 1)
            off = FaultFiles(disk, [Rule("*", nth=at, once=False, stall=power_off)])
            try:
                with judging(f"{self._where}, {place}, restart"):
                    open_simulated(OrderMonitor(off))
            except PowerOff:
                self._report.interrupted += 1
            disk = disk.crash(self._rng, self._rng.choice(POLICIES))
        after = self._restart(disk.kill(), ledger, f"{place}, after interrupted restarts")
        if after.shown != undisturbed:
            raise Violation(f"{self._where}, {place}: interrupted restarts changed what is shown")
        return disk

    def _again(self, store: _Restarted, disk: MemoryFiles, ledger: Ledger, place: str) -> None:
        """Check that the state and the commits of a restart are still there after another one. Raises: Violation."""
        report = self._report
        report.second_restarts += 1
        shown = store.shown
        has_worked = report.second_restarts % 2 == 0
        if has_worked:
            with judging(f"{self._where}, {place}, a commit after the restart"):
                probe(store.db, report.judged)
        lost = disk.crash(self._rng, "drop" if report.second_restarts % 3 else "sectors")
        after = self._restart(lost, ledger, f"{place}, second restart")
        if after.shown != shown:
            raise Violation(f"{self._where}, {place}: what the restart showed is gone after the next one")
        if has_worked and report.judged not in probed(after.db):
            raise Violation(f"{self._where}, {place}: a commit after the restart is lost at the next one")

    def _restart(self, disk: MemoryFiles, ledger: Ledger, place: str, plan: Plan | None = None) -> _Restarted:
        report = self._report
        report.restarts += 1
        ledger.rows_digest = None
        is_checked = plan is None and report.restarts % CHECK_EVERY == 0

        def verify(db: Any, ledger: Ledger) -> list[str]:
            found = self._verify(db, ledger)
            if not found and is_checked:
                report.checks += 1
                found = db.check()["problems"]
            return found

        opened = functools.partial(open_simulated, OrderMonitor(disk if plan is None else FaultFiles(disk, plan)))
        return _Restarted(judge(opened, verify, ledger, f"{self._where}, {place}"), ledger.rows_digest)


def crash_states(
    work: Work,
    verify: Verify,
    seed: int,
    per_point: int = STATES_PER_POINT,
    report: StatesReport | None = None,
    share: float = 1.0,
) -> StatesReport:
    """Record one run of the program and judge the possible states after power losses; figures are added to `report`.

    per_point: maximum number of states of one crash point. share: the share of crash points at which every state is
    judged; the seed draws them. At the others a state is judged only if it is in a place not seen before. Raises:
    Violation at the first wrong state.
    """
    clock = SystemClock()
    began = clock.monotonic()
    report = report if report is not None else StatesReport()
    report.seeds.append(seed)
    rng = random.Random(seed)
    judge = _Judge(verify, rng, report, f"crash states, seed {seed}")
    seen: set[tuple[str, int]] = set()
    seen_killed: set[tuple[str, int]] = set()
    places = Places()
    with judging(f"crash states, seed {seed}, the run itself"):
        events = record(work, seed, report.figures)
    for files, ledger, event in crash_points(events, places):
        report.points += 1
        is_drawn = rng.random() < share
        call = "the end" if event is None else event.render(digests=False)
        pieces = files.pieces()
        if pieces and is_drawn:
            killed = files.kill()
            # After a sync the next process reads the same bytes, so the point before the sync is judged instead: more
            # of its pieces can be lost.
            key = (killed.digest(), len(ledger.acknowledged))
            if key not in seen_killed:
                seen_killed.add(key)
                judge.judge_kill(killed, ledger, f"point {report.points} before {call}, killed")
            if event is not None and event.operation == "fdatasync" and _is_pending(pieces, event.name):
                judge.judge_failed_sync(files.kill(), event.name, ledger, f"point {report.points}, failed {call}")
        for number, choice in enumerate(choices(pieces, rng, per_point)):
            names = places.names(pieces, choice[0], bool(ledger.under_way))
            if not is_drawn and names <= report.places.keys():
                continue
            disk = image_of(files, choice, rng)
            digest = disk.digest()
            # The same disk is judged again after more has been acknowledged.
            key = (digest, len(ledger.acknowledged))
            if key in seen:
                continue
            seen.add(key)
            report.digests.add(digest)
            report.places.update(names)
            judge.judge(disk, ledger, f"point {report.points} before {call}, state {number}")
    report.seconds += clock.monotonic() - began
    return report


def many_crash_states(
    work: Work,
    verify: Verify,
    first_seed: int,
    distinct: int,
    print_line: Callable[[str], None] | None = None,
    per_point: int = STATES_PER_POINT,
    share: float = 1.0,
    seed_step: int = 1,
    continue_after_violation: bool = False,
) -> StatesReport:
    """Judge seeds from `first_seed` on, `seed_step` apart, until `distinct` different states have been judged.

    continue_after_violation: record a violation in `violations` and continue with the next seed. Raises: Violation.
    """
    report = StatesReport()
    for seed in itertools.count(first_seed, seed_step):
        if report.distinct >= distinct or len(report.violations) >= VIOLATIONS_MAX:
            break
        try:
            crash_states(work, verify, seed, per_point, report, share)
        except Violation as violation:
            if not continue_after_violation:
                raise
            report.violations.append(str(violation))
        if print_line is not None:
            broken = f", {len(report.violations)} violations" if report.violations else ""
            print_line(f"seed {seed}: {report.distinct} distinct states, {report.seconds:.0f} s{broken}")
    return report
