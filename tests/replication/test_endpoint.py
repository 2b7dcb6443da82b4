"""An open store as other sites see it. Story of each: no test noticed a mutant of it."""

from __future__ import annotations

import pytest

from tests.replication.test_channel_stores import site
from tidemark.replication.applier.applier import ApplierOptions
from tidemark.replication.settings.match import ReplicationRow


@pytest.fixture
def db():
    with site(7) as opened:
        yield opened


def test_site_names_its_binlog(db):
    assert db.endpoint.site.binlog == db.binlog.base != ""


def test_counters_of_a_channel_continue_when_it_is_made_again(db):
    first = db.endpoint.new_applier("main", ApplierOptions()).applier.counters
    assert db.endpoint.new_applier("main", ApplierOptions()).applier.counters is first
    assert db.endpoint.new_applier("other", ApplierOptions()).applier.counters is not first


@pytest.mark.parametrize(("function", "is_by_epochs"), [("NDB$EPOCH()", True), ("NDB$MAX(n)", False), (None, False)])
def test_peer_with_a_function_of_epochs_is_noted(db, function, is_by_epochs):
    db.endpoint.check_channels(([ReplicationRow("shop", "item", 1, 7, function)], 1))
    assert db.endpoint.has_epoch_peer is is_by_epochs
