"""The tasks of a restore: pieces of the archive to split, and groups of fragments of about the same size."""

from __future__ import annotations

import json
from dataclasses import astuple, replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidemark.recovery.backup.restore_task import FRAGMENTS, SPLIT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidemark.engine.schema.definition import TableDefinition
    from tidemark.engine.table.table import Table
    from tidemark.recovery.backup.manifest import Manifest
    from tidemark.recovery.backup.plan import Plan
    from tidemark.recovery.backup.restore_task import RestoreTask
    from tidemark.recovery.backup.split import Section

# Any task costs some milliseconds; all workers wait for the longest task at the end.
TASK_BYTES_MIN = 8 << 20
TASK_BYTES_MAX = 256 << 20
TASKS_EACH = 3  # for each worker, if there is enough to do


T = TypeVar("T")
Sections = dict[tuple[int, int], list["Section"]]


def _grouped(pieces: Sequence[T], size_of: Callable[[T], int], parallel: int) -> list[list[T]]:
    """Return the pieces in their order, in groups that are each a task of a suitable size; the last may be smaller."""
    total = sum(map(size_of, pieces))
    target_bytes = min(TASK_BYTES_MAX, max(TASK_BYTES_MIN, total // (TASKS_EACH * parallel)))
    groups: list[list[T]] = []
    room = 0
    for piece in pieces:
        if room <= 0:
            groups.append([])
            room = target_bytes
        groups[-1].append(piece)
        room -= size_of(piece)
    return groups


def split_tasks(plan: Plan, base: RestoreTask, parallel: int) -> list[RestoreTask]:
    """Return tasks that split the archived log after the backup, each with some consecutive segments."""
    groups = _grouped(plan.segments, lambda each: each.size_bytes, parallel)
    return [
        replace(
            base,
            kind=SPLIT,
            number=number,
            work=[list(astuple(each)[1:]) for each in group],
            size_bytes=sum(each.size_bytes for each in group),
        )
        for number, group in enumerate(groups)
    ]


def parts_of(manifest: Manifest, table: Table, slots: Callable[[int], int], sections: Sections) -> list[dict[str, Any]]:
    """Return the fragments of a table, which is as it will be after the restore, as parts of tasks: plain values.
    slots: returns the slots per page of a fragment, given its address.
    """
    layout, table_id = table.format.layout, table.table_id
    shape = {
        "table_id": table_id,
        "fixed_words": layout.fixed_words,
        "has_var": int(layout.has_var),
        "var_since": layout.var_since,
        "key_words": 0 if layout.key_in_var else layout.key_words,
    }
    return [
        {
            **shape,
            "fragment": number,
            "slots": slots(address),
            "levels": [level.values() for level in manifest.levels.get((table_id, number), [])],
            "sections": sections.get((table_id, number), []),
        }
        for number, address in table.by_number.items()
    ]


def bytes_of(part: dict[str, Any]) -> int:
    return int(sum(numbers[-2] for numbers in part["levels"]) + sum(section[-1] for section in part["sections"]))


def _rows_of(part: dict[str, Any]) -> int:
    return int(part["levels"][0][-1]) if part["levels"] else 0


def fragment_tasks(
    parts: list[dict[str, Any]], base: RestoreTask, parallel: int, tables: Sequence[TableDefinition]
) -> list[RestoreTask]:
    """Return tasks that write the data files of fragments, the largest first. tables: as they were backed up."""
    values = {each.table_id: json.loads(each.to_json()) for each in tables}
    ordered = sorted(parts, key=bytes_of, reverse=True)
    groups = _grouped(ordered, bytes_of, parallel)
    return [
        replace(
            base,
            kind=FRAGMENTS,
            number=number,
            work=group,
            rows=sum(map(_rows_of, group)),
            size_bytes=sum(map(bytes_of, group)),
            tables=[values[each] for each in sorted({part["table_id"] for part in group}) if each in values],
        )
        for number, group in enumerate(groups)
    ]


def planned_tasks(plan: Plan, parallel: int) -> list[dict[str, Any]]:
    """Return the tasks of a plan for display, from manifests and segment headers alone. All tables with disk columns
    are one task, which the restoring process carries out.
    """
    manifest = plan.manifest
    names = {each.table_id: each for each in manifest.tables}
    segments = _grouped(plan.segments, lambda each: each.size_bytes, parallel)
    tasks: list[dict[str, Any]] = [
        {
            "task": "split the log",
            "of": [each.name for each in group],
            "rows": 0,
            "bytes": sum(each.size_bytes for each in group),
        }
        for group in segments
    ]
    pieces = [
        (f"{names[table].name}/{fragment}", names[table].has_disk, levels[0].rows, _level_bytes(levels))
        for (table, fragment), levels in manifest.levels.items()
    ]
    native = [each for each in pieces if each[1]]
    ordered = sorted((each for each in pieces if not each[1]), key=lambda each: each[3], reverse=True)
    groups = _grouped(ordered, lambda each: each[3], parallel)
    for what, some in [("disk columns", native), *(("fragments", group) for group in groups)]:
        if some:
            rows, size_bytes = sum(each[2] for each in some), sum(each[3] for each in some)
            tasks.append({"task": what, "of": [each[0] for each in some], "rows": rows, "bytes": size_bytes})
    return tasks


def _level_bytes(levels: list[Any]) -> int:
    return sum(level.size_bytes for level in levels)
