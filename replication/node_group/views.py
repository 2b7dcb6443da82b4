"""A node of a group as a state machine: it takes an event and its own time, and returns actions.

The machine does no I/O and reads no clock; it asks its log through `Log`. Its durable memory is a `Record`, and every
message that depends on a change of the record is sent after the change is durable. Rules:
docs/internals/node-group.md, *Views*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemark.replication.node_group import messages as m
from tidemark.replication.node_group.election import Election
from tidemark.replication.node_group.machine import UNHEARD, Joiner
from tidemark.replication.node_group.primacy import Primacy
from tidemark.replication.node_group.view import View, is_second, second_group


class Node(Election):
    """One process of a node."""

    # --- the step -------------------------------------------------------------------------------
    def make_group(self, now: float) -> list[m.Action]:
        """Create view 1, with this node alone, if its record has no view. With an arbitrator only one node ever
        succeeds; without one the caller vouches that no other node does this.
        """
        self.now = now
        if self.view.number:
            return []
        self._is_first = True
        if self.view.arbitrator:
            return self._flow(self._start_election(now), now)
        return self._flow(self.learn(View(1, (self.own,), self.number), now), now)

    def step(self, event: m.Event, now: float) -> list[m.Action]:
        """Take an event; return the actions, to be done in this order."""
        self.now = now
        if self.is_over or (isinstance(event, m.Received) and self.is_stalled(now)):
            return []
        return self._flow(_EVENTS[type(event)](self, event, now), now)

    def _flow(self, actions: list[m.Action], now: float) -> list[m.Action]:
        """Deliver messages to this node itself at once: it votes as every other voter does."""
        found: list[m.Action] = []
        for each in actions:
            if type(each) is m.Send and each.to == self.number:
                found += self._flow(_MESSAGES[type(each.message)](self, self.number, each.message, now), now)
            else:
                found.append(each)
        return found

    # --- local events ---------------------------------------------------------------------------
    def _received(self, event: m.Received, now: float) -> list[m.Action]:
        told_view = self._told_view(event)
        if self._is_lone() and is_second(self.number, event.sender, told_view):
            self.is_over = True
            return [m.Shut(), m.Conflict(second_group(event.sender, told_view))]
        if event.store == self.journal.record.store:
            return _MESSAGES[type(event.message)](self, event.sender, event.message, now)
        if isinstance(event.message, m.Refused):
            return []  # never answered: two such nodes would answer each other endlessly
        return [m.Send(event.sender, m.Refused("this node belongs to another store", self.view.number))]

    def _is_lone(self) -> bool:
        """Whether this node has founded a group of several nodes, and has been alone in it since."""
        return self.view.number == 1 and self.view.numbers == {self.number} and bool(self._peers)

    def _told_view(self, event: m.Received) -> int:
        """Return the number of the view in which the sender of a message shows to be a member of another group than the
        one that this node, which is alone, has founded; 0 if it shows none. In its own group, no view follows the first
        without this node's vote.
        """
        message = event.message
        if event.store != self.journal.record.store:
            return message.view if isinstance(message, (m.Ping, m.Refused)) else 0
        if isinstance(message, (m.Ping, m.Pong)):
            is_member = message.view > 1 or (isinstance(message, m.Ping) and message.is_member)
            return message.view if is_member else 0
        return message.view.number if isinstance(message, m.ViewIs) and message.view != self.view else 0

    def _tick(self, _event: m.Tick, now: float) -> list[m.Action]:
        if now < self._beat_at:
            return [] if self.is_stalled(now) else self._watch(now)
        self._beat_at = now + self.times.heartbeat_ms / 1_000
        if self.is_stalled(now):
            return []
        return self._begin_joining() + self._beat(now) + self._watch(now)

    def _written(self, event: m.Written, now: float) -> list[m.Action]:
        actions = self.journal.written(event.version, now)
        if not self.journal.is_written:
            return actions
        if self._ending is not None:
            self.is_over = True  # only now: this node may have decided the view, and had to inform the others
            return [*actions, self._ending]
        if self.is_member and not self.is_frozen and not self.is_adopted:
            actions += self.adopt(now)
        return actions + self._begin_joining()

    def _log_grew(self, _event: m.LogGrew, now: float) -> list[m.Action]:
        log = self.log
        if log.synced > self._synced_seen or log.synced >= log.due:
            self._log_owed_since = None
        self._synced_seen = log.synced
        if log.synced < log.due and self._log_owed_since is None:
            self._log_owed_since = now
        if self.primacy is not None:
            return self._send_groups() + self._progress(now)
        return self._report_applied()

    def _log_cut(self, _event: m.LogCut, now: float) -> list[m.Action]:
        self._cuts -= 1
        self._log_owed_since = None
        self._synced_seen = self.log.synced
        return self._begin_joining()

    def _epoch_closed(self, event: m.EpochClosed, now: float) -> list[m.Action]:
        self._closed.append((event.epoch, event.sequence))
        return self._progress(now)

    def _gone(self, event: m.Gone, now: float) -> list[m.Action]:
        self.detector.gone(event.node)
        return self._watch(now)

    def _ready(self, event: m.Ready, now: float) -> list[m.Action]:
        if not self.is_joining or self.is_ready or event.view != self.view.number:
            return []
        return self.journal.change(now, joins=self.view.number + 1)

    def _read_waits(self, event: m.ReadWaits, now: float) -> list[m.Action]:
        if self.is_held(*event) or self.primacy is not None:
            return []
        sequence, synced = max(event.sequence, self._wanted.sequence), max(event.synced, self._wanted.synced)
        self._wanted = m.HeldWanted(self.view.number, sequence, synced)
        return self._ask_held()

    def _leave(self, _event: m.Leave, now: float) -> list[m.Action]:
        if not self.is_member or len(self.view.members) == 1:
            self.refusal = "the last member of a group cannot leave it; close its store"
            return []
        self._is_leaving = True
        return self._watch(now)

    # --- time -----------------------------------------------------------------------------------
    def _beat(self, now: float) -> list[m.Action]:
        """Send heartbeats, and repeat every unanswered message."""
        self.serial += 1
        self.leases.asked(self.serial, now)
        ping = m.Ping(self.view.number, self.serial, self.is_member, self.is_open, self.is_frozen, self.log.is_full)
        is_whole = self.is_adopted and not self.is_frozen and not self._is_lone()
        others = self.view.numbers if is_whole else self.view.numbers | self._peers
        actions: list[m.Action] = [m.Send(each, ping) for each in sorted(others - {self.number})]
        if self.candidacy is not None:
            actions += self.candidacy.ask(self.joining())
        if self.primacy is not None:
            return actions + self._send_lacking()
        if self.is_joining and self.journal.is_written and self.view.primary != self.number:
            asked = m.AskJoin(self.view.number, self.own, self.log.synced, self.is_ready)
            actions.append(m.Send(self.view.primary, asked))
        if self.is_adopted and not self.is_frozen:
            actions += ([] if self.is_open else self._report_adopted(now)) + self._report_applied() + self._ask_held()
        return actions

    def _watch(self, now: float) -> list[m.Action]:
        """Check whether the view can continue; if not, stand for its successor when it is this node's turn."""
        if self.candidacy is not None:
            return self._propose(now)
        if not self.is_member:
            return []
        if self.is_frozen:
            return self._start_election(now) if now >= self._candidate_at() else []
        if self._hands_over(now):
            self._is_leaving = True
        if self._is_leaving and self.is_open:
            return self._start_election(now)
        if self.primacy is not None:
            return self._start_election(now) if self._is_changed(now) else self._progress(now)
        if self.is_adopted and self._suspects(self.view.primary, now):
            return self._shut(now)
        return []

    def _hands_over(self, now: float) -> bool:
        """Whether this node must not lead any longer: it refuses transactions for lack of space on its disk, and
        another member has space. It leaves in order, and joins again when it has space too.
        """
        if self.primacy is None or not self.primacy.is_open or not self.log.is_refusing:
            return False
        suspected = self.detector.suspected(now) | self._lacking
        others = self.view.numbers - suspected - {self.number}
        return any(not state.is_full for node, state in self._states.items() if node in others)

    def _is_changed(self, now: float) -> bool:
        """Whether the primary must propose another view: a node is dead, cannot continue, or joins."""
        view = self.view
        if self._lacking or self.detector.suspected(now) & view.numbers:
            return True
        if any(state.is_frozen for node, state in self._states.items() if node in view.numbers):
            return True
        return bool(self.joining())

    # --- views ----------------------------------------------------------------------------------
    def learn(self, view: View, now: float) -> list[m.Action]:
        """Take a view that was decided. Its record is written before this node does anything in the view."""
        prior, record = self.view, self.journal.record
        if view.number <= prior.number:
            is_same = view.number < prior.number or view == prior
            return [] if is_same else [m.Fail(f"two views have number {view.number}; compare the members' files")]
        # If this node is no heir, the view may still contain its number, for a log that it has since lost or cut.
        is_heir = self.number in view.numbers and (
            (record.is_member and view.number == prior.number + 1)
            or record.joins == view.number
            or (self._is_first and view.number == 1)
        )
        was_running = self.is_adopted
        self._prior, self._left_out = prior, prior.numbers - view.numbers
        self._was_open = (self.is_open and view.number == prior.number + 1) or not prior.members
        actions: list[m.Action] = [m.Shut()] if self.is_open and not self.is_frozen else []
        self.is_open = self.is_adopted = self.is_joining = False
        self.is_frozen = not is_heir
        self.candidacy, self.primacy = None, None
        if view.primary != self.number:
            self._closed.clear()
        self.joiners.clear()
        self._states.clear()
        self._lacking.clear()
        self.leases.end()
        self._decided_at, self._frozen_at, self._primary_last = now, now, UNHEARD
        self._held, self._wanted = m.Held(0, 0, 0), m.HeldWanted(0, 0, 0)
        self.detector.begin(view.numbers - {self.number}, now)
        actions += self.voter.adopt(view, now, is_member=is_heir, joins=0)
        actions += self.journal.defer(*(m.Send(each, m.ViewIs(view)) for each in self._voters_to_inform(prior, view)))
        if is_heir:
            self._is_leaving = False  # the view needs this node, because no other had answered; the caller asks again
        else:
            self._wants_cut = True
            if was_running:
                self._ending = m.Left(view) if self._is_leaving else m.Lost(view)
        return actions

    def adopt(self, now: float) -> list[m.Action]:
        """Act in the view, which is on disk."""
        self.is_adopted = True
        if not self.is_primary:
            return self._report_adopted(now) + self._report_applied()
        # The view opens only after all leases of excluded nodes have ended, by the clocks of all that agreed to them.
        self._left_out -= self._leaving if len(self._left_out) <= 1 else set()
        settles_at = self.leases.all_settled_at(self._decided_at)
        if self._is_one_left_out():
            own = self.leases.ages_ms(self._left_out, now)
            settles_at = max((self.leases.settled_at(age_ms, now) for _, age_ms in own), default=now)
        self._leaving.clear()
        self.primacy = Primacy(self.view, self.number, settles_at, epochs=self._closed)
        return self._progress(now)

    def _is_one_left_out(self) -> bool:
        """Whether at most one node is excluded, so that every node that may have agreed to its reads is a member and
        reports when.
        """
        return self._was_open and len(self._prior.numbers - self.view.numbers) <= 1

    def _report_adopted(self, now: float) -> list[m.Action]:
        message = m.Adopted(self.view.number, self.log.last, self.log.epoch, self.leases.ages_ms(self._left_out, now))
        return [m.Send(self.view.primary, message)]

    def _progress(self, now: float) -> list[m.Action]:
        """At the primary: open the view, or acknowledge, as far as the members have progressed."""
        primacy = self.primacy
        if primacy is None or self.is_frozen:
            return []
        actions: list[m.Action] = []
        if not primacy.is_open:
            if now < primacy.settles_at or not primacy.is_equal(self.log):
                return []
            primacy.is_open = self.is_open = True
            actions = [m.Open(self.view), *(self._report_opened(each) for each in primacy.others)]
        through = primacy.acknowledge(self.log)
        if through is not None:
            actions.append(m.Acknowledge(through))
        shared = primacy.share(self.log)
        if shared is not None:
            actions.append(m.Shared(shared))
        actions += primacy.answer_readers()
        complete = primacy.complete_epoch()
        if complete is not None and complete[0] > self.journal.record.epoch:
            actions += self.journal.change(now, epoch=complete[0], sequence=complete[1])
            actions += [m.Send(each, m.Completed(self.view.number, *complete)) for each in primacy.others]
        return actions

    def _report_opened(self, member: int) -> m.Action:
        """Send `Opened`, with X: a node that joined with this view has all groups of X, but was not informed of it."""
        record = self.journal.record
        return m.Send(member, m.Opened(self.view.number, record.epoch, record.sequence))

    # --- groups ---------------------------------------------------------------------------------
    def _send_groups(self) -> list[m.Action]:
        primacy = self.primacy
        if primacy is None or self.is_frozen:
            return []
        return primacy.send_new(self.log, self.joiners)

    def _send_lacking(self) -> list[m.Action]:
        """Send groups and `Opened` again to nodes that have made no progress since the last heartbeat."""
        primacy = self.primacy
        assert primacy is not None
        actions = primacy.send_again(self.log, {number: each.synced for number, each in self.joiners.items()})
        if self.is_frozen:
            return [each for each in actions if isinstance(each, m.Send) and each.to in self.joiners]
        if primacy.is_open:
            late = [node for node in primacy.others if node not in self._states or not self._states[node].is_open]
            actions += [self._report_opened(node) for node in late]
        return actions

    def _report_applied(self) -> list[m.Action]:
        if not self.accepts_groups or self.primacy is not None or self.view.primary == self.number:
            return []
        return [m.Send(self.view.primary, m.Applied(self.view.number, self.log.applied, self.log.synced))]

    def _ask_held(self) -> list[m.Action]:
        """Ask the primary, if readers here wait for groups that some member may not have."""
        if not self.is_open or self.is_frozen or self.is_held(self._wanted.sequence, self._wanted.synced):
            return []
        return [m.Send(self.view.primary, self._wanted)]

    # --- joining --------------------------------------------------------------------------------
    def _begin_joining(self) -> list[m.Action]:
        """Begin to join, if this node is outside the view: first roll back to X, unless it was ready, then take
        groups from there.
        """
        is_outside = not self.is_member and self.view.number > 0
        if not is_outside or self._ending or self.is_joining or self._cuts or not self.journal.is_written:
            return []
        if self._wants_cut:
            self._wants_cut = False
            self._cuts += 1
            self.log.roll_back_to(self.journal.record.epoch, self.journal.record.sequence)
        else:
            self.is_joining = True
        return []

    # --- messages -------------------------------------------------------------------------------
    def _ping(self, sender: int, message: m.Ping, now: float) -> list[m.Action]:
        view = self.view
        is_granted = False
        if message.view == view.number:
            self._states[sender] = message
            if not message.is_member and sender in view.numbers:
                self._lacking.add(sender)
            is_granted = self.is_open and not self.is_frozen and sender in view.numbers
            if is_granted:
                self.leases.agree(sender, now)
        actions: list[m.Action] = [m.Send(sender, m.Pong(view.number, message.serial, is_granted, self.log.last))]
        if message.view < view.number:
            actions += self.journal.defer(m.Send(sender, m.ViewIs(view)))
        if message.is_frozen and self.is_member:
            actions += self._watch(now)
        return actions

    def _pong(self, sender: int, message: m.Pong, now: float) -> list[m.Action]:
        self.detector.heard(sender, now)
        if message.view != self.view.number:
            return []
        if message.is_granted and self.is_adopted:
            self.leases.agreed(sender, message.serial)
        if sender == self.view.primary:
            self._primary_last = message.last
        return []

    def _view_is(self, _sender: int, message: m.ViewIs, now: float) -> list[m.Action]:
        return self.learn(message.view, now)

    def _adopted(self, sender: int, message: m.Adopted, now: float) -> list[m.Action]:
        primacy, view = self.primacy, self.view
        if message.view != view.number or primacy is None or self.is_frozen or sender not in view.numbers:
            return []
        if not primacy.is_open and self._is_one_left_out() and sender in self._prior.numbers:
            ages = [age_ms for node, age_ms in message.grants_ms if node in self._left_out]
            settled = [self.leases.settled_at(age_ms, now) for age_ms in ages]
            primacy.settles_at = max([primacy.settles_at, *settled])
        if not primacy.take_adopted(sender, message, self.log):
            return self._start_election(now)  # a longer log: its node must lead
        if primacy.is_open:
            return [self._report_opened(sender)]
        return primacy.send_new(self.log, ()) + self._progress(now)

    def _groups(self, sender: int, message: m.Groups, now: float) -> list[m.Action]:
        if message.view != self.view.number or sender != self.view.primary or not self.accepts_groups:
            return []
        last = self.log.last
        if message.first > last + 1:
            return []  # the primary sends the missing groups again
        new = message.groups[last + 1 - message.first :]
        if not new:
            return self._report_applied()
        self.log.take(last + 1, new)
        if self._log_owed_since is None and self.log.last > last:
            self._log_owed_since = self.now
        return []

    def _applied(self, sender: int, message: m.Applied, now: float) -> list[m.Action]:
        if message.view != self.view.number or self.primacy is None:
            return []
        if sender in self.view.numbers:
            self.primacy.take_applied(sender, message.sequence, message.synced)
            return self._progress(now)
        if sender in self.joiners:
            self.joiners[sender].synced = message.synced
            return self._watch(now)
        return []

    def _opened(self, sender: int, message: m.Opened, now: float) -> list[m.Action]:
        is_ours = message.view == self.view.number and sender == self.view.primary
        if not is_ours or not self.is_adopted or self.is_frozen or self.is_open:
            return []
        self.is_open = True
        return [m.Open(self.view), *self._completed(sender, m.Completed(*message), now)]

    def _completed(self, sender: int, message: m.Completed, now: float) -> list[m.Action]:
        is_ours = message.view == self.view.number and sender == self.view.primary
        if not is_ours or not self.is_open or self.is_frozen or message.epoch <= self.journal.record.epoch:
            return []
        return self.journal.change(now, epoch=message.epoch, sequence=message.sequence)

    def _held_wanted(self, sender: int, message: m.HeldWanted, now: float) -> list[m.Action]:
        primacy = self.primacy
        is_ours = message.view == self.view.number and sender in self.view.numbers
        if not is_ours or primacy is None or not primacy.is_open:
            return []
        primacy.waiting[sender] = message
        return self._progress(now)

    def _held_by_all(self, sender: int, message: m.Held, now: float) -> list[m.Action]:
        is_ours = message.view == self.view.number and sender == self.view.primary
        if not is_ours or not self.is_open or self.is_frozen:
            return []
        known = self._held
        self._held = m.Held(message.view, max(known.sequence, message.sequence), max(known.synced, message.synced))
        return [m.Shared(self._held.sequence), m.Acknowledge(self._held.synced)]

    def _ask_join(self, sender: int, message: m.AskJoin, now: float) -> list[m.Action]:
        primacy = self.primacy
        if message.view != self.view.number or primacy is None or not primacy.is_open:
            return []
        if sender in self.view.numbers:
            return []  # the heartbeat of the node has reported a lost disk: the next view excludes it
        known = self.joiners.get(sender)
        self.joiners[sender] = Joiner(message.member, message.synced, message.is_ready, now)
        actions: list[m.Action] = []
        if known is None and not self.is_frozen:
            primacy.sent[sender] = message.synced
            actions = primacy.send_new(self.log, self.joiners)
        return actions + self._watch(now)

    def _refused(self, _sender: int, message: m.Refused, now: float) -> list[m.Action]:
        self.refusal = message.reason
        return []


_EVENTS: dict[type[Any], Callable[[Node, Any, float], list[m.Action]]] = {
    m.Received: Node._received,
    m.Tick: Node._tick,
    m.Written: Node._written,
    m.LogGrew: Node._log_grew,
    m.LogCut: Node._log_cut,
    m.EpochClosed: Node._epoch_closed,
    m.Gone: Node._gone,
    m.Ready: Node._ready,
    m.ReadWaits: Node._read_waits,
    m.Leave: Node._leave,
}
_MESSAGES: dict[type[Any], Callable[[Node, int, Any, float], list[m.Action]]] = {
    m.Ping: Node._ping,
    m.Pong: Node._pong,
    m.ViewIs: Node._view_is,
    m.Prepare: Node._prepare,
    m.Promise: Node._promise,
    m.Outbid: Node._outbid,
    m.Accept: Node._accept,
    m.Accepted: Node._accepted,
    m.Adopted: Node._adopted,
    m.Groups: Node._groups,
    m.Applied: Node._applied,
    m.Opened: Node._opened,
    m.Completed: Node._completed,
    m.HeldWanted: Node._held_wanted,
    m.Held: Node._held_by_all,
    m.AskJoin: Node._ask_join,
    m.Refused: Node._refused,
}
