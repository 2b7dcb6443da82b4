"""A real site whose channel is started or reset: what it takes as max replicated epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import tidemark as tm
from tests.replication.test_channel_stores import site
from tidemark.replication.settings.conflict_function import Role

_TABLE = "test.t1"


def mre_at_a_site(
    rows: Iterable[tuple[int, int]], own: int, ignored: Collection[int], functions: Sequence[str], does_reset: bool
) -> tuple[int, int]:
    """Return the max replicated epoch of site `own` after its applier has started with these rows (server id, epoch) of
    `ndb_apply_status`, and after a reset if it is asked for. `functions`: a function of the site's table, if any.
    """
    source_id = max((own, *ignored, *(server_id for server_id, _ in rows))) + 1
    role = Role.PRIMARY if any("EPOCH2" in each for each in functions) else Role.NONE
    source = site(source_id, log_apply_status=True, log_transaction_id=True)
    replica = site(own, conflict_role=role, log_apply_status=True, log_transaction_id=True)
    try:
        for function in functions:
            spec = f"{function}()".encode()
            replica.create_replication_table().insert((b"test", b"t1", 0, 7, spec))
        with tm.Channel(source, replica):
            pass  # creates the system tables
        replica["mysql.ndb_apply_status"].insert_many([(*row, "", 0, 0) for row in rows])
        with tm.Channel(source, replica, ignore_server_ids=list(ignored)) as channel:
            source.create_table(_TABLE, [tm.Column("id", tm.Int64)], "id")
            source.sync()
            channel.apply_all()  # hears of its source, without which a reset keeps everything
            before = _mre(replica)
            if does_reset:
                channel.reset()
            return before, _mre(replica)
    finally:
        replica.close()
        source.close()


def _mre(db: tm.Database) -> int:
    return int(db.status()["replication"]["variables"]["Ndb_replica_max_replicated_epoch"])
