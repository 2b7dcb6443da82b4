"""Which files of a binlog may go: by age, by size, and never one that is still needed.

Pure questions; `BinlogIndex.purge_to` removes. What a channel or a restart needs is for the caller to say (`keep`).
"""

from __future__ import annotations

from tidemark.engine.files.protocol import Files
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.scan import read_format


def expired(files: Files, index: BinlogIndex, before_s: int, keep: str) -> str:
    """The oldest file to keep if all go that were ended before `before_s` (seconds since 1970); `keep` stays, and what
    is newer. A file ended when the next was begun. Raises: BinlogDamaged, Rejected.
    """
    last = index.place_of(keep)
    for place in range(last):
        following = index.names[place + 1]
        file = files.open(index.path(following))
        try:
            ended_s = read_format(files, file, following)[0].timestamp_s
        finally:
            files.close(file)
        if ended_s >= before_s:
            return index.names[place]
    return keep


def oversized(files: Files, index: BinlogIndex, bytes_max: int, keep: str) -> str:
    """The oldest file to keep if no more than `bytes_max` shall stay; `keep` stays, and what is newer.

    Raises: Rejected.
    """
    last = index.place_of(keep)
    size = sum(files.size(index.path(name)) for name in index.names)
    for name in index.names[:last]:
        if size <= bytes_max:
            return name
        size -= files.size(index.path(name))
    return keep
