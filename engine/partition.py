"""How the rows of a table are spread over its fragments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine import limits
from engine.errors import SchemaInvalid
from engine.types_base import is_int


@dataclass(frozen=True)
class HashPartition:
    """Spread by hash of the canonical key: fragment = (xxhash64(key, seed 42) & (2^63 - 1)) mod fragments (D14)."""

    fragments: int = 4

    def __post_init__(self) -> None:
        if not is_int(self.fragments) or not 1 <= self.fragments <= limits.FRAGMENTS_MAX:
            raise SchemaInvalid(f"a table has 1 to {limits.FRAGMENTS_MAX} fragments, got {self.fragments!r}")

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `partition_from_json` turns into an equal partition."""
        return {"kind": "hash", "fragments": self.fragments}


def partition_from_json(value: Any) -> HashPartition:
    """The partition that `to_json` described; SchemaInvalid if there is no such kind."""
    if isinstance(value, dict) and value.get("kind") == "hash":
        return HashPartition(value.get("fragments", 0))
    raise SchemaInvalid(f"no such partition: {value!r}")
