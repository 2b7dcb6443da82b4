"""Which changes of a source's binlog a channel takes: by database and table; schema changes by server too.

Rows are skipped by server in the applier instead, which knows whether a conflict function needs them. Rows of
`mysql.ndb_apply_status` always pass: they update positions and show what other sites have applied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidemark.engine.base.errors import Rejected, SchemaInvalid
from tidemark.replication.binlog import events as e
from tidemark.replication.settings.match import ANY_NUMBER, matches
from tidemark.replication.settings.system_tables import NDB_APPLY_STATUS
from tidemark.replication.sql.parse import parse
from tidemark.replication.sql.statements import table_of


def _patterns(option: str, patterns: Iterable[str]) -> tuple[str, ...]:
    made = []
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        if not isinstance(pattern, str) or not pattern or pattern.count(".") > 1:
            raise SchemaInvalid(f"{option} is {pattern!r}; give patterns like shop.% or shop.order_", option=option)
        made.append(pattern if "." in pattern else f"{pattern}.{ANY_NUMBER}")
    return tuple(made)


@dataclass(frozen=True)
class Filter:
    """A change passes if its table matches no pattern of `ignore`, and, unless `do` is empty, a pattern of `do`. A
    schema change of a skipped server does not pass. Patterns are `database.table` with `%` and `_`, or a database for
    all its tables.
    """

    skipped_servers: frozenset[int] = frozenset()
    do: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    _known: dict[str, bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, skipped_servers: Iterable[int] = (), do: Iterable[str] = (), ignore: Iterable[str] = ()) -> Filter:
        """Build a filter. Raises: SchemaInvalid for an invalid pattern."""
        return cls(frozenset(skipped_servers), _patterns("replicate_do", do), _patterns("replicate_ignore", ignore), {})

    @property
    def is_open(self) -> bool:
        """Whether all rows pass."""
        return not (self.do or self.ignore)

    def takes_table(self, name: str) -> bool:
        """Whether rows of a table `database.table` pass."""
        known = self._known.get(name)
        if known is None:
            known = name == NDB_APPLY_STATUS or (
                not any(matches(pattern, name) for pattern in self.ignore)
                and (not self.do or any(matches(pattern, name) for pattern in self.do))
            )
            if len(self._known) < 1 << 16:
                self._known[name] = known
        return known

    def takes_statement(self, query: e.Query, server_id: int) -> bool:
        """Whether a schema change passes. One that cannot be parsed passes, and its execution raises the error."""
        if server_id in self.skipped_servers:
            return False
        if not (self.do or self.ignore):
            return True
        try:
            tables = [table_of(each) for each in parse(query.statement, query.database)]
        except Rejected:
            return True
        return any(not table or self.takes_table(table) for table in tables)
