"""The command `top`: what an open store does, one line for each part of it."""

from __future__ import annotations

import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tidemark as tm
from tidemark.cli.output import check_exists, epoch_text, example, print_result, prints, store_argument
from tidemark.engine.types.base import counted

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock

CLEAR = "\x1b[H\x1b[J"  # cursor to the top left, the rest of the screen cleared
WRAP_OFF, WRAP_ON = "\x1b[?7l", "\x1b[?7h"  # a narrow screen shows the beginnings of lines
BAR_CHARACTERS = 20


@click.command(epilog=example("tidemark top shop", "tidemark top shop --once --json"))
@store_argument
@click.option(
    "--every", type=click.FloatRange(0.1, 3_600), default=1.0, show_default=True, help="Seconds between two samples."
)
@click.option("--once", is_flag=True, help="Print one sample, over one interval, and end.")
@prints
def top(store: Path, every: float, once: bool, as_json: bool) -> None:
    """Watch a store that another process has open: commits, log, epochs, local checkpoint, page cache, channels.

    The process is asked through its control socket. On a terminal the screen is refreshed until q or Ctrl-C; elsewhere
    each sample is printed after the last. It ends when the store is closed.
    """
    from tidemark.control_socket import ask
    from tidemark.engine.base.clock import SystemClock

    is_screen = not as_json and not once and sys.stdout.isatty()
    clock, shown = SystemClock(), 0
    with Keys(sys.stdin if is_screen else None) as keys:
        try:
            if is_screen:
                click.echo(WRAP_OFF, nl=False)
            for sample in samples(lambda: ask(store, "status"), clock, every, partial(keys.wait, clock)):
                if is_screen:
                    click.echo(CLEAR, nl=False)
                print_result(sample, as_json, partial(lines, sample))
                shown += 1
                if once:
                    return
        except tm.PeerError as error:
            if not shown:
                raise _nobody(store, error) from error
            click.echo(f"{store} was closed, or its process has ended", err=True)
        except KeyboardInterrupt:
            return
        finally:
            if is_screen:
                click.echo(WRAP_ON, nl=False)


def _nobody(store: Path, error: tm.PeerError) -> click.ClickException:
    """Return the error for a store whose process does not answer. Raises: FileMissing if there is no store."""
    from tidemark.engine.files.directory import LOCK_NAME, PosixFiles

    with PosixFiles(store) as files:
        pid = files.holder()
        # `check_exists` imports the kernels. A directory with a LOCK file was opened once and needs no check.
        if not files.exists(LOCK_NAME):
            check_exists(store)
    if pid is None:
        text = f"no process has {store} open; only a store that a process has open can be watched"
    else:
        is_silent = isinstance(error.__cause__, FileNotFoundError)  # it has no control socket
        why = "open it there with background=True, so that it answers" if is_silent else error.message
        text = f"process {pid} has {store} open, but it cannot be watched: {why}"
    return click.ClickException(text)


class Keys:
    """The keys of a terminal, one by one, while a sample is waited for; of another input, none."""

    def __init__(self, source: Any) -> None:
        """source: the standard input, None: no keys are read."""
        self._source = source if source is not None and source.isatty() else None
        self._before: list[Any] = []

    def __enter__(self) -> Keys:
        if self._source is not None:
            self._before = termios.tcgetattr(self._source)
            tty.setcbreak(self._source, termios.TCSANOW)
        return self

    def __exit__(self, *_: object) -> None:
        if self._source is not None:
            termios.tcsetattr(self._source, termios.TCSANOW, self._before)

    def wait(self, clock: Clock, seconds: float) -> bool:
        """Wait this long, or until q is pressed; return whether it was."""
        if self._source is None:
            clock.sleep(seconds)
            return False
        end = clock.monotonic() + seconds
        while (rest := end - clock.monotonic()) > 0:
            if select.select([self._source], [], [], rest)[0]:
                if self._source.buffer.raw.read(1) in (b"q", b"Q", b""):  # b"": the terminal is gone
                    return True
        return False


def samples(
    status: Callable[[], Mapping[str, Any]],
    clock: Clock,
    every_seconds: float,
    wait: Callable[[float], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Call `status` every `every_seconds`, and yield what has changed since the last call, without end.

    Rates are per second of the clock. wait: waits this long; a true result ends the samples. Raises: as `status`.
    """
    before, began = status(), clock.monotonic()
    while not (wait or clock.sleep)(every_seconds):
        after, ended = status(), clock.monotonic()
        yield _sample(before, after, ended - began)
        before, began = after, ended


def _sample(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    def rate(*path: str) -> float:
        return round((_at(after, path) - _at(before, path)) / seconds, 1)

    log, pages = after["log"], _pages(before, after)
    return {
        "store": {"pid": after["store"]["pid"], "state": after["store"]["state"]},
        "per_second": {
            "commits": rate("log", "transactions_written"),
            "commit_groups": rate("log", "groups_written"),
            "log_bytes": rate("log", "bytes_written"),
            "lock_waits": rate("locks", "waits"),
        },
        "epoch": {
            "current": after["epoch"]["current"],
            "newest_closed": after["epoch"]["newest_closed"],
            "gcis": (after["epoch"]["current"] >> 32) - (before["epoch"]["current"] >> 32),
        },
        "log": {
            "used_share": round(log["used_bytes"] / log["capacity_bytes"], 4),
            "used_bytes": log["used_bytes"],
            "head_lsn": log["head_lsn"],
            "tail_lsn": log["tail_lsn"],
            "held_by": log["held_by"][0]["what"] if log["held_by"] else None,
        },
        "local_checkpoint": {"next_id": after["lcp"]["next_id"], **(after["lcp"]["running"] or {"rows": 0, "of": 0})},
        "memory_used_share": round(after["memory"]["used_bytes"] / after["memory"]["data_memory_bytes"], 4),
        "transactions_open": after["transactions"]["open"],
        "page_cache": pages,
        "channels": _channels(after["replication"]),
    }


def _at(status: Mapping[str, Any], path: tuple[str, ...]) -> int:
    found: Any = status
    for name in path:
        found = found[name]
    return int(found)


def _pages(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Hits and misses of the caches of all page sizes in this interval."""
    hits, misses = (
        sum(
            each[name] - before["disk"].get("page_buffer", {}).get(size, {}).get(name, 0)
            for size, each in _caches(after)
        )
        for name in ("hits", "misses")
    )
    resident, frames = (sum(each[name] for _, each in _caches(after)) for name in ("resident", "frames"))
    share = round(hits / (hits + misses), 4) if hits + misses else None
    return {"hits": hits, "misses": misses, "hit_share": share, "resident": resident, "frames": frames}


def _caches(status: Mapping[str, Any]) -> list[tuple[str, dict[str, int]]]:
    return list(status["disk"].get("page_buffer", {}).items())


def _channels(replication: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lag of each channel that applies here, and of each site that follows."""
    here = [
        {"name": f"from {each['source']} ({name})", **each["lag"]}
        for name, each in replication.get("channels", {}).items()
    ]
    there = [
        {"name": name, "epochs": each["lag_epochs"], "seconds": each["lag_seconds"]}
        for name, each in replication["lag"].items()
    ]
    return here + there


def lines(sample: Mapping[str, Any]) -> Iterator[str]:
    rates, log, lcp, pages = (sample[name] for name in ("per_second", "log", "local_checkpoint", "page_cache"))
    yield f"process {sample['store']['pid']}, store {sample['store']['state']}"
    yield f"commits           {rates['commits']:>12,} /s   {counted(sample['transactions_open'], 'open one')}"
    yield f"groups            {rates['commit_groups']:>12,} /s   {rates['log_bytes']:,.0f} bytes of log /s"
    yield f"lock waits        {rates['lock_waits']:>12,} /s"
    yield f"epoch             {epoch_text(sample['epoch']['current']):>12}"
    yield f"log               {_bar(log['used_share'])}  LSN {log['tail_lsn']:,} to {log['head_lsn']:,}"
    yield f"  held by         {log['held_by'] or 'nothing'}"
    yield f"memory            {_bar(sample['memory_used_share'])}"
    progress = f"number {lcp['next_id']}: {lcp['rows']:,} of {lcp['of']:,} rows" if lcp["of"] else "none runs"
    yield f"local checkpoint  {_bar(lcp['rows'] / lcp['of']) + '  ' if lcp['of'] else ''}{progress}"
    hits = "no page was asked for" if pages["hit_share"] is None else f"{pages['hit_share']:.1%} of pages hit"
    yield f"page cache        {hits}, {pages['resident']:,} of {counted(pages['frames'], 'frame')} in use"
    for each in sample["channels"]:
        age = "unknown age" if each["seconds"] is None else f"{each['seconds']:,.1f} s"
        yield f"lag               {each['name']}: {counted(each['epochs'], 'epoch')}, {age}"


def _bar(share: float) -> str:
    full = min(BAR_CHARACTERS, round(share * BAR_CHARACTERS))
    return f"[{'#' * full}{'.' * (BAR_CHARACTERS - full)}] {share:>6.1%}"
