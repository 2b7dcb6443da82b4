"""Files that the log refers to, at restart: verified, replayed as part of the log, and removed if no group names them.

Every needed file is completely verified before anything changes. Replay holds one block for each thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.engine.base.errors import RedoDamaged
from tidemark.engine.log.redo_layout import GROUP_WORDS
from tidemark.engine.log.spool_files import Kept, loads_in, spool_ids, sweep
from tidemark.engine.log.spool_reader import SpoolReader, referred
from tidemark.engine.store.replay import RecordDoesNotFit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidemark.engine.files.protocol import Files
    from tidemark.engine.log.reader import GroupRead, LogReader
    from tidemark.engine.memory.arena import Words
    from tidemark.engine.store.disk_replay import DiskReplay
    from tidemark.engine.store.replay import Replay


@dataclass(slots=True, eq=False)
class Records:
    """Some records of a group: words[start:stop], their epoch and their place."""

    words: Words
    start: int
    stop: int
    epoch: int
    lsn: int = 0  # of the group
    offset: int = 0  # of words[0] in the file, if they are in one
    file: str | None = None

    def replay(self, replay: Replay | DiskReplay) -> None:
        """Replay the records. Raises: RedoDamaged, PageDamaged, PartsOutOfMemory."""
        try:
            replay.run(self.words, self.start, self.stop, self.epoch)
        except RecordDoesNotFit as error:
            raise self.misfit(error.at, error.status) from error

    def misfit(self, at: int, status: int) -> RedoDamaged:
        """Return the error for the record at word `at`, which does not fit the rows."""
        evidence: dict[str, Any] = {"lsn": self.lsn + at * 8}
        where = f"LSN {self.lsn + at * 8}"
        if self.file is not None:
            evidence = {"lsn": self.lsn, "file": self.file, "offset": self.offset + at * 8}
            where = f"offset {self.offset + at * 8} of {self.file}"
        return RedoDamaged(
            f"the record at {where} does not fit the rows it meets (status {status}); restore from a backup", **evidence
        )


class Spooled:
    """The files that the replayed groups refer to, each verified."""

    def __init__(self, files: Files, store: bytes, groups: list[GroupRead]) -> None:
        """Raises: SpoolDamaged, RedoDamaged, VersionTooNew, VersionTooOld."""
        self._readers: dict[int, SpoolReader] = {}
        self.size_bytes = 0
        for group in groups:
            what = referred(group)
            if what is not None:
                reader = self._readers[group.lsn] = SpoolReader(files, store, what)
                self.size_bytes += reader.verify()

    def __len__(self) -> int:
        return len(self._readers)

    def records(self, group: GroupRead) -> Iterator[Records]:
        """Yield all records of a group in order: its own, and those of the files it refers to. Raises: SpoolDamaged."""
        yield Records(group.words, GROUP_WORDS, GROUP_WORDS + group.records_words, group.epoch, group.lsn)
        reader = self._readers.get(group.lsn)
        if reader is not None:
            for block in reader.blocks():
                yield Records(*block[:3], group.epoch, group.lsn, block.offset, block.name)


def sweep_unreferred(
    files: Files, reader: LogReader, tail: tuple[int, int], groups: list[GroupRead]
) -> dict[int, Kept]:
    """Remove the spool and load files that no group of the kept log refers to; return the others, by transaction.

    tail: LSN and sequence where the kept log begins. groups: the replayed ones, which may begin after the tail.
    """
    if not spool_ids(files) and not loads_in(files):
        return {}
    kept: dict[int, Kept] = {}
    for group in groups:
        _note(group, kept)
    # Groups of the kept log before the replayed ones.
    lsn, sequence = tail
    stop = groups[0].lsn if groups else reader.end_lsn
    while lsn < stop:
        older = reader.group_at(lsn, sequence)
        if older is None:
            return kept  # this restart does not need the group, but its references are unknown: all files stay (W3)
        _note(older, kept)
        lsn, sequence = older.end_lsn, older.sequence + 1
    sweep(files, {name for each in kept.values() for name in each.names})
    return kept


def _note(group: GroupRead, kept: dict[int, Kept]) -> None:
    what = referred(group)
    if what is not None:
        kept[what.txid] = Kept(group.lsn, what.size_bytes, what.names)
