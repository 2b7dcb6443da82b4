"""Data passed between the processes of a load: the job, and the report of each task. Plain values, JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass, field, fields
from functools import cached_property
from typing import Any

from tidemark.engine.base.errors import Rejected
from tidemark.engine.log.load_files import LoadFile, job_name
from tidemark.engine.schema.definition import TableDefinition
from tidemark.engine.store.load_shape import LoadShape, shape_of
from tidemark.recovery.places.names import shown_place

JOB_BITS = 63
EXAMPLES_MAX = 10


def not_as_written(what: str, why: Exception | str) -> Rejected:
    """Return the error for a text that is not what `to_json` wrote."""
    said = why if isinstance(why, str) else repr(why)
    return Rejected(f"this is not {what} ({said}); give the text that to_json() returned")


@dataclass(frozen=True)
class LoadJob:
    """One bulk load into one table, as every process needs it. `directory` is a path or URI valid in all of them.

    Secrets of a URI are in the object alone: texts and files of the job have `…` in their place.
    """

    number: int
    store: bytes
    incarnation: int
    definition_json: bytes = field(repr=False)
    directory: str = field(repr=False)
    is_own: bool = False  # the directory is the store's own folder

    @property
    def name(self) -> str:
        """The number as 16 hexadecimal digits; the names of all files of the job begin with it."""
        return job_name(self.number)

    @cached_property
    def shape(self) -> LoadShape:
        """Format, hash and page geometry of the table."""
        return shape_of(self.definition_json)

    @property
    def definition(self) -> TableDefinition:
        """The table as it was when the load was planned."""
        return self.shape.definition

    @property
    def table(self) -> str:
        """The name of the table."""
        return self.definition.name

    @property
    def format_version(self) -> int:
        """The version whose columns the images have: that of the newest added column, 0 if none was added."""
        return self.definition.format_version

    @property
    def fragments(self) -> tuple[int, ...]:
        """The numbers of the table's fragments."""
        return tuple(self.definition.partition.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadJob, astuple(self)

    def to_json(self) -> str:
        """Return the job as text, for `from_json` in another process. Secrets of a URI are not in it."""
        return json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the job as plain values."""
        return {
            "job": self.number,
            "store": self.store.hex(),
            "incarnation": self.incarnation,
            "definition": json.loads(self.definition_json),
            "directory": self.directory if self.directory.startswith("/") else shown_place(self.directory),
            "is_own": self.is_own,
        }

    @classmethod
    def from_json(cls, text: str | bytes, directory: str | None = None) -> LoadJob:
        """Return the job in a text. directory: that of the job, if it is a URI with secrets, which no text has.

        Raises: Rejected if the text is no job, SchemaInvalid.
        """
        try:
            return cls.from_dict(json.loads(text), directory)
        except (ValueError, RecursionError) as error:
            raise not_as_written("the description of a load", error) from error

    @classmethod
    def from_dict(cls, value: Any, directory: str | None = None) -> LoadJob:
        """Return the job of plain values; directory: as for `from_json`. Raises: Rejected, SchemaInvalid."""
        try:
            number, store = value["job"], bytes.fromhex(value["store"])
            is_sane = isinstance(number, int) and 0 <= number < 1 << JOB_BITS and len(store) == 16
            definition = TableDefinition.from_json(json.dumps(value["definition"]).encode())
            job = cls(
                number,
                store,
                int(value["incarnation"]),
                definition.to_json(),
                str(value["directory"]) if directory is None else directory,
                bool(value["is_own"]),
            )
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            raise not_as_written("the description of a load", error) from error
        if not is_sane:
            raise not_as_written("the description of a load", "its number or store is invalid")
        return job


@dataclass(frozen=True)
class FragmentReport:
    """Result of one task: the file it wrote, None if no row went into one; the number of refused rows, and examples."""

    job: int
    fragment: int
    part: int
    file: LoadFile | None
    refused: int = 0
    is_at_least: bool = False
    examples: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> int:
        """The number of rows in the file."""
        return self.file.rows if self.file is not None else 0

    def to_json(self) -> str:
        """Return the report as text."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> FragmentReport:
        """Return the report in a text. Raises: Rejected if the text is no report."""
        try:
            value = json.loads(text)
            file = value["file"]
            return cls(
                int(value["job"]),
                int(value["fragment"]),
                int(value["part"]),
                None if file is None else file_of(file),
                int(value["refused"]),
                bool(value["is_at_least"]),
                tuple(value["examples"]),
            )
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise not_as_written("the report of a task of a load", error) from error


_FILE_FIELDS = tuple(each.name for each in fields(LoadFile))


def file_of(value: Any) -> LoadFile:
    """Return the description of a load file from plain values. Raises: ValueError, LookupError, TypeError."""
    numbers = [value[name] for name in _FILE_FIELDS]
    # The digest is a signed word, all others are counts.
    if not all(isinstance(number, int) for number in numbers) or any(number < 0 for number in numbers[:-1]):
        raise ValueError("a load file must be described by whole numbers")
    if max(map(abs, numbers)) >= 1 << 63:
        raise ValueError("a number of a load file is too large")
    return LoadFile(*numbers)
