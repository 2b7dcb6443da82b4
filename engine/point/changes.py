"""Changes of one row in one kernel call: when a kernel may be asked, and with what.

Each call returns DONE, REFUSED by the condition of the change, or LEFT: then nothing was done, and the general path
makes the change, or raises.

what, changes: a primary key and a dict of changes with MODE_UPDATE; a key with MODE_DELETE; a row with MODE_INSERT and
MODE_WRITE.
"""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.errors import Error, InvariantBroken
from tidemark.engine.base.ids import LAST_EPOCH
from tidemark.engine.base.out_of_memory import memory_error
from tidemark.engine.jit.objects_kernels import IS_USABLE
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import MODE_UPDATE
from tidemark.engine.point import plan_layout as u
from tidemark.engine.point.change_kernels import BROKEN, DONE, LEFT, REFUSED, change_row, change_seen, get_locked
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import bind_filter, bind_update
from tidemark.engine.programs.expressions import Expression
from tidemark.engine.txn.resources import BUFFER_WORDS
from tidemark.engine.txn.transaction import PAD_WORDS

if TYPE_CHECKING:
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.point.plan import Plan
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.resources import Resources
    from tidemark.engine.txn.transaction import Transaction

__all__ = ["DONE", "LEFT", "CommittedChanges", "change", "change_by", "program_of", "change_if", "locked"]

TXID_WORD = GROUP_WORDS + 1  # of a buffer: of the transaction that was logged from it last
OUTPUTS_MAX = 32  # columns that one program computes
assert u.REDO_WORDS == BUFFER_WORDS + PAD_WORDS
# Scratch memory for the image of a row, and to run a program over it. Kernels that use it hold the GIL, and run no
# Python code.
_image: Words = np.zeros(u.IMAGE_WORDS, dtype=np.int64)
_bound: Words = np.zeros(u.PROGRAM_WORDS, dtype=np.int64)
_rows: Words = np.zeros(p.ROWS_WORDS, dtype=np.int64)
_work: Words = np.zeros(p.work_words(OUTPUTS_MAX), dtype=np.int64)
_memory = (_bound, _rows, _work)


class CommittedChanges:
    """Changes that are transactions of their own, in a store that is no node of a group, durable on return with
    `durability="commit"`.
    """

    __slots__ = ("_buf", "_change_row", "_desc", "_is_left", "_place", "_store", "_waits")

    def __init__(self, store: Resources | None) -> None:
        """store: None: the general path makes, or refuses, all changes."""
        self._is_left = store is None or store.watch is not None or not IS_USABLE
        self._waits = store is not None and store.waits_for_disk
        self._store: Any = store
        self._place: Any = None
        self._change_row: Any = None
        self._desc = 0
        self._buf: Words = NOTHING

    def make(
        self,
        table: Table,
        mode: int,
        what: Any,
        changes: Any = None,
        index: Any = None,
        where: Any = None,
        program: Words = NOTHING,
    ) -> int:
        """Make a change of a table's row. index: name of the unique index that the key is of, None: the primary key.
        where: a condition, None for all rows. program: of the change and its condition, as `program_of` returns it.

        Durable on return, with `durability="commit"`: the change; where the condition refuses the row, what decided it.
        Raises: StoreFailed; OutcomeUnknown with the `txid`, once the change is in the log.
        """
        plan = table.plan
        if plan is None or self._is_left:
            return LEFT
        words: Any = plan.words
        if index is not None:
            words = plan.words_for(index)
            if words is None:
                return LEFT
        store = self._store
        waits = self._waits
        txid = 0  # from when on the log has the change
        try:
            change = self._change_row or self._prepared()
            if waits:
                began = store.clock.monotonic()
            with store.latch:
                log, epochs = store.log, store.epochs
                if (
                    store.failure.first is not None
                    or store.refusal is not None
                    or log.partner is not None
                    or store.locks.abandoned
                ):
                    return LEFT
                try:
                    status: int = change(
                        plan.mem,
                        words,
                        self._desc,
                        self._buf,
                        log.fill,
                        store.sink.current,
                        _image,
                        epochs.current,
                        mode,
                        what,
                        changes,
                        where,
                        plan.trees.words,
                        program,
                        _bound,
                        _rows,
                        _work,
                    )
                    if status == DONE:
                        epochs.has_commits = True
                        if waits:
                            ticket = log.sequence
                            self._place.txid = txid = int(self._buf[TXID_WORD])
                    elif status == BROKEN:
                        epochs.has_commits = True
                        raise store.failure.latch(InvariantBroken("a change met a broken invariant; reopen the store"))
                except BaseException:
                    epochs.has_commits = True  # a signal arrived right after the kernel's one step
                    if waits:
                        txid = self._logged()
                    raise
            if waits:  # visible, not acknowledged: a crash here loses it
                if status == DONE:
                    log.wait(ticket, txid)
                    store.note_commit(began, txid, True)
                elif status == REFUSED:
                    log.secure(LAST_EPOCH, True)  # the commit that made the row one that is refused
        except MemoryError as error:
            raise store.commit_out_of_memory(error, txid) if txid else memory_error(error) from error
        return status

    def make_if(self, table: Table, mode: int, key: Any, changes: Any, where: Any, index: Any = None) -> int:
        """Update or delete a row by expressions, or if a condition accepts it."""
        plan = table.plan
        if plan is None or self._is_left:
            return LEFT
        try:
            found = program_of(plan, mode, changes, where)
        except MemoryError as error:
            raise memory_error(error) from error
        if found is None:
            return LEFT
        program, plain = found
        return self.make(table, mode, key, plain, index, None, program)

    def _prepared(self) -> Any:
        change = change_row.entry
        with self._store.latch:
            place = self._store.own_place()
            self._place, self._desc, self._buf = place, place.desc, place.buf
            self._change_row = change
        return change

    def _logged(self) -> int:
        """Return the id of the transaction of a call that broke off, 0 if the log has none; with the latch held."""
        before, last = self._place.txid, int(self._buf[TXID_WORD])
        self._place.txid = last
        return 0 if last == before else last


def program_of(plan: Plan, mode: int, changes: Any, where: Any) -> tuple[Words, Any] | None:
    """Return the program of an update, or the condition of a deletion, and the plain changes; None for the general
    path.
    """
    if where is not None and not isinstance(where, Expression):
        return None
    plain = changes
    try:
        if mode == MODE_UPDATE:
            if type(changes) is not dict:
                return None
            plain = {}
            for name, value in changes.items():
                if not isinstance(value, Expression):
                    plain[name] = value
                elif name not in plan.in_place:
                    return None
            if where is None and len(plain) == len(changes):
                return None
            found, words = bind_update(plan.definition, changes, where)
        elif where is None:
            return None
        else:
            found, words = bind_filter(plan.definition, where)
    except (Error, TypeError):  # TypeError: an unhashable object, which the general path refuses
        return None
    program = found.program
    if not program.facts.is_of_image or len(program.outputs) > OUTPUTS_MAX:
        return None
    plan.trees.learn(mode, changes, where, found, words)
    return words, plain


# --- in a transaction -----------------------------------------------------------------------------
def _plan_for(txn: Transaction, name: Any) -> Plan | None:
    """Return the plan of the table with a name, for a change or a lock by a transaction, which has begun; None: the
    general path makes the call.

    The checks are made in a frame of the engine: see `in_call.py`.
    """
    store = txn.store
    if txn.thread != get_ident() or txn.is_ended or store.failure.first is not None:
        return None
    try:
        found = store.tables.known.get(name)
    except TypeError:  # an unhashable object, which the general path refuses
        return None
    if found is None or found.plan is None or found.is_dropped:
        return None
    if not txn.desc:
        txn.begin()
    place = txn.place
    if place.locked_at is None:
        place.locked_at = store.clock.monotonic()
    plan: Plan = found.plan
    return plan


def change(
    txn: Transaction, name: Any, mode: int, what: Any, changes: Any = None, index: Any = None, where: Any = None
) -> int:
    """Make a change in a transaction, of a row of the table with a name. index, where: as for `CommittedChanges.make`.
    Raises: as the first change of a transaction.
    """
    if mode == MODE_UPDATE and type(changes) is not dict:
        return LEFT
    plan = _plan_for(txn, name)
    if plan is None:
        return LEFT
    words: Any = plan.words
    if index is not None:
        words = plan.words_for(index)
        if words is None:
            return LEFT
    trees = plan.trees.words
    status: int = change_seen.entry(
        plan.mem, words, txn.desc, txn.buf, txn.shown, _image, mode, what, changes, where, trees, NOTHING, *_memory
    )
    return status


def change_by(
    txn: Transaction, plan: Plan, mode: int, what: Any, changes: Any, program: Words = NOTHING, index: Any = None
) -> int:
    """Make a change in a transaction that has begun and may be used, by a plan in force. index: as for
    `CommittedChanges.make`. program: as `program_of` returns it.
    """
    words = plan.words if index is None else plan.words_for(index)
    if words is None:
        return LEFT
    trees = plan.trees.words
    status: int = change_seen.entry(
        plan.mem, words, txn.desc, txn.buf, txn.shown, _image, mode, what, changes, None, trees, program, *_memory
    )
    return status


def change_if(txn: Transaction, name: Any, mode: int, key: Any, changes: Any, where: Any, index: Any = None) -> int:
    """Update or delete a row in a transaction by expressions, or if a condition accepts it. Raises: as `change`."""
    if mode == MODE_UPDATE and type(changes) is not dict:
        return LEFT
    plan = _plan_for(txn, name)
    if plan is None:
        return LEFT
    found = program_of(plan, mode, changes, where)
    if found is None:
        return LEFT
    program, plain = found
    return change_by(txn, plan, mode, key, plain, program, index)


def locked(
    txn: Transaction, name: Any, key: Any, index: Any = None, table: Table | None = None, program: Words = NOTHING
) -> Any:
    """Return the row with a key, locked exclusively; None, also for a row that the program refuses; ... for the general
    path.

    index: as for `change`. table: the version of the table whose rows are wanted. program: as `program_of` returns it.
    """
    plan = _plan_for(txn, name)
    if plan is None or plan.rows is None or (table is not None and not plan.is_of(table)):
        return ...
    words: Any = plan.words
    if index is not None:
        words = plan.words_for(index)
        if words is None:
            return ...
    return get_locked.entry(plan.mem, words, txn.desc, txn.buf, txn.shown, _image, key, program, _rows, _work)
