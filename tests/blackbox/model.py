"""What a store must do, in plain Python: dictionaries of rows, one method for each call that changes something.

A method changes the state and returns what the call returns, or raises Refused with the classes of errors that the call
may raise, and has changed nothing. It raises Unsure where the documents leave open what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.blackbox.expressions import Sum, accepts, changed, constants_in, names_in
from tests.blackbox.kinds import ABSENT, Kind, Refused, Unsure, all_of, order

Row = tuple[Any, ...]
TOP = "MAXVALUE"


@dataclass(frozen=True)
class Col:
    """A column."""

    name: str
    kind: Kind
    nullable: bool = False
    default: Any = ABSENT
    disk: bool = False

    @property
    def missing(self) -> Any:
        return None if self.default == ABSENT and self.nullable else self.default

    def take(self, value: Any, is_key: bool = False) -> Any:
        """Return the value as it will be read. Raises: Refused."""
        if value is None:
            if not self.nullable:
                raise Refused("NotNullViolation")
            return None
        return self.kind.take(value, is_key)


class Index(NamedTuple):
    """An index: it is unique, ordered, or both."""

    columns: tuple[str, ...]
    is_unique: bool
    is_ordered: bool


@dataclass
class Table:
    """A table. `partition` is None, (kind, fragments, columns) for hashes, ("range", columns, [(name, bound)]) or
    ("list", column, [(name, values)]). Indexes: by name.
    """

    columns: list[Col]
    key: tuple[str, ...]
    partition: Any = None
    indexes: dict[str, Index] = field(default_factory=dict)
    rows: dict[Any, Row] = field(default_factory=dict)
    had_disk: bool = False  # a column is or was on disk

    def copy(self) -> Table:
        return Table(list(self.columns), self.key, self.partition, dict(self.indexes), dict(self.rows), self.had_disk)

    def head(self) -> Table:
        """Return the table as it is now, without rows."""
        return Table(list(self.columns), self.key, self.partition, dict(self.indexes), {}, self.had_disk)

    # --- parts -----------------------------------------------------------------------------------
    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    def column(self, name: str) -> Col:
        """Raises: Refused."""
        for each in self.columns:
            if each.name == name:
                return each
        raise Refused("NoSuchColumn")

    def kinds(self, names: Iterable[str] | None = None) -> dict[str, Kind]:
        return {each.name: each.kind for each in self.columns if names is None or each.name in names}

    def as_dict(self, row: Row) -> dict[str, Any]:
        return dict(zip(self.names, row, strict=True))

    def key_of(self, values: Mapping[str, Any]) -> Any:
        found = tuple(values[name] for name in self.key)
        return found[0] if len(found) == 1 else found

    def take_key(self, key: Any) -> Any:
        """Return a key as the rows have it. Raises: Refused."""
        pieces = key if len(self.key) > 1 else (key,)
        if not isinstance(pieces, tuple) or len(pieces) != len(self.key):
            raise Refused("TypeMismatch")
        if None in pieces:
            raise Unsure
        taken = {name: self.column(name).take(piece, True) for name, piece in zip(self.key, pieces, strict=True)}
        return self.key_of(taken)

    def whole(self, row: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """Return the values of a row to insert. Raises: Refused, with the classes of all that is wrong."""
        if not isinstance(row, Mapping):
            if len(row) != len(self.columns):
                raise Refused("TypeMismatch")
            row = dict(zip(self.names, row, strict=True))
        wrong: set[str] = set()
        if set(row) - set(self.names):
            wrong.add("NoSuchColumn")
        made: dict[str, Any] = {}
        for column in self.columns:
            value = row.get(column.name, column.missing)
            if value == ABSENT and isinstance(value, str):
                wrong.add("NotNullViolation")
                continue
            try:
                made[column.name] = column.take(value, column.name in self.key)
            except Refused as error:
                wrong |= error.names
        if not wrong and self.partition_of(made) is None:
            wrong.add("NoPartition")
        if wrong:
            raise Refused(*wrong)
        return made

    def partition_of(self, values: Mapping[str, Any]) -> str | None:
        """Return the name of the range or list that takes a row, "" for a hash, None if there is none."""
        if self.partition is None or self.partition[0] not in ("range", "list"):
            return ""
        rule, names, parts = self.partition
        if rule == "list":
            for name, listed in parts:
                if any(order(values[names]) == order(each) for each in listed):
                    return str(name)
            return None
        here = order(values[names])
        for name, bound in parts:
            if bound == TOP or here < order(bound):
                return str(name)
        return None

    # --- unique keys -----------------------------------------------------------------------------
    def unique(self) -> list[tuple[str, ...]]:
        return [each.columns for each in self.indexes.values() if each.is_unique]

    def index_columns(self) -> set[str]:
        return {name for each in self.indexes.values() for name in each.columns}

    def unique_key(self, columns: tuple[str, ...], values: Mapping[str, Any]) -> Any:
        """Return the key of a row in a unique index, None if it has none."""
        found = tuple(order(values[name]) for name in columns)
        return None if (0,) in found else found

    def found_by(self, index: str, key: Any) -> Any:
        """Return the primary key of the row with this key of a unique index, None if there is none. Raises: Refused."""
        if index not in self.indexes:
            raise Refused("NoSuchIndex")
        columns = self.indexes[index].columns
        if not self.indexes[index].is_unique:
            raise Refused("Unsupported")
        pieces = key if len(columns) > 1 else (key,)
        if not isinstance(pieces, tuple) or len(pieces) != len(columns):
            raise Refused("TypeMismatch")
        if None in pieces:
            raise Unsure
        wanted = {name: self.column(name).take(each) for name, each in zip(columns, pieces, strict=True)}
        sought = self.unique_key(columns, wanted)
        for primary, row in self.rows.items():
            if self.unique_key(columns, self.as_dict(row)) == sought:
                return primary
        return None

    def check_unique(self, values: Mapping[str, Any], without: Any) -> None:
        """Raises: Refused if another row than that with key `without` has a unique key of these values."""
        for columns in self.unique():
            sought = self.unique_key(columns, values)
            if sought is None:
                continue
            for primary, row in self.rows.items():
                if primary != without and self.unique_key(columns, self.as_dict(row)) == sought:
                    raise Refused("DuplicateKey")

    def put(self, values: Mapping[str, Any]) -> None:
        self.rows[self.key_of(values)] = tuple(values[name] for name in self.names)

    # --- one row ---------------------------------------------------------------------------------
    def insert(self, row: Any) -> None:
        values = self.whole(row)
        if self.key_of(values) in self.rows:
            raise Refused("DuplicateKey")
        self.check_unique(values, None)
        self.put(values)

    def write(self, row: Any) -> None:
        values = self.whole(row)
        self.check_unique(values, self.key_of(values))
        self.put(values)

    def _located(self, key: Any, index: str | None) -> Any:
        found = self.take_key(key) if index is None else self.found_by(index, key)
        if found is None or found not in self.rows:
            raise Refused("RowNotFound")
        return found

    def _check_condition(self, where: Any) -> None:
        """Raises: Refused for a column that is missing, Unsure for a constant of another type."""
        for name in names_in(where):
            self.column(name)
        for name, constant in constants_in(where):
            kind = self.column(name).kind
            if not (kind.is_integer and type(constant) in (int, float)) and type(constant) is not kind.python:
                raise Unsure
            if kind.is_time and kind.name != "Date" and (constant.tzinfo is None) == (kind.name == "Timestamp"):
                raise Unsure
            if kind.members and constant not in kind.members:
                raise Unsure

    def _changed(self, row: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with changes. Raises: Refused."""
        wrong: set[str] = set()
        after = dict(row)
        for name, value in changes.items():
            if name not in row or (isinstance(value, Sum) and value.column not in row):
                wrong.add("NoSuchColumn")
            elif name in self.key:
                wrong |= {"Rejected", "RowNotFound"}
            else:
                try:
                    column = self.column(name)
                    if isinstance(value, Sum) and self.column(value.column).kind != column.kind:
                        raise Unsure
                    after[name] = column.take(changed(value, row, column.kind))
                except Refused as error:
                    wrong |= error.names
        if wrong:
            if "Rejected" in wrong and len(wrong) > 2:
                raise Unsure
            raise Refused(*wrong)
        return after

    def _chosen(self, key: Any, index: str | None, where: Any, changes: Mapping[str, Any]) -> Any:
        """Return the key of the row to change. Raises: Refused, with the errors of all faults: the call raises that of
        one of them.
        """
        try:
            _, found = all_of(lambda: self._check_condition(where), lambda: self._located(key, index))
        except Refused as error:
            plain = {name: value for name, value in changes.items() if not isinstance(value, Sum)}
            names = {name for name, value in changes.items() if isinstance(value, Sum) for name in (name, value.column)}
            missing = ["NoSuchColumn"] if names - set(self.names) else []
            raise Refused(*error.names, *self._wrong_values([plain]), *missing) from None
        return found

    def update(self, key: Any, changes: Mapping[str, Any], where: Any = None, index: str | None = None) -> bool:
        if not changes:
            raise Unsure
        if set(changes) & set(self.key):
            raise Refused(
                "Rejected", "RowNotFound", "NoSuchColumn", "TypeMismatch", "ValueOutOfRange", "NotNullViolation"
            )
        found = self._chosen(key, index, where, changes)
        row = self.as_dict(self.rows[found])
        # Plain values are judged whether or not the condition holds.
        if not accepts(where, row):
            plain = {name: value for name, value in changes.items() if not isinstance(value, Sum)}
            self._changed(row, plain)
            if any(name not in row or name in self.key for name in changes):
                raise Unsure
            return False
        after = self._changed(row, changes)
        self.check_unique(after, found)
        self.put(after)
        return True

    def delete(self, key: Any, where: Any = None, index: str | None = None) -> bool:
        found = self._chosen(key, index, where, {})
        if not accepts(where, self.as_dict(self.rows[found])):
            return False
        del self.rows[found]
        return True

    def upsert(self, row: Any, changes: Mapping[str, Any] | None = None, index: str | None = None) -> bool:
        try:
            values = self.whole(row)
        except Refused as error:
            if error.names == {"NoPartition"}:
                raise Unsure from None  # judged only if the row is inserted
            raise
        found: Any = self.key_of(values)
        if index is not None:
            if index not in self.indexes:
                raise Refused("NoSuchIndex")
            columns = self.indexes[index].columns
            if not self.indexes[index].is_unique:
                raise Refused("Unsupported")
            if self.unique_key(columns, values) is None:
                raise Unsure
            found = self.found_by(index, self._piece(values, columns))
        if changes is not None:
            if not changes:
                raise Unsure
            for name, value in changes.items():
                if name in self.key or name not in self.names:
                    raise Unsure
                try:
                    self.column(value.column if isinstance(value, Sum) else name)
                    if not isinstance(value, Sum):
                        self.column(name).take(value)
                except Refused:
                    raise Unsure from None  # judged only if there is a row to change
        if found is None or found not in self.rows:
            if self.key_of(values) in self.rows:
                raise Refused("DuplicateKey")
            self.check_unique(values, None)
            self.put(values)
            return True
        before = self.as_dict(self.rows[found])
        if changes is None:
            given = set(row) if isinstance(row, Mapping) else set(self.names)
            after = {**before, **{name: values[name] for name in given if name not in self.key}}
        else:
            after = self._changed(before, changes)
        self.check_unique(after, found)
        self.put(after)
        return False

    def _piece(self, values: Mapping[str, Any], columns: tuple[str, ...]) -> Any:
        found = tuple(values[name] for name in columns)
        return found[0] if len(found) == 1 else found

    # --- many rows -------------------------------------------------------------------------------
    def _all(self, work: Callable[[], Any]) -> Any:
        """Do all of it or nothing."""
        before = dict(self.rows)
        try:
            return work()
        except (Refused, Unsure):
            self.rows = before
            raise

    def each(self, call: Callable[..., Any], rows: Iterable[Any], *more: Any) -> list[Any]:
        """Call for each row; if several rows are wrong, any of their errors may be told."""
        rows = list(rows)
        wrong: set[str] = set()
        for row in rows:
            if call in (self.insert, self.write, self.upsert):
                try:
                    self.whole(row)
                except Refused as error:
                    wrong |= error.names
        if wrong and call == self.upsert and "NoPartition" in wrong:
            raise Unsure
        sums = more and more[0] and any(isinstance(value, Sum) for value in more[0].values())
        computed = ("ValueOutOfRange", "NotNullViolation") if sums else ()
        if wrong:
            index = more[1] if call == self.upsert else None
            missing = ["NoSuchIndex"] if index is not None and index not in self.indexes else []
            raise Refused(*wrong, "DuplicateKey", *computed, *missing)
        try:
            return list(self._all(lambda: [call(row, *more) for row in rows]))
        except Refused as error:
            raise Refused(*error.names, *computed) from None

    def insert_many(self, rows: list[Any]) -> int:
        self.each(self.insert, rows)
        return len(rows)

    def write_many(self, rows: list[Any]) -> int:
        self.each(self.write, rows)
        return len(rows)

    def upsert_many(self, rows: list[Any], changes: Any = None, index: str | None = None) -> int:
        if len({tuple(sorted(row)) for row in rows if isinstance(row, Mapping)}) > 1:
            raise Unsure
        return sum(self.each(self.upsert, rows, changes, index))

    def update_many(self, rows: list[dict[str, Any]], index: str | None = None) -> int:
        wrong = self._wrong_values(rows)
        if index is not None and index not in self.indexes:
            raise Refused("NoSuchIndex", *wrong)
        if index is not None and not self.indexes[index].is_unique:
            raise Refused("Unsupported", *wrong)
        names = self.key if index is None else self.indexes[index].columns
        if len({tuple(row) for row in rows}) != 1 or not set(names) < set(rows[0]):
            raise Unsure

        def work() -> None:
            for row in rows:
                key = self._piece(row, names)
                self.update(key, {name: value for name, value in row.items() if name not in names}, None, index)

        if wrong:
            raise Refused(*wrong, "RowNotFound", "DuplicateKey", "Rejected")
        try:
            self._all(work)
        except Refused as error:
            found = [self._piece(row, names) for row in rows]
            is_missing = any((key if index is None else self.found_by(index, key)) not in self.rows for key in found)
            raise Refused(*error.names, *(["RowNotFound"] if is_missing else [])) from None
        return len(rows)

    def _wrong_values(self, rows: list[dict[str, Any]]) -> set[str]:
        """Return the errors of values that their columns do not hold."""
        wrong: set[str] = set()
        for row in rows:
            for name, value in row.items():
                try:
                    self.column(name).take(value, name in self.key)
                except Refused as error:
                    wrong |= error.names
        return wrong

    def delete_many(self, keys: list[Any], index: str | None = None) -> int:
        try:
            self._all(lambda: [self.delete(key, None, index) for key in keys])
        except Refused as error:
            raise Refused(*error.names, *self._wrong_keys(keys, index)) from None  # all keys are judged first
        return len(keys)

    def _wrong_keys(self, keys: list[Any], index: str | None) -> set[str]:
        """Return the errors of keys that no row can have."""
        wrong: set[str] = set()
        for key in keys:
            try:
                self.take_key(key) if index is None else self.found_by(index, key)
            except Refused as error:
                wrong |= error.names
        return wrong

    def update_where(self, changes: Mapping[str, Any], where: Any = None) -> int:
        if not changes:
            raise Unsure
        self._check_condition(where)
        if any(name in self.key or name not in self.names for name in changes):
            raise Unsure
        found = [key for key, row in self.rows.items() if accepts(where, self.as_dict(row))]
        unique = {name for columns in self.unique() for name in columns}
        if unique & set(changes) and len(found) > 1:
            raise Unsure  # whether two rows meet depends on the order in which they are found
        plain = {name: value for name, value in changes.items() if not isinstance(value, Sum)}
        for name, value in plain.items():
            self.column(name).take(value)
        wrong: set[str] = set()
        after = []
        for key in found:
            try:
                after.append(self._changed(self.as_dict(self.rows[key]), changes))
                self.check_unique(after[-1], key)
            except Refused as error:
                wrong |= error.names
        if wrong:
            raise Refused(*wrong)
        for values in after:
            self.put(values)
        return len(found)

    def delete_where(self, where: Any) -> int:
        self._check_condition(where)
        found = [key for key, row in self.rows.items() if accepts(where, self.as_dict(row))]
        for key in found:
            del self.rows[key]
        return len(found)

    # --- reading ---------------------------------------------------------------------------------
    def selected(self, where: Any = None, partitions: Sequence[str] | None = None) -> list[Row]:
        """Return the rows that a scan finds. Raises: Refused."""
        self._check_condition(where)
        if partitions is not None:
            known = self.partition_names()
            if not set(partitions) <= set(known):
                raise Refused("NoSuchPartition")
        rows = []
        for row in self.rows.values():
            values = self.as_dict(row)
            if partitions is not None and self.partition_of(values) not in partitions:
                continue
            if accepts(where, values):
                rows.append(row)
        return rows

    def partition_names(self) -> list[str]:
        if self.partition is None or self.partition[0] not in ("range", "list"):
            raise Unsure
        return [name for name, _ in self.partition[2]]

    def index_key(self, index: str, row: Row) -> tuple[Any, ...]:
        """Return the sort key of a row in an ordered index. Raises: Refused."""
        if index not in self.indexes:
            raise Refused("NoSuchIndex")
        if not self.indexes[index].is_ordered:
            raise Refused("Unsupported")
        values = self.as_dict(row)
        return tuple(self.column(name).kind.order(values[name]) for name in self.indexes[index].columns)
