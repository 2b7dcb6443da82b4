"""Readers, and children that give them inputs and are seen to die, to compute for too long or to take too much memory.

A *reader* is a function of the program that takes bytes which others may have written: it returns, or raises one of the
errors it declares. Everything else is a finding: another error, MemoryError and RecursionError among them, the end of
the process, more than `HANG_SECONDS` of a core for one input, more memory than `memory_bytes`.

Inputs are numbered. Input `number` of a run with `seed` is a mutation of a member of the reader's corpus and follows
from both numbers alone. Children take a few thousand each. A child notes the number it is at in memory it shares with
its parent, so that the parent knows the input of a child that died.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import re
import resource
import select
import signal
import sys
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import Mutation

CORPUS = Path(__file__).with_name("corpus")
BATCH = 4_000
# Of a core, for one input: more is reported as slow; a child is killed at `HANG_SECONDS`.
SLOW_SECONDS = 1.0
HANG_SECONDS = 20
# Between two looks at a child that says nothing: one that sleeps at both and computed nothing between waits for ever.
BLOCKED_SECONDS = 30
FINDINGS_MAX = 10
LABELS_MAX = 400
CHANGED_BYTES_MAX = 32 << 10  # of the corpus: to change a longer input takes the time of ten others
LABEL_CHARACTERS = 120
MINIMISE_TRIES = 300
ACCEPTED = "accepted"
SLOW = "slow"
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d[\d,.]*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|b'.*")


class Nothing(Exception):
    """What a reader says of an input by returning None, for those that may."""


@dataclass(frozen=True)
class Reader:
    """One reader.

    members: valid inputs, made by the program's own writers, the same ones each time. refusals: errors it may raise.
    mutations: each is as likely as the others. reached: texts, each of which must stand in the label of an outcome. A
    label is "accepted", or class and message of an error. This exposes a reader that is not tested because all its
    inputs fail their checksums. memory_bytes: what a child may take beyond what valid inputs need. cost: what an input
    costs, as a multiple of a cheap reader's; in a run of all readers, its number of inputs is divided by it.
    """

    name: str
    members: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], object]
    refusals: tuple[type[BaseException], ...]
    mutations: tuple[Mutation, ...]
    reached: tuple[str, ...]
    memory_bytes: int = 96 << 20
    cost: int = 1


@dataclass(frozen=True)
class Finding:
    """An input that broke a reader. data: the smallest input found that breaks it."""

    reader: str
    seed: int
    number: int
    what: str
    where: str
    data: bytes


@dataclass
class Report:
    """The outcome of a run. slow: (number of an input, seconds of a core)."""

    reader: str
    seed: int
    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    slow: list[tuple[int, float]] = field(default_factory=list)
    cpu_seconds: float = 0.0
    memory_bytes: int = 0  # the most by which a child grew

    def missing(self, reached: Sequence[str]) -> list[str]:
        """Texts that are in no label."""
        return [each for each in reached if not any(each in label for label in self.outcomes)]


# --- the corpus -----------------------------------------------------------------------------------------
def _folder(name: str) -> Path:
    return CORPUS / name.lower().replace(" ", "-")


def kept(name: str) -> dict[str, tuple[str, bytes]]:
    """Inputs that once broke a reader: (story, input) by the name of their file. The first line of a file is the story;
    the rest is the input, compressed by zlib.
    """
    folder = _folder(name)
    found = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        story, _, data = path.read_bytes().partition(b"\n")
        found[path.name] = (story.decode(), zlib.decompress(data))
    return found


def keep(finding: Finding) -> Path:
    """Put the input of a finding into the corpus; its story begins with what happened."""
    folder = _folder(finding.reader)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / re.sub(r"[^a-z0-9]+", "-", finding.what.lower())[:48].strip("-")
    path.write_bytes(finding.what.replace("\n", " ").encode() + b"\n" + zlib.compress(finding.data, 9))
    return path


class Inputs:
    """The inputs of a reader by number."""

    def __init__(self, reader: Reader, seed: int) -> None:
        self.reader = reader
        self.seed = seed
        found = [data for _, data in kept(reader.name).values() if len(data) <= CHANGED_BYTES_MAX]
        self.members = [*reader.members(), *found]

    def __getitem__(self, number: int) -> bytes:
        rng = random.Random(self.seed << 40 | number)
        mutation = self.reader.mutations[rng.randrange(len(self.reader.mutations))]
        return mutation(self.members[rng.randrange(len(self.members))], rng, self.members)


# --- judging one input ------------------------------------------------------------------------------------
def label_of(error: BaseException) -> str:
    """Class and message of an error, without what differs from input to input."""
    message = " ".join(_NUMBERS.sub("N", _QUOTED.sub("…", str(error)[:300])).split())
    return f"{type(error).__name__}: {message[:LABEL_CHARACTERS]}"


class _Caught:
    """Holds the error its block ends with, whatever it is."""

    error: BaseException | None = None

    def __enter__(self) -> _Caught:
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> bool:
        self.error = error
        return True


def judge(reader: Reader, data: bytes) -> tuple[str, str]:
    """(label, where it was raised if the reader did not declare it, else "")."""
    with _Caught() as caught:
        reader.read(data)
    error = caught.error
    if error is None:
        return ACCEPTED, ""
    if isinstance(error, reader.refusals):
        return label_of(error), ""
    frames = traceback.extract_tb(error.__traceback__)[-6:]
    return label_of(error), " < ".join(f"{Path(each.filename).name}:{each.lineno}" for each in reversed(frames))


def _size_bytes() -> int:
    """Address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE


def _begin_child(reader: Reader, hang_seconds: float) -> None:
    """In a child: limit the memory and, for each input from `setitimer` on, the computing time."""
    logging.disable()
    warnings.simplefilter("error")
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_size_bytes() + reader.memory_bytes,) * 2)
    signal.setitimer(signal.ITIMER_PROF, hang_seconds)


@dataclass
class _Ended:
    """How a child ended: the signal, 0 if none, and its message."""

    signal: int
    is_blocked: bool
    said: dict[str, Any] | None


def _standing(process: int) -> tuple[str, int]:
    """Whether a process runs (R) or sleeps (S), and its computing time so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[11]) + int(fields[12])


def _forked(work: Callable[[], dict[str, Any]], blocked_seconds: float) -> _Ended:
    """Have a child call this; return its result."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            said = json.dumps(work()).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(said)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    os.close(writing)
    data, is_blocked, before = bytearray(), False, ("", 0)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], blocked_seconds)[0]:
                now = _standing(child)
                is_blocked = now == before and now[0] == "S"
                before = now
                if is_blocked:
                    os.kill(child, signal.SIGKILL)
                continue
            piece = pipe.read(1 << 16)
            if not piece:
                break
            data += piece
    status = os.waitpid(child, 0)[1]
    ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if not ended_by and os.WEXITSTATUS(status):
        raise RuntimeError(f"a child ended with code {os.WEXITSTATUS(status)}; the traceback is above")
    return _Ended(ended_by, is_blocked, None if ended_by else json.loads(data))


def _what(ended: _Ended, hang_seconds: float) -> str:
    """What became of a child that did not end by itself."""
    if ended.is_blocked:
        return "waits for ever"
    if ended.signal == signal.SIGPROF:
        return f"computes for more than {hang_seconds:g} s"
    return f"ends the process by {signal.Signals(ended.signal).name}"


def judge_alone(
    reader: Reader, data: bytes, hang_seconds: float = HANG_SECONDS, blocked_seconds: float = BLOCKED_SECONDS
) -> tuple[str, str, float]:
    """`judge` in a child, and the seconds of a core; what ends the child is the label and where."""

    def work() -> dict[str, Any]:
        _begin_child(reader, hang_seconds)
        began = time.process_time()
        return {"judged": judge(reader, data), "seconds": time.process_time() - began}

    ended = _forked(work, blocked_seconds)
    if ended.said is None:
        return _what(ended, hang_seconds), "the child", hang_seconds
    label, where = ended.said["judged"]
    return label, where, ended.said["seconds"]


# --- a run ----------------------------------------------------------------------------------------------
def load(reader: Reader) -> None:
    """Load and make what the first call needs before children are limited, so that no input is charged for it."""
    for member in reader.members():
        reader.read(member)


class Run:
    """One run of a reader."""

    def __init__(
        self, reader: Reader, seed: int, hang_seconds: float = HANG_SECONDS, blocked_seconds: float = BLOCKED_SECONDS
    ) -> None:
        self.reader = reader
        self.inputs = Inputs(reader, seed)
        self.report = Report(reader.name, seed)
        self._hang_seconds = hang_seconds
        self._blocked_seconds = blocked_seconds
        self._at = mmap.mmap(-1, mmap.PAGESIZE)  # the number of the input a child is at
        load(reader)

    def run(self, inputs: int, first: int = 0) -> Report:
        """Give the reader so many inputs; ends early after `FINDINGS_MAX` findings."""
        ranges = [(at, min(at + BATCH, first + inputs)) for at in range(first, first + inputs, BATCH)]
        while ranges and len(self.report.findings) < FINDINGS_MAX:
            begin, end = ranges.pop(0)
            if begin < end:
                ranges[:0] = self._batch(begin, end)
        for number, _ in self.report.slow:
            self._judge_slow(number)
        return self.report

    def _batch(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Run a child; return the ranges still to run: those before and after an input that ended the child."""
        ended = _forked(lambda: self._work(begin, end), self._blocked_seconds)
        if ended.said is None:
            number = int.from_bytes(self._at[:8], "little")
            self._find(number, _what(ended, self._hang_seconds), "the child")
            self.report.inputs += 1
            return [(begin, number), (number + 1, end)]
        said = ended.said
        self.report.inputs += end - begin
        self.report.outcomes.update(said["outcomes"])
        self.report.slow += [(number, seconds) for number, seconds in said["slow"]]
        self.report.cpu_seconds += said["cpu_seconds"]
        self.report.memory_bytes = max(self.report.memory_bytes, said["memory_bytes"])
        for number, what, where in said["foreign"]:
            self._find(number, what, where)
        return []

    def _work(self, begin: int, end: int) -> dict[str, Any]:
        """In a child."""
        outcomes: Counter[str] = Counter()
        foreign: dict[str, tuple[int, str, str]] = {}
        slow: list[tuple[int, float]] = []
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _begin_child(self.reader, self._hang_seconds)
        for number in range(begin, end):
            self._at[:8] = number.to_bytes(8, "little")
            data = self.inputs[number]
            signal.setitimer(signal.ITIMER_PROF, self._hang_seconds)
            began = time.process_time()
            label, where = judge(self.reader, data)
            seconds = time.process_time() - began
            if seconds > SLOW_SECONDS:
                slow.append((number, seconds))
            if len(outcomes) >= LABELS_MAX and label not in outcomes:
                label = label.partition(":")[0]
            outcomes[label] += 1
            if where:
                foreign.setdefault(f"{label.partition(':')[0]} {where.partition(' ')[0]}", (number, label, where))
        signal.setitimer(signal.ITIMER_PROF, 0)
        return {
            "outcomes": outcomes,
            "foreign": list(foreign.values()),
            "slow": slow,
            "cpu_seconds": time.process_time(),
            "memory_bytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1_024,
        }

    def _judge_slow(self, number: int) -> None:
        """An input was slow if it is so alone, three times."""
        data = self.inputs[number]
        seconds = min(judge_alone(self.reader, data, self._hang_seconds)[2] for _ in range(3))
        if seconds > SLOW_SECONDS:
            self._find(number, SLOW, f"alone, {seconds:.1f} s of a core")

    def _find(self, number: int, what: str, where: str) -> None:
        kind = what.partition(":")[0], where.partition(" ")[0]
        if any((each.what.partition(":")[0], each.where.partition(" ")[0]) == kind for each in self.report.findings):
            return
        data = self.inputs[number]
        is_timed = what == SLOW or "computes" in what or "waits" in what
        data = data if is_timed else self._minimised(data, what, where)
        self.report.findings.append(Finding(self.reader.name, self.report.seed, number, what, where, data))

    def _minimised(self, data: bytes, what: str, where: str) -> bytes:
        """The smallest input found with the same outcome."""
        wanted = what.partition(":")[0], where.partition(" ")[0]
        tries = 0
        for cut in cuts(len(data)):
            while tries < MINIMISE_TRIES and cut[1] <= len(data):
                shorter = data[: cut[0]] + data[cut[1] :]
                tries += 1
                found, at, _ = judge_alone(self.reader, shorter, self._hang_seconds)
                if (found.partition(":")[0], at.partition(" ")[0]) != wanted or not at:
                    break
                data = shorter
        return data


def cuts(size: int) -> Iterator[tuple[int, int]]:
    """Pieces to leave out, long ones first."""
    step = size // 2
    while step:
        yield from ((at, at + step) for at in range(0, size - step + 1, step))
        step //= 2
