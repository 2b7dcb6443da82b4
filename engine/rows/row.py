"""Rows as callers see them: tuples whose values can also be read by column name.

Tables, scans and replies of other processes create their rows with `row_class(names)._make(values)`.
"""

from __future__ import annotations

import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tidemark.engine.base.errors import NoSuchColumn
from tidemark.engine.schema.names import alternatives
from tidemark.engine.types.base import shown

CLASSES_KEPT = 256  # making a class takes longer than a small scan
# The C descriptor that a named tuple has for each field, created from (position, docstring).
_descriptor: Callable[[int, str], Any] = type(vars(namedtuple("One", ["value"]))["value"])


class Row(tuple[Any, ...]):
    """A row: a tuple whose values can also be read by column name.

    It unpacks, compares and hashes as a tuple, and can be pickled. `row["name"]` reads any column. `row.name` reads a
    column whose name is a Python identifier, not a keyword, and does not begin with an underscore. `_fields` has the
    names of the columns.

    Raises: NoSuchColumn for a name in brackets that the row does not have; AttributeError for an attribute.

    Examples:
        >>> row = db["item"][1]
        >>> row.name, row["name"], row[1]
        ('pen', 'pen', 'pen')
        >>> number, name, stock = row
        >>> row._asdict()
        {'id': 1, 'name': 'pen', 'stock': 10}
        >>> row._replace(stock=9)
        Row(id=1, name='pen', stock=9)
    """

    __slots__ = ()
    _fields: ClassVar[tuple[str, ...]] = ()
    _make: ClassVar[Callable[[Iterable[Any]], Any]]  # takes one value for each name; does not count them

    if TYPE_CHECKING:

        def __getitem__(self, key: Any) -> Any: ...

    def __new__(cls, *values: Any) -> Self:
        """Raises: TypeError unless there is one value for each name."""
        if len(values) != len(cls._fields):
            raise TypeError(f"a row takes one value for each of its columns ({len(cls._fields)}), got {len(values)}")
        return tuple.__new__(cls, values)

    def _asdict(self) -> dict[str, Any]:
        """Return the values by the names of their columns."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, /, **columns: Any) -> Self:
        """Return a row with other values in some columns. Raises: NoSuchColumn."""
        for name in columns:
            if name not in self._fields:
                raise _unknown(self, name)
        return type(self)(*[columns.get(name, value) for name, value in zip(self._fields, self, strict=True)])

    def __reduce__(self) -> tuple[Any, ...]:
        return row_of, (self._fields, tuple(self))

    def __repr__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self._asdict().items() if is_attribute(name)]
        others = {name: value for name, value in self._asdict().items() if not is_attribute(name)}
        return f"Row({', '.join([*parts, f'**{others!r}'] if others else parts)})"

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._fields)

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            raise AttributeError(f'column {name!r} is no attribute of a row; use row["{name}"]')
        if name.startswith("_"):
            raise AttributeError(f"a row has no attribute {name!r}")
        # Python's traceback suggests the nearest name.
        raise AttributeError(f"the row has no column {name!r}; its columns are {', '.join(self._fields)}")


def is_attribute(name: str) -> bool:
    """Whether a column of this name is an attribute of rows."""
    return name.isidentifier() and not name.startswith("_") and not keyword.iskeyword(name)


@lru_cache(CLASSES_KEPT)
def row_class(names: tuple[str, ...]) -> Any:
    """Return the class of rows with these columns."""
    held = [name if is_attribute(name) else str(position) for position, name in enumerate(names)]
    parts: dict[str, Any] = {"__slots__": (), "__module__": __name__, "_fields": names}
    parts["__getitem__"] = _item_getter(names, held)
    parts |= {each: _descriptor(position, names[position]) for position, each in enumerate(held)}
    made: Any = type("Row", (Row,), parts)
    made._make = staticmethod(partial(tuple.__new__, made))
    return made


def _item_getter(names: tuple[str, ...], held: list[str]) -> Callable[[Any, Any], Any]:
    """Return the `__getitem__` of a class of rows. Reading an attribute in C is the fastest access to a value: a call
    of `tuple.__getitem__` takes longer than everything else together (ADR 0026).
    """
    getters: dict[Any, Callable[[Any], Any]] = {}
    for position, (name, each) in enumerate(zip(names, held, strict=True)):
        getters[position] = getters[position - len(names)] = getters[name] = attrgetter(each)

    def __getitem__(self: Any, key: Any) -> Any:
        try:
            return getters[key](self)
        except (KeyError, TypeError):
            pass
        if isinstance(key, str):
            raise _unknown(self, key)
        return tuple.__getitem__(self, key)  # a slice, or not in the row

    return __getitem__


def row_of(names: Iterable[str], values: Iterable[Any]) -> Any:
    """Return a row from its pickled names and values."""
    return row_class(tuple(names))(*values)


def _unknown(row: Row, name: object) -> NoSuchColumn:
    what = repr(name) if isinstance(name, str) else shown(name)
    return NoSuchColumn(f"the row has no column {what}; {alternatives(name, row._fields)}", column=name)
