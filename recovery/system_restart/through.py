"""Where a restart ends that is not to go to the end of the log: behind an epoch, or behind its last group."""

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

    sequence: its last group, if that is known. Then it is by groups that is judged what came behind, and not by the
    numbers of epochs: local checkpoints and time end epochs without groups, which hold what the one before them held,
    and whose numbers others may have given to groups since (docs/node-group.md, 4).
    """

    epoch: int
    sequence: int | None = None

    def has(self, epoch: int, sequence: int) -> bool:
        """Whether what ends with this epoch and this group is not behind the end."""
        return epoch <= self.epoch if self.sequence is None else sequence <= self.sequence

    def controls(self, found: list[Control]) -> list[Control]:
        """Local checkpoints with nothing that came behind. They have rows of no later epoch than this one, so they
        count as of this one if they are of a later: what is replayed over them must not be passed over for its number.
        """
        kept = [control for control in found if self.has(control.epoch, control.start_sequence - 1)]
        return [replace(control, epoch=min(control.epoch, self.epoch)) for control in kept]

    def sysfile(self, sysfile: Sysfile) -> Sysfile:
        """The same of what a sysfile says: behind `check` no UNDO record was left out, and no epoch with groups has
        closed, behind this one.
        """
        return replace(
            sysfile,
            filtered_epoch=min(sysfile.filtered_epoch, self.epoch),
            closed_epoch=min(sysfile.closed_epoch, self.epoch),
        )

    def groups(
        self, found: list[GroupRead], reader: LogReader, start: tuple[int, int]
    ) -> tuple[list[GroupRead], list[GroupRead]]:
        """Groups up to the end, which becomes that of the log, and those behind it; start: LSN and sequence where
        reading began.

        Raises: RedoDamaged if the log ends before it.
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
        """UNDO of changes up to the filtered epoch may be gone: pages cannot go back behind a group of one of those
        (U3). cut: groups behind the end. Raises: ValueOutOfRange.
        """
        has_disk = any(table.format.has_disk for table in store.tables.values())
        if has_disk and any(group.epoch <= filtered_epoch for group in cut):
            raise ValueOutOfRange(
                f"epoch {self.epoch} is before epoch {filtered_epoch}, up to which UNDO records of disk columns were"
                " filtered; restart through that one or a later one, or keep stores with undo_filter=False",
                oldest=filtered_epoch,
            )
