"""Links of a client: to the node that executes transactions and to those that serve reads, wherever they are now.

A link serves one call, or one transaction, at a time; those at rest are kept for the next one. Which nodes there are is
asked of any of them, again whenever one breaks or says that it is not the one: until `timeout_ms` is over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import FrameRejected, NotPrimary, PeerError, PeerRefused, PeerTimeout, PrimaryLost
from tidemark.replication.calls.conversation import CallLink
from tidemark.replication.wire.wire import HANDSHAKE_SECONDS, TlsContext

_log = logging.getLogger("tidemark.remote")

T = TypeVar("T")
Address = tuple[str, int]
SPARE_LINKS = 8
MEMBERS_MAX = 64  # more than a group can have
PAUSE_SECONDS = 0.02
SECONDS_MAX = 86_400.0  # of one answer; a poll counts milliseconds in 32 bits


class Links:
    """See the module. Share it between threads."""

    def __init__(
        self, seeds: Iterable[Address], secret: bytes, tls: TlsContext | None, clock: Clock, timeout_ms: int
    ) -> None:
        """Nothing is connected yet."""
        self.clock = clock
        self._seeds = list(seeds)
        self._secret = secret
        self._tls = tls
        self._timeout_s = timeout_ms / 1_000
        self._attempt = threading.local()  # of `until`: the deadline of what this thread asks for
        self._mutex = threading.Lock()
        self.spares: dict[Address, list[CallLink]] = {}
        self._store: str | None = None  # all nodes are copies of this one
        self._members: list[Address] = []
        self._told: list[Address] = []  # of the newest view: asked again although they did not answer
        self._primary: Address | None = None
        self._is_closed = False

    # --- links -----------------------------------------------------------------------------------
    def take(self, address: Address) -> CallLink:
        """A link to one node, to be given back. Raises: PeerError."""
        with self._mutex:
            spares = self.spares.get(address)
            if spares:
                return spares.pop()
        link = CallLink(address, self._secret, self._tls, self.clock, min(HANDSHAKE_SECONDS, self._rest_s()))
        if self._store not in (None, link.store):
            link.close()
            raise PeerRefused(f"at {address[0]}:{address[1]} there is another store", store=link.store)
        self._store = link.store
        return link

    def give(self, address: Address, link: CallLink) -> None:
        """Give a link back that nothing is open on."""
        with self._mutex:
            spares = self.spares.setdefault(address, [])
            if not link.is_broken and not self._is_closed and len(spares) < SPARE_LINKS:
                spares.append(link)
                return
        link.close()

    def close(self) -> None:
        """Close the links at rest; those in use close when they are given back."""
        with self._mutex:
            self._is_closed = True
            links = [link for spares in self.spares.values() for link in spares]
            self.spares.clear()
        for link in links:
            link.close()

    # --- who is where ----------------------------------------------------------------------------
    def primary(self) -> Address:
        """Where transactions are executed. Raises: PeerTimeout if nobody has said so in time."""
        return self.until(self.known_primary)

    def known_primary(self) -> Address:
        """`primary`, asked once. Raises: NotPrimary, PeerError."""
        if self._primary is None:
            self.learn()
        if self._primary is None:
            raise NotPrimary("no node executes transactions now; the group may be choosing one")
        return self._primary

    def learn(self) -> None:
        """Ask all for the view; the newest answer counts. Raises: PeerError, NotPrimary if nobody knows one."""
        newest = -1
        last: PeerError | NotPrimary = PeerError("no address is known")
        for address in dict.fromkeys([*self._members, *self._told, *self._seeds]):
            try:
                told = self._where(address)
            except (PeerError, NotPrimary) as error:  # NotPrimary: a node that opens its store knows no view yet
                last = error
                continue
            if told["view"] > newest:
                newest = told["view"]
                self._primary = told["primary"]
                self._members = list(told["members"])
                self._told = list(told["members"])
        if newest < 0:
            raise last

    def _where(self, address: Address) -> dict[str, Any]:
        link = self.take(address)
        try:
            told = link.ask(["where"], self._rest_s())
        finally:
            self.give(address, link)
        if not isinstance(told, dict) or not _is_view(told):
            raise FrameRejected(f"at {address[0]}:{address[1]} nothing tells which nodes there are")
        return told

    def forget(self, address: Address) -> None:
        """A node is gone, or is not what it was: its links are closed, and who is who is asked again."""
        with self._mutex:
            links = self.spares.pop(address, [])
        for link in links:
            link.close()
        if self._primary == address:
            self._primary = None

    def until(self, work: Callable[[], T]) -> T:
        """What `work` gives; again while it raises PeerError, NotPrimary or PrimaryLost, until time is over. Raises:
        PeerTimeout then.
        """
        before = getattr(self._attempt, "deadline", None)
        deadline = self.clock.monotonic() + self._timeout_s if before is None else before
        self._attempt.deadline = deadline
        why: PeerError | NotPrimary | PrimaryLost | None = None
        try:
            while True:
                try:
                    return work()
                except (PeerError, NotPrimary, PrimaryLost) as error:
                    if isinstance(error, PeerRefused):
                        raise
                    if why is None or not isinstance(error, PeerTimeout):
                        why = error  # the last attempts end for want of time, which says nothing
                    if self.clock.monotonic() >= deadline:
                        raise PeerTimeout(f"no node answered within {self._timeout_s:g} s: {why.message}") from why
                    self.clock.sleep(PAUSE_SECONDS)
        finally:
            self._attempt.deadline = before

    def _rest_s(self) -> float:
        """Seconds of this thread's attempt that are left: above 0, and no more than a socket takes."""
        deadline = getattr(self._attempt, "deadline", None)
        rest_s = self._timeout_s if deadline is None else deadline - self.clock.monotonic()
        return min(max(0.001, rest_s), SECONDS_MAX)

    # --- calls that may be made again ------------------------------------------------------------
    def read(self, what: Any) -> Any:
        """The answer of any node to a call that changes nothing. Raises: what it raised; PeerTimeout."""
        return self.until(lambda: self._ask(self._reader(), what))

    def read_on(self, work: Callable[[Address, CallLink], T]) -> T:
        """What `work` gives with a link to a node that serves reads, which is its own then; see `read`."""

        def attempt() -> T:
            address = self._reader()
            link = self.link(address)
            try:
                return work(address, link)
            except BaseException as error:
                self.give(address, link)
                if isinstance(error, PeerError):
                    self.forget(address)
                raise

        return self.until(attempt)

    def ask_primary(self, what: Any) -> Any:
        """The answer of the primary to a call that does the same when it is made twice. Raises as `read`."""
        return self.until(lambda: self._ask(self.known_primary(), what))

    def _reader(self) -> Address:
        if not self._members:
            self.learn()
        return self._members[0] if self._members else self.known_primary()

    def link(self, address: Address) -> CallLink:
        """`take`; who cannot be reached is asked last from now on."""
        try:
            return self.take(address)
        except PeerError:
            self._gone(address)
            raise

    def _gone(self, address: Address) -> None:
        """Ask others first from now on."""
        self.forget(address)
        self._members = [each for each in self._members if each != address]

    def _ask(self, address: Address, what: Any) -> Any:
        link = self.link(address)
        try:
            answer = link.ask(what)
        except (PeerError, NotPrimary) as error:
            self._gone(address)
            _log.debug("%s at %s: %s", what[0], address, error.message)
            raise
        finally:
            self.give(address, link)
        return answer


def _is_view(told: dict[str, Any]) -> bool:
    """Whether an answer names a view, its nodes, and which of them is primary, if any is."""
    primary, members = told.get("primary"), told.get("members")
    if type(told.get("view")) is not int or not isinstance(members, (list, tuple)) or len(members) > MEMBERS_MAX:
        return False
    return all(map(_is_address, members)) and (primary is None or _is_address(primary))


def _is_address(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)
