"""`ndb_binlog_index` of a store that replicates in a circle: a row for each cluster with changes in an epoch."""

from __future__ import annotations

from typing import Any

import pytest

from tests.applier.stage import cases
from tests.conformance.store_site import StoreSite, store_sites
from tests.replication.site import index_rows


def pair(log_orig: bool) -> dict[str, StoreSite]:
    sites = dict(store_sites(cases(None, False, False, 7)))
    for site in sites.values():
        assert site.db.binlog is not None
        site.db.binlog.set_option("log_orig", log_orig)
    return sites


def update(site: StoreSite, *keys: int) -> None:
    with site.db.transaction() as txn:
        for key in keys:
            txn.update("test.t1", key, {"b": f"{site.server_id}"})


def newest_rows(site: StoreSite) -> tuple[int, list[dict[str, Any]]]:
    rows = index_rows(site.db)
    epoch = max(row["epoch"] for row in rows)
    return epoch, [row for row in rows if row["epoch"] == epoch]


@pytest.mark.parametrize("log_orig", [True, False])
def test_epoch_that_applies_another_s_has_a_row_for_each_origin(log_orig: bool) -> None:
    """Cluster B applies epoch 13 of cluster A in its epoch 209: the rows there are (209, 13, A) and (209, 209, B)."""
    sites = pair(log_orig)
    a, b = sites["A"], sites["B"]
    update(a, 0, 1)
    a.epoch()
    sent = newest_rows(a)[0]
    update(b, 2)
    b.replicate(a, keep_epoch_open=True)
    assert b.error is None
    b.epoch()
    epoch, rows = newest_rows(b)
    found = [(row["orig_server_id"], row["orig_epoch"], row["inserts"], row["updates"]) for row in rows]
    if log_orig:
        # B's own update counts for B; the applied changes are not logged again here, but their position is.
        assert found == [(1, sent, 0, 0), (3, epoch, 0, 1)]
    else:
        assert found == [(0, 0, 0, 1)]
    assert len({(row["File"], row["Position"], row["next_file"], row["next_position"]) for row in rows}) == 1
    assert {row["gci"] for row in rows} == {epoch >> 32}
    for site in sites.values():
        site.close()


def test_epoch_of_its_own_alone_has_one_row() -> None:
    sites = pair(True)
    update(sites["A"], 0)
    sites["A"].epoch()
    epoch, rows = newest_rows(sites["A"])
    assert [(row["orig_server_id"], row["orig_epoch"], row["updates"]) for row in rows] == [(1, epoch, 1)]
    for site in sites.values():
        site.close()
