"""Beginning, killing and listing the transactions of one store.

Nothing here starts a thread or a timer; the public floor (`tidemark`) runs the store's threads.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tidemark.engine.base.errors import Rejected
from tidemark.engine.txn.in_call import is_in_call
from tidemark.engine.txn.transaction import Transaction, end_abandoned

if TYPE_CHECKING:
    from tidemark.engine.txn.resources import Resources

T = TypeVar("T", bound=Transaction)

KILL_SECONDS = 10.0
KILL_POLL_SECONDS = 0.002


class Transactions:
    """The open transactions of one store."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._locks = resources.locks
        self._clock = resources.clock

    def roll_back_all(self) -> None:
        """Roll back all transactions that have begun, of all threads."""
        end_abandoned(self._resources)
        for place in self._locks.open_now():
            txn = None if place.owner is None else place.owner()
            if txn is not None:
                txn.rollback()

    def kill(self, txid: int, why: str) -> bool:
        """Roll back an open transaction of any thread. Its thread gets TransactionKilled at its next call, or in the
        call that waits for a lock. why: what that error says.

        Return False if another call of the transaction did not end within KILL_SECONDS: then it is rolled back at its
        thread's next call, or by another `kill`. A commit that is under way completes. Raises: Rejected if no such
        transaction is open.
        """
        place = next((each for each in self._locks.open_now() if each.txid == txid), None)
        txn = None if place is None or place.owner is None else place.owner()
        if place is None or not isinstance(txn, Transaction) or txn.is_ended:
            raise Rejected(f"transaction {txid:#x} is not open; status()['transactions'] lists those that hold locks")
        is_own = place.thread == threading.get_ident()
        txn.kill(why)
        served = self._locks.served.get(txid)
        self._locks.stop_waiting(place)
        deadline = self._clock.monotonic() + KILL_SECONDS
        while not txn.is_ended:
            if is_own or not is_in_call(place.thread):
                txn.end_killed()
            elif self._clock.monotonic() >= deadline:
                return False
            else:
                self._clock.sleep(KILL_POLL_SECONDS)
        if served is not None:
            served.wake()  # the thread of the link forgets it
        return True

    def kill_client(self, address: str) -> bool:
        """End the link of a client, and roll back its transaction. Return False if its call did not end within
        KILL_SECONDS; its thread then does that after the call. Raises: Rejected if no such client is connected.
        """
        client = self._locks.clients.get(address)
        if client is None:
            raise Rejected(f"no client {address!r} is connected; status()['transactions'] lists those that hold locks")
        client.cut()
        for txid in [txid for txid, served in list(self._locks.served.items()) if served is client]:
            with suppress(Rejected):  # it has ended meanwhile
                self.kill(txid, "its client was killed")
        deadline = self._clock.monotonic() + KILL_SECONDS
        while self._locks.clients.get(address) is client:
            if self._clock.monotonic() >= deadline:
                return False
            self._clock.sleep(KILL_POLL_SECONDS)
        return True

    def admit(self) -> None:
        """Check that a transaction may be made now. Raises: StoreFailed; the error of `refusal`."""
        resources = self._resources
        if resources.refusal is not None:
            raise resources.refusal()
        if resources.failure.first is not None:
            resources.failure.check()
        if self._locks.abandoned:
            end_abandoned(resources)

    def begin(self, any_value: int = 0, author: int = 0, kind: type[T] = Transaction) -> T:  # type: ignore[assignment]
        """Return a transaction of the calling thread, of the subclass `kind` if given, which has begun. Raises: as
        `Transaction.begin`.
        """
        txn = kind(self._resources)
        txn.begin(any_value | author << 32)
        return txn

    def begin_applied(self, kind: type[T]) -> T:
        """Begin a transaction for commits of another node, regardless of `refusal`. It reserves no log: the caller has
        waited for room for a whole group, since it must not wait within the group.
        """
        txn = kind(self._resources)
        txn.begin(0, 0, is_applied=True)
        return txn
