"""What a power loss may leave of a recorded run: every crash point, and at each a choice of what had reached the disk.

One run of the program is recorded with all its writes and syncs (the order monitor watching). Then the disk is built
again step by step; before every call that changed it, the pieces not yet durable — single sectors of a write, the
growth of a file, a truncation, a directory entry — are kept or dropped in many ways. States are told apart by content;
each is restarted and judged by the program's verification against what had been acknowledged by then.
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
from tidemark.engine.base.errors import Error
from tidemark.recovery.crash_harness.disks.faults import FaultFiles, Plan, Rule
from tidemark.recovery.crash_harness.disks.memory import CrashPolicy, MemoryFiles
from tidemark.recovery.crash_harness.disks.order import OrderMonitor, OrderViolation
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
    open_simulated,
    power_off,
    probe,
    probed,
    state_of,
)

CHANGES = frozenset(
    {"create", "pwrite", "truncate", "fdatasync", "sync_directory", "make_directory", "rename", "unlink"}
)
# Up to so many pieces every subset is a candidate.
EXHAUSTIVE_PIECES = 8
# Of more pieces than this so many are drawn to be lost or kept alone: a file filled with zeros has thousands.
SINGLE_PIECES = 256
STATES_PER_POINT = 12
RANDOM_SUBSETS = 8
# Every so many states are taken on: work after the restart, a second power loss, a second restart (F11, F31).
AGAIN_EVERY = 4
# And others are restarted with the power lost in the middle of it, so many times over.
BROKEN_OFF_EVERY = 5
BROKEN_OFF_TIMES = 2
# Every so many restarted stores are verified whole, as `Database.check` does it.
CHECK_EVERY = 3
# A program that is wrong at every seed need not be shown to be so for ever.
VIOLATIONS_MAX = 20

POLICIES: tuple[CrashPolicy, ...] = ("drop", "sectors", "torn", "keep")

Choice = tuple[frozenset[Piece], bool]


class _Recorder(Ledger):
    """The disk of the recorded program; what it tells the ledger becomes marks in the record."""

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
        """What the stores of the run did, added up: an enumeration shows no more than its programs reach."""
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
    """Run the program once to its end; everything that reached the disk, with the ledger's lines as marks. What its
    stores did is added to `figures`.

    Raises: OrderViolation if the store wrote in a wrong order, and whatever the program raises.
    """
    recorder = _Recorder()
    work(recorder.open_store, seed, recorder)
    if figures is not None:
        recorder.add_figures(figures)
    return tuple(event for trace in recorder.traces for event in trace.events)


@dataclass
class StatesReport:
    """What an enumeration saw."""

    seeds: list[int] = field(default_factory=list)
    points: int = 0
    judged: int = 0
    kills: int = 0
    failed_syncs: int = 0  # whose files showed more than the disk had
    second_restarts: int = 0
    broken_off: int = 0  # restarts in which the power was lost
    restarts: int = 0
    checks: int = 0  # stores verified whole
    figures: dict[str, int] = field(default_factory=dict)  # of the recorded runs
    places: Counter[str] = field(default_factory=Counter)  # states by what was cut, and where (`places.py`)
    violations: list[str] = field(default_factory=list)  # of those that go on behind one
    seconds: float = 0.0
    digests: set[str] = field(default_factory=set)

    @property
    def distinct(self) -> int:
        """Disks of different content."""
        return len(self.digests)

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        return {**self.__dict__, "digests": sorted(self.digests), "distinct": self.distinct}


def crash_points(
    events: Iterable[Event], places: Places | None = None
) -> Iterator[tuple[MemoryFiles, Ledger, Event | None]]:
    """(disk, what was promised, the call that did not happen) before every change, and once at the end. places: is
    told of each call that did happen.
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
    """At most `limit` ways to keep some pieces, with grown areas filled with garbage or zeros.

    Nothing and everything always; the others drawn from all subsets if there are few, else from prefixes, single
    losses, single survivors, torn writes and random subsets.
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
    """What makes each candidate; few of them are wanted, and a set of a thousand pieces takes its time."""
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
    """For each write of several sectors: all else kept, and of it a part from the front, or only its end."""
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
    """Whether there is anything of a file that is not durable; one without a durable name is nobody's."""
    return any(piece.name == name for piece in pieces)


def image_of(files: MemoryFiles, choice: Choice, rng: random.Random) -> MemoryFiles:
    """The disk of one choice."""
    kept, is_garbage = choice
    return files.image(kept.__contains__, rng.randbytes if is_garbage else bytes)


@dataclass
class _Restarted:
    """A store that came back, as verified."""

    db: Any
    seen: str | None  # digest of its rows, if the verification took it

    @property
    def shown(self) -> str:
        """Digest of its rows right after the restart."""
        if self.seen is None:
            self.seen = digest_of(state_of(self.db))
        return self.seen


class _Judge:
    """Restarts on disks and says what is wrong with them."""

    def __init__(self, verify: Verify, rng: random.Random, report: StatesReport, where: str) -> None:
        self._verify = verify
        self._rng = rng
        self._report = report
        self._where = where

    def judge(self, disk: MemoryFiles, ledger: Ledger, place: str) -> None:
        """One restart, and now and then work, power loss and restart again. Raises: Violation."""
        self._report.judged += 1
        if self._report.judged % BROKEN_OFF_EVERY == 0:
            disk = self._broken_off(disk, ledger, place)
        store = self._restart(disk, ledger, place)
        if self._report.judged % AGAIN_EVERY == 0:
            self._again(store, disk, ledger, place)

    def judge_kill(self, disk: MemoryFiles, ledger: Ledger, place: str) -> None:
        """The process dies, the machine lives on; power fails after the restart, which read what no sync had covered.

        Raises: Violation.
        """
        self._report.judged += 1
        self._report.kills += 1
        self._again(self._restart(disk, ledger, place), disk, ledger, place)

    def judge_failed_sync(self, disk: MemoryFiles, name: str, ledger: Ledger, place: str) -> None:
        """The sync of a file fails, with any part of it on the disk; the next process is shown the whole, goes on, and
        power fails (F39). Raises: Violation.
        """
        self._report.judged += 1
        self._report.failed_syncs += 1
        share = self._rng.choice((0.0, 0.5, 0.9))
        disk.lose_sync(name, lambda _: self._rng.random() < share)
        self._again(self._restart(disk, ledger, place), disk, ledger, place)

    def _broken_off(self, disk: MemoryFiles, ledger: Ledger, place: str) -> MemoryFiles:
        """The disk after restarts in which the power was lost at any write or sync; the next one shows the same rows as
        an undisturbed one. Raises: Violation.
        """
        plan = Plan([Rule("pwrite", nth=1 << 40)])
        undisturbed = self._restart(disk.kill(), ledger, place, plan).shown
        for _ in range(BROKEN_OFF_TIMES):
            at = self._rng.randrange(1, plan.calls + 1)
            off = FaultFiles(disk, [Rule("*", nth=at, once=False, stall=power_off)])
            try:
                open_simulated(OrderMonitor(off))
            except PowerOff:
                self._report.broken_off += 1
            except (Error, OrderViolation) as error:
                raise Violation(f"{self._where}, {place}, restart: {type(error).__name__}: {error}") from error
            disk = disk.crash(self._rng, self._rng.choice(POLICIES))
        after = self._restart(disk.kill(), ledger, f"{place}, after restarts that were broken off")
        if after.shown != undisturbed:
            raise Violation(f"{self._where}, {place}: restarts that were broken off changed what is shown")
        return disk

    def _again(self, store: _Restarted, disk: MemoryFiles, ledger: Ledger, place: str) -> None:
        """What a restart has shown stays, and so does what is committed behind it."""
        report = self._report
        report.second_restarts += 1
        shown = store.shown
        has_worked = report.second_restarts % 2 == 0
        if has_worked:
            try:
                probe(store.db, report.judged)
            except (Error, OrderViolation) as error:
                what = f"a commit after the restart: {type(error).__name__}: {error}"
                raise Violation(f"{self._where}, {place}, {what}") from error
        lost = disk.crash(self._rng, "drop" if report.second_restarts % 3 else "sectors")
        after = self._restart(lost, ledger, f"{place}, second restart")
        if after.shown != shown:
            raise Violation(f"{self._where}, {place}: what the restart showed is gone after the next one")
        if has_worked and report.judged not in probed(after.db):
            raise Violation(f"{self._where}, {place}: a commit after the restart is lost at the next one")

    def _restart(self, disk: MemoryFiles, ledger: Ledger, place: str, plan: Plan | None = None) -> _Restarted:
        report = self._report
        report.restarts += 1
        ledger.seen = None
        try:
            db = open_simulated(OrderMonitor(disk if plan is None else FaultFiles(disk, plan)))
            found = self._verify(db, ledger)
            if not found and plan is None and report.restarts % CHECK_EVERY == 0:
                report.checks += 1
                found = db.check()["problems"]
        except (Error, OrderViolation) as error:
            raise Violation(f"{self._where}, {place}: {type(error).__name__}: {error}") from error
        if found:
            raise Violation(f"{self._where}, {place}: {found[0]}")
        return _Restarted(db, ledger.seen)


def crash_states(
    work: Work,
    verify: Verify,
    seed: int,
    per_point: int = STATES_PER_POINT,
    report: StatesReport | None = None,
    share: float = 1.0,
) -> StatesReport:
    """Record one run of the program and judge what power losses may leave of it; figures are added to `report`.

    per_point: states of one crash point, at most. share: of the points, which the seed draws; of the others states in
    places where none was before are judged too. Raises: Violation at the first wrong state.
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
    try:
        events = record(work, seed, report.figures)
    except (Error, OrderViolation) as error:
        raise Violation(f"crash states, seed {seed}, the run itself: {type(error).__name__}: {error}") from error
    for files, ledger, event in crash_points(events, places):
        report.points += 1
        is_drawn = rng.random() < share
        call = "the end" if event is None else event.render(digests=False)
        pieces = files.pieces()
        if pieces and is_drawn:
            killed = files.kill()
            # A sync changes nothing that the next process reads: the point before it left more to lose.
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
            # The same disk is judged again once more has been promised.
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
    say: Callable[[str], None] | None = None,
    per_point: int = STATES_PER_POINT,
    share: float = 1.0,
    seed_step: int = 1,
    goes_on: bool = False,
) -> StatesReport:
    """Seeds from `first_seed` on, `seed_step` apart, until `distinct` different states have been judged.

    goes_on: a seed that broke a promise is told of in `violations`, and the next one follows. Raises: Violation.
    """
    report = StatesReport()
    for seed in itertools.count(first_seed, seed_step):
        if report.distinct >= distinct or len(report.violations) >= VIOLATIONS_MAX:
            break
        try:
            crash_states(work, verify, seed, per_point, report, share)
        except Violation as violation:
            if not goes_on:
                raise
            report.violations.append(str(violation))
        if say is not None:
            broken = f", {len(report.violations)} violations" if report.violations else ""
            say(f"seed {seed}: {report.distinct} distinct states, {report.seconds:.0f} s{broken}")
    return report
