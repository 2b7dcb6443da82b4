"""The command `report`: how full pages are, and the page about a store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

import tidemark as tm
from tidemark.cli.output import example, open_store, opens_store, print_result, store_argument, tree_lines
from tidemark.cli.store_commands import ask_owner

_file = click.Path(path_type=Path, dir_okay=False)


@click.command(epilog=example("tidemark report shop", "tidemark report shop -o report.html"))
@store_argument
@click.option("-o", "--output", type=_file, help="Write a page (HTML) about the store to this file.")
@click.option("--picture", type=_file, help="Draw the disk columns into this SVG or PNG file.")
@opens_store
def report(store: Path, output: Path | None, picture: Path | None, data_memory: str | None, as_json: bool) -> None:
    """Show how full the pages of disk columns are: search matrix, pages by fill, map of extents.

    With -o a page of HTML about the whole store is written: commits and their times, last restart, memory, disk
    columns, log, epochs in flight, conflicts, nodes of its group. It needs no network. The figures are those of the
    process that has the store open, or come from restarting the store.
    """
    found, status, conflicts = _figures(store, data_memory)
    if output is not None:
        from tidemark.cli.report_page import page
        from tidemark.engine.base.clock import SystemClock

        made_us, title = SystemClock().wall_us(), f"Tidemark: {store.absolute().name}"
        text = page(title, status, found, made_us, conflicts=conflicts, group=_group(store))
        output.write_text(text, encoding="utf-8")
    if picture is not None:
        from tidemark.report import draw_space

        draw_space(found, picture)
    written = [str(each) for each in (output, picture) if each is not None]

    def lines() -> Iterable[str]:
        if written:  # not the figures: a screen of them would hide the paths
            return [f"written: {', '.join(written)}"]
        return tree_lines({**found, "tables": _without_maps(found["tables"])})

    print_result(found, as_json, lines)


def _figures(store: Path, data_memory: str | None) -> tuple[dict[str, Any], dict[str, Any], list[int] | None]:
    """Return (space report, status with the last restart, source epochs of refused rows or None if not known)."""
    try:
        with open_store(store, data_memory) as db:
            return db.space_report(), {**db.status(), "restart": db.restart_report}, _conflicts(db)
    except tm.Locked as locked:
        return ask_owner(store, "report", locked), ask_owner(store, "status", locked), None


def _conflicts(db: tm.Database) -> list[int]:
    """Return the source epochs of the rows in exceptions tables, whose key is sites, epoch and number."""
    from tidemark.engine.schema.names import EXCEPTIONS_SUFFIX

    found: list[int] = []
    for name in db.status()["tables"]:
        if name.upper().endswith(EXCEPTIONS_SUFFIX):
            epoch = db[name].definition.primary_key[2]
            found += db[name].to_arrow(columns=[epoch]).column(0).to_pylist()
    return found


def _group(store: Path) -> dict[str, Any] | None:
    """Return the group of a node, as recorded in its directory; None if there is no record."""
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.replication.node_group.view_file import read_record

    if not (store / "node").is_dir():
        return None
    with PosixFiles(store / "node") as files:
        record = read_record(files)
    if record is None:
        return None
    view = record.view
    return {"node": record.node, "view": view.number, "primary": view.primary, "members": list(view.members)}


def _without_maps(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the part that fits a terminal."""
    return {
        name: {key: str(value) if isinstance(value, list) else value for key, value in each.items() if key != "map"}
        for name, each in tables.items()
    }
