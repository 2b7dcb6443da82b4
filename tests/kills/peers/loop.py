"""SIGKILL of a served store and of real replicas at random moments, under load; in the end all must be equal.

Three replicas follow one store at the same time: a MariaDB by position, a MariaDB by GTID, a MySQL by GTID. At moments
that the seed draws, the store or a replica is killed and started again (one time in four it is killed once more while
it starts), I/O threads are stopped and started, connections stall or are cut (`proxy.py`), columns are added, files are
rotated and purged. After each start of the store no replica may have received more than it has. Then the load ends and
all three catch up. Their rows must be those of the store, value by value, and what writers were told is durable must be
there. A replica may stop by itself only as docs/mysql.md says, and then goes on as it says there.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import tidemark as tm
from tests.ingest.rig import assert_same
from tests.kills.peers.proxy import Proxy
from tests.kills.peers.replicas import KINDS, NET_TIMEOUT_S, PATIENCE_S, Replica, ahead_of
from tests.kills.peers.store import LOAD, MODE, SERVER_ID, STORE_OPTIONS, run_store
from tests.kills.sites.judge import Judge, Ledger
from tests.kills.sites.loop import ANSWER_SECONDS, Life, hear, refuse_existing
from tests.kills.sites.modes import MODES, TABLES
from tests.kills.sites.site import get_ready
from tests.replication.mariadb_rig import running_server
from tests.replication.mysql_port_rig import follow
from tests.replication.mysql_rig import MySqlServer, running_mysql
from tidemark.engine.base.clock import SystemClock
from tidemark.recovery.crash_harness.program import Violation

STORE = "store"
LOOK_S = 1.0
ATTENTION_S = 0.1
SHOWN_EVERY_S = 10.0
EARLY_SHARE = 0.25
EARLY_S_MAX = {STORE: 0.4, **dict.fromkeys(KINDS, 1.5)}
DOWN_S_MAX = 2.0
IO_STOPPED_S_MAX = 4.0
STALL_S_MAX = 10.0
# Seconds from one to the next, on the average; of stalls and cuts: of each replica.
EVERY_S = {"stall": 30.0, "cut": 15.0, "io": 20.0, "alter": 25.0, "rotate": 30.0, "purge": 10.0}
ALTERS_MAX = 30
SILENCE_S = 1.5 * NET_TIMEOUT_S  # longer than the time after which replicas ask for heartbeats
# A replica that catches up may be silent for so long, on a machine with other work.
SILENT_S_MAX = 180.0


@dataclass(frozen=True)
class Plan:
    """What to do. rate: commits a second at most. kills: of each replica and of the store."""

    seconds: float
    rate: int
    kills: int
    seed: int
    defect: str = ""


@dataclass
class Report:
    """Results. repeated: transactions that a MariaDB committed, was killed, and applied again, by replica. resumed: how
    often one had lost its connection in the middle of a statement, and was told to go on.
    """

    seed: int
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys((STORE, *KINDS), 0))
    early: int = 0
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVERY_S, 0))
    purged: int = 0
    repeated: dict[str, int] = field(default_factory=dict)
    resumed: dict[str, int] = field(default_factory=dict)
    commits: int = 0
    commits_a_second: float = 0.0
    acknowledged: int = 0
    rows: int = 0
    catch_up_s: float = 0.0
    seconds: float = 0.0


def drawn(plan: Plan, rng: random.Random) -> list[tuple[float, str, str]]:
    """Return when what happens to whom."""

    def moments(count: int) -> list[float]:
        return [rng.uniform(0, plan.seconds) for _ in range(count)]

    found = [(at, "kill", name) for name in (STORE, *KINDS) for at in moments(plan.kills)]
    for action, every_s in EVERY_S.items():
        count = max(1, round(plan.seconds / every_s))
        if action in ("stall", "cut", "io"):
            found += [(at, action, name) for name in KINDS for at in moments(count)]
        else:
            found += [(at, action, STORE) for at in moments(min(count, ALTERS_MAX) if action == "alter" else count)]
    return found


class Loop:
    """One run."""

    def __init__(self, directory: str, plan: Plan, say: Callable[[str], None] | None) -> None:
        self.directory = f"{directory}/store"
        refuse_existing(self.directory)
        self.plan = plan
        self.say = say
        self.rng = random.Random(plan.seed)
        self.clock = SystemClock()
        self.report = Report(plan.seed)
        self.ledger = Ledger()
        self.replicas: dict[str, Replica] = {}
        self.life: Life | None = None
        self.number = plan.seed % 997
        self.counted = 0  # commits of this life
        self.altered = 0
        self.turns: list[tuple[float, int, str, str]] = []
        self.turn = 0
        self.next_look = self.began = 0.0
        self.proxy: Proxy

    # --- what goes on meanwhile -------------------------------------------------------------------
    def pass_time(self, until: float, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Hear the store's writers and look at the replicas, until a moment or until it is enough."""
        while not is_enough():
            if self.clock.monotonic() >= self.next_look:
                self.look()
            left = min(until, self.next_look) - self.clock.monotonic()
            self.hear(min(max(0.0, left), ATTENTION_S))
            if self.clock.monotonic() >= until:
                return

    def hear(self, seconds: float) -> None:
        if self.life is None or self.life.is_over:
            self.clock.sleep(seconds)
        else:
            hear((self.life,), seconds)

    def look(self) -> None:
        """Look at all that is up. Raises: Violation."""
        self.next_look = self.clock.monotonic() + LOOK_S
        for each in self.replicas.values():
            if each.answers():
                each.look()
        if self.life is not None:
            self.counted = int(self.ask("count")["commits"])

    def ask(self, word: str, value: object = None) -> dict[str, Any]:
        """Send a line to the store and wait for the answer."""
        assert self.life is not None
        self.life.send(word, value)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Return the store's answer to the oldest line."""
        assert self.life is not None
        life = self.life
        hear((life,), ANSWER_SECONDS, lambda: life.has_answer)
        return life.answer()

    def later(self, seconds: float, action: str, name: str) -> None:
        """Do something after so many seconds."""
        self.turn += 1
        heapq.heappush(self.turns, (self.clock.monotonic() - self.began + seconds, self.turn, action, name))

    # --- the store --------------------------------------------------------------------------------
    def _launch_store(self) -> None:
        self.number += 1
        given = (self.directory, self.number, self.plan.rate, self.plan.defect)
        self.life = Life(SERVER_ID, self.ledger, run_store, *given)
        self.life.send("open")

    def start_store(self) -> None:
        """Start the store, let the replicas connect to it, and write. Raises: Violation if one is ahead of it."""
        if self.life is not None:
            return
        self._launch_store()
        opened = self.answer()
        files = [(name, size) for name, size in opened["files"]]
        for name, replica in self.replicas.items():
            if replica.is_up:
                replica.look()
            if said := ahead_of(replica.read, files):
                raise Violation(f"{name} is ahead of the store: {said}")
            # Until now they had no way to this life of the store.
            self.proxy.target(name, ("127.0.0.1", opened["ports"][replica.kind.flavor]))
        self.ask("write")

    def kill_store(self) -> None:
        assert self.life is not None
        self.life.kill()
        self.life = None
        self.report.commits += self.counted
        self.counted = 0
        self.report.kills[STORE] += 1

    # --- actions ----------------------------------------------------------------------------------
    def do_kill(self, name: str) -> None:
        if self.report.kills[name] >= self.plan.kills:  # early ones were on top
            return
        if name == STORE:
            self.start_store()
            self.kill_store()
        else:
            self.up(name).kill()
            self.report.kills[name] += 1
        self.later(self.rng.uniform(0, DOWN_S_MAX), "start", name)

    def do_start(self, name: str) -> None:
        is_early = self.rng.random() < EARLY_SHARE
        early_s = self.rng.uniform(0, EARLY_S_MAX[name])
        if name == STORE:
            if self.life is None and is_early and self.report.kills[STORE] < self.plan.kills:
                self._open_and_kill(early_s)
            self.start_store()
        elif not self.replicas[name].is_launched:
            self.replicas[name].launch()
            if is_early:
                self.later(early_s, "early", name)

    def _open_and_kill(self, seconds: float) -> None:
        """Kill the store in the first moments of a life, while it restarts."""
        self._launch_store()
        self.hear(seconds)
        self.kill_store()
        self.report.early += 1

    def do_early(self, name: str) -> None:
        replica = self.replicas[name]
        if replica.is_launched and not replica.is_up and self.report.kills[name] < self.plan.kills:
            replica.kill()
            self.report.kills[name] += 1
            self.report.early += 1
            self.later(self.rng.uniform(0, DOWN_S_MAX), "start", name)

    def up(self, name: str) -> Replica:
        """Return a replica when it answers. Raises: Violation."""
        replica = self.replicas[name]
        if not replica.is_launched:
            replica.launch()
        self.pass_time(self.clock.monotonic() + PATIENCE_S, replica.answers)
        if not replica.answers():
            raise Violation(f"{name} does not answer {PATIENCE_S} s after its start")
        return replica

    def do_io(self, name: str) -> None:
        self.up(name).stop_io(True)
        self.later(self.rng.uniform(0, IO_STOPPED_S_MAX), "go_on", name)

    def do_go_on(self, name: str) -> None:
        replica = self.up(name)
        if replica.is_io_stopped:
            replica.stop_io(False)

    def do_stall(self, name: str) -> None:
        self.proxy.stall(name, self.rng.uniform(0.1, STALL_S_MAX))

    def do_cut(self, name: str) -> None:
        self.proxy.cut(name)

    def do_alter(self, _: str) -> None:
        self.start_store()
        self.altered += 1
        self.ask("alter", self.altered)

    def do_rotate(self, _: str) -> None:
        self.start_store()
        self.ask("rotate")

    def do_purge(self, _: str) -> None:
        """Purge the files that no replica needs, as a user of the store does who looks at all of them."""
        self.start_store()
        needed = [each.applied for each in self.replicas.values()]
        if all(needed):
            self.report.purged += len(self.ask("purge", min(each[0] for each in needed if each))["gone"])

    # --- the run ----------------------------------------------------------------------------------
    def run(self) -> Report:
        """Do all of it. Raises: Violation."""
        get_ready()
        with ExitStack() as stack:
            self.proxy = Proxy(tuple(KINDS))  # while there are no threads
            stack.callback(self.proxy.stop)
            stack.callback(self._end_store)
            for name, kind in KINDS.items():
                running: Any = running_mysql if issubclass(kind.kind, MySqlServer) else running_server
                server = stack.enter_context(running(kind.kind))
                self.replicas[name] = Replica(name, kind, server)
            for name, replica in self.replicas.items():
                follow(replica.server, self.proxy.addresses[name], **replica.kind.given)
            self.start_store()
            self._disturb()
            self._catch_up()
            self._compare()
        return self.report

    def _disturb(self) -> None:
        self.began = self.clock.monotonic()
        for at, action, name in drawn(self.plan, self.rng):
            self.later(at, action, name)
        shown = self.began
        while self.turns:
            at, _, action, name = heapq.heappop(self.turns)
            self.pass_time(self.began + at)
            getattr(self, f"do_{action}")(name)
            if action in self.report.done:
                self.report.done[action] += 1
            shown = self.show(shown)

    def show(self, shown: float) -> float:
        """Say how far all are, if they were shown some time ago; return when they were shown last."""
        if self.clock.monotonic() - shown <= SHOWN_EVERY_S:
            return shown
        if self.say is not None:
            places = ", ".join(f"{each.name} {each.applied} of {each.read}" for each in self.replicas.values())
            seconds = self.clock.monotonic() - self.began
            total = self.report.commits + self.counted
            self.say(f"{seconds:.0f} s: {total} commits, kills {self.report.kills}; {places}")
        return self.clock.monotonic()

    def _catch_up(self) -> None:
        """End the load, and wait until all have all of it."""
        self.start_store()
        self.look()
        self.report.seconds = self.clock.monotonic() - self.began
        self.report.commits += self.counted
        self.report.commits_a_second = self.report.commits / self.report.seconds
        self.ask("rest")
        began = self.clock.monotonic()
        for name in self.replicas:
            self.proxy.stall(name, 0)
            self.do_go_on(name)
        self._await_end()
        self.report.catch_up_s = self.clock.monotonic() - began
        self.pass_time(self.clock.monotonic() + SILENCE_S)  # now heartbeats say where they are
        self.ask("mark", 1)
        self._await_end()

    def _await_end(self) -> None:
        """Wait until all replicas have read and applied all, and say so. Raises: Violation."""
        file, position = self.ask("end")["end"]
        end, shown = (file, position), self.clock.monotonic()
        for name, replica in self.replicas.items():
            seen, silent_from = None, self.clock.monotonic()
            while (replica.read, replica.applied) != (end, end):
                if replica.read is not None and replica.read > end:
                    raise Violation(f"{name} says that it has read up to {replica.read}, and the end is {end}")
                if (replica.read, replica.applied) != seen:
                    seen, silent_from = (replica.read, replica.applied), self.clock.monotonic()
                elif self.clock.monotonic() - silent_from > SILENT_S_MAX:
                    raise Violation(f"{name} has read and applied up to {seen}, and the end is {end}: {replica.status}")
                self.pass_time(self.clock.monotonic() + LOOK_S)
                shown = self.show(shown)
            self.report.repeated[name], self.report.resumed[name] = replica.repeated, replica.resumed

    def _compare(self) -> None:
        """Compare all rows of all tables."""
        self.ask("close")
        self._end_store()
        tables = (*TABLES, LOAD)
        with tm.open(self.directory, create=False, server_id=SERVER_ID, **STORE_OPTIONS) as db:
            for name, replica in self.replicas.items():
                there = {row["TABLE_NAME"] for row in replica.ask(_TABLES)}
                if there != {each.partition(".")[2] for each in tables}:
                    raise Violation(f"{name} has the tables {sorted(there)}")
                for table in tables:
                    try:
                        assert_same(db, replica.server, table)
                    except AssertionError as error:
                        raise Violation(f"{table} of {name} differs: {error}") from error
            rows = {table: [tuple(row) for row in db[table].scan()] for table in tables}
            problems = Judge(MODES[MODE], {}).contents(rows, self.ledger)
            if problems:
                raise Violation("; ".join(problems))
        self.report.rows = sum(map(len, rows.values()))
        self.report.acknowledged = len(self.ledger.paid)

    def _end_store(self) -> None:
        if self.life is not None:
            life, self.life = self.life, None
            life.kill()


_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'shop'"


def kill_loop(directory: str, plan: Plan, say: Callable[[str], None] | None = None) -> Report:
    """Run the plan, with the store in a directory. Raises: Violation, with seed and moment; the store is left."""
    loop = Loop(directory, plan, say)
    try:
        return loop.run()
    except Violation as error:
        at = loop.clock.monotonic() - loop.began if loop.began else 0.0
        raise Violation(f"seed {plan.seed}, at {at:.1f} s, kills {loop.report.kills}: {error}") from error
