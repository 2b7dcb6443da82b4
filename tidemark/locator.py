"""Where a store is: what travels between processes instead of a `Database`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Locator:
    """The directory of a store. It pickles, and `tm.open(locator)` opens the store, once nobody else has it open.

    read_only: `tm.open(locator)` attaches to the last local checkpoint, whoever has the store open.
    """

    directory: str
    read_only: bool = False

    def __fspath__(self) -> str:
        return self.directory
