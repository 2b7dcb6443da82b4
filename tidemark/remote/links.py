"""The links of a client to the node that executes transactions and to those that serve reads.

A link serves one call or one transaction at a time; idle links are kept for the next call. Any node can name the
others. When a link breaks, or a node reports that it cannot execute the call, the client asks the nodes for the view
again, until `timeout_ms` is over. A client to which no node has ever answered ends earlier: at once if its secret is
not that of a node, and after a second if every address refuses the connection, unless it was given a time.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from tidemark.engine.base.clock import Clock
from tidemark.engine.base.errors import (
    FrameRejected,
    NotPrimary,
    PeerError,
    PeerRefused,
    PeerTimeout,
    PeerUnauthenticated,
    PeerUnproved,
    PrimaryLost,
    StoreClosed,
)
from tidemark.replication.calls.conversation import CallLink
from tidemark.replication.wire.wire import HANDSHAKE_SECONDS, TlsContext, is_connection_refused

_log = logging.getLogger("tidemark.remote")

T = TypeVar("T")
Address = tuple[str, int]
TIMEOUT_MS = 10_000
REFUSED_SECONDS = 1.0  # for a process that is being started to listen
SPARE_LINKS = 8
MEMBERS_MAX = 64  # more than a group can have
PAUSE_SECONDS = 0.02
WHERE_SECONDS = 1.0  # for one of several nodes to tell the view
SECONDS_MAX = 86_400.0  # of one answer; poll takes milliseconds in 32 bits


class Links:
    """The links of one client; see the module. Threads may share it."""

    def __init__(
        self, seeds: Iterable[Address], secret: bytes, tls: TlsContext | None, clock: Clock, timeout_ms: int | None
    ) -> None:
        """Create the links of a client. No connection is made yet. timeout_ms: None: TIMEOUT_MS, and REFUSED_SECONDS
        for the first answer if every address refuses the connection.
        """
        self.clock = clock
        self._seeds = list(seeds)
        self._secret = secret
        self._tls = tls
        self._timeout_s = (TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1_000
        self._refused_s = REFUSED_SECONDS if timeout_ms is None else self._timeout_s
        self._attempt = threading.local()  # of `until`: the deadline of this thread's call
        self._mutex = threading.Lock()
        self.spares: dict[Address, list[CallLink]] = {}
        self._open: weakref.WeakSet[CallLink] = weakref.WeakSet()  # idle or in use
        self._store: str | None = None  # all nodes are copies of this store
        self._newest_view = 0  # an older one is not taken: its node is cut off, or the group was founded again
        self._members: list[Address] = []
        self._last_view: list[Address] = []  # nodes of the newest view: asked again even if they did not answer before
        self._primary: Address | None = None
        self.is_closed = False

    # --- links -----------------------------------------------------------------------------------
    def check_open(self) -> None:
        """Raise StoreClosed after `close`."""
        if self.is_closed:
            raise StoreClosed("the connection is closed; connect again")

    def take(self, address: Address) -> CallLink:
        """Take a link to one node; `put_back` returns it. Raises: PeerError, StoreClosed."""
        self.check_open()
        with self._mutex:
            spares = self.spares.get(address)
            if spares:
                return spares.pop()
        link = self._connected(address)
        if self._store not in (None, link.store):
            link.close()
            raise PeerRefused(
                f"at {address[0]}:{address[1]} there is a different store, of another group than the one that this"
                " client has spoken to; check the addresses, or connect again to use it",
                store=link.store,
            )
        self._store = link.store
        link.watch = partial(self._watch, address)
        with self._mutex:
            self._open.add(link)
            is_closed = self.is_closed  # in the meantime
        if is_closed:
            link.close()
        self.check_open()
        return link

    def _connected(self, address: Address) -> CallLink:
        """Return a new link to one node. Raises: PeerError."""
        return CallLink(address, self._secret, self._tls, self.clock, min(HANDSHAKE_SECONDS, self._rest_s()))

    def put_back(self, address: Address, link: CallLink) -> None:
        """Give back a link on which nothing is open."""
        with self._mutex:
            spares = self.spares.setdefault(address, [])
            if not link.is_broken and not self.is_closed and len(spares) < SPARE_LINKS:
                spares.append(link)
                return
        link.close()

    def close(self) -> None:
        """End all links, those in use too: the other process then rolls their transactions back."""
        with self._mutex:
            self.is_closed = True
            links = list(self._open)
            self.spares.clear()
        for link in links:
            link.end()

    # --- the nodes -------------------------------------------------------------------------------
    def primary(self) -> Address:
        """Return the node that executes transactions. Raises: PeerTimeout if no node has named it in time."""
        return self.until(self.known_primary)

    def known_primary(self) -> Address:
        """As `primary`, but ask only once. Raises: NotPrimary, PeerError."""
        if self._primary is None:
            self.learn()
        if self._primary is None:
            raise NotPrimary("no node executes transactions now; the group may be choosing one, try again")
        return self._primary

    def learn(self) -> None:
        """Ask all nodes for the view; the newest answer counts. Nodes of another group are passed over, except by a
        client that knows no group yet: it must not choose one of two. Raises: PeerError, NotPrimary if no node knows a
        view; PeerRefused if the nodes that answer are of another group; PeerUnauthenticated if no node has ever
        answered, and one says that the secret is wrong.
        """
        newest, is_first = -1, self._store is None
        failed: dict[Address, PeerError | NotPrimary] = {}
        last: PeerError | NotPrimary = PeerError("no address is known")
        refused: list[PeerRefused] = []
        addresses = dict.fromkeys([*self._members, *self._last_view, *self._seeds])
        for address in addresses:
            try:
                with self._at_most(
                    max(WHERE_SECONDS, self._timeout_s / 4)
                ):  # one that is stopped takes not all the time
                    answer = self._where(address)
            except PeerRefused as error:
                refused.append(error)
                continue
            except (PeerError, NotPrimary) as error:  # NotPrimary: a node that opens its store knows no view yet
                last = failed[address] = error
                continue
            if answer["view"] > newest:
                newest = answer["view"]
                self._primary = answer["primary"]
                self._members = list(answer["members"])
                self._last_view = list(answer["members"])
        if refused and (is_first or len(refused) == len(addresses)):
            if is_first:
                self._store = None
            raise refused[0]
        if newest < 0:
            if refused:  # kept until the call ends: in its last moments a node may have no time to refuse
                self._attempt.refused = refused[0]
            if is_first:
                _check_secret(failed)
                self._attempt.is_nobody_there = len(failed) == len(addresses) and all(
                    isinstance(error, PeerError) and is_connection_refused(error) for error in failed.values()
                )
            raise last
        self._newest_view = newest

    def _watch(self, address: Address) -> None:
        """Check, for a thread that waits for an answer of a node, that the group does not continue without that node,
        whose process may be stopped, or cut off from all others. Raises: PeerError if it does.
        """
        others = dict.fromkeys([*self._members, *self._last_view, *self._seeds])
        others.pop(address, None)
        for other in others:
            try:
                with self._at_most(WHERE_SECONDS):
                    answer = self._where(other)
            except (PeerError, NotPrimary):
                continue
            if answer["primary"] is not None and address not in answer["members"]:
                raise PeerError(
                    f"the node at {address[0]}:{address[1]} does not answer, and the group continues without it in view"
                    f" {answer['view']}"
                )

    @contextmanager
    def _at_most(self, seconds: float) -> Iterator[None]:
        """Let calls of this thread in the block take this long at most, and no longer than before."""
        before = getattr(self._attempt, "deadline", None)
        deadline = self.clock.monotonic() + seconds
        self._attempt.deadline = deadline if before is None else min(before, deadline)
        try:
            yield
        finally:
            self._attempt.deadline = before

    def _where(self, address: Address) -> dict[str, Any]:
        link = self.take(address)
        try:
            answer = link.ask(["where"], self._rest_s())
        finally:
            self.put_back(address, link)
        if not isinstance(answer, dict) or not _is_view(answer):
            raise FrameRejected(
                f"the process at {address[0]}:{address[1]} does not tell which nodes the group has; check the address"
            )
        if answer["view"] < self._newest_view:
            raise PeerRefused(
                f"the node at {address[0]}:{address[1]} is in view {answer['view']} of its group, and this client has"
                f" seen view {self._newest_view}: the node is cut off, or the group was founded again; if so, connect"
                " again",
                view=answer["view"],
            )
        return answer

    def forget(self, address: Address) -> None:
        """Close the idle links to a node that is gone or has changed its role; it no longer counts as the primary."""
        with self._mutex:
            links = self.spares.pop(address, [])
        for link in links:
            link.close()
        if self._primary == address:
            self._primary = None

    def until(self, work: Callable[[], T]) -> T:
        """Return the result of `work`; retry while it raises PeerError, NotPrimary or PrimaryLost. Raises: PeerTimeout
        when the time is over, PeerRefused and PeerUnauthenticated at once.
        """
        before = getattr(self._attempt, "deadline", None)
        begun = self.clock.monotonic()
        deadline = begun + self._timeout_s if before is None else before
        if before is None:
            self._attempt.refused = None
            self._attempt.is_nobody_there = False
        self._attempt.deadline = deadline
        why: PeerError | NotPrimary | PrimaryLost | None = None
        try:
            while True:
                try:
                    return work()
                except (PeerError, NotPrimary, PrimaryLost) as error:
                    if isinstance(error, (PeerRefused, PeerUnauthenticated)):
                        raise
                    if why is None or not isinstance(error, PeerTimeout):
                        why = error  # a later timeout does not replace it
                    if self.clock.monotonic() >= deadline:
                        if (refused := getattr(self._attempt, "refused", None)) is not None:
                            raise refused from why
                        raise PeerTimeout(f"no node answered within {self._timeout_s:g} s: {why.message}") from why
                    if self._attempt.is_nobody_there and self.clock.monotonic() >= begun + self._refused_s:
                        raise PeerTimeout(
                            f"no node answered within {self._refused_s:g} s, every address refuses the connection:"
                            f" {why.message}; start the process that serves it, or check the address; timeout_ms waits"
                            " longer"
                        ) from why
                    self.clock.sleep(PAUSE_SECONDS)
        finally:
            self._attempt.deadline = before

    def _rest_s(self) -> float:
        """Return the seconds left for this thread's call: above 0, and no more than a socket takes."""
        deadline = getattr(self._attempt, "deadline", None)
        rest_s = self._timeout_s if deadline is None else deadline - self.clock.monotonic()
        return min(max(0.001, rest_s), SECONDS_MAX)

    # --- calls that may be made again ------------------------------------------------------------
    def read(self, what: Any) -> Any:
        """Return any node's answer to a call that changes nothing. Raises: the error of the call; PeerTimeout."""
        return self.until(lambda: self._ask(self._reader(), what))

    def read_on(self, work: Callable[[Address, CallLink], T]) -> T:
        """Return the result of `work` with a link to a node that serves reads; `work` then owns the link. See
        `read`.
        """

        def attempt() -> T:
            address = self._reader()
            link = self.link(address)
            try:
                return work(address, link)
            except BaseException as error:
                self.put_back(address, link)
                if isinstance(error, PeerError):
                    self.forget(address)
                raise

        return self.until(attempt)

    def begin(self, what: Any) -> tuple[Address, CallLink, Any]:
        """Return a link to the primary with what a call has begun there, and its answer. The caller owns the link."""

        def attempt() -> tuple[Address, CallLink, Any]:
            address = self.known_primary()
            link = self.link(address)
            try:
                return address, link, link.ask(what)
            except BaseException:
                self.put_back(address, link)
                self.forget(address)
                raise

        return self.until(attempt)

    def ask_primary(self, what: Any) -> Any:
        """Return the primary's answer to a call that may be repeated. Raises: as `read`."""
        return self.until(lambda: self._ask(self.known_primary(), what))

    def _reader(self) -> Address:
        if not self._members:
            self.learn()
        return self._members[0] if self._members else self.known_primary()

    def link(self, address: Address) -> CallLink:
        """As `take`; from now on an unreachable node is asked last."""
        try:
            return self.take(address)
        except PeerError as error:
            self.gone(address)
            if isinstance(error, PeerRefused) and "store" in error.evidence:
                raise PeerError(error.message) from error  # another node may answer; `learn` asks all of them
            raise

    def gone(self, address: Address) -> None:
        """From now on, ask other nodes before this one."""
        self.forget(address)
        self._members = [each for each in self._members if each != address]

    def _ask(self, address: Address, what: Any) -> Any:
        link = self.link(address)
        try:
            answer = link.ask(what)
        except (PeerError, NotPrimary) as error:
            self.gone(address)
            _log.debug("%s at %s: %s", what[0], address, error.message)
            raise
        finally:
            self.put_back(address, link)
        return answer


def _check_secret(failed: dict[Address, PeerError | NotPrimary]) -> None:
    """Raises: PeerUnauthenticated if a node refused the secret. Its refusal may be another host's, but nothing is lost
    if a client that never spoke to its nodes ends.
    """
    for (host, port), error in failed.items():
        if isinstance(error, PeerUnproved) and error.evidence.get("claimed") == PeerUnauthenticated.__name__:
            raise PeerUnauthenticated(
                f"the node at {host}:{port} has another secret than this client; compare both secrets"
            ) from error


def _is_view(answer: dict[str, Any]) -> bool:
    """Whether an answer names a view, its nodes, and its primary, if it has one."""
    primary, members = answer.get("primary"), answer.get("members")
    if type(answer.get("view")) is not int or not isinstance(members, (list, tuple)) or len(members) > MEMBERS_MAX:
        return False
    return all(map(_is_address, members)) and (primary is None or _is_address(primary))


def _is_address(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], int)
