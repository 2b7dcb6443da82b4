"""The process that gets killed: one site, which serves its binlog, follows its sources, and writes.

Lines come through one pipe and go through another, each in one write: lines that were written outlive the process.

in:  `open {"1": port, ...}`  `follow {...}`  `write`  `rest`  `mark NUMBER`  `wait [[site, number], ...]`  `state`
out: `done {...}`, one for each line that came in, `paid ...` for each transaction, `failed ...`
"""

from __future__ import annotations

import json
import logging
import threading
from multiprocessing.connection import Connection
from typing import Any

from tests.kills.sites.modes import MODES, TABLES
from tests.kills.sites.writers import Writer, has_marks, mark, prepare
from tidemark.engine.base.errors import Error, PeerError
from tidemark.engine.jit.registry import compile_declared
from tidemark.recovery.crash_harness.program import resolve
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS

HOST = "127.0.0.1"
SECRET = b"secret of the kill loop"
WRITERS = 2
TIMES_BITS = 10  # counts the starts of writers in one life
POLL_SECONDS = 0.005
WAIT_SECONDS = 60.0
SERVE_TRIES = 50
SERVE_PAUSE_SECONDS = 0.1


class Site:
    """One life of one site."""

    def __init__(self, mode: str, server_id: int, directory: str, life: int, lines: Connection) -> None:
        self.mode = MODES[mode]
        self.role = self.mode.site(server_id)
        self.directory = directory
        self.life = life
        self.times = 0
        self.writers: list[Writer] = []
        self.channels: list[Any] = []
        self._turn = threading.Lock()
        self._pause = threading.Event()
        self._lines = lines
        self.db: Any = None

    def say(self, word: str, value: object = None) -> None:
        """Send one line."""
        text = word if value is None else f"{word} {value if isinstance(value, str) else json.dumps(value)}"
        with self._turn:
            self._lines.send_bytes(text.encode())

    def report(self, text: str) -> None:
        """Report a transaction that is durable."""
        self.say("paid", text)

    def run(self, commands: Connection) -> None:
        """Execute each line that comes, for as long as there are lines."""
        while True:
            word, _, rest = commands.recv_bytes().decode().partition(" ")
            self.say("done", getattr(self, f"do_{word}")(json.loads(rest) if rest else None) or {})

    def do_open(self, ports: dict[str, int]) -> dict[str, Any]:
        """Restart the store, serve, follow."""
        role, options = self.role, dict(self.role.options)
        self.db = resolve("tidemark:open")(self.directory, server_id=role.server_id, **options)
        shown = {"applied": self.applied()}
        prepare(self.db, role)
        serving = self._serve(ports.get(str(role.server_id), 0))
        self.follow(ports)
        return {**shown, "port": serving.address[1]}

    def _serve(self, port: int) -> Any:
        for _ in range(SERVE_TRIES):
            try:
                return resolve("tidemark:serve")(self.db, f"{HOST}:{port}", secret=SECRET)
            except PeerError as error:
                refused = error  # the killed process may not be gone completely
                self._pause.wait(SERVE_PAUSE_SECONDS)
        raise refused

    def follow(self, ports: dict[str, int]) -> None:
        """Start channels to the sources that have a known port and no channel yet."""
        for source in self.role.sources[len(self.channels) :]:
            if str(source) in ports:
                made = resolve("tidemark:Channel")(
                    f"{HOST}:{ports[str(source)]}", self.db, name=f"from{source}", secret=SECRET, skip_start=False
                )
                self.channels.append(made)

    def do_follow(self, ports: dict[str, int]) -> None:
        """Follow the sources that had no port when this life began."""
        self.follow(ports)

    def do_write(self, _: None) -> None:
        """Start to write."""
        if self.role.writes:
            self.times += 1
            label = self.life << TIMES_BITS | self.times
            self.writers = [
                Writer(self.db, self.role.server_id, each, label, self.mode.by_stamp, self.report)
                for each in range(WRITERS)
            ]
            for writer in self.writers:
                writer.start()

    def do_rest(self, _: None) -> None:
        """Stop writing. Raises: the error that ended a writer."""
        for writer in self.writers:
            writer.stop()
        failed = [each.failed for each in self.writers if each.failed is not None]
        self.writers = []
        if failed:
            raise failed[0]

    def do_mark(self, number: int) -> None:
        """Write a mark after everything written so far."""
        mark(self.db, self.role.server_id, number)
        self.db.sync()

    def do_wait(self, marks: list[list[int]]) -> dict[str, Any]:
        """Return when everything before these marks is here; `lacks` says why it never will be."""
        wanted = [(site, number) for site, number in marks]
        for _ in range(int(WAIT_SECONDS / POLL_SECONDS)):
            if has_marks(self.db, wanted):
                return {}
            if any(_has_failed(each) for each in self.channels):
                break
            self._pause.wait(POLL_SECONDS)
        return {"lacks": json.dumps([each.status() for each in self.channels], default=str)}

    def applied(self) -> dict[str, int]:
        """Return epochs by server, as `ndb_apply_status` has them."""
        if NDB_APPLY_STATUS not in self.db.tables(system=True):
            return {}
        return {str(row.server_id): row.epoch for row in self.db[NDB_APPLY_STATUS].scan()}

    def do_state(self, _: None) -> dict[str, Any]:
        """Return all rows, positions, and the end of the binlog after everything is in it."""
        db = self.db
        db.sync()
        db.binlog.write_closed_epochs()
        end = db.binlog.durable_end()
        names = [each for name in TABLES for each in (name, f"{name}$EX") if each in db]
        rows = {name: sorted(list(row) for row in db[name].scan()) for name in names}
        variables = db.status().get("replication", {})
        return {"rows": rows, "applied": self.applied(), "end": list(end), "replication": _plain(variables)}


def _has_failed(channel: Any) -> bool:
    shown = channel.status()
    return "failed" in (shown["receiver"]["state"], shown["applier"]["state"])


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def get_ready() -> None:
    """Import everything and load compiled code."""
    for name in ("tidemark:open", "tidemark:serve", "tidemark:Channel"):
        resolve(name)
    compile_declared()


def run_site(mode: str, server_id: int, directory: str, life: int, commands: Connection, lines: Connection) -> None:
    """Run one life, in a process of its own."""
    run_life(Site(mode, server_id, directory, life, lines), commands)


def run_life(site: Site, commands: Connection) -> None:
    """Execute lines until the process is killed, or fails and says why."""
    logging.getLogger("tidemark").setLevel(logging.ERROR)  # broken links are normal here
    try:
        site.run(commands)
    except Error as error:
        site.say("failed", f"{type(error).__name__}: {error}")
        raise
