"""Which before-images the operations on a table log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.memory.arena_layout import CAPTURE_CHANGED, CAPTURE_NONE, CAPTURE_WHOLE
from tidemark.engine.txn import before_images_kernels as kernels

if TYPE_CHECKING:
    from tidemark.engine.table.table import Table


def set_capture(table: Table, capture: int) -> None:
    """Set which before-images the operations on a table log, a CAPTURE_ value. Does nothing for a dropped table."""
    if capture not in (CAPTURE_NONE, CAPTURE_CHANGED, CAPTURE_WHOLE):
        raise InvariantBroken(f"{table.name} cannot capture images in the way {capture}; report this")
    kernels.set_capture(table.mem, table.handle, capture)
