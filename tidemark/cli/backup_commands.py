"""The commands `backup`, `archive` and `restore`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

import tidemark as tm
from tidemark.cli.output import (
    epoch_text,
    example,
    finding_lines,
    memory_of,
    open_store,
    opens_store,
    print_result,
    print_verdict,
    prints,
    reported,
    store_argument,
    table_lines,
    time_text,
    tree_lines,
    verdict_of,
)
from tidemark.cli.store_commands import ask_owner
from tidemark.engine.types.base import counted

NAMES_MAX = 4
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_place = click.argument("place")
_scratch = click.argument("scratch", type=click.Path(path_type=Path))
_until = click.option("--until", help="An epoch, or a time such as 2026-11-21T22:05:00 (local unless it has a zone).")
_processes = click.option(
    "--processes",
    type=click.IntRange(min=1, max=256),
    default=1,
    show_default=True,
    help="Number of processes that work in parallel.",
)
_number = click.option("--number", type=int, help="Use this backup, not the newest suitable one.")


class _Group(click.Group):
    """`backup STORE PLACE` next to `backup drill …`: a word that names no command is a store."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["make", *args]
        return super().resolve_command(ctx, args)


def until_of(text: str | None) -> int | datetime | None:
    """Return the value of --until. Raises: UsageError."""
    if text is None or text.isascii() and text.isdigit():
        return None if text is None else int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"--until must be an epoch or a time in ISO 8601, got {text!r}") from error


def absolute(place: str) -> str:
    """Return a path as another process sees it; URIs stay as they are."""
    return place if "://" in place else str(Path(place).absolute())


def _epoch(epoch: int) -> str:
    return f"{epoch} ({epoch_text(epoch)})"


def _time(wall_us: int) -> str:
    return time_text(wall_us, "seconds")


@click.group("backup", cls=_Group, epilog=example("tidemark backup shop backups", "tidemark backup verify backups"))
def backup() -> None:
    """Back up a store while writers continue: tidemark backup STORE PLACE. PLACE is a path or a URI that pyarrow
    knows.
    """


@backup.command(
    "make",
    short_help="Back a store up (what `backup STORE PLACE` does).",
    epilog=example("tidemark backup shop backups", "tidemark backup shop backups --incremental"),
)
@store_argument
@_place
@click.option("--incremental", is_flag=True, help="Back up only what changed since the newest backup there.")
@click.option("--no-verify", is_flag=True, help="Do not read back the files written.")
@opens_store
def make(store: Path, place: str, incremental: bool, no_verify: bool, data_memory: str | None, as_json: bool) -> None:
    """Back up a store. If another process has it open, that process makes the backup, and its writers continue."""
    how = {"incremental": incremental, "verify": not no_verify}
    try:
        with open_store(store, data_memory) as db, reported("backup") as progress:
            report = db.backup(absolute(place), progress=progress, **how)
    except tm.Locked as locked:
        report = ask_owner(store, "backup", locked, place=absolute(place), **how)
    print_result(report, as_json, lambda: _made_lines(report))


def _made_lines(report: dict[str, Any]) -> Iterator[str]:
    yield from (f"note: {note}" for note in report["notes"])
    rows, size = counted(report["rows"], "row"), counted(report["written_bytes"], "byte")
    yield (
        f"backup {report['number']} ({report['kind']}): epoch {_epoch(report['epoch'])}, {rows},"
        f" {size} written in {report['seconds']:.1f} s"
    )


@backup.command("list", short_help="The backups of a place.", epilog=example("tidemark backup list backups"))
@_place
@prints
def list_backups(place: str, as_json: bool) -> None:
    """List the backups of a place, newest first, with damaged and unfinished ones."""
    from tidemark.backup import backups
    from tidemark.recovery.backup.plan import no_backup
    from tidemark.recovery.places.storage import at_place

    found = backups(place)
    if not any(found.values()):
        with at_place(place) as files:
            raise no_backup(files)
    print_result(found, as_json, lambda: _list_lines(found))


def _list_lines(found: dict[str, Any]) -> Iterator[str]:
    rows = [
        (
            each["number"],
            each["kind"],
            each["parent"] or None,
            _time(each["wall_us"]),
            _epoch(each["epoch"]),
            each["rows"],
            each["own_bytes"],
            each["size_bytes"],
        )
        for each in found["backups"]
    ]
    yield from table_lines(rows, ("number", "kind", "parent", "made", "epoch", "rows", "own bytes", "bytes to restore"))
    yield from (f"damaged: {why}" for why in found["damaged"].values())
    yield from (f"note: backup {number} was not finished" for number in found["unfinished"])


@backup.command(
    "verify",
    short_help="Read every byte of the backups of a place.",
    epilog=example("tidemark backup verify backups --number 3"),
)
@_place
@_number
@click.option("--rows", is_flag=True, help="Also decode every row, as a restore does.")
@prints
def verify_place(place: str, number: int | None, rows: bool, as_json: bool) -> None:
    """Read every byte of the backups of a place, and of its archive. Exit code 1 if anything is damaged."""
    from tidemark.backup import verify

    with reported("verify") as progress:
        report = verify(place, number, progress, rows=rows)
    print_verdict(report, as_json, lambda: _verified_lines(report))


def _verified_lines(report: dict[str, Any]) -> Iterator[str]:
    yield from finding_lines(report)
    counts = [counted(report[f"{what}s"], what) for what in ("backup", "file", "segment")]
    yield f"{verdict_of(report)}: {', '.join(counts)}, {counted(report['size_bytes'], 'byte')}"


@backup.command(
    "prune",
    short_help="Keep the newest backups and all they need.",
    epilog=example("tidemark backup prune backups --keep 7"),
)
@_place
@click.option("--keep", type=click.IntRange(min=1), required=True, help="Number of backups to keep.")
@prints
def prune_place(place: str, keep: int, as_json: bool) -> None:
    """Remove all but the newest backups. Files that a kept incremental backup needs are never removed."""
    from tidemark.backup import prune

    report = prune(place, keep)
    print_result(report, as_json, lambda: tree_lines(report))


@backup.command(
    "drill",
    short_help="Restore into a scratch directory, verify, and clear it.",
    epilog=example("tidemark backup drill backups scratch --every 1d"),
)
@_place
@_scratch
@_until
@click.option("--every", help="Repeat at this interval: 30m, 6h, 1d. Ends with the first restore that fails.")
@_processes
@opens_store
def drill_place(place: str, scratch: Path, until: str | None, every: str | None, as_json: bool, **how: Any) -> None:
    """Prove that a restore would succeed, once or on a schedule. Exit code 1, and the files stay, if it would not."""
    from tidemark.backup import drill, drills

    at = until_of(until)
    how |= memory_of(how.pop("data_memory"))
    reports: Iterable[dict[str, Any]]
    if every is None:
        with reported("drill") as progress:
            reports = [drill(place, scratch, at, progress=progress, **how)]
    else:
        reports = drills(place, scratch, seconds_of(every), at, **how)
    for report in reports:
        shown = {**report["restored"], "is_sound": report["is_sound"]}
        print_verdict(report, as_json, partial(tree_lines, shown))


def seconds_of(text: str) -> float:
    """Return the value of --every. Raises: UsageError."""
    number, unit = text[:-1], text[-1:]
    if not number.isascii() or not number.isdigit() or unit not in _UNITS or int(number) < 1:
        raise click.UsageError(f"--every must be a whole number with s, m, h or d, such as 6h; got {text!r}")
    return float(int(number) * _UNITS[unit])


@click.command(epilog=example("tidemark archive shop backups"))
@store_argument
@_place
@opens_store
def archive(store: Path, place: str, data_memory: str | None, as_json: bool) -> None:
    """Copy the log of closed epochs to a place of backups. A process that has the store open continues to archive until
    it closes the store.
    """
    try:
        with open_store(store, data_memory) as db:
            report = db.archive(absolute(place))
    except tm.Locked as locked:
        report = ask_owner(store, "archive", locked, place=absolute(place))
    print_result(report, as_json, lambda: tree_lines(report))


@click.command(
    epilog=example(
        "tidemark restore backups restored",
        "tidemark restore backups restored --until 2026-11-21T22:05:00",
        "tidemark restore backups --plan",
    )
)
@_place
@click.argument("path", type=click.Path(path_type=Path), required=False)
@_until
@_number
@click.option("--list", "is_list", is_flag=True, help="List the backups, and exit.")
@click.option("--plan", "is_plan", is_flag=True, help="Print the plan of the restore, and exit.")
@click.option(
    "--binlog",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of the store's binlog, or the store: apply its changes after backup and archive.",
)
@click.option("--apply-status", is_flag=True, help="Write the row of ndb_apply_status from which a replica continues.")
@click.option("--no-verify", is_flag=True, help="Do not load the restored store into memory to verify it.")
@_processes
@opens_store
def restore(
    place: str,
    path: Path | None,
    until: str | None,
    is_list: bool,
    is_plan: bool,
    no_verify: bool,
    as_json: bool,
    **how: Any,  # number, binlog, apply_status, processes, data_memory
) -> None:
    """Restore the backups and the archived log in PLACE as a new store in PATH, a directory that is missing or empty.
    With --binlog the changes after them in the store's binlog are applied too.
    """
    from tidemark import backup as face

    if is_list:
        found = face.backups(place, binlog=how["binlog"])
        print_result(found, as_json, lambda: [*_list_lines(found), *_binlog_lines(found.get("binlog"))])
        return
    at = until_of(until)
    if path is not None and not is_plan:
        face.check_target(path)
    how |= memory_of(how.pop("data_memory"))
    planned = face.plan(place, at, how["number"], processes=how["processes"], binlog=how["binlog"])
    if is_plan:
        print_result(planned, as_json, lambda: _plan_lines(planned))
        return
    if path is None:
        raise click.UsageError("give the PATH of the new store, or use --list or --plan")
    if not as_json:
        for line in _plan_lines(planned):
            click.echo(line)
    with reported("restore") as progress:
        report = face.restore(place, path, at, verify=not no_verify, progress=progress, **how)
    print_result(report, as_json, lambda: _restored_lines(path, report))


def _restored_lines(path: Path, report: dict[str, Any]) -> Iterator[str]:
    yield from (f"note: {note}" for note in report["notes"])
    rows, tables = counted(report["rows"], "row"), counted(report["tables"], "table")
    verified = ", verified" if report["is_verified"] else ""
    yield (
        f"restored {rows} of {tables} into {path}, as at the end of epoch {_epoch(report['epoch'])}{verified}, in"
        f" {report['seconds']:.1f} s"
    )


def _binlog_lines(found: dict[str, Any] | None) -> Iterator[str]:
    if found is None:
        return
    sizes = sum(each["bytes"] for each in found["files"])
    names = _some([each["file"] for each in found["files"]])
    reach = "no epoch"
    if found["epochs"]:
        first, last = (
            f"{_epoch(found[f'{end}_epoch'])}, {_time(found[f'{end}_wall_us'])}" for end in ("first", "last")
        )
        reach = f"{counted(found['epochs'], 'epoch')}, from {first}, to {last}"
    yield f"binlog {names}, {counted(sizes, 'byte')}: {reach}"
    yield from (f"gap: {each}" for each in found.get("gaps", ()))
    if found.get("damage"):
        yield f"damaged: {found['damage']}"


def _some(names: list[str]) -> str:
    """Return the names on one line; of many the first and the last."""
    return " ".join(names) if len(names) <= NAMES_MAX else f"{names[0]} … {names[-1]} ({len(names)})"


def _plan_lines(planned: dict[str, Any]) -> Iterator[str]:
    taken = planned["backup"]
    rows, size = counted(taken["rows"], "row"), counted(planned["bytes"], "byte")
    yield f"backup {taken['number']} ({taken['kind']}) of epoch {_epoch(taken['epoch'])}: {rows}"
    yield from table_lines([list(each.values()) for each in planned["files"]], ("file", "rows", "bytes"))
    if planned["segments"]:
        shown = [list(each.values()) for each in planned["segments"]]
        yield from table_lines(shown, ("segment", "groups", "bytes", "last epoch"))
    yield from _binlog_lines(planned["binlog"])
    tasks = [(each["task"], _some(each["of"]), each["rows"], each["bytes"]) for each in planned["tasks"]]
    yield from table_lines(tasks, ("task", "of", "rows", "bytes"))
    yield from (f"note: {note}" for note in planned["notes"])
    yield f"reads {size}, ends at epoch {_epoch(planned['epoch'])}, could reach {planned['reach']}"
