"""The place of a store, to be sent between processes instead of a `Database`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Locator:
    """The directory of a store. It can be pickled, and `tm.open(locator)` opens the store if no other process has it
    open.

    `tm.open` raises what it raises for a path; creating a Locator checks nothing.

    Args:
        read_only: `tm.open(locator)` attaches to the last local checkpoint, even while another process has the store
            open.

    Examples:
        >>> with tm.open("shop", redo_log="16 MiB") as store:
        ...     locator = store.locator
        >>> with tm.open(locator) as store:
        ...     store.tables()
        []
    """

    directory: str
    read_only: bool = False

    def __fspath__(self) -> str:
        return self.directory
