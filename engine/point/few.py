"""Changes of a few rows in a transaction: batches of Python rows, upserts, and changes by a condition that a select
answers. Each row is changed by the kernel that changes one.

All rows are changed, or none: if a kernel leaves one, all are undone, and the general path changes them, or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.engine.access import batch_operations
from tidemark.engine.access.index_scans import shows_others
from tidemark.engine.base.out_of_memory import memory_error
from tidemark.engine.memory.arena import NOTHING
from tidemark.engine.memory.arena_layout import MODE_DELETE, MODE_INSERT, MODE_UPDATE, MODE_WRITE
from tidemark.engine.point.change_kernels import DONE, LEFT, REFUSED
from tidemark.engine.point.changes import CommittedChanges, change_by, program_of
from tidemark.engine.point.plan import keep_plan
from tidemark.engine.point.selects import select
from tidemark.engine.programs.expressions import Col, Compare, Constant, Expression, Junction
from tidemark.engine.queries import conditional_changes, unique_upserts

if TYPE_CHECKING:
    from tidemark.engine.access.batch_operations import Progress
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.point.plan import Plan
    from tidemark.engine.programs.interpreter import Program
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction

R = TypeVar("R")
FEW_ROWS = 200  # more take less time as columns


class _Left(Exception):
    """A kernel has left a row: what was done for the rows before it is undone."""


def _plan_for(txn: Transaction, table: Table) -> Plan | None:
    """Return the plan of a version of a table, None if the general path makes the call. Raises: as `check`."""
    txn.check(locks=True)
    plan: Plan | None = table.plan
    return None if plan is None or table.is_dropped or not plan.is_of(table) else plan


def _change_each(
    txn: Transaction, plan: Plan, mode: int, rows: Sequence[tuple[Any, Any]], program: Words = NOTHING
) -> int | None:
    """Make a change for each (what, changes); return how many were not refused, None for the general path."""
    if len(rows) == 1:  # which is changed whole or not at all
        status = change_by(txn, plan, mode, *rows[0], program)
        return None if status == LEFT else int(status == DONE)
    return _count_done(txn, (change_by(txn, plan, mode, what, changes, program) for what, changes in rows))


def _count_done(txn: Transaction, calls: Iterable[int]) -> int | None:
    """Make calls; return how many are DONE, None for the general path, with nothing changed, if one is LEFT."""
    count = 0
    try:
        with txn.savepoint():
            for status in calls:
                if status == LEFT:
                    raise _Left
                count += status == DONE
    except _Left:
        return None
    return count


def generally(call: Callable[..., R], txn: Transaction, table: Table, *arguments: Any) -> R:
    """Make a call on the general path, and keep a plan for the next one."""
    found = call(txn, table, *arguments)
    keep_plan(table)
    return found


def _is_few(data: Any, progress: Progress | None, *kinds: type) -> bool:
    if progress is not None or type(data) is not list or not 0 < len(data) <= FEW_ROWS:
        return False
    kind = type(data[0])
    return kind in kinds and all(type(each) is kind for each in data)


# --- batches --------------------------------------------------------------------------------------
def insert_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """As `batch_operations.insert_many`."""
    count = _put_few(txn, table, data, MODE_INSERT, progress)
    return generally(batch_operations.insert_many, txn, table, data, progress) if count is None else count


def write_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """As `batch_operations.write_many`."""
    count = _put_few(txn, table, data, MODE_WRITE, progress)
    return generally(batch_operations.write_many, txn, table, data, progress) if count is None else count


def _put_few(txn: Transaction, table: Table, data: Any, mode: int, progress: Progress | None) -> int | None:
    plan = _plan_for(txn, table) if _is_few(data, progress, tuple, dict) else None
    return None if plan is None else _change_each(txn, plan, mode, [(row, None) for row in data])


def update_many(txn: Transaction, table: Table, data: Any, progress: Progress | None = None) -> int:
    """As `batch_operations.update_many`."""
    count = None
    if _is_few(data, progress, dict) and all(row.keys() == data[0].keys() for row in data):
        plan = _plan_for(txn, table)
        names = table.definition.primary_key
        if plan is not None and all(name in data[0] for name in names) and len(data[0]) > len(names):
            count = _change_each(txn, plan, MODE_UPDATE, [_parted(names, dict(row)) for row in data])
    return generally(batch_operations.update_many, txn, table, data, progress) if count is None else count


def _parted(names: Sequence[str], row: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    if len(names) == 1:
        return row.pop(names[0]), row
    return tuple([row.pop(name) for name in names]), row


def delete_many(txn: Transaction, table: Table, keys: Any) -> int:
    """As `batch_operations.delete_many`."""
    count = None
    if type(keys) is list and 0 < len(keys) <= FEW_ROWS:
        plan = _plan_for(txn, table)
        if plan is not None:
            count = _change_each(txn, plan, MODE_DELETE, [(key, None) for key in keys])
    return generally(batch_operations.delete_many, txn, table, keys) if count is None else count


# --- upserts --------------------------------------------------------------------------------------
def upsert(
    txn: Transaction, table: Table, row: Any, changes: Mapping[str, Any] | None = None, index: str | None = None
) -> bool:
    """As `unique_upserts.upsert`."""
    plan = _plan_for(txn, table) if index is None and type(row) in (tuple, dict) else None
    status = LEFT if plan is None else _upsert_one(txn, table, plan, row, changes)
    if status == LEFT:
        return generally(unique_upserts.upsert, txn, table, row, changes, index)
    return status == DONE


def _upsert_one(txn: Transaction, table: Table, plan: Plan, row: Any, changes: Mapping[str, Any] | None) -> int:
    """Insert a row that has all columns (DONE), or change the row with its key (REFUSED); or LEFT."""
    names = plan.format.names
    if len(row) != len(names) or plan.format.computed:
        return LEFT
    if changes is not None and type(changes) is not dict:
        return LEFT  # the general path refuses it, whether there is a row or not
    if change_by(txn, plan, MODE_INSERT, row, None) == DONE:
        return DONE
    given = dict(row) if type(row) is dict else dict(zip(names, row, strict=True))
    if given.keys() != set(names):
        return LEFT
    key, others = _parted(table.definition.primary_key, given)
    if changes is None:
        program, plain = NOTHING, others
    else:
        table.format.encode_row(row)  # what is not changed must be right too
        found = program_of(plan, MODE_UPDATE, changes, None)
        program, plain = (NOTHING, dict(changes)) if found is None else found
    if not plain and not program.size:
        return LEFT
    return LEFT if change_by(txn, plan, MODE_UPDATE, key, plain, program) == LEFT else REFUSED


def upsert_many(
    txn: Transaction,
    table: Table,
    data: Any,
    changes: Mapping[str, Any] | None = None,
    index: str | None = None,
    progress: Progress | None = None,
) -> int:
    """As `unique_upserts.upsert_many`."""
    count = None
    if index is None and _is_few(data, progress, tuple, dict):
        plan = _plan_for(txn, table)
        if plan is not None:
            count = _count_done(txn, (_upsert_one(txn, table, plan, row, changes) for row in data))
    if count is not None:
        return count
    return generally(unique_upserts.upsert_many, txn, table, data, changes, index, progress)


# --- by a condition -------------------------------------------------------------------------------
def update_where(
    txn: Transaction, table: Table, changes: Mapping[str, Any], where: Expression | Program | None = None
) -> int:
    """As `conditional_changes.update_where`."""
    count = _change_where(txn, table, MODE_UPDATE, changes, where) if isinstance(changes, dict) and changes else None
    return generally(conditional_changes.update_where, txn, table, changes, where) if count is None else count


def delete_where(txn: Transaction, table: Table, where: Expression | Program) -> int:
    """As `conditional_changes.delete_where`."""
    count = _change_where(txn, table, MODE_DELETE, None, where)
    return generally(conditional_changes.delete_where, txn, table, where) if count is None else count


def change_where_committed(calls: CommittedChanges, table: Table, mode: int, changes: Any, where: Any) -> int | None:
    """Change, as a transaction of its own, the one row that a condition may accept, since it gives a whole key. Return
    how many were changed, None for the general path. Durable on return, raises: as `CommittedChanges.make`.
    """
    if not isinstance(where, Expression) or (mode == MODE_UPDATE and not changes):
        return None
    try:
        found = _whole_key(table, where)
    except MemoryError as error:
        raise memory_error(error) from error
    if found is None:
        return None
    key, index, rest = found
    status = calls.make(table, mode, key, changes, index, rest) or calls.make_if(table, mode, key, changes, rest, index)
    return int(status == DONE) if status else None


def _whole_key(table: Table, where: Expression) -> tuple[Any, str | None, Expression | None] | None:
    """Return the key that a condition gives, its unique index, None for the primary key, and the condition, if it says
    more than that; None if it gives no key.
    """
    names = table.definition.primary_key
    narrowed = _narrowed(where, names)
    found = select(table, narrowed, list(names), None)
    if found is None or not found.is_sound or found.key is None:
        return None
    return *found.key, None if narrowed is where else where


def _narrowed(where: Expression, names: Sequence[str]) -> Expression:
    """Return the comparisons that give the primary key, from a condition that has more; else the condition."""
    if type(where) is not Junction or not where.is_and:
        return where
    equal = {
        each.left.name: each
        for each in where.operands
        if type(each) is Compare and each.condition == "eq" and type(each.left) is Col and type(each.right) is Constant
    }
    if not equal.keys() >= set(names):
        return where
    wanted = [equal[name] for name in names]
    return wanted[0] if len(wanted) == 1 else Junction(True, tuple(wanted))


def _change_if(txn: Transaction, plan: Plan, mode: int, key: Any, plain: Any, program: Words) -> int | None:
    """Change the row with a key if the program accepts it; return how many were changed, None for the general path. A
    row that is refused does not stay locked: the general path would not have found it.
    """
    status = DONE
    try:
        with txn.savepoint():
            status = change_by(txn, plan, mode, key, plain, program)
            if status != DONE:
                raise _Left
    except _Left:
        return None if status == LEFT else 0
    return 1


def _change_where(txn: Transaction, table: Table, mode: int, changes: Any, where: Any) -> int | None:
    """Change the rows that a condition accepts, if a select finds them, or the one that may be; return how many, None
    for the general path.
    """
    plan = _plan_for(txn, table) if isinstance(where, Expression) else None
    if plan is None:
        return None
    names = table.definition.primary_key
    narrowed = _narrowed(where, names)
    found = select(table, narrowed, list(names), None)
    bound = program_of(plan, mode, changes, where) if found is not None and found.is_sound else None
    if found is None or bound is None:
        return None
    rows = found.rows(table, False, None, txn if shows_others(txn, table) else None)
    if rows is ...:
        return None
    program, plain = bound
    if not rows and plain:
        table.format.encode_changes(plain)  # refuses wrong values, though no row gets them
    keys = [row[0] for row in rows] if len(names) == 1 else [tuple(row) for row in rows]
    if narrowed is not where and keys:
        return _change_if(txn, plan, mode, keys[0], plain, program)
    return _change_each(txn, plan, mode, [(key, plain) for key in keys], program)
