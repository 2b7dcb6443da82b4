"""The contents of an epoch in the binlog, by origin, and its rows of `ndb_binlog_index`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tidemark.engine.rows.row_format import Words
    from tidemark.replication.binlog.position import Position

INSERTS, UPDATES, DELETES = 0, 1, 2
_COUNT_MAX = (1 << 32) - 1  # the columns are INT UNSIGNED
_GCI_SHIFT = 32


IndexRow = tuple[int | str, ...]  # a row of `ndb_binlog_index`, in the order of its columns


@dataclass
class EpochCounts:
    """`rows` has the counts of logged rows, by the server id under which they are logged. `origins` has (server id,
    epoch) for the epochs of other sites that were applied in the epoch.
    """

    rows: dict[int, list[int]] = field(default_factory=dict)
    origins: dict[tuple[int, int], None] = field(default_factory=dict)
    statements: int = 0

    def add(self, place: int, server_ids: Words | None, logged: int, own_id: int) -> None:
        """Count `logged` rows of one kind (INSERTS, UPDATES or DELETES). `server_ids` are those of the rows, 0 for this
        server.
        """
        if server_ids is None or not len(server_ids):
            self._add(own_id, place, logged)
            return
        servers, counts = np.unique(server_ids, return_counts=True)
        if len(servers) == 1:
            counts = np.array([logged])  # fewer than the rows if updates without effect were skipped
        for server, count in zip(servers.tolist(), counts.tolist(), strict=True):
            self._add(server or own_id, place, count)

    def _add(self, server: int, place: int, count: int) -> None:
        if count:
            self.rows.setdefault(server, [0, 0, 0])[place] += count

    def note_origin(self, server: int, epoch: int, own_id: int) -> None:
        """Add an applied epoch of another site; the site's own epoch, sent back to it, is not an origin."""
        if server != own_id:
            self.origins[server, epoch] = None

    def index_rows(self, epoch: int, start: Position, end: Position, own_id: int, log_orig: bool) -> list[IndexRow]:
        """Return the rows of `ndb_binlog_index` of an epoch: one; or with `log_orig` one for the site's own changes,
        one for each origin, and one for each other server id that has rows.
        """

        def row(counts: list[int], statements: int, server: int, number: int) -> IndexRow:
            inserts, updates, deletes = (min(count, _COUNT_MAX) for count in counts)
            return (
                *(start.position, start.file, epoch, inserts, updates, deletes, statements),
                *(server, number, epoch >> _GCI_SHIFT, end.position, end.file),
            )

        if not log_orig:
            total = [sum(counts[place] for counts in self.rows.values()) for place in (INSERTS, UPDATES, DELETES)]
            return [row(total, self.statements, 0, 0)]
        left = dict(self.rows)
        rows = [row(left.pop(own_id, [0, 0, 0]), self.statements, own_id, epoch)]
        # All changes of a site are counted in the row of the newest of its epochs.
        for server, number in reversed(self.origins):
            rows.append(row(left.pop(server, [0, 0, 0]), 0, server, number))
        rows += [row(counts, 0, server, 0) for server, counts in sorted(left.items())]
        return rows
