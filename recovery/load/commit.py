"""The life of a load: planned from an open store, which does not change; then published by one rename, or aborted by
another rename of the same file (docs/load.md, 3).

A publisher writes the manifest before the rename, in a file of its own. So any process that finds a published load can
adopt it, even if the publisher was killed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemark.engine.base.clock import SystemClock
from tidemark.engine.base.errors import (
    Damaged,
    FileMissing,
    LoadDamaged,
    LoadEnded,
    LoadRefused,
    Rejected,
)
from tidemark.engine.log.load_files import FOLDER, JOB_DIGITS, is_job_name
from tidemark.engine.log.load_layout import LOAD_MANIFEST, LOAD_UNIT_WORDS_MIN
from tidemark.engine.sealed.sealed_layout import KIND_LOAD_MANIFEST, header_of, is_sealed
from tidemark.engine.sealed.units import sealed_text, text_of
from tidemark.engine.sealed.version import check_version
from tidemark.engine.types.base import counted
from tidemark.recovery.load.directory import (
    ABORTED,
    ADOPTING,
    MANIFEST,
    OPEN,
    PUBLISHED,
    Directory,
    directory_of,
    own_directory,
)
from tidemark.recovery.load.job import EXAMPLES_MAX, JOB_BITS, FragmentReport, LoadJob, file_of, not_as_written
from tidemark.recovery.places.names import canonical_place
from tidemark.recovery.places.storage import open_place

if TYPE_CHECKING:
    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.load_files import LoadFile
    from tidemark.engine.table.table import Table

FILES_MAX = 1 << 16  # of one load: the list of them in the log's record stays below 8 MiB


@dataclass(frozen=True)
class LoadManifest:
    """A published load: the job, and one file for each part of a fragment."""

    job: LoadJob
    files: tuple[LoadFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows in all files."""
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The number of bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> str:
        """Return the manifest as text."""
        files = [asdict(file) for file in self.files]
        return json.dumps({"job": self.job.to_dict(), "files": files}, sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> LoadManifest:
        """Return the manifest in a text. Raises: Rejected if the text is no manifest."""
        try:
            value = json.loads(text)
            manifest = cls(LoadJob.from_dict(value["job"]), tuple(file_of(each) for each in value["files"]))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise not_as_written("the manifest of a load", error) from error
        manifest.check()
        return manifest

    def check(self) -> None:
        """Check that the files fit the job. Raises: Rejected."""
        places = {(file.fragment, file.part) for file in self.files}
        if len(places) != len(self.files):
            raise Rejected(
                "a part of a fragment is named twice; give the report of one attempt each", job=self.job.number
            )
        if len(self.files) > FILES_MAX:
            raise Rejected(f"a load has at most {FILES_MAX} files, not {len(self.files)}; write larger ones")
        slots, table_id = self.job.shape.slots, self.job.definition.table_id
        for file in self.files:
            is_of_job = file.job == self.job.number and file.table_id == table_id
            if not is_of_job or file.fragment not in self.job.fragments:
                text = f"{file.leaf} is not a file of load {self.job.name}; give the reports of its own tasks"
                raise Rejected(text, job=self.job.number)
            is_sane = file.rows > 0 and file.pages == -(-file.rows // slots) and 0 < file.blocks <= file.rows
            if not is_sane or not 0 < file.records_words * 8 < file.size_bytes:
                raise Rejected(
                    f"the description of {file.leaf} is invalid; give the reports as the tasks returned them",
                    job=self.job.number,
                )


def plan_load(
    table: Table, identity: tuple[bytes, int], files: Files, root: str | None, directory: str | None = None
) -> LoadJob:
    """Plan a load into a table and prepare its directory. Durable on return: the permission for tasks to write.

    identity: store UUID and incarnation. files, root: of the store, and the path by which other processes know it.
    directory: a path or URI that all tasks can reach; None: the store's own folder. Raises: StorageFull, IoFailed,
    Rejected for a bad URI.
    """
    number = int.from_bytes(SystemClock().random_bytes(8), "little") & (1 << JOB_BITS) - 1
    definition = table.newest.definition.to_json()
    if directory is None:
        job = LoadJob(number, *identity, definition, f"{root or ''}/{FOLDER}", True)
        begin(job, own_directory(files))
        return job
    job = LoadJob(number, *identity, definition, canonical_place(directory))
    place = open_place(directory, create=True)
    try:
        begin(job, Directory(place))
    finally:
        place.close_all()
    return job


def begin(job: LoadJob, place: Directory) -> None:
    """Allow the tasks of a job to write. Durable on return."""
    place.write(job.name + OPEN, job.to_json().encode())


def publish(job: LoadJob, reports: Sequence[FragmentReport], place: Directory | None = None) -> LoadManifest:
    """Publish the files of these tasks as the load. Return the valid manifest: the earlier one if the load was already
    published. Durable on return. Raises: LoadRefused if rows were refused, LoadEnded if the load was aborted, Rejected
    for reports of another job.
    """
    with directory_of(job, place) as opened:
        if published_leaf(job.name, opened) is not None:
            return _published_before(job, opened)
        _check_reports(job, reports)
        manifest = LoadManifest(job, tuple(report.file for report in reports if report.file is not None))
        manifest.check()
        stem = f"{job.name}.{SystemClock().random_bytes(4).hex()}"  # two publishers never write one file
        try:
            opened.write(stem + MANIFEST, _sealed(manifest))
            opened.files.rename(opened.name(job.name + OPEN), opened.name(stem + PUBLISHED))
        except FileMissing:
            opened.remove(stem + MANIFEST)
            if published_leaf(job.name, opened) is not None:
                return _published_before(job, opened)
            raise LoadEnded(f"load {job.name} was aborted; plan another one", job=job.number) from None
        opened.sync()
        return manifest


def _published_before(job: LoadJob, place: Directory) -> LoadManifest:
    """Return the manifest of a published load. Durable on return, also if a publisher was killed before its sync."""
    place.sync()
    return read_manifest(job, place)


def published_leaf(name: str, place: Directory) -> str | None:
    """Return the name of the file that marks a job as published; its stem is that of the valid manifest. None if not
    published.
    """
    found = [leaf for leaf in place.leaves(name + ".") if leaf.endswith(PUBLISHED)]
    return found[0] if found else None


def _check_reports(job: LoadJob, reports: Sequence[FragmentReport]) -> None:
    refused = sum(report.refused for report in reports)
    for report in reports:
        if report.job != job.number:
            text = f"a report belongs to another load, not to {job.name}; give the reports of its own tasks"
            raise Rejected(text, job=job.number)
    if refused:
        examples = [example for report in reports for example in report.examples][:EXAMPLES_MAX]
        least = "at least " if any(report.is_at_least for report in reports) else ""
        raise LoadRefused(
            f"{job.table}: {least}{counted(refused, 'row')} refused, the first:"
            f" {examples[0]['text']}; nothing was loaded",
            table=job.table,
            refused=refused,
            is_at_least=bool(least),
            duplicates=0,
            examples=examples,
        )


def abort(job: LoadJob, published: bool = False, place: Directory | None = None) -> bool:
    """Abort a load and remove its files. Return False, with nothing done, if the load is published, unless `published`
    allows that. Durable on return.

    Return False, too, if an adoption has begun, since it may have committed: `adopt` the load again to find out.
    """
    with directory_of(job, place) as opened:
        if opened.exists(job.name + ADOPTING):
            return False  # the log may refer to its files
        if published_leaf(job.name, opened) is not None and not published:
            return False
        return end(job.name, opened, published)


def end(name: str, place: Directory, published: bool = True) -> bool:
    """Abort the load `name`, of which no adoption has begun or can have committed, and remove its files. Return False,
    with nothing done, if it is published, unless `published` allows that. Durable on return.
    """
    try:
        place.files.rename(place.name(name + OPEN), place.name(name + ABORTED))
        place.sync()  # without this sync a crash could leave a job that is open and has lost files
    except FileMissing:
        if published_leaf(name, place) is not None and not published:
            return False  # published since the first check
    sweep(name, place)
    return True


@dataclass(frozen=True)
class FoundLoad:
    """A load that has files in a directory.

    `state` is "open" (tasks may write), "published", "adopting" (it may have committed), or "ended": files that were
    left. `table` and `store` (UUID, in hexadecimal) are None where no file tells them.
    """

    name: str
    state: str
    table: str | None
    store: str | None
    files: int
    size_bytes: int


def find_loads(place: Directory) -> list[FoundLoad]:
    """Return the loads that have files in a directory, by name."""
    leaves: dict[str, list[str]] = {}
    for leaf in place.leaves(""):
        if is_job_name(leaf[:JOB_DIGITS]) and leaf[JOB_DIGITS : JOB_DIGITS + 1] in ("", ".", "-"):
            leaves.setdefault(leaf[:JOB_DIGITS], []).append(leaf)
    found = []
    for name, own in sorted(leaves.items()):
        state, table, store, size_bytes = "ended", None, None, 0
        for ending, known in ((OPEN, "open"), (PUBLISHED, "published"), (ADOPTING, "adopting")):
            state = known if any(leaf.endswith(ending) for leaf in own) else state
        for leaf in own:
            with suppress(Rejected, Damaged):  # another process may remove files
                if leaf.endswith((OPEN, PUBLISHED, ABORTED)):
                    job = LoadJob.from_json(place.read(leaf))
                    table, store = job.table, job.store.hex()
                size_bytes += 0 if leaf == name else place.files.size(place.name(leaf))
        found.append(FoundLoad(name, state, table, store, len(own), size_bytes))
    return found


def sweep(name: str, place: Directory, keep: frozenset[str] = frozenset()) -> int:
    """Remove the files of the ended job `name`, except for the names in `keep`; return how many were removed. Durable
    on return.

    The manifest is durably gone before the mark of an adoption: without the mark, a load with a manifest would be
    adopted again. The file that marks the job as ended is removed last, so that an interrupted sweep can be continued.
    """
    ends = (PUBLISHED, ABORTED)
    leaves = [leaf for leaf in place.leaves(name) if place.name(leaf) not in keep]
    if leaves:
        # The names that an interrupted process gave may not be durable. Sync them first: after a crash no removed
        # file may come back without the file that is removed last.
        place.sync()
    manifests = [leaf for leaf in leaves if leaf.endswith(MANIFEST)]
    others = [leaf for leaf in leaves if not leaf.endswith((MANIFEST, *ends))]
    for some in (manifests, others, [leaf for leaf in leaves if leaf.endswith(ends)]):
        for leaf in some:
            place.remove(leaf)
        if some:
            place.sync()
    return len(leaves)


def _sealed(manifest: LoadManifest) -> bytes:
    job = manifest.job
    about = (LOAD_MANIFEST, KIND_LOAD_MANIFEST, (job.store, job.incarnation), LOAD_UNIT_WORDS_MIN)
    return sealed_text(*about, manifest.to_json().encode(), job=job.number).tobytes()


def read_manifest(job: LoadJob | str, place: Directory | None = None) -> LoadManifest:
    """Return the manifest of a published job, or of a job's name if `place` is given. Raises: FileMissing if it is not
    published, LoadDamaged, VersionTooNew, VersionTooOld.
    """
    if place is None:
        if isinstance(job, str):
            raise Rejected("a load has its name in its directory only; give the directory")
        with directory_of(job) as opened:
            return read_manifest(job, opened)
    name = job if isinstance(job, str) else job.name
    published = published_leaf(name, place)
    if published is None:
        raise FileMissing(
            f"load {name} is not published, or was adopted; see the directory it was planned for", load=name
        )
    leaf = published.removesuffix(PUBLISHED) + MANIFEST
    content: Any = place.read(leaf)
    if len(content) % 8 or len(content) < LOAD_UNIT_WORDS_MIN * 8:
        raise _damaged(leaf, "is too short")
    words = np.frombuffer(content, dtype=np.int64).copy()
    if not is_sealed(words, KIND_LOAD_MANIFEST, words.size):
        raise _damaged(leaf, "fails its checksum")
    check_version(words, leaf)
    header = header_of(words, LOAD_MANIFEST)
    try:
        manifest = LoadManifest.from_json(text_of(words, LOAD_MANIFEST))
    except Rejected as error:
        raise _damaged(leaf, f"is invalid ({error.message})") from error
    if manifest.job.number != int(header["job"]) or manifest.job.name != name:
        raise _damaged(leaf, "is the manifest of another load")
    return manifest


def _damaged(leaf: str, what: str) -> LoadDamaged:
    return LoadDamaged(f"{leaf} {what}; abort the load and load again", file=leaf)
