"""Distribution of a table's rows over its fragments (docs/internals/access.md, section 10).

The partition of a `TableDefinition` is valid: `bound_to` has checked it against the table's columns and converted its
bounds and values to values that the columns return. Fragment numbers are never reused (D14), so those of ranges and
lists have gaps after partitions are dropped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tidemark.engine.base import limits
from tidemark.engine.base.errors import LimitExceeded, NoSuchPartition, Rejected, SchemaInvalid
from tidemark.engine.schema.names import alternatives, check_name
from tidemark.engine.types import ColumnType, value_from_json, value_to_json
from tidemark.engine.types.base import is_int, shown

if TYPE_CHECKING:
    from tidemark.engine.schema.column import Columns


class _MaxValue:
    """The upper bound above every value."""

    def __repr__(self) -> str:
        return "MAXVALUE"

    def __reduce__(self) -> str:
        return "MAXVALUE"


MAXVALUE: Final = _MaxValue()
_ABOVE_ALL = (1,)

# Types by column name; a partition needs only key columns.
Types = Mapping[str, ColumnType]


def _names_of(columns: object) -> tuple[str, ...]:
    """Return column names given as one name or several. Raises: SchemaInvalid."""
    names = (columns,) if isinstance(columns, str) else columns
    if not isinstance(names, (tuple, list)) or not names or not all(isinstance(name, str) for name in names):
        raise SchemaInvalid(f"partition columns must be given by name, one or several, got {shown(columns)}")
    if len(set(names)) != len(names):
        raise SchemaInvalid(f"a partition column appears twice: {shown(names)}")
    return tuple(names)


def _types_of(columns: Sequence[str], definition: Columns) -> list[ColumnType]:
    """Return the types of partition columns, which must be key columns, so that a key determines its fragment."""
    known = {name: definition.columns[definition.position(name)].type for name in definition.primary_key}
    for name in columns:
        if name not in known:
            raise SchemaInvalid(
                f"table {definition.name}: partition column {shown(name)} is not a column of the primary key"
                f" ({', '.join(known)}); add it to the key or partition by another one",
                table=definition.name,
            )
    return [known[name] for name in columns]


def _check_count(fragments: object) -> None:
    if not is_int(fragments) or not 1 <= fragments <= limits.FRAGMENTS_MAX:  # type: ignore[operator]
        raise SchemaInvalid(f"a table has 1 to {limits.FRAGMENTS_MAX} fragments, got {shown(fragments)}")


class Partition(ABC):
    """Base of all kinds: `fragments` partitions, each with a name and a fragment number."""

    @property
    @abstractmethod
    def fragments(self) -> int:
        """The number of partitions."""

    @property
    @abstractmethod
    def numbers(self) -> tuple[int, ...]:
        """Fragment numbers of the partitions, ascending."""

    @property
    @abstractmethod
    def next_number(self) -> int:
        """The lowest fragment number above all that were ever assigned."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the partitions, in the order of `numbers`."""
        return tuple(f"p{number}" for number in self.numbers)

    def number_of(self, name: object) -> int:
        """Return the fragment number of a partition.

        Raises: NoSuchPartition.

        Examples:
            >>> tm.RangePartition("year", [("old", 2025), ("now", 2026)]).number_of("now")
            1
        """
        if name not in self.names:
            raise NoSuchPartition(f"there is no partition {name!r}; {alternatives(name, self.names)}")
        return self.numbers[self.names.index(str(name))]

    @abstractmethod
    def describe(self) -> str:
        """Return a readable one-line description."""

    @abstractmethod
    def bound_to(self, definition: Columns) -> Partition:
        """Return this partition, checked against the columns of a table. Raises: SchemaInvalid."""

    @abstractmethod
    def to_json(self, types: Types) -> dict[str, Any]:
        """Return a JSON object that `partition_from_json` turns into an equal partition. types: of the key columns."""

    def with_partition(self, name: str, bound: Any) -> Partition:
        """Return this partitioning with one more partition. Raises: SchemaInvalid, LimitExceeded."""
        raise SchemaInvalid("only range and list partitions can be added; a hash would move all rows")

    def without_partition(self, name: str) -> Partition:
        """Return this partitioning with one partition fewer. Raises: NoSuchPartition, SchemaInvalid."""
        raise SchemaInvalid("only range and list partitions can be dropped; every row of a hash would need a new place")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


@dataclass(frozen=True)
class HashPartition(Partition):
    """Distribute rows by hash of the canonical key: fragment = (xxhash64(key, seed 42) & (2^63 - 1)) mod fragments
    (D14).

    Args:
        fragments: The number of partitions.
        columns: Hash only these key columns; None: the whole key.
        modulo: Distribute by this integer key column mod fragments instead of a hash.

    Raises: SchemaInvalid for a number of fragments out of range, and for columns that are not given by name.
    `create_table` raises it for columns that are not in the primary key.

    Examples:
        >>> columns = [tm.Column("shop", tm.Int32), tm.Column("number", tm.Int64)]
        >>> by_shop = tm.HashPartition(8, columns="shop")
        >>> len(db.create_table("order", columns, ["shop", "number"], by_shop).partitions())
        8
    """

    fragments: int = 4
    columns: tuple[str, ...] | None = None
    modulo: str | None = None

    KIND = "hash"
    is_linear = False

    if TYPE_CHECKING:  # what callers may pass; the fields have the stored types

        def __init__(
            self, fragments: int = 4, columns: str | Sequence[str] | None = None, modulo: str | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_count(self.fragments)
        if self.columns is not None:
            object.__setattr__(self, "columns", _names_of(self.columns))
        if self.modulo is not None and (not isinstance(self.modulo, str) or self.columns is not None):
            raise SchemaInvalid(f"modulo takes one column and no other partition columns, got {shown(self.modulo)}")

    def __repr__(self) -> str:
        others = {name: getattr(self, name, None) for name in ("columns", "modulo", "linear")}
        said = "".join(f", {name}={value!r}" for name, value in others.items() if value)
        return f"{type(self).__name__}({self.fragments}{said})"

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(range(self.fragments))

    @property
    def next_number(self) -> int:
        return self.fragments

    def describe(self) -> str:
        rule = self.KIND if self.KIND == LinearHash.KIND or not self.is_linear else f"linear {self.KIND}"
        if self.modulo is not None:
            return f"{rule} ({self.modulo}, not hashed)"
        return rule if self.columns is None else f"{rule} ({', '.join(self.columns)})"

    def bound_to(self, definition: Columns) -> Partition:
        _types_of(self.columns or (), definition)
        if self.modulo is not None:
            (kind,) = _types_of((self.modulo,), definition)
            if kind.python is not int:
                raise SchemaInvalid(f"table {definition.name}: modulo needs an integer column, got {kind!r}")
        return self

    def to_json(self, types: Types) -> dict[str, Any]:
        value: dict[str, Any] = {"kind": self.KIND, "fragments": self.fragments}
        if self.columns is not None:
            value["columns"] = list(self.columns)
        if self.modulo is not None:
            value["modulo"] = self.modulo
        return value


class LinearHash(HashPartition):
    """`HashPartition` by powers of two instead of remainder: the hash (or the column) is masked to the next power of
    two, and the mask is halved until the result is a partition.

    Raises: as `HashPartition`.

    Examples:
        >>> tm.LinearHash(6).names
        ('p0', 'p1', 'p2', 'p3', 'p4', 'p5')
    """

    KIND = "linear hash"
    is_linear = True


@dataclass(frozen=True, repr=False)
class KeyPartition(HashPartition):
    """`HashPartition` in MySQL's terms: PARTITION BY [LINEAR] KEY (columns); None: the whole primary key.

    Raises: as `HashPartition`; SchemaInvalid for `linear`.

    Examples:
        >>> tm.KeyPartition(6, linear=True).fragments
        6
    """

    modulo: None = None
    linear: bool = False

    KIND = "key"

    if TYPE_CHECKING:

        def __init__(
            self,
            fragments: int = 4,
            columns: str | Sequence[str] | None = None,
            modulo: None = None,
            linear: bool = False,
        ) -> None: ...

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.linear, bool):
            raise SchemaInvalid(f"linear must be True or False, got {shown(self.linear)}")

    @property
    def is_linear(self) -> bool:  # type: ignore[override]
        """Whether powers of two are used instead of remainder."""
        return self.linear

    def to_json(self, types: Types) -> dict[str, Any]:
        return {**super().to_json(types), **({"linear": True} if self.linear else {})}


def _tuple_of(value: Any, count: int) -> tuple[Any, ...]:
    """Return the values of `count` columns as a tuple; a single value needs no tuple. Raises: SchemaInvalid."""
    if value is MAXVALUE:
        return (MAXVALUE,) * count
    pieces = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if len(pieces) != count:
        raise SchemaInvalid(f"a bound needs one value for each partition column ({count}), got {shown(value)}")
    return pieces


def _plain(pieces: tuple[Any, ...]) -> Any:
    """Return the values of one column without a tuple."""
    return pieces if len(pieces) > 1 else pieces[0]


@dataclass(frozen=True)
class _NamedPartition(Partition):
    """Ranges and lists: named partitions, each with a bound or values."""

    columns: tuple[str, ...]
    partitions: tuple[tuple[str, Any], ...]
    fragment_numbers: tuple[int, ...] = ()
    next_number: int = 0

    KIND = ""
    BOUND = ""

    if TYPE_CHECKING:

        def __init__(
            self,
            columns: str | Sequence[str],
            partitions: Sequence[tuple[str, Any]] | Mapping[str, Any],
            fragment_numbers: tuple[int, ...] = (),
            next_number: int = 0,
        ) -> None: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names_of(self.columns))
        pairs = list(self.partitions.items()) if isinstance(self.partitions, Mapping) else self.partitions
        if not isinstance(pairs, (tuple, list)) or not all(
            isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs
        ):
            raise SchemaInvalid(f"partitions are pairs of a name and its {self.BOUND}, got {shown(pairs)}")
        _check_count(len(pairs))
        names = [name for name, _ in pairs]
        for name in names:
            check_name(name, "partition")
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise SchemaInvalid(f"partition {twice!r} appears twice")
        object.__setattr__(self, "partitions", tuple((str(name), self._bound(bound)) for name, bound in pairs))
        numbers = tuple(self.fragment_numbers) or tuple(range(len(pairs)))
        following = self.next_number or len(pairs)
        object.__setattr__(self, "fragment_numbers", numbers)
        object.__setattr__(self, "next_number", following)
        if not is_int(following) or not all(is_int(number) for number in numbers) or len(numbers) != len(pairs):
            raise SchemaInvalid(f"fragment numbers {shown(numbers)} are not those of {len(pairs)} partitions")
        if not all(low < high for low, high in zip((-1, *numbers), (*numbers, following), strict=True)):
            raise SchemaInvalid(f"fragment numbers {shown(numbers)} are not ascending below {following}")
        if following > limits.FRAGMENTS_MAX:
            raise LimitExceeded(
                f"a table has fragment numbers 0 to {limits.FRAGMENTS_MAX - 1}, which are never used again, and this"
                " one has used all; make another table"
            )

    @abstractmethod
    def _bound(self, bound: Any) -> Any:
        """Return a bound or values in stored form. Raises: SchemaInvalid."""

    def __repr__(self) -> str:
        pairs = [(name, self._given(bound)) for name, bound in self.partitions]
        return f"{type(self).__name__}({_plain(self.columns)!r}, {pairs!r})"

    def _given(self, bound: Any) -> Any:
        """Return a bound or values as a caller gives them."""
        return _plain(bound)

    @property
    def fragments(self) -> int:
        """The number of partitions."""
        return len(self.partitions)

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.fragment_numbers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.partitions)

    def describe(self) -> str:
        return f"{self.KIND} ({', '.join(self.columns)}): {_listed(self.names)}"

    def _stored(self, kinds: Sequence[ColumnType], pieces: Sequence[Any], where: str) -> tuple[Any, ...]:
        """Return the stored values of one bound. Raises: SchemaInvalid."""
        stored = []
        for name, kind, piece in zip(self.columns, kinds, pieces, strict=True):
            try:
                stored.append(MAXVALUE if piece is MAXVALUE else kind.stored_key(piece))
            except Rejected as error:
                raise SchemaInvalid(f"{where}: column {name!r} {error.message}") from error
        return tuple(stored)

    def _to_json(self, types: Types, write: Any) -> dict[str, Any]:
        kinds = [types[name] for name in self.columns]
        return {
            "kind": self.KIND,
            "columns": list(self.columns),
            "next": self.next_number,
            "partitions": [
                {"name": name, "number": number, self.BOUND: write(kinds, bound)}
                for (name, bound), number in zip(self.partitions, self.numbers, strict=True)
            ],
        }

    def with_partition(self, name: str, bound: Any) -> Partition:
        return replace(
            self,
            partitions=(*self.partitions, (name, bound)),
            fragment_numbers=(*self.numbers, self.next_number),
            next_number=self.next_number + 1,
        )

    def without_partition(self, name: str) -> Partition:
        number = self.number_of(name)
        if len(self.partitions) == 1:
            raise SchemaInvalid(f"{name!r} is the only partition; drop the table instead")
        return replace(
            self,
            partitions=tuple(pair for pair in self.partitions if pair[0] != name),
            fragment_numbers=tuple(each for each in self.numbers if each != number),
        )


class RangePartition(_NamedPartition):
    """Distribute rows by ranges of key columns. `partitions` are pairs (name, upper bound). Bounds ascend and are
    exclusive; a bound of several columns is a tuple; MAXVALUE as the last bound is above every value.

    A row goes to the first partition whose bound is above it; after a partition is dropped, new rows of its
    range go to the next.

    Raises: InvalidName for a partition; SchemaInvalid for other arguments; LimitExceeded if the fragment numbers are
    used up. `create_table` raises SchemaInvalid for bounds that do not ascend or do not fit the columns.

    Examples:
        >>> columns = [tm.Column("year", tm.Int16), tm.Column("sold", tm.Int64)]
        >>> by_year = tm.RangePartition("year", [("old", 2025), ("now", tm.MAXVALUE)])
        >>> sale = db.create_table("sale", columns, "year", by_year)
        >>> sale.insert_many([(2019, 3), (2024, 4), (2026, 9)])
        3
        >>> sale.scan(partitions=["old"]).sum("sold")
        7
    """

    KIND = "range"
    BOUND = "upper"

    def _bound(self, bound: Any) -> Any:
        pieces = _tuple_of(bound, len(self.columns))
        above = [piece is MAXVALUE for piece in pieces]
        if above != sorted(above):
            raise SchemaInvalid(f"after MAXVALUE a bound has MAXVALUE only, got {shown(bound)}")
        return pieces

    def bound_to(self, definition: Columns) -> Partition:
        kinds = _types_of(self.columns, definition)
        made: list[tuple[str, tuple[Any, ...]]] = []
        before: Any = None
        for name, pieces in self.partitions:
            stored = self._stored(kinds, pieces, f"table {definition.name}: bound of partition {name!r}")
            order = [
                _ABOVE_ALL if piece is MAXVALUE else (0, kind.sort_key(piece))
                for kind, piece in zip(kinds, stored, strict=True)
            ]
            if before is not None and not before < order:
                raise SchemaInvalid(
                    f"table {definition.name}: bounds must ascend, and that of partition {name!r} is not above the one"
                    f" before: {shown(pieces)}",
                    table=definition.name,
                )
            before = order
            made.append((name, _loaded(kinds, stored)))
        return replace(self, partitions=tuple(made))

    def to_json(self, types: Types) -> dict[str, Any]:
        return self._to_json(types, _pieces_to_json)


class ListPartition(_NamedPartition):
    """Distribute rows by lists of values of key columns: `partitions` maps each name to its values, which are
    tuples if there are several columns.

    Raises: as `RangePartition`; `create_table` raises SchemaInvalid for a value that is in two lists, and LimitExceeded
    for too many values.

    Examples:
        >>> columns = [tm.Column("country", tm.Char(2)), tm.Column("sold", tm.Int64)]
        >>> by_region = tm.ListPartition("country", {"north": ["SE", "FI"], "south": ["ES", "IT"]})
        >>> sale = db.create_table("sale", columns, "country", by_region)
        >>> sale.insert(("FI", 4))
        >>> [partition["rows"] for partition in sale.partitions()]
        [1, 0]
    """

    KIND = "list"
    BOUND = "values"

    def _bound(self, bound: Any) -> Any:
        if not isinstance(bound, (tuple, list, set, frozenset, range)) or not bound:
            raise SchemaInvalid(f"a list partition takes one value or more, got {shown(bound)}")
        return tuple(_tuple_of(value, len(self.columns)) for value in bound)

    def _given(self, bound: Any) -> Any:
        return [_plain(value) for value in bound]

    def bound_to(self, definition: Columns) -> Partition:
        kinds = _types_of(self.columns, definition)
        taken: dict[Any, str] = {}
        made = []
        for name, values in self.partitions:
            rows = []
            for pieces in values:
                if MAXVALUE in pieces:
                    raise SchemaInvalid(f"partition {name!r}: MAXVALUE is a bound of ranges, not a value of a list")
                stored = self._stored(kinds, pieces, f"table {definition.name}: value of partition {name!r}")
                order = tuple(kind.sort_key(piece) for kind, piece in zip(kinds, stored, strict=True))
                if order in taken:
                    raise SchemaInvalid(
                        f"table {definition.name}: {shown(pieces)} is in partition {taken[order]!r} and again in"
                        f" {name!r}",
                        table=definition.name,
                    )
                taken[order] = name
                rows.append((order, _loaded(kinds, stored)))
            made.append((name, tuple(loaded for _, loaded in sorted(rows, key=lambda row: row[0]))))
        if len(taken) > limits.PARTITION_VALUES_MAX:
            raise LimitExceeded(f"lists have {len(taken)} values, more than {limits.PARTITION_VALUES_MAX}")
        return replace(self, partitions=tuple(made))

    def to_json(self, types: Types) -> dict[str, Any]:
        return self._to_json(types, lambda kinds, values: [_pieces_to_json(kinds, each) for each in values])


def _loaded(kinds: Sequence[ColumnType], stored: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(piece if piece is MAXVALUE else kind.loaded(piece) for kind, piece in zip(kinds, stored, strict=True))


def _pieces_to_json(kinds: Sequence[ColumnType], pieces: Sequence[Any]) -> list[Any]:
    # No value is null, so null can stand for MAXVALUE.
    return [
        None if piece is MAXVALUE else value_to_json(kind.stored_key(piece))
        for kind, piece in zip(kinds, pieces, strict=True)
    ]


def _pieces_from_json(kinds: Sequence[ColumnType], pieces: list[Any]) -> tuple[Any, ...]:
    return tuple(
        MAXVALUE if piece is None else value_from_json(kind, piece) for kind, piece in zip(kinds, pieces, strict=True)
    )


def partition_from_json(value: Any, types: Types) -> Partition:
    """Return the partition that `to_json` described. types: of the table's columns.

    Raises: SchemaInvalid if there is no such kind; KeyError, TypeError, ValueError if the value is not a partition.
    """
    kind = value.get("kind") if isinstance(value, dict) else None
    columns = None if kind is None or value.get("columns") is None else tuple(value["columns"])
    if kind in (HashPartition.KIND, LinearHash.KIND):
        made = HashPartition if kind == HashPartition.KIND else LinearHash
        return made(value.get("fragments", 0), columns, value.get("modulo"))
    if kind == KeyPartition.KIND:
        return KeyPartition(value.get("fragments", 0), columns, linear=value.get("linear", False))
    if kind in (RangePartition.KIND, ListPartition.KIND) and columns is not None:
        kinds = [types[name] for name in columns]
        numbers = tuple(each["number"] for each in value["partitions"])
        if kind == RangePartition.KIND:
            bounds = [(each["name"], _pieces_from_json(kinds, each["upper"])) for each in value["partitions"]]
            return RangePartition(columns, tuple(bounds), numbers, value["next"])
        lists = [
            (each["name"], tuple(_pieces_from_json(kinds, row) for row in each["values"]))
            for each in value["partitions"]
        ]
        return ListPartition(columns, tuple(lists), numbers, value["next"])
    raise SchemaInvalid(f"not a partition: {shown(value)}")
