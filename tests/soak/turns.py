"""The turns of a soak: each is a command of about a minute, with a seed that grows from round to round.

`make test` runs none of them, but a small part of most. A turn is a command line that can be run by hand; that is how a
finding is repeated.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.fuzz.readers import readers
from tests.kills.sites.modes import MODES
from tidemark.recovery.crash_harness.anomaly_loop import ANOMALIES

HARNESS = "tidemark.recovery.crash_harness"
PROGRAMS_FOLDER = "tests.crash.programs"
WHOLE_STATE = f"{HARNESS}.program:whole_state"
# Stands for an empty folder.
FOLDER = "FOLDER"
# Inputs for a reader of cost 1: about a minute on one core.
FUZZ_INPUTS = 400_000

# Programs with their verification: name, work, verification.
PROGRAMS = (
    ("durable commits", "history:work", ""),
    ("durable epochs", "history:epoch_work", ""),
    ("first local checkpoint abandoned", "history:abandoned_work", ""),
    ("disk columns", "disk_history:work", ""),
    ("disk columns, durable epochs", "disk_history:epoch_work", ""),
    ("disk columns, unfiltered", "disk_history:unfiltered_work", ""),
    ("disk columns, eight steps", "disk_history:tiny_work", ""),
    ("batches", "batch_history:work", ""),
    ("batches, disk columns", "batch_history:disk_work", ""),
    ("partitions", "partition_history:work", "partition_history:verify"),
    ("partitions, disk columns", "partition_history:disk_work", "partition_history:verify"),
    ("indexes", "index_history:work", "index_history:verify"),
    ("indexes, disk columns", "index_history:disk_work", "index_history:verify"),
    ("schema changes", "schema_history:work", "schema_history:verify"),
    ("schema changes, disk columns", "schema_history:disk_work", "schema_history:verify"),
    ("spooled transactions", "spool_history:work", ""),
    ("spooled transactions, durable epochs", "spool_history:epoch_work", ""),
    ("spooled transactions, disk columns", "spool_history:disk_work", ""),
    ("loads", "load_history:work", ""),
    ("loads, durable epochs", "load_history:epoch_work", ""),
    ("loads, disk columns", "load_history:disk_work", ""),
)
# Here every call may go wrong, so these programs are shorter.
FAULTY = (
    ("history", "history:short_work", ""),
    ("local checkpoints", "history:lcp_work", ""),
    ("disk columns", "disk_history:short_work", ""),
    ("batches", "batch_history:short_work", ""),
    ("partitions", "partition_history:short_work", "partition_history:verify"),
    ("indexes", "index_history:work", "index_history:verify"),
    ("schema changes", "schema_history:short_work", "schema_history:verify"),
    ("spooled transactions", "spool_history:tiny_work", ""),
    ("spooled transactions, disk columns", "spool_history:tiny_disk_work", ""),
    ("loads", "load_history:tiny_work", ""),
    ("loads, disk columns", "load_history:tiny_disk_work", ""),
)
# Groups that each round of the kill loop of nodes runs.
GROUPS = (
    ("3 nodes, binlogs", ("--nodes", "3", "--variant", "mixed", "--binlog")),
    ("2 nodes, arbitrator, binlogs", ("--nodes", "2", "--arbitrator", "--variant", "mixed", "--binlog")),
    ("4 nodes, arbitrator", ("--nodes", "4", "--arbitrator", "--variant", "mixed")),
    ("3 nodes, commits in memory", ("--nodes", "3", "--memory")),
)
MARKED_PER_TURN = 3


@dataclass(frozen=True)
class Turn:
    """arguments: those of `python` for a seed. counted: names whose numbers in the output are added up."""

    name: str
    arguments: Callable[[int], Sequence[str]]
    counted: tuple[str, ...]


def _named(work: str, verify: str) -> tuple[str, ...]:
    verification = f"{PROGRAMS_FOLDER}.{verify}" if verify else WHOLE_STATE
    return "--work", f"{PROGRAMS_FOLDER}.{work}", "--verify", verification


def _states(name: str, work: str, verify: str) -> Turn:
    head = ("-m", HARNESS, "states", *_named(work, verify), "--distinct", "400", "--json")
    counted = ("distinct", "restarts", "second_restarts", "kills", "failed_syncs", "checks")
    return Turn(f"crash states: {name}", lambda seed: (*head, "--seed", str(seed)), counted)


def _anomalies(name: str, work: str, verify: str) -> Turn:
    head = ("-m", HARNESS, "anomalies", *_named(work, verify), "--json")

    def arguments(seed: int) -> Sequence[str]:
        return *head, "--only", sorted(ANOMALIES)[seed % len(ANOMALIES)], "--step", "3", "--seed", str(seed)

    return Turn(f"a call goes wrong: {name}", arguments, ("points", "restarts"))


def _kills(name: str, work: str, verify: str, kills: int) -> Turn:
    head = ("-m", HARNESS, "kills", FOLDER, *_named(work, verify), "--json", "--kills", str(kills))
    return Turn(f"kills: {name}", lambda seed: (*head, "--seed", str(seed)), ("kills", "acknowledged"))


def _losses(name: str, work: str, verify: str, losses: int, most: tuple[str, ...] = ()) -> Turn:
    head = ("-m", HARNESS, "losses", *_named(work, verify), *most, "--json", "--losses", str(losses))
    return Turn(f"power losses: {name}", lambda seed: (*head, "--seed", str(seed)), ("losses", "acknowledged"))


def _seeds(name: str, module: str, count: int, counted: tuple[str, ...], *options: str) -> Turn:
    """Return a turn of seeds; those of a round follow the seeds of the round before."""

    def arguments(seed: int) -> Sequence[str]:
        return *module.split(), "--seeds", f"{seed * count}:{(seed + 1) * count}", *options

    return Turn(name, arguments, counted)


@lru_cache
def marked() -> tuple[str, ...]:
    """Return the node ids of tests marked `soak`."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "soak"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(line for line in found.splitlines() if "::" in line)


@lru_cache
def shared() -> tuple[str, ...]:
    """Return test files with enumerations of which `make test` runs a share."""
    root = Path(__file__).resolve().parents[1]
    files = (path for path in sorted(root.rglob("test_*.py")) if "tests.shares" in path.read_text(encoding="utf-8"))
    return tuple(str(path.relative_to(root.parent)) for path in files)


UNLIMITED = "--timeout=0", "-o", "faulthandler_timeout=0"


def _whole(seed: int) -> Sequence[str]:
    file = shared()[seed % len(shared())]
    return "-m", "pytest", "-q", "--whole", "-m", "not soak", f"--hypothesis-seed={seed}", *UNLIMITED, file


def _marked(seed: int) -> Sequence[str]:
    """Run some of the marked tests; each comes once before any comes again."""
    every = list(marked())
    random.Random(0).shuffle(every)
    first = seed * MARKED_PER_TURN
    some = [every[number % len(every)] for number in range(first, first + MARKED_PER_TURN)]
    return "-m", "pytest", "-q", "-m", "soak", f"--hypothesis-seed={seed}", *UNLIMITED, *some


TURNS: tuple[Turn, ...] = (
    *(_states(*program) for program in PROGRAMS),
    *(_anomalies(*program) for program in FAULTY),
    _kills("accounts", "bank:work", "bank:verify", 20),
    _kills("accounts, disk columns", "bank:disk_work", "bank:verify", 15),
    _kills("stress", "stress:work", "stress_verify:verify", 10),
    _kills("stress, disk columns", "stress:disk_work", "stress_verify:verify", 8),
    _losses("stress", "stress:work", "stress_verify:verify", 40),
    _losses("stress, disk columns", "stress:disk_work", "stress_verify:verify", 30),
    _losses("disk rows", "disk_history:lives_work", "disk_history:lives_verify", 8, ("--calls-max", "900")),
    _seeds("scheduled lives", "-m tests.simulation.threads", 20, ("lives", "acknowledged", "switches")),
    _seeds(
        "sites, simulated",
        "-m tests.simulation.sites",
        40,
        ("transactions", "epochs", "conflicts", "power losses", "kills", "connections"),
        *("--batch", "40"),
    ),
    _seeds("node groups, simulated", "-m tests.simulation.nodes", 100, ("crash", "split", "pause")),
    *(
        Turn(
            f"kills of sites: {mode}",
            lambda seed, mode=mode: (
                *("-m", "tests.kills.sites", FOLDER, "--json"),
                *("--mode", mode, "--kills", "6", "--seed", str(seed)),
            ),
            ("kills", "acknowledged"),
        )
        for mode in sorted(MODES)
    ),
    *(
        Turn(
            f"kills of a node group: {name}",
            lambda seed, options=options: (
                *("-m", "tests.kills.nodes", FOLDER, "--seconds", "60", "--kills", "1000"),
                *(*options, "--seed", str(seed)),
            ),
            ("kills", "judgements", "acknowledged", "reads"),
        )
        for name, options in GROUPS
    ),
    *(
        Turn(
            f"kills of an ingest: {server}",
            lambda seed, server=server: (
                *("-m", "tests.ingest.killed_changes", FOLDER, "--server", server),
                *("--kills", "2", "--seed", str(seed)),
            ),
            ("changes", "kills"),
        )
        for server in ("MariaDB", "MySQL")
    ),
    Turn(
        "kills of a served store and of its replicas",
        lambda seed: (
            "-m",
            "tests.kills.peers",
            FOLDER,
            "--json",
            "--minutes",
            "0.7",
            "--kills",
            "2",
            "--seed",
            str(seed),
        ),
        ("commits", "acknowledged", "rows"),
    ),
    Turn(
        "kills of Spark's work",
        lambda seed: ("-m", "tests.kills.spark", FOLDER, "--rounds", "2", "--seed", str(seed)),
        ("rounds", "kills"),
    ),
    Turn(
        "strangers at every port",
        lambda seed: ("-m", "tests.replication.strangers", FOLDER, "--seconds", "40", "--seed", str(seed)),
        ("connected", "peers_let_in", "commits_beside"),
    ),
    Turn(
        "hostile clients of the MySQL port",
        lambda seed: ("-m", "tests.replication.mysql_hostile", FOLDER, "--seconds", "60", "--seed", str(seed)),
        ("connections", "logged_in", "commits"),
    ),
    Turn(
        "random scenarios",
        lambda seed: ("-m", "tests.conformance.random_scenarios", "--seed", str(seed * 200), "--count", "200"),
        ("scenarios", "equal"),
    ),
    *(
        Turn(
            f"fuzz: {name}",
            lambda seed, name=name: ("-m", "tests.fuzz", name, "--seed", str(seed), "--inputs", str(FUZZ_INPUTS)),
            ("inputs", "findings"),
        )
        for name in readers()
    ),
    Turn(
        "black box: programs",
        lambda seed: ("-m", "tests.blackbox", "programs", "--seed", str(seed * 1_000), "--steps", "20000"),
        ("programs", "steps"),
    ),
    *(
        Turn(
            f"black box: histories, {place}",
            lambda seed, place=place, count=count: (
                *("-m", "tests.blackbox", "histories", "--place", place, "--seed", str(seed)),
                *("--transactions", str(count), "--history", str(count), "--kills", "10"),
            ),
            ("transactions", "kills"),
        )
        for place, count in (("threads", 10_000), ("server", 3_000), ("group", 2_000))
    ),
    Turn(
        "black box: groups",
        lambda seed: ("-m", "tests.blackbox", "groups", "--seed", str(seed), "--events", "8"),
        ("transactions", "kill", "stop", "lose"),
    ),
    Turn(
        "steady work",
        lambda seed: ("-m", "tests.soak.steady", FOLDER, "--seconds", "60", "--seed", str(seed)),
        ("rounds", "changes"),
    ),
    Turn("whole enumerations", _whole, ("passed",)),
    Turn("tests marked soak", _marked, ("passed",)),
)
