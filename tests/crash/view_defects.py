"""Defects of views, votes and leases that are planted, and within how many seeds the simulation of nodes sees each."""

from __future__ import annotations

from tests.crash.defects import Defect

PART = "views"  # followed by a number of seeds

VIEW_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "promise-told-before-it-is-written",
        "tidemark.replication.node_group.votes",
        "        if self.is_written:\n            return list(actions)",
        "        if self:\n            return list(actions)",
        "views 1600",
    ),
    Defect(
        "vote-in-a-lower-ballot",
        "tidemark.replication.node_group.votes",
        "            return [Send(sender, Outbid(asked.base.number, self.promised))]\n        actions = []\n",
        "            pass\n        actions = []\n",
        "views 60",
    ),
    Defect(
        "vote-of-another-ballot-not-taken-over",
        "tidemark.replication.node_group.votes",
        "if best.accepted is not None:",
        "if best.accepted is self:",
        "views 1000",
    ),
    Defect(
        "one-vote-decides",
        "tidemark.replication.node_group.votes",
        "len(self.votes & self.base.voters) >= self.base.quorum",
        "len(self.votes & self.base.voters) >= 1",
        "views 600",
    ),
    Defect(
        "primary-without-the-furthest-log",
        "tidemark.replication.node_group.votes",
        "(self._last(each), each.number == base.primary, -each.number)",
        "(each.number == base.primary, -each.number)",
        "views 300",
    ),
    Defect(
        "lease-not-asked",
        "tidemark.replication.node_group.machine",
        "view == self.reads_in() != 0 and self.leases.holds(self.view, now)",
        "view == self.reads_in() != 0",
        "views 100",
    ),
    Defect(
        "lease-of-one", "tidemark.replication.node_group.view", "len(self.voters) - self.quorum + 1", "1", "views 100"
    ),
    Defect(
        "leases-not-waited-for",
        "tidemark.replication.node_group.views",
        "if now < primacy.settles_at or not",
        "if not",
        "views 300",
    ),
    Defect(
        "clocks-trusted",
        "tidemark.replication.node_group.view",
        "return -(-self.lease_ms * fast // slow)",
        "return self.lease_ms + 0 * fast * slow",
        "views 900",
    ),
    Defect(
        "grants-of-members-not-asked",
        "tidemark.replication.node_group.views",
        "primacy.settles_at = max([primacy.settles_at, *settled])",
        "primacy.settles_at = max([primacy.settles_at, *settled[:0]])",
        "views 2400",
    ),
    Defect(
        "member-shows-what-others-lack",
        "tidemark.replication.node_group.machine",
        "return sequence <= self._held.sequence and synced <= self._held.synced",
        "return sequence <= self.log.applied and synced <= self.log.synced",
        "views 20",
    ),
    Defect(
        "primary-shows-what-members-lack",
        "tidemark.replication.node_group.machine",
        "return sequence <= self.primacy.shared and synced <= self.primacy.acknowledged",
        "return sequence <= self.log.last",
        "views 20",
    ),
    Defect(
        "view-opened-with-unequal-logs",
        "tidemark.replication.node_group.views",
        "or not primacy.is_equal(self.log):",
        "or not primacy.reported.issuperset(primacy.others):",
        "views 20",
    ),
    Defect(
        "acknowledged-before-a-member-has-it",
        "tidemark.replication.node_group.primacy",
        "*(self.synced.get(member, 0) for member in self.others)",
        "*(self.synced.get(member, 0) + 1 for member in self.others)",
        "views 10",
    ),
    Defect(
        "acknowledged-though-a-member-is-being-left-out",
        "tidemark.replication.node_group.views",
        "if primacy is None or self.is_frozen:\n            return []\n        actions: list[m.Action] = []",
        "if primacy is None:\n            return []\n        actions: list[m.Action] = []",
        "views 900",
    ),
    Defect(
        "restart-goes-on-in-its-view",
        "tidemark.replication.node_group.machine",
        "        self.is_frozen = True\n        self.is_joining",
        "        self.is_frozen = not record.is_member\n        self.is_joining",
        "views 20",
    ),
    Defect(
        "joiner-not-cut",
        "tidemark.replication.node_group.views",
        "            self._wants_cut = True\n            if",
        "            self._wants_cut = False\n            if",
        "views 600",
    ),
    Defect(
        "joiner-cut-at-the-wrong-epoch",
        "tidemark.replication.node_group.views",
        "self.log.roll_back_to(self.journal.record.epoch, ",
        "self.log.roll_back_to(self.journal.record.epoch + 1, ",
        "views 600",
    ),
    Defect(
        "shared-before-a-member-has-it",
        "tidemark.replication.node_group.primacy",
        "*(self.applied.get(member, 0) for member in self.others)",
        "*(self.applied.get(member, 0) + 1 for member in self.others)",
        "views 30",
    ),
    Defect(
        "lost-disk-counts-as-member",
        "tidemark.replication.node_group.views",
        "(record.is_member and view.number == prior.number + 1)",
        "(view.number >= prior.number + 1)",
        "views 40",
    ),
    Defect(
        "epoch-complete-before-a-member-has-it",
        "tidemark.replication.node_group.primacy",
        "if last <= self.acknowledged]",
        "if last <= self.acknowledged + 2]",
        "views 400",
    ),
    Defect(
        "complete-epoch-told-with-another-group",
        "tidemark.replication.node_group.primacy",
        "done = [(epoch, last) for",
        "done = [(epoch, last + 1) for",
        "views 20",
    ),
    Defect(
        "arbitrator-votes-for-successors-of-old-views",
        "tidemark.replication.node_group.arbitrator",
        "            return voter.journal.defer(m.Send(sender, m.ViewIs(view)))",
        "            pass",
        "views 500",
    ),
)
