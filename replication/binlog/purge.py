"""Which files of a binlog may be purged: by age, by size, and never a file that is still needed.

These functions only decide; `BinlogIndex.purge_to` removes. The caller knows what a channel or a restart needs and
passes it as `keep`.
"""

from __future__ import annotations

from tidemark.engine.files.protocol import Files
from tidemark.replication.binlog.index import BinlogIndex
from tidemark.replication.binlog.scan import read_format


def expired(files: Files, index: BinlogIndex, before_s: int, keep: str) -> str:
    """Return the oldest file to keep if all files that ended before `before_s` (seconds since 1970) are purged; `keep`
    and newer files stay. A file ends when the next one begins. Raises: BinlogDamaged, Rejected.
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
    """Return the oldest file to keep if at most `bytes_max` are to remain; `keep` and newer files stay in any case.

    Raises: Rejected.
    """
    last = index.place_of(keep)
    size = sum(files.size(index.path(name)) for name in index.names)
    for name in index.names[:last]:
        if size <= bytes_max:
            return name
        size -= files.size(index.path(name))
    return keep
