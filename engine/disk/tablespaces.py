"""Tablespace definitions: checked once, then immutable, like the definition of a table."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tidemark.engine.base.errors import SchemaInvalid
from tidemark.engine.disk.cache_layout import EXTENT_PAGES_MAX, EXTENT_PAGES_MIN, FILE_ID_MAX
from tidemark.engine.schema.names import check_name
from tidemark.engine.types.base import is_int, shown

JSON_VERSION = 1
PAGE_SIZES_BYTES = (4 << 10, 8 << 10, 16 << 10, 32 << 10)
PAGE_BYTES = 8 << 10
EXTENT_BYTES = 1 << 20
DEFAULT_NAME = "main"
DEFAULT_BYTES = 16 << 20
TABLESPACE_ID_MAX = (1 << 31) - 1


@dataclass(frozen=True)
class TablespaceDefinition:
    """A tablespace; valid by construction.

    `tablespace_id` is 0 and `file_ids` is empty until the store numbers them. `limit_bytes` bounds the extents of all
    its files together; None is no bound.
    """

    tablespace_id: int
    name: str
    page_bytes: int = PAGE_BYTES
    extent_bytes: int = EXTENT_BYTES
    is_autoextending: bool = True
    limit_bytes: int | None = None
    file_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.name, "tablespace", "./\\")
        object.__setattr__(self, "file_ids", tuple(self.file_ids))
        if not is_int(self.tablespace_id) or not 0 <= self.tablespace_id <= TABLESPACE_ID_MAX:
            raise self._wrong(f"its number must be 0 to {TABLESPACE_ID_MAX}, got {shown(self.tablespace_id)}")
        if not is_int(self.page_bytes) or self.page_bytes not in PAGE_SIZES_BYTES:
            raise self._wrong(f"a page has 4, 8, 16 or 32 KiB, got {shown(self.page_bytes)} bytes")
        least, most = EXTENT_PAGES_MIN * self.page_bytes, EXTENT_PAGES_MAX * self.page_bytes
        if not is_int(self.extent_bytes) or self.extent_bytes % self.page_bytes:
            raise self._wrong(f"an extent is a whole number of pages, got {shown(self.extent_bytes)} bytes")
        if not least <= self.extent_bytes <= most:
            raise self._wrong(f"an extent has {least} to {most} bytes, got {self.extent_bytes}")
        if not isinstance(self.is_autoextending, bool):
            raise self._wrong(f"autoextend is True or False, got {shown(self.is_autoextending)}")
        if self.limit_bytes is not None and (not is_int(self.limit_bytes) or self.limit_bytes < self.extent_bytes):
            raise self._wrong(f"its limit is None or at least one extent, got {shown(self.limit_bytes)} bytes")
        if not all(is_int(each) and 1 <= each <= FILE_ID_MAX for each in self.file_ids):
            raise self._wrong(f"numbers of data files are 1 to {FILE_ID_MAX}, got {shown(self.file_ids)}")
        if list(self.file_ids) != sorted(set(self.file_ids)):
            raise self._wrong(f"its data files are numbered in order, got {shown(self.file_ids)}")

    def _wrong(self, message: str) -> SchemaInvalid:
        return SchemaInvalid(f"tablespace {self.name}: {message}", tablespace=self.name)

    @property
    def extent_pages(self) -> int:
        """The pages of an extent."""
        return self.extent_bytes // self.page_bytes

    @property
    def limit_extents(self) -> int | None:
        """The number of extents it may have, None for any number."""
        return None if self.limit_bytes is None else self.limit_bytes // self.extent_bytes

    def to_json(self) -> bytes:
        """Return canonical JSON: equal definitions give equal bytes."""
        value = {
            "autoextend": self.is_autoextending,
            "extent_bytes": self.extent_bytes,
            "files": list(self.file_ids),
            "format": JSON_VERSION,
            "limit_bytes": self.limit_bytes,
            "name": self.name,
            "page_bytes": self.page_bytes,
            "tablespace_id": self.tablespace_id,
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TablespaceDefinition:
        """Return the definition that `to_json` wrote. Raises: SchemaInvalid if the bytes are no definition."""
        try:
            value = json.loads(data)
            if value["format"] != JSON_VERSION:
                raise SchemaInvalid(f"tablespace has format {shown(value['format'])}, this reads {JSON_VERSION}")
            return cls(
                value["tablespace_id"],
                value["name"],
                value["page_bytes"],
                value["extent_bytes"],
                value["autoextend"],
                value["limit_bytes"],
                tuple(value["files"]),
            )
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise SchemaInvalid(f"not a tablespace: {shown(data)}") from error
