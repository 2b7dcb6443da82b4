"""Where a store is: what travels between processes instead of a `Database`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Locator:
    """The directory of a store. It pickles, and `tm.open(locator)` opens the store, once nobody else has it open."""

    directory: str

    def __fspath__(self) -> str:
        return self.directory
