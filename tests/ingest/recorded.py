"""Streams of events as servers send them, made without a server: with MySQL's and MariaDB's framing of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.replication.support import entries_of
from tidemark.engine import types as t
from tidemark.engine.rows.row_format import RowFormat
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.definition import TableDefinition
from tidemark.replication.binlog import binlog_layout as b
from tidemark.replication.binlog import events as e
from tidemark.replication.binlog.row_plan import NO_PLAN, BodyWriter, RowImages, TablePlans
from tidemark.replication.binlog.table_map import table_map
from tidemark.replication.ingest.transactions import Step, TransactionReader

FILE = "master.000001"
SERVER_ID = 77
DEFINITION = TableDefinition(
    3,
    1,
    "d.t",
    (Column("id", t.Int32), Column("a", t.VarChar(20), True, None), Column("n", t.Int32, True, None)),
    ("id",),
)


class Stream:
    """Events one after the other, each with its place in a file."""

    def __init__(self, file: str = FILE, position: int = b.FIRST_POSITION, server: bytes = b"10.11.6-MariaDB") -> None:
        self.file, self.position = file, position
        self.start = position
        self.raw: list[bytes] = []
        self.number = 0
        self.send(e.Rotate(file, position), b.FLAG_ARTIFICIAL)
        self.send(e.FormatDescription(server), b.FLAG_ARTIFICIAL)

    def send(self, event: e.Event, flags: int = 0, server_id: int = SERVER_ID) -> None:
        is_artificial = bool(flags & b.FLAG_ARTIFICIAL)
        at = 0 if is_artificial else self.position
        made = e.frame(event, at, timestamp_s=1_700_000_000 + self.number, server_id=server_id, flags=flags)
        if not is_artificial:
            self.position += len(made)
        self.raw.append(made)

    def add(self, *events: e.Event) -> Stream:
        for event in events:
            self.send(event)
        return self

    def begin(self) -> Stream:
        """Begin a transaction as MySQL does: a GTID, and BEGIN."""
        self.number += 1
        return self.add(e.Gtid(self.number, 0, source=bytes(range(16)), number=self.number), e.Query("BEGIN", "d"))

    def mariadb(self, flags: int = 0) -> Stream:
        """Add a GTID as MariaDB does; it begins a transaction unless it marks a standalone statement."""
        self.number += 1
        body = self.number.to_bytes(8, "little") + (0).to_bytes(4, "little") + bytes((flags,)) + bytes(6)
        return self.add(e.Other(b.MARIADB_GTID_EVENT, body))

    def statement(self, text: str, database: str = "d") -> Stream:
        return self.mariadb(b.MARIADB_STANDALONE).add(e.Query(text, database))

    def rows(
        self,
        kind: int,
        old: Sequence[tuple[Any, ...]] = (),
        new: Sequence[tuple[Any, ...]] = (),
        columns: tuple[tuple[str, ...], tuple[str, ...]] | None = None,
        definition: TableDefinition = DEFINITION,
        table_id: int = 30,
    ) -> Stream:
        """Add a table map and an event of rows. columns: those in the images before and after; all by default."""
        plans = TablePlans(RowFormat(definition))
        words, starts = entries_of(plans.row_format, [*old, *new])
        names = [column.name for column in definition.columns]
        before_columns, after_columns = columns or (tuple(names), tuple(names))
        before = plans.of(tuple(sorted(map(names.index, before_columns)))) if old else NO_PLAN
        after = plans.of(tuple(sorted(map(names.index, after_columns)))) if new else NO_PLAN
        images = RowImages(
            words, starts[: len(old)].copy() if old else None, starts[len(old) :].copy() if new else None
        )
        body = b"".join(
            bytes(octets)
            for octets, _ in BodyWriter().bodies(
                definition.name, images, before, after, 0, len(new) if new else len(old)
            )
        )
        self.add(table_map(definition, table_id))
        return self.add(
            e.Rows(
                kind,
                table_id,
                len(names),
                before.bitmap if kind != e.WRITE else None,
                after.bitmap if kind != e.DELETE else None,
                body,
                b.ROWS_STATEMENT_END,
            )
        )

    def insert(self, *rows: tuple[Any, ...], **given: Any) -> Stream:
        return self.rows(e.WRITE, new=rows, **given)

    def update(self, *pairs: tuple[tuple[Any, ...], tuple[Any, ...]], **given: Any) -> Stream:
        return self.rows(e.UPDATE, old=[old for old, _ in pairs], new=[new for _, new in pairs], **given)

    def delete(self, *rows: tuple[Any, ...], **given: Any) -> Stream:
        return self.rows(e.DELETE, old=rows, **given)

    def commit(self) -> Stream:
        return self.add(e.Xid(self.number))

    def steps(self) -> list[Step]:
        """Return the steps that a reader makes of it."""
        reader = TransactionReader(self.file, self.start)
        return [step for raw in self.raw if (step := reader.step(raw)) is not None]
