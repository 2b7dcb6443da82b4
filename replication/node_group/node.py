"""A node of a group, as a series of lives. A life opens the node's store, or joins the group; when the group has
continued without the node, the next life begins.

How a life begins depends on the directory:

- The record says that the node is a member, and the store can be opened: it is opened to the end of its log, frozen,
  and the node stands as a candidate like the others.
- The record says that the node is a member, but the store is missing or damaged: the rows are lost; the node joins, and
  all rows are copied.
- The record says that the node is not a member: the store rolls back to X, and then catches up with the primary.
- There is no record: the node asks the others for the UUID of their store, and all rows are copied. A node that is to
  found the group does so if no other knows one: its store, created if there is none, becomes the group's (`search.py`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import (
    Damaged,
    Error,
    InvariantBroken,
    NotPrimary,
    PeerRefused,
    Rejected,
    StorageFull,
    StoreClosed,
)
from tidemark.replication.node_group.carrier import Carrier, Secrets
from tidemark.replication.node_group.configuration import GroupConfiguration
from tidemark.replication.node_group.life import Ending, Life
from tidemark.replication.node_group.party import NodeParty, OptionValue
from tidemark.replication.node_group.search import Search
from tidemark.replication.node_group.store_thread import SPACE_SECONDS
from tidemark.replication.node_group.view import Member, Record
from tidemark.replication.node_group.view_file import ViewFile, read_record

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.files.protocol import Files
    from tidemark.replication.node_group.conversation import Conversation
    from tidemark.replication.node_group.store_thread import Home, NodeStore

_log = logging.getLogger("tidemark.node")

PAUSE_SECONDS = 0.2
INCARNATIONS_SINCE_US = 1_767_225_600_000_000  # 2026-01-01
LEAVE_SECONDS = 5.0


class GroupNode:
    """A node of a group, from `start` to `stop`; any thread may make the other calls."""

    def __init__(
        self,
        home: Home,
        files: Files,
        number: int,
        configuration: GroupConfiguration,
        listen: tuple[str, int],
        secrets: Secrets,
        clock: Clock,
        is_founder: bool,
        is_alone: bool,
        client_address_of: Callable[[bytes], str],
        stuck: Callable[[], None],
        options: Mapping[str, OptionValue] | None = None,
    ) -> None:
        """files: the node's own directory, which holds its record. is_founder: found the group if no other process
        knows one. is_alone: found it also if some do not answer, for which an operator vouches. client_address_of:
        returns the address at which clients reach this node; called with the UUID of its store. stuck: see `Life`.
        options: those that must be equal at all nodes of the group.
        """
        self._home = home
        self._files = files
        self.number = number
        self._configuration = configuration
        self._listen = listen
        self._secrets = secrets
        self._clock = clock
        self._is_founder = is_founder
        self._is_alone = is_alone
        self._founds = False  # this life founds the group; other nodes then wait for its first view
        self._client_address_of = client_address_of
        self._stuck = stuck
        self._options = dict(options or {})
        self._search: Search | None = None  # for a group; ended after this node had found or founded one
        self._incarnation = 0
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self.life: Life | None = None
        self._newest: Life | None = None  # including one that does not run yet
        self.error: Error | None = None
        self.ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidemark-node", daemon=True)

    def start(self) -> None:
        """Start the node; `error` is set if it cannot run, or cannot continue."""
        self._thread.start()

    def stop(self, leave: bool = False) -> None:
        """Stop the node and close its store. leave: first ask the group to continue without this node, which it does
        without a wait for leases; otherwise the other nodes must detect the silence. A second call does nothing.
        """
        with self._turn:
            self._stop.set()
            life = self.life
        if life is not None:
            if leave and len(life.view()[0].numbers) > 1:
                life.leave()
                life.ended.wait(LEAVE_SECONDS)
            if not life.ended.is_set():
                life.close_store()
            life.end()
        if self._thread.ident is not None:
            self._thread.join()

    # --- lives -------------------------------------------------------------------------------------
    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                # A node that has handed over, because its disk is full, has left too, and joins again.
                if self._live() is Ending.LEFT and self._stop.is_set():
                    return
        except Error as error:
            if not (isinstance(error, StoreClosed) and self._stop.is_set()):
                _log.error("the node cannot continue: %s", error.message)
                self.error = error
        except Exception as error:
            self.error = InvariantBroken(f"the node failed: {error!r}; report this")
            raise
        finally:
            self.ended.set()

    def _live(self) -> Ending:
        with closing(self._begun()) as view_file:
            self._check_record(view_file)
            life = self._life(view_file)
            with self._turn:
                if self._stop.is_set():
                    life.discard()
                    return Ending.STOPPED
                self.life = life
            try:
                ending = life.run(self._founds)
            finally:
                self.life = None
            if ending is Ending.BEHIND:
                life.forget_ready()
            elif ending is Ending.UNFIT:
                life.forget_rows()
                self._stop.wait(PAUSE_SECONDS)
            return ending

    def _begun(self) -> ViewFile:
        """Return the record, which is written if there was none, and note whether this life founds the group.

        A node that founds, or that has founded a group and is alone in it, first asks the others whether they know
        another group.
        """
        self._founds = False
        record = read_record(self._files)
        others = self._configuration.peers.keys() - {self.number}
        is_new = record is None or not record.view.number
        is_lone = record is not None and record.view.number == 1 and record.view.numbers == {self.number}
        is_asking = record is None or (self._is_founder and is_new) or (is_lone and bool(others))
        if not is_asking:
            assert record is not None
            return ViewFile(self._files, record.store)
        own = bytes(16) if record is None else record.store
        carrier = self._carrier(own, 0 if record is None else record.view.number, _nothing, _nothing, _nothing)
        self._search = search = Search(carrier, self.number, self._configuration.peers, own, self._clock)
        try:
            if not is_new:
                search.check_lone()
                store: bytes | None = own
            elif self._is_founder:
                store = search.store_unless_founding(self._is_alone, self._stop)
                self._founds = store is None
            else:
                store = search.group_store(self._stop)
            if store is None:
                store = own if record is not None else self._made_store()
                search.founded(store, self._incarnation)
            view_file = ViewFile(self._files, store)
            if view_file.record is None:
                view_file.write(Record(store, self.number, self._configuration.first_view()))
            return view_file
        finally:
            search.close()

    def _life(self, view_file: ViewFile) -> Life:
        """Create a life, with its store open if the record says that its rows are usable, or if it founds the group."""
        record = view_file.record
        assert record is not None
        counts = record.is_member or record.joins == record.view.number + 1 or not record.view.number
        while True:
            life = self._made(view_file)
            if not counts or (not record.view.number and not self._founds):
                return life
            try:
                life.open_store(False)
                return life
            except Damaged as error:
                life.discard()
                _log.warning("the rows of this node can no longer be used, all rows are copied: %s", error.message)
                life.forget_rows()
                counts = False
            except StorageFull as error:
                life.discard()
                if not record.view.number:
                    raise
                _log.warning("the store of this node cannot be opened yet: %s", error.message)
                if self._stop.wait(SPACE_SECONDS):
                    raise StoreClosed("the node was stopped before its disk had room") from error
            except BaseException:
                life.discard()
                raise

    def _made(self, view_file: ViewFile) -> Life:
        record = view_file.record
        assert record is not None
        configuration = self._configuration
        # Eighths of a second since 2026: higher at each start, and 32 bits hold them for 17 years.
        eighths = (self._clock.wall_us() - INCARNATIONS_SINCE_US) // 125_000
        self._incarnation = max(self._incarnation + 1, eighths)
        peers = frozenset(configuration.members)
        self._newest = Life(
            self._home,
            view_file,
            Member(self.number, self._client_address_of(record.store)),
            configuration.times,
            self._clock,
            self._incarnation,
            peers,
            lambda life: self._carrier(record.store, record.view.number, life.received, life.gone, life.copies.serve),
            self._stuck,
        )
        return self._newest

    def _check_record(self, view_file: ViewFile) -> None:
        record = view_file.record
        assert record is not None
        if record.node != self.number:
            raise Rejected(
                f"this directory belongs to node {record.node}, not to node {self.number}; give the number"
                f" {record.node}, or the directory of node {self.number}"
            )

    def _made_store(self) -> bytes:
        """Create the store of a group that this node founds, unless there is one; return its UUID."""
        with closing(self._home.open(True)) as node:
            return node.identity[0]

    def _carrier(
        self,
        store: bytes,
        view: int,
        received: Callable[[int, bytes, Any], None],
        gone: Callable[[int], None],
        serve: Callable[[Conversation], None],
    ) -> Carrier:
        configuration, number = self._configuration, self.number
        own = NodeParty(store.hex(), number, self._incarnation, options=self._options, view=view, founds=self._founds)
        return Carrier(own, self._listen, configuration.peers, self._secrets, self._clock, received, gone, serve)

    # --- questions of other threads ------------------------------------------------------------------
    @property
    def store(self) -> NodeStore | None:
        """The open store, None while there is none."""
        life = self.life
        return None if life is None else life.node

    @property
    def completed_epoch(self) -> int:
        """The newest epoch that is known here to be complete at all members; no node ever rolls it back."""
        life = self._newest
        return 0 if life is None else life.machine.journal.record.epoch

    def living(self) -> Life:
        """Return the present life. Raises: NotPrimary between two lives."""
        life = self.life
        if life is None:
            raise NotPrimary("this node is joining its group; ask another")
        return life

    def serves(self) -> bool:
        """Return whether this node serves reads, and transactions if it is the primary."""
        life = self.life
        return life is not None and life.serves()

    @property
    def refusal(self) -> PeerRefused | None:
        """Why no link to another node is up, if a node refuses this one or is refused; otherwise None."""
        life = self.life
        if life is not None:
            return life.carrier.refusal()
        return None if self._search is None else self._search.refusal

    def status(self) -> dict[str, Any]:
        """Return the group as this node knows it, and the state of its links; the keys are always the same."""
        life, refusal = self.life, self.refusal
        refused = "" if refusal is None else refusal.message
        found: dict[str, Any] = {
            "node": self.number,
            "state": "joining",
            "view": 0,
            "members": [],
            "primary": 0,
            "is_leading": False,
            "refused": refused,
            "disk_full": "" if life is None else life.thread.disk_full,
            "placement": self._configuration.placement.to_dict(_fragments(None if life is None else life.node)),
            "lag": {},
            "links": {},
            "copies": {},
        }
        if life is None:
            return found
        view, is_open = life.view()
        machine = life.machine
        return {
            **found,
            "state": "open" if is_open else "member" if machine.is_member else "joining",
            "view": view.number,
            "members": sorted(view.numbers),
            "primary": view.primary,
            "is_leading": life.is_leading,
            "refused": machine.refusal or refused,
            "lag": life.lags(),
            "links": life.carrier.status(),
            "copies": {node: progress.to_dict() for node, progress in dict(life.copies.copies).items()},
        }


def _fragments(node: NodeStore | None) -> list[tuple[int, int]]:
    """Return the fragments of all tables of an open store, as (table, number)."""
    tables = [] if node is None else list(node.store.tables.by_id.values())
    return [(table.table_id, number) for table in tables for number in list(table.by_number)]


def _nothing(*_: Any) -> None:
    """The callback of a carrier that only makes calls."""
