"""Which columns each `binlog_type` puts into which image, and how rows of a batch share events.

`rule_of` is the table of docs/replication.md, *Settings of a table*, as a pure function. `runs` divides a batch into
runs of neighbouring rows that one event may hold: same columns present, origin, transaction id and conflict flags. Rows
keep their order, and so do the changes of one row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tidemark.engine.base.errors import InvariantBroken
from tidemark.engine.rows.row_format import Words
from tidemark.replication.binlog import rows_kernels as kernels
from tidemark.replication.binlog.events import DELETE, UPDATE, WRITE
from tidemark.replication.binlog.row_plan import (
    NO_PLAN,
    ImagePlan,
    RowImages,
    TablePlans,
    damaged_image,
    positions_of,
)
from tidemark.replication.settings.binlog_type import FULL, BinlogType, binlog_type

# Rows whose changed columns one kernel call computes.
_SLICE_ROWS = 4_096
_KIND_NAMES = {WRITE: "write", UPDATE: "update", DELETE: "delete"}


class Present(Enum):
    """Which columns an image has."""

    KEY = "key"
    CHANGED = "changed"
    KEY_AND_CHANGED = "key and changed"
    FULL = "full"


@dataclass(frozen=True)
class BinlogOptions:
    """The options of rows that are the same for every `binlog_type`."""

    empty_update: bool = False
    transaction_id: bool = False
    v1_row_events: bool = False


@dataclass(frozen=True)
class ImageRule:
    """The images that a table logs: an insert is always a WRITE with the full row.

    `update_kind` is UPDATE; or WRITE, without `update_before`, if updates are logged as writes. With `logs_empty`, an
    update that changes no column is logged too, as the whole row. It sets epoch and author of the row, by which a
    conflict function decides, so the other site needs it.
    """

    is_logged: bool
    update_kind: int
    update_before: Present | None
    update_after: Present
    delete: Present
    logs_empty: bool = False

    @property
    def needs_changed(self) -> bool:
        """Whether updates name the columns they changed."""
        changed = (Present.CHANGED, Present.KEY_AND_CHANGED)
        return self.update_before in changed or self.update_after in changed


def rule_of(how: BinlogType) -> ImageRule:
    wide = Present.FULL if how.is_full else Present.KEY_AND_CHANGED
    is_whole = how.is_full and not (how.is_minimal and how.is_update)
    delete = Present.FULL if is_whole else Present.KEY
    if not how.is_update:
        return ImageRule(how.is_logged, WRITE, None, wide, delete)
    if not how.is_minimal:
        return ImageRule(how.is_logged, UPDATE, wide, wide, delete)
    return ImageRule(how.is_logged, UPDATE, Present.KEY, Present.FULL if how.is_full else Present.CHANGED, delete)


# What `ndb_apply_status` is logged by.
FULL_RULE: Final = rule_of(binlog_type(FULL)[0])


def read_rule(rule: ImageRule) -> ImageRule:
    """Return how a table logs rows that were read: always as UPDATEs, with the images of its updates where these are
    full, else with the key.
    """

    def images(present: Present | None) -> Present:
        is_full = rule.update_kind == UPDATE and present is Present.FULL
        return Present.FULL if is_full else Present.KEY

    before, after = images(rule.update_before), images(rule.update_after)
    return replace(rule, update_kind=UPDATE, update_before=before, update_after=after)


@dataclass(frozen=True)
class RowBatch:
    """Rows of one table with the same kind of change.

    `kind` says what happened to them; WRITE needs after-images, DELETE before-images, UPDATE both. `transaction_ids`,
    `conflict_flags` and `server_ids` have one number per row; None stands for no ids, no flags and this server. With
    `as_called`, rows are logged as `kind` with full images, whatever the table's rule, as in system tables. With
    `is_read`, rows are tracked reads: UPDATEs that change nothing, logged by a rule from `read_rule`. Images without
    disk part are logged without disk columns.
    """

    plans: TablePlans
    rule: ImageRule
    kind: int
    rows: RowImages
    transaction_ids: Words | None = None
    conflict_flags: Words | None = None
    server_ids: Words | None = None
    as_called: bool = False
    is_read: bool = False
    before_has_disk: bool = True
    after_has_disk: bool = True

    def __post_init__(self) -> None:
        images = (self.rows.before, self.rows.after)
        has = tuple(each is not None for each in images)
        needed = {WRITE: (has[0], True), UPDATE: (True, True), DELETE: (True, has[1])}[self.kind]
        marks = (self.transaction_ids, self.conflict_flags, self.server_ids)
        lengths = {len(each) for each in (*images, *marks) if each is not None}
        if has != needed or len(lengths) > 1:
            raise InvariantBroken(f"a batch of {_KIND_NAMES[self.kind]} rows lacks images or marks; report this")


class Run(NamedTuple):
    """Neighbouring rows that one event may hold; `server_id` is 0 for this server."""

    kind: int
    before: ImagePlan | None
    after: ImagePlan | None
    transaction_id: int
    conflict_flags: int
    server_id: int
    first: int
    rows: int


def _of(plans: TablePlans, present: Present, changed: tuple[int, ...], has_disk: bool) -> ImagePlan:
    if present is Present.FULL:
        return plans.every if has_disk else plans.memory
    if present is Present.KEY:
        return plans.key
    changed = plans.kept(changed, has_disk)
    if present is Present.CHANGED:
        return plans.of(changed)
    return plans.of(tuple(sorted({*plans.key_positions, *changed})))


def _images(batch: RowBatch, changed: tuple[int, ...]) -> tuple[int, ImagePlan | None, ImagePlan | None]:
    """Return (kind of the event, plan of the before-image, of the after-image); `changed` is for rules that need it."""
    plans, rule = batch.plans, batch.rule
    if batch.kind == WRITE:
        return WRITE, None, _of(plans, Present.FULL, (), batch.after_has_disk)
    if batch.kind == DELETE:
        present = Present.FULL if batch.as_called else rule.delete
        return DELETE, _of(plans, present, (), batch.before_has_disk), None
    if batch.as_called:
        return UPDATE, plans.every, plans.every
    before = None if rule.update_before is None else _of(plans, rule.update_before, changed, batch.before_has_disk)
    is_empty = rule.logs_empty and rule.needs_changed and not changed and not batch.is_read
    present = Present.FULL if is_empty else rule.update_after
    return rule.update_kind, before, _of(plans, present, changed, batch.after_has_disk)


def _compared(batch: RowBatch) -> tuple[ImagePlan, tuple[int, ...]]:
    """Return (plan of the columns to compare, columns that count as changed without comparison). If only the
    after-image has a disk part, the update changed it; if the after-image lacks it, the update did not.
    """
    plans = batch.plans
    if batch.before_has_disk and batch.after_has_disk:
        return plans.every, ()
    return plans.memory, plans.disk_positions if batch.after_has_disk else ()


def _changed(batch: RowBatch, plan: ImagePlan, first: int, count: int) -> NDArray[np.uint8]:
    """Return bitmaps of the columns of a plan that differ, (columns + 7) // 8 bytes for each row."""
    masks = np.empty(count * ((len(plan.positions) + 7) // 8), np.uint8)
    rows = batch.rows
    status = kernels.changed_columns(masks, rows.words, rows.before, rows.after, plan.words, first, count)
    if status < 0:
        raise damaged_image(batch.plans.definition.name, first - 1 - status)
    return masks


def _marks(batch: RowBatch, options: BinlogOptions, first: int, count: int) -> Words:
    """Return transaction id (0 if none is logged), conflict flags and server id of each row."""
    marks = np.zeros((count, 3), np.int64)
    transaction_ids = batch.transaction_ids if options.transaction_id else None
    for place, values in enumerate((transaction_ids, batch.conflict_flags, batch.server_ids)):
        if values is not None:
            marks[:, place] = values[first : first + count]
    return marks


def runs(batch: RowBatch, options: BinlogOptions) -> Iterator[Run]:
    """Yield the runs of a batch in its order; none for a table that is not logged. An update that changes nothing is
    skipped, unless it has conflict flags, is a tracked read, or the rule, `empty_update` or `as_called` demands it.
    Raises: PageDamaged.
    """
    if not (batch.rule.is_logged or batch.as_called):
        return
    is_update = batch.kind == UPDATE and not (batch.as_called or batch.is_read)
    skips_empty = is_update and not (options.empty_update or batch.rule.logs_empty)
    compares = is_update and (batch.rule.needs_changed or skips_empty)
    plan, always = _compared(batch) if compares else (NO_PLAN, ())
    columns = len(plan.positions)
    mask_bytes = (columns + 7) // 8
    ends = np.empty(_SLICE_ROWS, np.int64)
    for first in range(0, batch.rows.count, _SLICE_ROWS):
        count = min(_SLICE_ROWS, batch.rows.count - first)
        masks = _changed(batch, plan, first, count) if compares else np.zeros(0, np.uint8)
        if compares and not batch.rule.needs_changed:
            # All columns are logged, so runs depend only on whether anything changed.
            masks = np.asarray(masks.reshape(count, mask_bytes).any(axis=1), np.uint8)
        width = len(masks) // count
        marks = _marks(batch, options, first, count)
        found = kernels.find_runs(ends, masks, marks.reshape(-1), width, marks.shape[1], count)
        begin = 0
        for end in ends[:found].tolist():
            mask = masks[begin * width : begin * width + width]
            transaction_id, flags, server_id = marks[begin].tolist()
            # A change with flags that a primary sends back confirms that the primary applied it, even without effect.
            if always or flags or not skips_empty or mask.any():
                found_in = positions_of(mask.tobytes(), columns) if batch.rule.needs_changed and compares else ()
                changed = tuple(sorted([*(plan.positions[each] for each in found_in), *always]))
                kind, before, after = _images(batch, changed)
                yield Run(kind, before, after, transaction_id, flags, server_id, first + begin, end - begin)
            begin = end
