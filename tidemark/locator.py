"""The place of a store, to be sent between processes instead of a `Database`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Locator:
    """The directory of a store. It can be pickled, and `tm.open(locator)` opens the store if no other process has it
    open.

    read_only: `tm.open(locator)` attaches to the last local checkpoint, even while another process has the store open.
    """

    directory: str
    read_only: bool = False

    def __fspath__(self) -> str:
        return self.directory
