"""Logging and publication of schema changes (D15)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.disk.disk_layout import UNDO_MARK_WORDS
from tidemark.engine.log.redo_layout import KIND_SCHEMA, KIND_TRANSACTION, TRANSACTION_WORDS, pack_kind
from tidemark.engine.memory.arena_layout import S_REDO_FREE, S_REDO_RESERVED
from tidemark.engine.txn.transaction import PAD_WORDS
from tidemark.engine.txn.transactions import Transactions

# Room in the log before a schema change begins: enough for all but the longest definitions.
SCHEMA_ROOM_WORDS = 4_096


class SchemaLog(Transactions):
    """A store as index builds and other schema changes see it. A change is logged first, then becomes visible."""

    def await_schema_room(self) -> None:
        """Wait until the log has room for the record of a schema change. Call without `schema_latch`: the end of a
        local checkpoint, which frees log space, may need it. Raises: RedoOverloaded, StoreFailed; the error of
        `refusal`.
        """
        if self._is_applying():
            return  # the log has the record already
        if self.refusal is not None:
            raise self.refusal()
        if not self._has_redo(SCHEMA_ROOM_WORDS):
            self.wait_for_redo(lambda: self._has_redo(SCHEMA_ROOM_WORDS))

    def _has_redo(self, words: int) -> bool:
        return int(self.mem[S_REDO_RESERVED]) + words <= int(self.mem[S_REDO_FREE])

    @contextmanager
    def authored(self, author: int) -> Iterator[None]:
        """Set the site of origin in records of schema changes by this thread within the context; 0: none."""
        thread = threading.get_ident()
        self.schema_authors[thread] = author
        try:
            yield
        finally:
            del self.schema_authors[thread]

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
        """Like `log_schema`, for a change that the log already has."""
        assert self._applied is not None
        mine = json.dumps(change, sort_keys=True)
        if mine != self._applied[1]:
            text = f"a schema change is {self._applied[1]} at the primary and {mine} here; copy the store from it"
            raise self.fail(InvariantBroken(text))
        if mark is not None:
            self.disk.undo.make_room(UNDO_MARK_WORDS)
        with self.latch:
            if mark is not None:
                mark()
            self.schema_epoch = self.epochs.current
            publish()

    def log_schema(
        self, change: dict[str, Any], publish: Callable[[], None], mark: Callable[[], int] | None = None
    ) -> None:
        """Log a change and make it visible. mark: writes a mark to the UNDO log, and may still refuse the change.
        `publish` must not fail and must be idempotent: a KeyboardInterrupt is raised after it is done.

        Raises: RedoOverloaded, with nothing changed: the reserve of the log is for groups in flight.
        """
        author = self.schema_authors.get(threading.get_ident())
        if author:
            change = {**change, "author": author}
        if self._is_applying():
            return self._see_applied(change, publish, mark)
        body = json.dumps(change, sort_keys=True, ensure_ascii=False).encode()
        padded = -(-len(body) // 8)
        words = TRANSACTION_WORDS + 2 + padded
        if not self._has_redo(words + PAD_WORDS):
            raise self._redo_overloaded()
        if mark is not None:
            # Other threads may take the room before this one has the latch. The reserve for marks serves one such
            # change and one local checkpoint, before the next call here flushes.
            self.disk.undo.make_room(UNDO_MARK_WORDS)
        with self.latch:
            if self.follows_log:
                self.epochs.close()
            fill = self.log.room(words)
            ticket = self.log.sequence  # the end of an epoch ends the group
            if mark is not None:
                mark()
            self.schema_epoch = self.epochs.used()
            at = int(fill[0])
            fill[at : at + words] = 0
            fill[at] = pack_kind(KIND_TRANSACTION, 0, words)
            fill[at + 1] = self.next_txid()
            fill[at + 2] = 1
            fill[at + TRANSACTION_WORDS] = pack_kind(KIND_SCHEMA, 0, 2 + padded)
            fill[at + TRANSACTION_WORDS + 1] = len(body)
            start = (at + TRANSACTION_WORDS + 2) * 8
            fill.data.cast("B")[start : start + len(body)] = body
            fill[0] = at + words
            fill[1] += 1
            self.mem[S_REDO_FREE] -= words
            # No call is made between the log write and here, so no KeyboardInterrupt arrives.
            interrupt: KeyboardInterrupt | None = None
            is_seen = False
            while not is_seen:
                try:
                    publish()
                    if self.follows_log:
                        self.epochs.close()
                    is_seen = True
                except KeyboardInterrupt as error:
                    interrupt = error
                except BaseException as error:
                    # Fail before the latch is released: no leader may write the record of a change that is not visible.
                    text = f"a schema change was logged and cannot be made ({error!r}); open the store again"
                    raise self.fail(InvariantBroken(text)) from error
        if interrupt is not None:
            raise interrupt
        self.log.wait(ticket)
