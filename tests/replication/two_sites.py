"""Two stores that replicate to each other, a primary and a secondary, with a table that has a function of epochs."""

from __future__ import annotations

from typing import Any

import tidemark as tm
from tests.replication.test_channel_stores import site
from tidemark.replication.settings.conflict_function import Role

EPOCH_FUNCTIONS = ("NDB$EPOCH(31)", "NDB$EPOCH_TRANS(31)", "NDB$EPOCH2(31)", "NDB$EPOCH2_TRANS(31)")
COLUMNS = [
    tm.Column("id", tm.Int64),
    tm.Column("u", tm.VarChar(20), nullable=True),
    tm.Column("note", tm.VarChar(20), nullable=True),
]
HEAD = [
    tm.Column("NDB$server_id", tm.UInt32),
    tm.Column("NDB$source_server_id", tm.UInt32),
    tm.Column("NDB$source_epoch", tm.UInt64),
    tm.Column("NDB$count", tm.UInt32),
    tm.Column("NDB$OP_TYPE", tm.Enum("WRITE_ROW", "UPDATE_ROW", "DELETE_ROW", "REFRESH_ROW", "READ_ROW")),
    tm.Column(
        "NDB$CFT_CAUSE", tm.Enum("ROW_DOES_NOT_EXIST", "ROW_ALREADY_EXISTS", "DATA_IN_CONFLICT", "TRANS_IN_CONFLICT")
    ),
    tm.Column("NDB$ORIG_TRANSID", tm.UInt64, nullable=True),
    tm.Column("id", tm.Int64),
]
NAMES = [column.name for column in HEAD[:4]]


class Pair:
    """A is the primary, B the secondary. `given`: columns of the table after its key, by default `COLUMNS`."""

    def __init__(
        self,
        function: str | None,
        binlog_type: int,
        is_unique: bool = False,
        columns: list[Any] | None = None,
        prepare: Any = None,
        channel_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        has_roles = function is not None and "EPOCH2" in function
        given = {"log_apply_status": True, "log_transaction_id": True, **options}
        roles = (Role.PRIMARY, Role.SECONDARY) if has_roles else (Role.NONE, Role.NONE)
        self.sites = [site(each + 1, conflict_role=role, **given) for each, role in enumerate(roles)]
        self.primary, self.secondary = self.sites
        for number, db in enumerate(self.sites):
            has_function = function is not None and (number == 0 or has_roles or "EPOCH" not in function)
            spec = function.encode() if function is not None and has_function else None
            # A secondary must log updates as updates.
            logs_as = binlog_type + 4 if number and function and binlog_type in (2, 3) else binlog_type
            db.create_replication_table().insert((b"shop", b"item", 0, logs_as, spec))
            if prepare is not None:
                prepare(db)
            db.create_table("shop.item$EX", HEAD, NAMES)
            db.create_table("shop.item", columns or COLUMNS, "id")
            if is_unique:
                db.create_index("shop.item", "by_u", ["u"], unique=True, ordered=True)
            db.parts.clockwork.advance_gci()
        more = channel_options or {}
        self.to_secondary = tm.Channel(self.primary, self.secondary, **more)
        self.to_primary = tm.Channel(self.secondary, self.primary, **more)
        self.turn(1)

    def send(self, to: str) -> None:
        """Close the epoch of the other site, and apply what it has logged."""
        if to == "secondary":
            self.primary.parts.clockwork.advance_epoch()
            self.to_secondary.apply_all()
        else:
            self.secondary.parts.clockwork.advance_epoch()
            self.to_primary.apply_all()

    def turn(self, times: int, first: str = "secondary") -> None:
        """Send in both directions, this many times; `first` receives first."""
        second = "primary" if first == "secondary" else "secondary"
        for _ in range(times):
            self.send(first)
            self.send(second)

    def rows(self) -> list[dict[int, tuple[Any, ...]]]:
        """Return the rows of both sites by key."""
        return [{row[0]: tuple(row[1:]) for row in db["shop.item"].scan()} for db in self.sites]

    def conflicts(self) -> list[int]:
        """Return the number of exceptions rows at each site."""
        return [len(db["shop.item$EX"]) for db in self.sites]

    def close(self) -> None:
        self.to_secondary.close()
        self.to_primary.close()
        for db in self.sites:
            db.close()
