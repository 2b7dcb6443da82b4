"""The command `doctor`: what may be wrong with the machine, the disk and a store, and what to do."""

from __future__ import annotations

import platform
import resource
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import click

import tidemark as tm
from tidemark.cli.output import example, options_given, options_of, print_verdict, prints
from tidemark.engine.types.base import counted

if TYPE_CHECKING:
    from tidemark.engine.base.clock import Clock
    from tidemark.engine.base.options import Options
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.recovery.local_checkpoint.control import Control
    from tidemark.recovery.verification.log_listing import StoreListing

OK: Final = "ok"
NOTE: Final = "note"
PROBLEM: Final = "problem"
State = Literal["ok", "note", "problem"]
DESCRIPTORS_MIN = 256
SYNC_SECONDS_MAX = 0.02
FULL_SHARE = 0.9
# File systems on which a lock or a sync of one machine means nothing to another, and those that are memory.
NETWORK = frozenset("nfs nfs4 cifs smb3 smbfs 9p ceph glusterfs fuse.sshfs fuse.glusterfs lustre afs".split())
MEMORY = frozenset(("tmpfs", "ramfs"))


class Finding(NamedTuple):
    """What one check found. advice: what to do; empty if there is nothing to do."""

    subject: str
    state: State
    says: str
    advice: str = ""


@click.command(epilog=example("tidemark doctor", "tidemark doctor shop -o data_memory='4 GiB'"))
@click.argument("directory", metavar="[DIR]", type=click.Path(path_type=Path), required=False)
@options_given("An option with which the store is to be opened.")
@prints
def doctor(directory: Path | None, given: tuple[str, ...], as_json: bool) -> None:
    """Look for problems: Python, memory, descriptors, compiled kernels, the file system of DIR, and the store in it.
    DIR is the current directory if it is not given.

    Reads only, also while the store is open. The checks of a store take no time that grows with its rows; "tidemark
    check" reads every byte. Exit code 1 if there is a problem.
    """
    from tidemark.engine.base.clock import SystemClock
    from tidemark.replication.settings.options import split_keywords

    place = directory or Path(".")
    options = split_keywords({**_kept(place), **options_of(given)[0]})[0]
    findings = list(examine(place, options, SystemClock(), is_named=directory is not None))
    problems = sum(each.state == PROBLEM for each in findings)
    report = {"is_sound": not problems, "findings": [each._asdict() for each in findings]}
    print_verdict(
        report, as_json, lambda: [*map(_line, findings), counted(problems, "problem") if problems else "no problem"]
    )


def _kept(place: Path) -> dict[str, Any]:
    """Return the options that a store in a directory keeps."""
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.recovery.system_restart.kept_options import kept_options

    try:
        with PosixFiles(place) as files:
            return kept_options(files)
    except tm.Error:  # `examine` tells what is wrong with the directory
        return {}


def _line(found: Finding) -> str:
    advice = f"; {found.advice}" if found.advice else ""
    return f"{found.state:<7}  {found.subject:<11}  {found.says}{advice}"


def examine(directory: Path, options: Options, clock: Clock, is_named: bool = True) -> Iterator[Finding]:
    """Yield the findings about this process and a directory with or without a store, which takes these options.

    is_named: a store is wanted there; otherwise it may be the directory of a project.
    """
    yield from _process(options)
    place = directory if directory.is_dir() else directory.absolute().parent
    if not place.is_dir():
        yield Finding("directory", PROBLEM, f"there is no directory {directory}, and none above it", "check the path")
        return
    yield from _guarded("disk", lambda: _disk(place, clock))
    if not directory.is_dir():
        yield Finding("store", NOTE, f"there is no directory {directory}", f"tidemark init {directory} makes a store")
        yield from _guarded("disk", lambda: _room_for_logs(place, options))
        return
    yield from _guarded("store", lambda: _place(directory, options, is_named))


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check; an error of the store or the system is a problem."""
    try:
        yield from check()
    except tm.Error as error:
        says, _, advice = error.message.rpartition("; ")
        yield Finding(subject, PROBLEM, f"{type(error).__name__}: {says or advice}", advice if says else "")
    except OSError as error:
        yield Finding(subject, PROBLEM, str(error), "check the path and its permissions")


# --- this process ---------------------------------------------------------------------------------
def _process(options: Options) -> Iterator[Finding]:
    yield Finding("python", OK, f"{platform.python_version()} at {sys.executable}")
    for package in ("numba", "numpy", "pyarrow", "lmdb"):
        try:
            yield Finding(package, OK, version(package))
        except PackageNotFoundError:
            yield Finding(package, PROBLEM, "it is not installed", f"pip install {package}")
    yield from _kernels()
    yield from _memory(options)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < DESCRIPTORS_MIN:
        yield Finding("descriptors", PROBLEM, f"{soft:,} may be open", f"raise the limit: ulimit -n {DESCRIPTORS_MIN}")
    else:
        yield Finding("descriptors", OK, f"{soft:,} may be open, {hard:,} after ulimit -n")


def _kernels() -> Iterator[Finding]:
    from tidemark.engine.jit.kept_code import CACHE_FOLDER
    from tidemark.engine.jit.shipped_code import SHIPPED

    if SHIPPED.count:
        yield Finding("kernels", OK, f"{SHIPPED.count} for {SHIPPED.target} came with the installation")
        return
    if SHIPPED.misfit:
        says = f"compiled kernels came with the installation, but {SHIPPED.misfit}"
        yield Finding("kernels", NOTE, says, "they are compiled at their first use")
    folder = Path(CACHE_FOLDER)
    try:
        sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
    except OSError as error:
        yield Finding("kernels", PROBLEM, f"{folder}: {error.strerror}", "name another folder with TIDEMARK_CACHE")
        return
    processor = platform.machine()
    if sizes:
        yield Finding("kernels", OK, f"{counted(len(sizes), 'file')}, {sum(sizes):,} bytes for {processor} in {folder}")
    else:
        says = f"none is compiled in {folder}; the first program waits for those of ordinary calls"
        yield Finding("kernels", NOTE, says, "tidemark warmup compiles them now")


def _memory(options: Options) -> Iterator[Finding]:
    wanted = options.data_memory_bytes + options.page_buffer_bytes
    limits = {"the machine has": _available_bytes(), "its control group allows": _group_bytes()}
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    if soft != resource.RLIM_INFINITY:
        limits["ulimit -v allows"] = soft
    for says, limit in limits.items():
        if limit is not None and limit < wanted:
            says = f"{wanted:,} bytes are wanted for data_memory and page_buffer, {says} {limit:,}"
            yield Finding("memory", PROBLEM, says, "give a smaller data_memory, or more memory")
            return
    free = limits["the machine has"]
    yield Finding("memory", OK, "unknown" if free is None else f"{free:,} bytes are available, {wanted:,} are wanted")


def _available_bytes() -> int | None:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return None


def _group_bytes() -> int | None:
    text = _text("/sys/fs/cgroup/memory.max").strip()
    return int(text) if text.isdigit() else None


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


# --- the disk -------------------------------------------------------------------------------------
def _disk(place: Path, clock: Clock) -> Iterator[Finding]:
    from tidemark.engine.files.directory import sync_seconds

    kind = file_system(place, _text("/proc/self/mountinfo"))
    if kind in NETWORK:
        yield Finding("disk", PROBLEM, f"{place} is on {kind}, a network file system", "keep the store on a local disk")
    elif kind in MEMORY:
        yield Finding("disk", NOTE, f"{place} is on {kind}: it is lost when the machine restarts")
    else:
        yield Finding("disk", OK, f"{place} is on {kind or 'an unknown file system'}")
    try:
        seconds = sync_seconds(str(place), clock)
    except OSError as error:
        yield Finding("fdatasync", NOTE, f"it was not tried: {error.strerror}")
        return
    says = f"one takes {seconds * 1_000:.1f} ms"
    if seconds > SYNC_SECONDS_MAX:
        yield Finding("fdatasync", NOTE, says, 'each commit waits for one; see durability="epoch"')
    else:
        yield Finding("fdatasync", OK, says)


def file_system(place: Path, mounts: str) -> str:
    """Return the type of the file system of a place, "" if unknown. mounts: as in /proc/self/mountinfo."""
    found, longest = "", -1
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        if place.absolute().is_relative_to(point) and len(point.parts) >= longest:
            found, longest = after.split()[0], len(point.parts)
    return found


def _room_for_logs(place: Path, options: Options) -> Iterator[Finding]:
    """Yield whether a new store fits."""
    from tidemark.engine.files.directory import PosixFiles

    with PosixFiles(place) as files:
        free = files.free_bytes()
    yield _room(free, options.redo_log_bytes, "redo_log of a new store")


def _room(free: int | None, wanted: int, what: str) -> Finding:
    if free is None:
        return Finding("disk", NOTE, "its free space is unknown")
    says = f"{free:,} bytes are free, {wanted:,} are wanted for the {what}"
    if free < wanted:
        return Finding("disk", PROBLEM, says, "free space, or move the store")
    return Finding("disk", OK, says)


# --- the store ------------------------------------------------------------------------------------
def _place(directory: Path, options: Options, is_named: bool) -> Iterator[Finding]:
    from tidemark.engine.files.directory import PosixFiles
    from tidemark.recovery.system_restart.place import check_place, has_store

    with PosixFiles(directory) as files:
        if not has_store(files) and not is_named:
            yield Finding("store", NOTE, "there is none in the current directory", "tidemark doctor DIR examines one")
            return
        if not has_store(files):
            check_place(files, create=True)
            yield Finding("store", NOTE, f"there is none in {directory}", f"tidemark init {directory} makes one")
            yield from _room_for_logs(directory, options)
            return
        yield from _store(files)
        holder = files.holder()
        if holder is None:
            yield Finding("lock", OK, "no process has the store open")
        else:
            yield Finding("lock", OK, f"process {holder} has the store open")
            yield from _guarded("process", lambda: _owner(directory))


def _store(files: PosixFiles) -> Iterator[Finding]:
    from tidemark.engine.sealed.sealed_layout import FORMAT_VERSION
    from tidemark.recovery.local_checkpoint.control import control_ids, control_name
    from tidemark.recovery.system_restart.sysfile import NAMES, read_copy
    from tidemark.recovery.verification.log_listing import StoreListing

    listing = StoreListing(files)
    sysfile = listing.sysfile
    yield Finding(
        "store", OK, f"{sysfile.store.hex()}, format {FORMAT_VERSION}, opened {counted(sysfile.incarnation, 'time')}"
    )
    damaged = [name for name in NAMES if not files.exists(name) or read_copy(files, name) is None]
    intact = {control.lcp_id for control in listing.controls}
    damaged += [control_name(each) for each in control_ids(files) if each not in intact]
    newest = listing.controls[0] if listing.controls else None
    for name, size in _wanted_sizes(listing, newest):
        if not files.exists(name) or files.size(name) != size:
            damaged.append(name)
    if not damaged:  # the log names the data files, and a damaged one may be unreadable
        wanted = [name for each in listing.tablespaces() for name in listing.data_files(each)]
        damaged = [name for name in wanted if not files.exists(name)]
    if damaged:
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        says = f"damaged or missing: {', '.join(damaged[:3])}{more}"
        yield Finding("files", PROBLEM, says, "run tidemark check, and see tidemark backup list for a copy")
    else:
        yield Finding("files", OK, "sysfile, control files, and the sizes of logs and data files are correct")
    start = 0 if newest is None else newest.start_lsn
    log_bytes = max(0, sysfile.durable_lsn - start)
    checkpoint = "no local checkpoint" if newest is None else f"local checkpoint {newest.lcp_id}"
    yield Finding("restart", OK, f"it loads {checkpoint} and reads {log_bytes:,} bytes of the log or more")
    size_bytes = 0 if newest is None else sum(size for _, _, size in newest.fragments.values())
    yield _room(files.free_bytes(), size_bytes, "next local checkpoint")
    if sysfile.geometry.unmade_count:
        unmade_bytes = sysfile.geometry.unmade_count * sysfile.geometry.file_bytes
        yield _room(files.free_bytes(), unmade_bytes, "log to grow to its size")


def _wanted_sizes(listing: StoreListing, newest: Control | None) -> Iterator[tuple[str, int]]:
    """Yield the files of the logs and of the newest local checkpoint, with their bytes."""
    from tidemark.recovery.local_checkpoint.data_file import data_name

    sysfile = listing.sysfile
    for geometry in (sysfile.geometry, sysfile.undo_geometry):
        if geometry is not None:
            yield from ((name, geometry.file_bytes) for name in geometry.names())
    if newest is not None:
        for (table, fragment), (_, _, size) in newest.fragments.items():
            yield data_name(newest.lcp_id, table, fragment), size


def _owner(directory: Path) -> Iterator[Finding]:
    """Yield what the process that has the store open reports."""
    from tidemark.control_socket import ask

    try:
        status = ask(directory, "status", 10.0)
    except tm.PeerError as error:
        yield Finding("process", NOTE, f"it answers no commands: {error.message}", "open it with background=True")
        return
    yield from judge(status)


def judge(status: dict[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the counters of an open store."""
    if status["store"]["state"] != "open":
        yield Finding("process", PROBLEM, "the store has failed", "end the process, and open it again")
        return
    log, memory = status["log"], status["memory"]
    holder = log["held_by"][0]["what"] if log["held_by"] else "nothing"
    for subject, used, size, says, advice in (
        ("log", log["used_bytes"], log["capacity_bytes"], f", held by {holder}", "end what holds it, or checkpoint"),
        ("memory", memory["used_bytes"], memory["data_memory_bytes"], " of data_memory", "give a larger data_memory"),
    ):
        is_full = used > FULL_SHARE * size
        text = f"{used:,} of {size:,} bytes are used{says}"
        yield Finding(subject, PROBLEM if is_full else OK, text, advice if is_full else "")
    binlog, archive = status["binlog"], status["archive"]
    if binlog is not None and binlog["has_gap"]:
        yield Finding("binlog", PROBLEM, "it has a gap", "copy the tables to the replicas again: replicate --copy")
    if archive is not None and not archive["is_attached"]:
        yield Finding(
            "archive", PROBLEM, f"the log is not archived: {archive['last_error']}", "repair the place of the archive"
        )
