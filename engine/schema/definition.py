"""Table definitions: checked once, then immutable.

A `TableDefinition` that exists is valid: every rule of names, keys and sizes is checked at creation, whether by a user
or from the bytes of a schema record. Its JSON is canonical (sorted, versioned): equal definitions have equal bytes, so
that copies in the log, in control files and in the catalog can be compared as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from tidemark.engine.base import limits
from tidemark.engine.base.errors import SchemaInvalid, VersionTooOld
from tidemark.engine.schema.check_definition import CheckDefinition, check_from_json
from tidemark.engine.schema.column import ABSENT, Column, Columns, column_from_json
from tidemark.engine.schema.expiry_definition import Expiry, expiry_of
from tidemark.engine.schema.index_definition import IndexDefinition, index_from_json
from tidemark.engine.schema.names import alternatives, check_name, qualified_name
from tidemark.engine.schema.partition import HashPartition, Partition, partition_from_json
from tidemark.engine.schema.row_shape import fixed_image_bytes, var_part_bytes
from tidemark.engine.types.base import is_int, shown

JSON_VERSION = 1
ALTERED_JSON_VERSION = 2  # of tables with an added column, so that older readers refuse them
# Of tables with a dropped column. Programs that wrote 2 for these moved other columns when one was dropped.
DROPPED_JSON_VERSION = 3
# Of tables with what each writer must know: computed defaults, checks. Older programs would leave them out.
RULES_JSON_VERSION = 4
# Of tables whose rows expire. Programs that wrote 4 for other tables would leave that out.
EXPIRY_JSON_VERSION = 5
# Of tables with a column that took the place of a narrower one. Older programs would look for it in the order of names.
MOVED_JSON_VERSION = 6
DEFAULT_TABLESPACE = "main"
_FIRST_OPTION = 5  # of the fields: after the arguments that each table has


def _mixed_rows(value: dict[str, Any]) -> VersionTooOld:
    names = ", ".join(str(each["column"]["name"]) for each in value["dropped"])
    return VersionTooOld(
        f"table {value['name']} has definition format {value['format']} and dropped columns ({names}): the program that"
        " dropped them moved other columns, so rows written since are laid out otherwise than older ones; restore a"
        f" backup from before, or copy the rows with that program into a new table (this one drops columns in format"
        f" {DROPPED_JSON_VERSION})",
        table=value["name"],
        found=value["format"],
        supported=DROPPED_JSON_VERSION,
    )


@dataclass(frozen=True, repr=False)
class TableDefinition(Columns):
    """One version of a table's schema; valid by construction.

    `table_id` is 0 until the store numbers the table; every schema change raises `version`. `tablespace` is the
    tablespace of the disk columns; None without disk columns, or until the store fills in DEFAULT_TABLESPACE.
    `indexes`: built indexes, in order of creation. `dropped`: columns for which rows may still have bytes, each with
    its place among all columns that ever existed, ascending. `checks`: in the order in which they were added; which of
    them can be compiled is known to `engine/programs/checks.py`. `expires`: when rows expire, as "seen + 30 min".
    """

    table_id: int
    version: int
    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    partition: Partition = field(default_factory=HashPartition)
    tablespace: str | None = None
    indexes: tuple[IndexDefinition, ...] = ()
    dropped: tuple[tuple[int, Column], ...] = ()
    checks: tuple[CheckDefinition, ...] = ()
    expires: str | None = None

    def __post_init__(self) -> None:
        key: Sequence[str] = (self.primary_key,) if isinstance(self.primary_key, str) else self.primary_key
        object.__setattr__(self, "name", qualified_name(self.name))
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "primary_key", tuple(key))
        object.__setattr__(self, "indexes", tuple(self.indexes))
        object.__setattr__(self, "dropped", tuple(self.dropped))
        object.__setattr__(self, "checks", tuple(self.checks))
        if not is_int(self.table_id) or not 0 <= self.table_id <= limits.TABLE_ID_MAX:
            raise SchemaInvalid(f"table id must be 0 to {limits.TABLE_ID_MAX}, got {shown(self.table_id)}")
        if not is_int(self.version) or not 1 <= self.version <= limits.SCHEMA_VERSION_MAX:
            raise SchemaInvalid(f"schema version must be 1 to {limits.SCHEMA_VERSION_MAX}, got {shown(self.version)}")
        if not isinstance(self.partition, Partition):
            hint = "; call it with its parameters" if isinstance(self.partition, type) else ""
            raise SchemaInvalid(f"partition must be a HashPartition or the like, got {shown(self.partition)}{hint}")
        self._check_columns()
        self._check_key()
        self._check_indexes_and_checks()
        self._check_expiry()
        object.__setattr__(self, "partition", self.partition.bound_to(self))
        self._check_sizes()

    def __repr__(self) -> str:
        """The calls that make such a table, of names that `tidemark` has."""
        columns = ",\n        ".join(map(repr, self.columns))
        key = self.primary_key if len(self.primary_key) > 1 else self.primary_key[0]
        lines = [repr(self.name), f"[\n        {columns},\n    ]", repr(key)]
        for part in fields(self)[_FIRST_OPTION:]:
            value = getattr(self, part.name)
            default = part.default if part.default_factory is MISSING else part.default_factory()
            if value != default and part.name not in ("indexes", "dropped", "checks"):
                lines.append(f"{part.name}={value!r}")
        if self.checks:  # expressions are of another room
            lines.append(f"checks={{{', '.join(f'{each.name!r}: ...' for each in self.checks)}}}")
        text = ",\n    ".join(lines)
        made = [f"create_table(\n    {text},\n)"]
        for index in self.indexes:
            unique = ", unique=True" if index.is_unique else ""
            ordered = ", ordered=True" if index.is_unique and index.is_ordered else ""
            made.append(f"create_index({self.name!r}, {index.name!r}, {list(index.columns)!r}{unique}{ordered})")
        return "\n".join(made)

    def _wrong(self, message: str) -> SchemaInvalid:
        return SchemaInvalid(f"table {self.name}: {message}", table=self.name)

    def _check_columns(self) -> None:
        count = len(self.columns) + len(self.dropped)
        if not self.columns or count > limits.COLUMNS_MAX:
            hint = f" and {len(self.dropped)} dropped ones" if self.dropped else ""
            raise self._wrong(f"a table has 1 to {limits.COLUMNS_MAX} columns, got {len(self.columns)}{hint}")
        seen: set[str] = set()
        for column in self.columns:
            if not isinstance(column, Column):
                raise self._wrong(f"columns must be Column objects, got {shown(column)}")
            if column.name in seen:
                raise self._wrong(f"column {column.name!r} appears twice")
            seen.add(column.name)
        places = [at for at, _ in self.dropped]
        if not all(is_int(at) and 0 <= at < count for at in places) or sorted(set(places)) != places:
            raise self._wrong(f"dropped columns have places from 0 to {count - 1}, each different, got {shown(places)}")
        for _, column in self.physical:
            if not is_int(column.added) or not 0 <= column.added <= self.version:
                raise self._wrong(f"column {column.name!r} was added by version {shown(column.added)}")
            if not is_int(column.shown) or not (column.shown == 0 or 0 < column.added < column.shown <= self.version):
                raise self._wrong(f"column {column.name!r} was made wider by version {shown(column.shown)}")
            if column.added and (column.is_disk or column.before is ABSENT):
                raise self._wrong(
                    f"added column {column.name!r} must be in memory, and have a value for the rows before it"
                )
        if self.tablespace is not None:
            check_name(self.tablespace, "tablespace")
            if not self.has_disk:
                raise self._wrong(
                    f"tablespace {self.tablespace!r} is given, but no column has storage='disk'; leave it out"
                )

    def _check_key(self) -> None:
        if not 1 <= len(self.primary_key) <= limits.KEY_COLUMNS_MAX:
            raise self._wrong(f"a primary key has 1 to {limits.KEY_COLUMNS_MAX} columns, got {len(self.primary_key)}")
        if len(set(self.primary_key)) != len(self.primary_key):
            raise self._wrong(f"a column appears twice in the primary key, got {shown(self.primary_key)}")
        known = {column.name: column for column in self.columns}
        for name in self.primary_key:
            column = known.get(name)
            if column is None:
                raise self._wrong(f"primary key column {name!r} does not exist; {alternatives(name, known)}")
            if column.nullable:
                raise self._wrong(f"primary key column {name!r} must not be nullable")
            if column.is_disk:
                raise self._wrong(
                    f"primary key column {name!r} has storage='disk', but key columns live in memory; leave it out"
                )
            if not column.type.keyable:
                raise self._wrong(f"{column.type!r} column {name!r} is not allowed in a primary key")
        numbered = [column.name for column in self.columns if column.computed and column.computed.is_numbered]
        if len(numbered) > 1:
            raise self._wrong(f"one column is numbered by tm.autoincrement, got {', '.join(numbered)}")
        if not set(numbered) <= set(self.primary_key):
            raise self._wrong(
                f"column {numbered[0]!r} has the default tm.autoincrement and is not part of the primary key; make it"
                " the key, or take its numbers from db.sequence()"
            )
        key_bytes = sum(known[name].type.key_bytes_max for name in self.primary_key)
        if key_bytes > limits.KEY_BYTES_MAX:
            raise self._wrong(f"the primary key may take {key_bytes} bytes, more than {limits.KEY_BYTES_MAX}")

    def _check_indexes_and_checks(self) -> None:
        if len(self.indexes) > limits.INDEXES_MAX:
            raise self._wrong(f"a table has at most {limits.INDEXES_MAX} indexes, got {len(self.indexes)}")
        known = {column.name: column for column in self.columns}
        for many, each, kind, found in (
            ("indexes", "index", IndexDefinition, self.indexes),
            ("checks", "check", CheckDefinition, self.checks),
        ):
            seen: set[str] = set()
            for part in found:
                if not isinstance(part, kind):
                    raise self._wrong(f"{many} must be {kind.__name__} objects, got {shown(part)}")
                if part.name in seen:
                    raise self._wrong(f"{each} {part.name!r} appears twice")
                seen.add(part.name)
                part.check_columns(self.name, known)

    def _check_expiry(self) -> None:
        if self.expires is None:
            return
        expiry = expiry_of(self.expires)
        expiry.check_column(self.name, {column.name: column for column in self.columns})
        object.__setattr__(self, "expires", str(expiry))

    @property
    def expiry(self) -> Expiry | None:
        """When rows expire; None: never."""
        return None if self.expires is None else expiry_of(self.expires)

    def _check_sizes(self) -> None:
        fixed_bytes = fixed_image_bytes(self)
        if fixed_bytes > limits.FIXED_BYTES_MAX:
            raise self._wrong(
                f"its fixed-size columns take {fixed_bytes} bytes, more than {limits.FIXED_BYTES_MAX}; use VarChar"
                " or storage='disk'"
            )
        var_bytes = var_part_bytes(self)
        if var_bytes > limits.VAR_BYTES_MAX:
            raise self._wrong(
                f"its variable columns may take {var_bytes} bytes, more than {limits.VAR_BYTES_MAX}; use Text or Blob"
            )

    @property
    def _json_version(self) -> int:
        if any(column.shown for _, column in self.physical):
            return MOVED_JSON_VERSION
        if self.expires is not None:
            return EXPIRY_JSON_VERSION
        if self.checks or any(column.computed for _, column in self.physical):
            return RULES_JSON_VERSION
        if self.dropped:
            return DROPPED_JSON_VERSION
        return ALTERED_JSON_VERSION if any(column.added for column in self.columns) else JSON_VERSION

    def to_json(self) -> bytes:
        """Return canonical JSON: equal definitions give equal bytes."""
        value: dict[str, Any] = {
            "columns": [column.to_json() for column in self.columns],
            "format": self._json_version,
            "name": self.name,
            "partition": self.partition.to_json({column.name: column.type for column in self.columns}),
            "primary_key": list(self.primary_key),
            "table_id": self.table_id,
            "version": self.version,
        }
        if self.has_disk:  # a table in memory has the same bytes as before tablespaces existed
            value["tablespace"] = self.tablespace
        if self.indexes:  # a table without indexes: likewise
            value["indexes"] = [index.to_json() for index in self.indexes]
        if self.dropped:
            value["dropped"] = [{"at": at, "column": column.to_json()} for at, column in self.dropped]
        if self.checks:
            value["checks"] = [check.to_json() for check in self.checks]
        if self.expires is not None:
            value["expires"] = self.expires
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TableDefinition:
        """Return the definition that `to_json` wrote. Raises: SchemaInvalid if the bytes are not a definition;
        VersionTooOld for a column dropped by a program that moved the bytes of others.
        """
        try:
            value = json.loads(data)
            if value["format"] not in range(JSON_VERSION, MOVED_JSON_VERSION + 1):
                raise SchemaInvalid(
                    f"table definition has format {shown(value['format'])}, this reads up to {MOVED_JSON_VERSION}"
                )
            if value.get("dropped") and value["format"] < DROPPED_JSON_VERSION:
                raise _mixed_rows(value)
            columns = tuple(column_from_json(each) for each in value["columns"])
            return cls(
                value["table_id"],
                value["version"],
                value["name"],
                columns,
                tuple(value["primary_key"]),
                partition_from_json(value["partition"], {column.name: column.type for column in columns}),
                value.get("tablespace"),
                tuple(index_from_json(each) for each in value.get("indexes", ())),
                tuple((each["at"], column_from_json(each["column"])) for each in value.get("dropped", ())),
                tuple(check_from_json(each) for each in value.get("checks", ())),
                value.get("expires"),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise SchemaInvalid(f"not a table definition: {shown(data)}") from error
