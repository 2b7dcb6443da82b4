"""The end of a restart that stops before the end of the log: after an epoch, or after its last group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tidemark.engine.base.errors import ValueOutOfRange

if TYPE_CHECKING:
    from tidemark.engine.log.reader import GroupRead, LogReader
    from tidemark.engine.store.store import Store
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.system_restart.sysfile import Sysfile


@dataclass(frozen=True)
class Through:
    """The end of an epoch.

    sequence: its last group, if known. Then the sequences of groups decide what is later, not the numbers of epochs.
    Local checkpoints and time end epochs without groups: these have the same state as the previous epoch, and other
    nodes may have used their numbers for groups since (docs/internals/node-group.md, *Where X ends*).
    """

    epoch: int
    sequence: int | None = None

    def has(self, epoch: int, sequence: int) -> bool:
        """Whether a state that ends with this epoch and this group is not past the end."""
        return epoch <= self.epoch if self.sequence is None else sequence <= self.sequence

    def controls(self, found: list[Control]) -> list[Control]:
        """Return the local checkpoints without later changes. One with a later epoch number but no later rows counts as
        one of this epoch: otherwise the replay would skip groups because of its number.
        """
        kept = [control for control in found if self.has(control.epoch, control.start_sequence - 1)]
        return [replace(control, epoch=min(control.epoch, self.epoch)) for control in kept]

    def sysfile(self, sysfile: Sysfile) -> Sysfile:
        """Return the sysfile as of this end. It is true once `check` has passed: no UNDO record of a later epoch was
        left out, and no later epoch with groups has closed.
        """
        return replace(
            sysfile,
            filtered_epoch=min(sysfile.filtered_epoch, self.epoch),
            closed_epoch=min(sysfile.closed_epoch, self.epoch),
        )

    def groups(
        self, found: list[GroupRead], reader: LogReader, start: tuple[int, int]
    ) -> tuple[list[GroupRead], list[GroupRead]]:
        """Return the groups up to the end, which becomes the end of the log, and the groups after it. start: LSN and
        sequence where reading began.

        Raises: RedoDamaged if the log lacks group `sequence`.
        """
        if self.sequence is not None and reader.next_sequence <= self.sequence:
            raise reader.damage(f"is missing, and group {self.sequence} is the last one of epoch {self.epoch}")
        kept = [group for group in found if self.has(group.epoch, group.sequence)]
        if kept:
            reader.end_at(kept)
        else:
            reader.end_before(*start)
        return kept, found[len(kept) :]

    def check(self, store: Store, filtered_epoch: int, cut: list[GroupRead]) -> None:
        """Check that disk pages can be reverted. UNDO records up to the filtered epoch may be missing, so the changes
        of a group of such an epoch cannot be undone (U3). cut: groups past the end. Raises: ValueOutOfRange.
        """
        has_disk = any(table.format.has_disk for table in store.tables.by_name.values())
        if has_disk and any(group.epoch <= filtered_epoch for group in cut):
            raise ValueOutOfRange(
                f"epoch {self.epoch} is before epoch {filtered_epoch}, up to which UNDO records of disk columns were"
                " filtered; restart through that one or a later one, or keep stores with undo_filter=False",
                oldest=filtered_epoch,
            )
