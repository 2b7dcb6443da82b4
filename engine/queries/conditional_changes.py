"""Updates and deletes with conditions and expressions: programs run over locked rows as the transaction sees them.

A program computes values, and only values are logged: arithmetic never reaches the log. A refused row is not changed,
but stays locked to the end of the transaction, so that the refusal remains true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.access import row_operations
from tidemark.engine.access.batch_operations import (
    decode_entries,
    lock_keys,
    put_changed,
    read_keys,
    retried,
    scan,
    touch_keys,
    touch_many,
)
from tidemark.engine.base.errors import SchemaInvalid, TypeMismatch
from tidemark.engine.base.words_layout import WORD_BYTES
from tidemark.engine.memory.arena_layout import MODE_DELETE, MODE_LOCK
from tidemark.engine.programs import program_layout as p
from tidemark.engine.programs.compiled import compile_update
from tidemark.engine.programs.expressions import Expression, col
from tidemark.engine.programs.instruction_set import FLOAT, INTEGER
from tidemark.engine.programs.interpreter import Program, bits_float
from tidemark.engine.programs.running import Running, is_accepted, run_one
from tidemark.engine.programs.verifier import CLASS_TYPES
from tidemark.engine.queries.conditions import Condition
from tidemark.engine.queries.program_scans import scan_where
from tidemark.engine.rows.column_input import to_columns
from tidemark.engine.rows.column_output import arrow_of
from tidemark.engine.rows.column_words import column_class
from tidemark.engine.rows.columnar import EncodedKeys, encode_keys
from tidemark.engine.types.base import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from tidemark.engine.memory.arena import Words
    from tidemark.engine.schema.column import Column
    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table
    from tidemark.engine.txn.transaction import Transaction


def check_changes(table: Table, changes: object) -> None:
    """Check that new values are given by column. Raises: TypeMismatch."""
    if not isinstance(changes, Mapping):
        raise TypeMismatch(
            f'{table.name}: changes are given by column, as {{"n": 1}}, got {shown(changes)}', table=table.name
        )


class Change:
    """New values of columns, plain and computed ones, for the rows a condition accepts."""

    def __init__(self, table: Table, changes: Mapping[str, Any], where: Expression | Program | None) -> None:
        """Compile the change. Raises: ProgramInvalid, TypeMismatch, NoSuchColumn, and errors of plain values."""
        if type(changes) is not dict:  # a check of the abstract class takes longer
            check_changes(table, changes)
        definition = table.definition
        for name in changes:
            if name in definition.primary_key:
                raise table.format.key_change_refused(name)
        self._definition = definition
        self._where = where
        # An expression in `where` is compiled into the program of the update; a Program runs before that program.
        expression = where if isinstance(where, Expression) else None
        self._before = None if where is None or expression is not None else Condition(definition, where)
        self.program, self.plain = compile_update(definition, changes, expression)
        if self.plain:
            table.format.encode_changes(self.plain)

    @property
    def condition(self) -> Condition | None:
        """What a row must meet to be changed, for the search of rows; None: all rows are changed."""
        if self._where is None or self._before is not None:
            return self._before
        return Condition(self._definition, self._where)

    @property
    def columns(self) -> list[Column]:
        """The columns whose new values are computed."""
        return [self._definition.columns[position] for position in self.program.outputs]

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        programs = [self.program] if self._before is None else [self.program, self._before.program]
        return [self._definition.columns[position].name for each in programs for position in each.columns]

    def judge_one(self, table: Table, entry: Words) -> dict[str, Any] | None:
        """Return the new values of one row, None if it is not to be changed. Raises: errors of a program in the row."""
        if self._before is not None and not is_accepted(self._before.program, table, entry):
            return None
        found = run_one(self.program, table, entry)
        if found[0] != p.VERDICT_OK:
            return None
        values = dict(self.plain)
        at = 2
        for position in self.program.outputs:
            column = self._definition.columns[position]
            values[column.name] = _value(column, *found[at : at + p.OUTPUT_PLANES])
            at += p.OUTPUT_PLANES
        return values

    def judge(self, table: Table, entries: Words, offsets: Words) -> tuple[Words, Words, bool]:
        """Return (places of the rows to change; planes of the outputs for each of them; whether the program has ended
        the scan).

        Raises: errors of a program in a row.
        """
        places = np.arange(offsets.size, dtype=np.int64)
        is_last = False
        if self._before is not None:
            places, is_last = Running(self._before.program).accepted(table, entries, offsets)
        accepted, planes = Running(self.program).judged(table, entries, offsets[places])
        return places[accepted], planes[2:, accepted], is_last

    def batch(self, definition: TableDefinition, planes: Words) -> pa.RecordBatch:
        """Return the new values of many rows."""
        import pyarrow as pa

        count = planes.shape[1]
        arrays: dict[str, Any] = {}
        if self.plain:
            (one,) = to_columns({name: [value] for name, value in self.plain.items()}, definition, fill_in=False)
            again = pa.array(np.zeros(count, dtype=np.int64))
            for name, array in zip(one.columns.schema.names, one.columns.columns, strict=True):
                arrays[name] = array.take(again)
        for number, column in enumerate(self.columns):
            low, high, null = planes[number * p.OUTPUT_PLANES :][: p.OUTPUT_PLANES]
            arrays[column.name] = _array(column, low, high, null)
        return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def _value(column: Column, low: int, high: int, null: int) -> Any:
    if null:
        return None
    register = CLASS_TYPES[column_class(column.type)]
    if register == FLOAT:
        return bits_float(low)
    return column.type.of_operand(low if register == INTEGER else (high << 64) + low % (1 << 64))


def _array(column: Column, low: Words, high: Words, null: Words) -> pa.Array:
    width = column.type.width
    values: Any = np.ascontiguousarray(low)
    if CLASS_TYPES[column_class(column.type)] == FLOAT:
        values = values.view(np.float64).astype(f"f{width}")
    elif width > WORD_BYTES:
        values = np.stack([low, high], axis=1).reshape(-1)
    nulls = int(np.count_nonzero(null))
    bitmap = np.packbits(null == 0, bitorder="little") if nulls else None
    return arrow_of(values, column, low.size, bitmap, nulls)


def update(
    txn: Transaction,
    table: Table,
    key: Any,
    changes: Mapping[str, Any],
    where: Expression | Program | None = None,
) -> bool:
    """Change some columns of one row; False if `where` refuses the row as it is under its lock.

    Raises: RowNotFound, errors of validation, and errors of a program in the row.
    """
    if type(changes) is not dict:  # a check of the abstract class takes longer
        check_changes(table, changes)
    if where is None and not any(isinstance(value, Expression) for value in changes.values()):
        row_operations.update(txn, table, key, changes)
        return True
    txn.check(locks=True)
    return _update_judged(txn, table, key, changes, where)


@retried
def _update_judged(
    txn: Transaction, table: Table, key: Any, changes: Mapping[str, Any], where: Expression | Program | None
) -> bool:
    change = Change(table, changes, where)
    row_format = table.format
    with_disk = row_format.has_disk and row_format.touches_disk([*changes, *change.names])
    entry = row_operations.locked_entry(txn, table, key, with_disk)
    values = change.judge_one(table, entry)
    if values is not None:
        row_operations.update(txn, table, key, values)
    return values is not None


def delete(txn: Transaction, table: Table, key: Any, where: Expression | Program | None = None) -> bool:
    """Delete one row; False if `where` refuses the row as it is under its lock.

    Raises: RowNotFound, and errors of a program in the row.
    """
    if where is not None:
        txn.check(locks=True)
        if not _is_locked_row_accepted(txn, table, key, where):
            return False
    row_operations.delete(txn, table, key)
    return True


@retried
def _is_locked_row_accepted(txn: Transaction, table: Table, key: Any, where: Expression | Program) -> bool:
    condition = Condition(table.definition, where)
    entry = row_operations.locked_entry(txn, table, key, table.format.touches_disk(condition.names))
    return is_accepted(condition.program, table, entry)


@retried
def update_where(
    txn: Transaction, table: Table, changes: Mapping[str, Any], where: Expression | Program | None = None
) -> int:
    """Change some columns of all rows a condition accepts; return how many. All or none.

    Raises: errors of validation, and errors of a program in a row.
    """
    txn.check(locks=True)
    if changes is None or (isinstance(changes, Mapping) and not changes):
        raise SchemaInvalid(f"{table.name}: no column to change was given")
    change = Change(table, changes, where)
    total = 0
    with_disk = table.format.touches_disk([*changes, *change.names])
    for entries, offsets in _lock_found(txn, table, change.condition, with_disk):
        places, planes, is_last = change.judge(table, entries, offsets)
        if places.size:
            put_changed(txn, table, change.batch(table.definition, planes), entries, offsets[places])
            total += int(places.size)
        if is_last:
            break
    return total


@retried
def delete_where(txn: Transaction, table: Table, where: Expression | Program) -> int:
    """Delete all rows a condition accepts; return how many. All or none. Raises: errors of a program in a row."""
    txn.check(locks=True)
    condition = Condition(table.definition, where)
    running = Running(condition.program)
    total = 0
    with_disk = table.format.touches_disk(condition.names)
    for entries, offsets in _lock_found(txn, table, condition, with_disk):
        places, is_last = running.accepted(table, entries, offsets)
        if places.size:
            touch_many(txn, table, _keys_of(table, entries, offsets[places]), MODE_DELETE, 0)
            total += int(places.size)
        if is_last:
            break
    return total


def delete_unlocked(txn: Transaction, table: Table, condition: Condition, keys: pa.RecordBatch) -> tuple[int, int]:
    """Delete the rows with these keys that a condition accepts under their locks; return (rows deleted, rows left out
    because another transaction has locked them). Waits for no lock. Raises: errors of a program in a row.
    """
    txn.check(locks=True)
    table.check()
    running = Running(condition.program)
    with_disk = table.format.touches_disk(condition.names)
    deleted = locked = begin = 0
    while begin < keys.num_rows:
        wanted = encode_keys(table.format, keys.slice(begin))
        count = touch_keys(txn, table, wanted, MODE_LOCK, np.zeros(wanted.count, dtype=np.int64), skip_locked=True)
        if count < wanted.count:
            locked += 1
            wanted = encode_keys(table.format, keys.slice(begin, count))
        begin += count + 1
        if count:
            entries, offsets, _ = read_keys(table, wanted, txn, with_disk)
            places, _ = running.accepted(table, entries, offsets)
            if places.size:
                touch_many(txn, table, _keys_of(table, entries, offsets[places]), MODE_DELETE, 0)
                deleted += int(places.size)
    return deleted, locked


def delete_all(txn: Transaction, table: Table) -> int:
    """Delete all rows; return how many."""
    return delete_where(txn, table, ~col(table.definition.primary_key[0]).is_null())


@retried
def delete_partitions(txn: Transaction, table: Table, partitions: Sequence[str]) -> int:
    """Delete all rows of some partitions; return how many. Raises: NoSuchPartition."""
    txn.check(locks=True)
    total = 0
    for entries, offsets in _lock_found(txn, table, None, False, table.numbers_of(partitions)):
        if offsets.size:
            touch_many(txn, table, _keys_of(table, entries, offsets), MODE_DELETE, 0)
            total += int(offsets.size)
    return total


def _lock_found(
    txn: Transaction,
    table: Table,
    condition: Condition | None,
    with_disk: bool,
    numbers: Sequence[int] | None = None,
) -> Iterator[tuple[Words, Words]]:
    """Yield (entries, image offsets) of rows found, read again under their locks: they may have changed since."""
    names = list(table.definition.primary_key)
    if condition is None:
        found = scan(table, txn, None, names, numbers)
    else:
        found = scan_where(table, txn, condition, None, names)
    for batch in found:
        keys = _keys_of(table, batch.entries, batch.offsets)
        lock_keys(txn, table, keys)
        entries, offsets, _ = read_keys(table, keys, txn, with_disk)
        yield entries, offsets


def _keys_of(table: Table, entries: Words, offsets: Words) -> EncodedKeys:
    names = list(table.definition.primary_key)
    return encode_keys(table.format, decode_entries(table.format, entries, offsets, offsets.size, names))
