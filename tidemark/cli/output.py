"""The parts that all commands share: opening a store, printing for users and programs, and ending."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Any

import click

import tidemark as tm
from tidemark.engine.base.ids import gci_of, micro_of
from tidemark.engine.types.base import counted

Command = Callable[..., None]
LOOK_AHEAD_ROWS = 1_000  # of a table: its columns are as wide as these rows need
store_argument = click.argument("store", type=click.Path(path_type=Path, exists=True, file_okay=False))


def completed_tables(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of tables that a shell completes; none for a store that cannot be read."""
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.engine.schema.names import is_system_table
    from tidemark.recovery.verification.log_listing import StoreListing

    with suppress(tm.Error, TypeError), PosixFiles(ctx.params["store"]) as files:
        names = [each.name for each in StoreListing(files).tables()]
        return [name for name in names if name.startswith(incomplete) and not is_system_table(name)]
    return []


def table_argument(required: bool = True) -> Callable[[Command], Command]:
    """Return the argument TABLE, after STORE."""
    return click.argument("table", required=required, shell_complete=completed_tables)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
memory_option = click.option(
    "--data-memory",
    help="Memory for the rows of a store that this command opens.  [default: as it was opened last, or 1 GiB]",
)
lcp_option = click.option("--checkpoint", is_flag=True, help="Show the last local checkpoint, not what is there now.")


def example(*lines: str) -> str:
    """Return the last part of a help text: command lines to try."""
    title = "Example:" if len(lines) == 1 else "Examples:"
    return "\n".join(["\b", title, *(f"  {each}" for each in lines)])


def one_line(function: Command) -> Command:
    """Turn a Tidemark error into one line and exit code 1."""

    @wraps(function)
    def guarded(*args: Any, **keywords: Any) -> None:
        try:
            function(*args, **keywords)
        except tm.Error as error:
            text = " ".join(str(error).split()).replace('data_memory="', '--data-memory "')
            raise click.ClickException(f"{type(error).__name__}: {text}") from error

    return guarded


def prints(command: Command) -> Command:
    """Decorate a command that prints a result: add --json, and say an error in one line."""
    return json_option(one_line(command))


def opens_store(command: Command) -> Command:
    """Decorate a command that opens a store and prints a result: add --data-memory and --json."""
    return memory_option(prints(command))


def reads_store(command: Command) -> Command:
    """Decorate a command that opens a store for reading: add --checkpoint, --data-memory and --json."""
    return lcp_option(opens_store(command))


def check_exists(store: Path) -> None:
    """Raises: FileMissing for a directory without a store, in which opening would leave a LOCK file."""
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.recovery.system_restart import place

    with PosixFiles(store) as files:
        place.check_exists(files)


def options_given(says: str) -> Callable[[Command], Command]:
    """Return the option -o NAME=VALUE, for `options_of`; `says` is its help text."""
    return click.option("-o", "--option", "given", multiple=True, metavar="NAME=VALUE", help=says)


def options_of(given: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (options with which a store is opened, options of a channel) from texts NAME=VALUE.

    Raises: UsageError without "=", SchemaInvalid for an unknown option or a wrong value.
    """
    from tidemark.replication.settings.options import BY_NAME, OF_STORE, parse_text

    store: dict[str, Any] = {}
    channel: dict[str, Any] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise click.UsageError(f"an option must be NAME=VALUE, got {each!r}")
        if name in BY_NAME:
            (store if name in OF_STORE else channel)[name] = parse_text(name, text)
        else:
            store[name] = _engine_value(text)
    return store, channel


def _engine_value(text: str) -> Any:
    """Return a number, a bool or text; the engine then checks whether it is valid for its option."""
    switch = {"on": True, "true": True, "off": False, "false": False}.get(text.lower())
    if switch is not None:
        return switch
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def open_store(
    store: Path,
    data_memory: str | None,
    background: bool = False,
    create: bool = False,
    options: Mapping[str, Any] | None = None,
) -> tm.Database:
    """Open a store, which must exist without `create`. options: of `tm.open`, which win over the arguments. Raises:
    FileMissing if it does not exist; Locked if another process has it open; other errors of `tm.open`.
    """
    if not create:
        check_exists(store)
    given = {"create": create, "background": background, **memory_of(data_memory), **(options or {})}
    with reported("restart") as progress:
        return tm.open(store, progress=progress, read_only=False, **given)


def memory_of(data_memory: str | None) -> dict[str, Any]:
    """Return the option --data-memory as an option of `tm.open`, if it was given."""
    return {} if data_memory is None else {"data_memory": data_memory}


@contextmanager
def open_for_reading(store: Path, data_memory: str | None, checkpoint: bool) -> Iterator[tuple[Any, Any]]:
    """Open an existing store as it is now: ask the process that has it open, or read its files, without changing them.
    With `checkpoint`, and if that process does not answer, open the last local checkpoint and say so on standard error.

    Yields: the store, and its tables as at one instant. Raises: as `open_files`.
    """
    from tidemark.control_socket import NAME

    if checkpoint:
        with attach(store, data_memory, "--checkpoint") as view:
            yield view, view
        return
    if (store / NAME).exists():
        from tidemark.remote.owner import connect_owner

        owner = None
        with suppress(tm.PeerError):  # it is gone, or does not answer: its files are read
            owner = connect_owner(store)
        if owner is not None:
            with owner, owner.snapshot() as tables:
                yield owner, tables
            return
    with open_files(store, data_memory) as view:
        yield view, view


def open_files(store: Path, data_memory: str | None) -> tm.ReadOnlyDatabase:
    """Read an existing store from its files, which do not change: all that they hold or, if another process has it
    open, its last local checkpoint, named on standard error.

    Raises: FileMissing if there is no store; Locked if another process has it, and it has disk columns and no local
    checkpoint yet; other errors of `tm.open`.
    """
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.read_only import open_closed
    from tidemark.recovery.system_restart.kept_options import kept_for_reading
    from tidemark.replication.settings.options import split_keywords

    with PosixFiles(store) as files:
        kept = kept_for_reading(files)
    options = split_keywords({**kept, **memory_of(data_memory)})[0]
    try:
        with reported("restart") as progress:
            return open_closed(store, options, progress)
    except tm.Locked as locked:
        return attach_locked(store, data_memory, locked)


def attach_locked(store: Path, data_memory: str | None, locked: tm.Locked) -> tm.ReadOnlyDatabase:
    """Open the last local checkpoint of a store that another process has open. Raises: Locked if there is none yet."""
    pid = locked.evidence.get("pid")
    holder = f"process {pid} has the store open" if pid else "another process has the store open"
    try:
        return attach(store, data_memory, f"{holder} and does not answer")
    except tm.FileMissing as missing:
        raise tm.Locked(f"{holder}; {missing.message}", pid=pid) from missing


def attach(store: Path, data_memory: str | None, why: str) -> tm.ReadOnlyDatabase:
    """Open the last local checkpoint of a store, and name it on standard error."""
    with reported("restart") as progress:
        db = tm.open(store, read_only=True, progress=progress, **memory_of(data_memory))
    number = db.status()["lcp"]["id"]
    which = f"local checkpoint {number} is shown" if number else "it has no local checkpoint yet, and its log is shown"
    click.echo(f"note: {why}; {which}, the state at the end of epoch {epoch_text(db.epoch)}", err=True)
    return db


# --- values ---------------------------------------------------------------------------------------
def plain(value: Any) -> Any:
    """Convert a value that JSON cannot represent: bytes to hexadecimal, times to ISO 8601."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, (date, time, datetime)):
        return value.isoformat()
    return str(value)


def finite(value: Any) -> Any:
    """Convert NaN and infinities, which JSON cannot represent, to text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def to_json(value: Any) -> str:
    """Return one JSON document on one line."""
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False)
    except ValueError:
        return json.dumps(finite(value), default=plain, ensure_ascii=False, allow_nan=False)


def cell(value: Any) -> str:
    """Return a value as text on one line."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (dict, list)):
        value = to_json(value)
    text = value if isinstance(value, str) else str(plain(value)) if not isinstance(value, int) else str(value)
    return text if text.isprintable() else repr(text)[1:-1]


def epoch_text(epoch: int) -> str:
    """Return an epoch as GCI/micro GCI."""
    return f"{int(gci_of(epoch))}/{int(micro_of(epoch))}"


def time_text(wall_us: int, timespec: str = "auto") -> str:
    """Return µs since 1970 in ISO 8601, UTC."""
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=wall_us)).isoformat(timespec=timespec)


def verdict_of(report: Mapping[str, Any]) -> str:
    return "sound" if report["is_sound"] else counted(len(report["problems"]), "problem")


def finding_lines(report: Mapping[str, Any], problem: str = "damaged") -> Iterator[str]:
    """Yield the problems of a check, each after the word `problem`, and its notes."""
    yield from (f"{problem}: {each}" for each in report["problems"])
    yield from (f"note: {each}" for each in report["notes"])


def print_verdict(report: Mapping[str, Any], as_json: bool, lines: Callable[[], Iterable[str]]) -> None:
    """Print the report of a check. Raises: SystemExit with code 1 if something is wrong."""
    print_result(report, as_json, lines)
    if not report["is_sound"]:
        raise SystemExit(1)


def print_result(value: Any, as_json: bool, lines: Callable[[], Iterable[str]]) -> None:
    if as_json:
        click.echo(to_json(value))
        return
    for line in lines():
        click.echo(line)


def table_lines(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> Iterator[str]:
    """Yield aligned lines, numbers to the right. Widths come from the first rows, so any number of rows streams."""
    iterator = iter(rows)
    first = [row for row, _ in zip(iterator, range(LOOK_AHEAD_ROWS), strict=False)]
    shown = [[cell(value) for value in row] for row in first]
    widths = [max([len(name), *(len(row[place]) for row in shown)]) for place, name in enumerate(header)]
    numeric = [
        bool(first) and all(isinstance(row[place], (int, float, Decimal, type(None))) for row in first)
        for place in range(len(header))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(padded).rstrip()

    yield line(header)
    for row_shown in shown:
        yield line(row_shown)
    for row in iterator:
        yield line([cell(value) for value in row])


def tree_lines(value: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield a nested mapping as aligned lines, indented by level; lists of mappings as tables."""
    width = max([len(str(name)) for name in value], default=0)
    pad = "  " * depth
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield f"{pad}{name}" if inner else f"{pad}{str(name).ljust(width)}  -"
            yield from tree_lines(inner, depth + 1)
        elif isinstance(inner, list) and inner and isinstance(inner[0], Mapping):
            yield f"{pad}{name}"
            rows = [[round(each, 3) if isinstance(each, float) else each for each in row.values()] for row in inner]
            for line in table_lines(rows, list(inner[0])):
                yield f"{pad}  {line}"
        else:
            number = f"{inner:,.3f}".rstrip("0").rstrip(".") if isinstance(inner, float) else cell(inner)
            yield f"{pad}{str(name).ljust(width)}  {number}".rstrip()


# --- progress -------------------------------------------------------------------------------------
@contextmanager
def bar(title: str, total: int | None, unit: str = "rows") -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error if that is a terminal; yields a function to call with the amount done since
    its last call.
    """
    from tqdm import tqdm

    with tqdm(desc=title, total=total, unit=" " + unit, unit_scale=True, disable=None) as shown:
        yield lambda amount: None if shown.update(amount) else None


@contextmanager
def reported(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Yield a callback for a `progress=` argument; it shows one `bar` for each unit."""
    with ExitStack() as stack:
        advance: Callable[[int], None] | None = None
        seen, shown = 0, ""

        def progress(done: int, total: int, unit: str) -> None:
            nonlocal advance, seen, shown
            if advance is None or unit != shown:
                stack.close()
                advance = stack.enter_context(bar(title, total if total > 0 else None, unit))
                seen, shown = 0, unit
            advance(done - seen)
            seen = done

        yield progress
