"""What travels between the processes of a load: the job, and what each task reports. Plain values, JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass, field, fields
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import Rejected
from engine.kernels.partitions import PARTITION_SEED
from engine.layout.arena import PAGE_HEADER_WORDS, PAGE_WORDS, ROW_HEADER_WORDS
from engine.layout.load import LI_DISK, LI_FIXED, LI_FRAGMENT, LI_IDENTITY, LI_KEY_WORDS, LI_SLOTS, LI_VAR, LI_WORDS
from engine.layout.redo import pack_identity
from engine.load_files import LoadFile, job_name
from engine.partition_words import hash_header
from engine.row_format import RowFormat
from engine.schema import TableDefinition

if TYPE_CHECKING:
    from engine.memory.arena import Words

JOB_BITS = 63
EXAMPLES_MAX = 10


class Shape:
    """What a definition means for who writes rows of it."""

    def __init__(self, definition: TableDefinition) -> None:
        self.definition = definition
        self.format = RowFormat(definition)
        self.hash_header = hash_header(definition, self.format.fixed_words, int(PARTITION_SEED))
        layout = self.format.layout
        reference = int(self.format.has_var and not layout.var_since)
        row_words = ROW_HEADER_WORDS + max(self.format.fixed_words, 1) + reference
        self.slots = (PAGE_WORDS - PAGE_HEADER_WORDS) // row_words
        self.key_words = 0 if self.format.key_in_var else self.format.key_words

    def words(self, fragment: int) -> Words:
        """LI_ words for the kernels, of one fragment."""
        words: Words = np.zeros(LI_WORDS, dtype=np.int64)
        words[LI_FIXED] = self.format.fixed_words
        words[LI_VAR] = int(self.format.has_var)
        words[LI_DISK] = int(self.format.has_disk)
        words[LI_KEY_WORDS] = self.key_words
        words[LI_SLOTS] = self.slots
        words[LI_IDENTITY] = pack_identity(self.definition.table_id, fragment, self.definition.version)
        words[LI_FRAGMENT] = fragment
        return words


@lru_cache(maxsize=8)
def _shape(definition_json: bytes) -> Shape:
    return Shape(TableDefinition.from_json(definition_json))


@dataclass(frozen=True)
class LoadJob:
    """One bulk load into one table, as every process needs it. `directory` is a path or URI that all of them see."""

    number: int
    store: bytes
    incarnation: int
    definition_json: bytes = field(repr=False)
    directory: str
    is_own: bool = False  # the directory is the store's own folder

    @property
    def name(self) -> str:
        """The number as 16 hexadecimal digits, with which the names of all its files begin."""
        return job_name(self.number)

    @cached_property
    def shape(self) -> Shape:
        """Format, hash and page geometry of the table."""
        return _shape(self.definition_json)

    @property
    def definition(self) -> TableDefinition:
        """The table as it was when the load was planned."""
        return self.shape.definition

    @property
    def table(self) -> str:
        """Name of the table."""
        return self.definition.name

    @property
    def fragments(self) -> tuple[int, ...]:
        """Numbers of the table's fragments."""
        return tuple(self.definition.partition.numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        return LoadJob, astuple(self)

    def to_json(self) -> str:
        """The job as text, for `from_json` in another process."""
        return json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=False)

    def to_dict(self) -> dict[str, Any]:
        """The job as plain values."""
        return {
            "job": self.number,
            "store": self.store.hex(),
            "incarnation": self.incarnation,
            "definition": json.loads(self.definition_json),
            "directory": self.directory,
            "is_own": self.is_own,
        }

    @classmethod
    def from_json(cls, text: str | bytes) -> LoadJob:
        """The job of a text. Raises: Rejected if it is none, SchemaInvalid."""
        try:
            return cls.from_dict(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise Rejected(f"this is not the description of a load: {error}") from error

    @classmethod
    def from_dict(cls, value: Any) -> LoadJob:
        """The job of plain values. Raises: Rejected, SchemaInvalid."""
        try:
            number, store = value["job"], bytes.fromhex(value["store"])
            is_sane = isinstance(number, int) and 0 <= number < 1 << JOB_BITS and len(store) == 16
            definition = TableDefinition.from_json(json.dumps(value["definition"]).encode())
            job = cls(
                number,
                store,
                int(value["incarnation"]),
                definition.to_json(),
                str(value["directory"]),
                bool(value["is_own"]),
            )
        except (ValueError, LookupError, TypeError) as error:
            raise Rejected(f"this is not the description of a load: {error!r}") from error
        if not is_sane:
            raise Rejected("this is not the description of a load: number or store cannot be")
        return job


@dataclass(frozen=True)
class FragmentReport:
    """What one task did: the file it wrote, None if it had no row for one; rows that are not in it, some shown."""

    job: int
    fragment: int
    part: int
    file: LoadFile | None
    refused: int = 0
    is_at_least: bool = False
    examples: tuple[dict[str, Any], ...] = ()

    @property
    def rows(self) -> int:
        """Rows in the file."""
        return self.file.rows if self.file is not None else 0

    def to_json(self) -> str:
        """The report as text."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> FragmentReport:
        """The report of a text. Raises: Rejected if it is none."""
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
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise Rejected(f"this is not the report of a task of a load: {error!r}") from error


_FILE_FIELDS = tuple(each.name for each in fields(LoadFile))


def file_of(value: Any) -> LoadFile:
    """What is said of a load file, from plain values. Raises: ValueError, LookupError, TypeError."""
    numbers = [value[name] for name in _FILE_FIELDS]
    # The digest is a signed word, all others count something.
    if not all(isinstance(number, int) for number in numbers) or any(number < 0 for number in numbers[:-1]):
        raise ValueError("a load file is described by whole numbers")
    if max(map(abs, numbers)) >= 1 << 63:
        raise ValueError("a number of a load file is too large")
    return LoadFile(*numbers)
