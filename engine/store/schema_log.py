"""Logging and publication of schema changes (D15)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.base.ids import NO_EPOCH
from tidemark.engine.disk.disk_layout import UNDO_MARK_WORDS
from tidemark.engine.log.redo_layout import KIND_SCHEMA, KIND_TRANSACTION, TRANSACTION_WORDS, pack_kind
from tidemark.engine.memory.arena_layout import S_REDO_FREE
from tidemark.engine.txn.transaction import PAD_WORDS

if TYPE_CHECKING:
    from tidemark.engine.txn.resources import Resources

# Room in the log before a schema change begins: enough for all but the longest definitions.
SCHEMA_ROOM_WORDS = 4_096


class SchemaLog:
    """The schema changes of one store. A change is logged first, then becomes visible."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.latch = resources.users.latch  # one change at a time
        self.epoch = NO_EPOCH  # of the last change that was made here
        self.authors: dict[int, int] = {}  # by thread: site of origin of its changes
        self._applied: tuple[int, str] | None = None  # thread, and the change of another node it applies

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Let no other thread change the schema within the context, once the log has room for the record of a change.
        Raises: RedoOverloaded, StoreFailed; the error of `refusal`.
        """
        self._await_room()  # without the latch: the end of a local checkpoint, which frees log space, may need it
        with self.latch:
            self.resources.failure.check()
            yield

    def _await_room(self) -> None:
        if self._is_applying():
            return  # the log has the record already
        resources = self.resources
        if resources.refusal is not None:
            raise resources.refusal()
        if not resources.room.has_words(SCHEMA_ROOM_WORDS):
            resources.room.wait(lambda: resources.room.has_words(SCHEMA_ROOM_WORDS))

    @contextmanager
    def authored(self, author: int) -> Iterator[None]:
        """Set the site of origin in records of schema changes by this thread within the context; 0: none."""
        thread = threading.get_ident()
        self.authors[thread] = author
        try:
            yield
        finally:
            del self.authors[thread]

    @contextmanager
    def applying(self, change: dict[str, Any]) -> Iterator[None]:
        """Within the context, this thread applies exactly this change of another node's log, without a record."""
        self._applied = (threading.get_ident(), json.dumps(change, sort_keys=True))
        try:
            with self.authored(change.get("author", 0)):
                yield
        finally:
            self._applied = None

    def _is_applying(self) -> bool:
        return self._applied is not None and self._applied[0] == threading.get_ident()

    def _see_applied(self, change: dict[str, Any], publish: Callable[[], None], mark: Callable[[], int] | None) -> None:
        """Like `log`, for a change that the log already has."""
        assert self._applied is not None
        resources = self.resources
        mine = json.dumps(change, sort_keys=True)
        if mine != self._applied[1]:
            text = f"a schema change is {self._applied[1]} at the primary and {mine} here; copy the store from it"
            raise resources.failure.latch(InvariantBroken(text))
        if mark is not None:
            resources.disk.undo.make_room(UNDO_MARK_WORDS)
        with resources.latch:
            if mark is not None:
                mark()
            self.epoch = resources.epochs.current
            publish()

    def log(self, change: dict[str, Any], publish: Callable[[], None], mark: Callable[[], int] | None = None) -> None:
        """Log a change and make it visible. mark: writes a mark to the UNDO log, and may still refuse the change.
        `publish` must not fail and must be idempotent: a KeyboardInterrupt is raised after it is done.

        Raises: RedoOverloaded, with nothing changed: the reserve of the log is for groups in flight.
        """
        resources = self.resources
        author = self.authors.get(threading.get_ident())
        if author:
            change = {**change, "author": author}
        if self._is_applying():
            return self._see_applied(change, publish, mark)
        body = json.dumps(change, sort_keys=True, ensure_ascii=False).encode()
        padded = -(-len(body) // 8)
        words = TRANSACTION_WORDS + 2 + padded
        room = resources.room
        if not room.has_words(words + PAD_WORDS) and not room.grow_until(lambda: room.has_words(words + PAD_WORDS)):
            raise resources.room.overloaded()
        if mark is not None:
            # Other threads may take the room before this one has the latch. The reserve for marks serves one such
            # change and one local checkpoint, before the next call here flushes.
            resources.disk.undo.make_room(UNDO_MARK_WORDS)
        with resources.latch:
            if resources.follows_log:
                resources.epochs.close()
            fill = resources.log.room(words)
            ticket = resources.log.sequence  # the end of an epoch ends the group
            if mark is not None:
                mark()
            self.epoch = resources.epochs.used()
            at = int(fill[0])
            fill[at : at + words] = 0
            fill[at] = pack_kind(KIND_TRANSACTION, 0, words)
            fill[at + 1] = resources.next_txid()
            fill[at + 2] = 1
            fill[at + TRANSACTION_WORDS] = pack_kind(KIND_SCHEMA, 0, 2 + padded)
            fill[at + TRANSACTION_WORDS + 1] = len(body)
            start = (at + TRANSACTION_WORDS + 2) * 8
            fill.data.cast("B")[start : start + len(body)] = body
            fill[0] = at + words
            fill[1] += 1
            resources.mem[S_REDO_FREE] -= words
            # No call is made between the log write and here, so no KeyboardInterrupt arrives.
            interrupt: KeyboardInterrupt | None = None
            is_seen = False
            while not is_seen:
                try:
                    publish()
                    if resources.follows_log:
                        resources.epochs.close()
                    is_seen = True
                except KeyboardInterrupt as error:
                    interrupt = error
                except BaseException as error:
                    # Fail before the latch is released: no leader may write the record of a change that is not visible.
                    text = f"a schema change was logged and cannot be made ({error!r}); open the store again"
                    raise resources.failure.latch(InvariantBroken(text)) from error
        if interrupt is not None:
            raise interrupt
        resources.log.wait(ticket)
