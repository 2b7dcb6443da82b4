"""Checks a history of transactions for anomalies, as Elle does for lists that are only appended to.

Every value that is appended is unique in the history. So the longest list that was read says in which order the
appends of a key were carried out, and each read says which of them it saw. Names are Adya's: G0 (cycles of writes), G1a
(a read of what was rolled back), G1b (a read of what was changed again before the commit), G1c (cycles of writes and
reads). OTV is a violation of the monotonic atomic view: a transaction that saw one change of another later misses
another change of it. G-single is one that did not see a change, and saw one that came after it: only transactions with
`isolation="snapshot"` must not. A lost update (P4) is a lost write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
APPEND, READ = "append", "read"
Operation = tuple[str, Any, Any]  # (append, key, value) or (read, key, values as a tuple)


@dataclass
class Recorded:
    """A transaction: its client, what it did in its order, and how it ended. `begin` and `end` are of one clock."""

    client: int
    operations: list[Operation] = field(default_factory=list)
    outcome: str = UNKNOWN
    begin: float = 0.0
    end: float = 0.0
    is_snapshot: bool = False

    def appended(self) -> Iterable[tuple[Any, Any]]:
        return ((key, value) for kind, key, value in self.operations if kind == APPEND)

    def reads(self) -> Iterable[tuple[Any, tuple[Any, ...]]]:
        return ((key, value) for kind, key, value in self.operations if kind == READ)


@dataclass(frozen=True)
class Anomaly:
    """Something that must not be: its name, and what was seen."""

    name: str
    text: str


def check(history: Sequence[Recorded], final: Mapping[Any, tuple[Any, ...]]) -> list[Anomaly]:
    """Return the anomalies of a history. final: the lists as they are after the last transaction."""
    found: list[Anomaly] = []
    writer = {(key, value): txn for txn in history for key, value in txn.appended()}
    orders = _orders(history, final, found)
    found += _lost_and_resurrected(history, final, writer)
    found += _bad_reads(history, writer)
    writes, reads = _dependencies(history, orders, writer)
    found += _cycles(history, writes, reads)
    found += _skewed(history, orders, writer, writes, reads)
    found += _non_monotonic(history)
    found += _atomic_view(history, orders, writer)
    found += _stale(history)
    return found


def _orders(
    history: Sequence[Recorded], final: Mapping[Any, tuple[Any, ...]], found: list[Anomaly]
) -> dict[Any, tuple[Any, ...]]:
    """Return the order of the appends of each key. Reads must be beginnings of the final list."""
    for txn in history:
        if txn.outcome != COMMITTED:
            continue
        own: dict[Any, list[Any]] = defaultdict(list)
        for kind, key, value in txn.operations:
            if kind == APPEND:
                own[key].append(value)
                continue
            seen = value[: len(value) - len(own[key])] if own[key] else value
            if own[key] and list(value[len(seen) :]) != own[key]:
                found.append(
                    Anomaly("own writes", f"client {txn.client} appended {own[key]} to {key}, read {value[-5:]}")
                )
                continue
            whole = final.get(key, ())
            if whole[: len(seen)] != seen:
                place = next((n for n, each in enumerate(seen) if whole[n : n + 1] != (each,)), 0)
                name = "read, then gone" if set(seen) - set(whole) else "order"
                text = f"key {key}: client {txn.client} read {seen[place : place + 3]} at {place}, the end has"
                found.append(Anomaly(name, f"{text} {whole[place : place + 3]}"))
    return dict(final)


def _lost_and_resurrected(
    history: Sequence[Recorded], final: Mapping[Any, tuple[Any, ...]], writer: Mapping[Any, Recorded]
) -> list[Anomaly]:
    found = []
    held = {key: set(values) for key, values in final.items()}
    for key, values in final.items():
        if len(values) != len(held[key]):
            twice = next(each for each in values if values.count(each) > 1)
            found.append(Anomaly("written twice", f"key {key} has {twice} more than once"))
        for value in values:
            made = writer.get((key, value))
            if made is None or made.outcome == ABORTED:
                found.append(Anomaly("resurrected write", f"key {key} has {value}, whose transaction was rolled back"))
    for txn in history:
        missing = [(key, value) for key, value in txn.appended() if value not in held.get(key, ())]
        if txn.outcome == COMMITTED and missing:
            found.append(Anomaly("lost write", f"{missing[:3]} of an acknowledged transaction of client {txn.client}"))
        elif txn.outcome == UNKNOWN and missing and len(missing) < len(list(txn.appended())):
            found.append(
                Anomaly("half a commit", f"{missing[:3]} are missing, other changes of their transaction are not")
            )
    return found


def _bad_reads(history: Sequence[Recorded], writer: Mapping[Any, Recorded]) -> list[Anomaly]:
    """G1a and G1b."""
    found = []
    last: dict[tuple[int, Any], Any] = {}
    for txn in history:
        for key, value in txn.appended():
            last[id(txn), key] = value
    for txn in history:
        for key, values in txn.reads():
            for place, value in enumerate(values):
                made = writer.get((key, value))
                if made is txn:
                    continue
                if made is None or made.outcome == ABORTED:
                    found.append(Anomaly("G1a", f"client {txn.client} read {value} of {key}, which was rolled back"))
                elif place == len(values) - 1 and last[id(made), key] != value:
                    found.append(
                        Anomaly("G1b", f"client {txn.client} read {value} of {key}, not the last of its transaction")
                    )
    return found


Edges = Mapping[int, set[int]]


def _dependencies(
    history: Sequence[Recorded], orders: Mapping[Any, tuple[Any, ...]], writer: Mapping[Any, Recorded]
) -> tuple[Edges, Edges]:
    """Return, for each transaction, those that wrote right after it, and those that read what it wrote."""
    writes: dict[int, set[int]] = defaultdict(set)
    reads: dict[int, set[int]] = defaultdict(set)
    for key, values in orders.items():
        makers = [writer.get((key, value)) for value in values]
        for before, after in zip(makers, makers[1:], strict=False):
            if before is not None and after is not None and before is not after:
                writes[id(before)].add(id(after))
    for txn in history:
        if txn.outcome == ABORTED:
            continue
        for key, values in txn.reads():
            made = writer.get((key, values[-1])) if values else None
            if made is not None and made is not txn:
                reads[id(made)].add(id(txn))
    return writes, reads


def _cycles(history: Sequence[Recorded], writes: Edges, reads: Edges) -> list[Anomaly]:
    """G0 and G1c."""
    found = []
    if cycle := _cycle(writes):
        found.append(Anomaly("G0", f"{len(cycle)} transactions wrote before each other in a circle"))
    both = _both(writes, reads)
    if not found and (cycle := _cycle(both)):
        named = {id(txn): txn for txn in history}
        shown = [named[each].operations[:4] for each in cycle[:3]]
        found.append(Anomaly("G1c", f"{len(cycle)} transactions saw each other in a circle: {shown}"))
    return found


def _both(writes: Edges, reads: Edges) -> dict[int, set[int]]:
    return {each: writes.get(each, set()) | reads.get(each, set()) for each in {*writes, *reads}}


def _skewed(
    history: Sequence[Recorded],
    orders: Mapping[Any, tuple[Any, ...]],
    writer: Mapping[Any, Recorded],
    writes: Edges,
    reads: Edges,
) -> list[Anomaly]:
    """G-single of snapshots: nothing that one has missed comes before what it has seen."""
    places = {(key, value): place for key, values in orders.items() for place, value in enumerate(values)}
    before: dict[int, set[int]] = defaultdict(set)
    for each, later in _both(writes, reads).items():
        for other in later:
            before[other].add(each)
    named = {id(txn): txn for txn in history}
    found = []
    for txn in history:
        if not txn.is_snapshot or txn.outcome != COMMITTED:
            continue
        own = {value for _, value in txn.appended()}
        shown: dict[Any, int] = {}
        todo: list[int] = []
        for key, values in txn.reads():
            others = [value for value in values if value not in own]
            shown[key] = len(others)
            made = writer.get((key, others[-1])) if others else None
            if made is not None:
                todo.append(id(made))
        seen: set[int] = set()
        while todo:
            each = todo.pop()
            if each in seen or each == id(txn):
                continue
            seen.add(each)
            todo.extend(before.get(each, ()))
            for key, value in named[each].appended():
                if key in shown and places.get((key, value), -1) >= shown[key]:
                    text = f"client {txn.client} read {shown[key]} of {key} and missed {value}, but saw what came after"
                    found.append(Anomaly("G-single", text))
    return found


def _cycle(edges: Edges) -> list[int]:
    """Return the places of a cycle, none if there is none."""
    state: dict[int, int] = {}
    for start in list(edges):
        if start in state:
            continue
        path, todo = [start], [iter(edges.get(start, ()))]
        state[start] = 1
        while todo:
            following = next(todo[-1], None)
            if following is None:
                state[path.pop()] = 2
                todo.pop()
            elif state.get(following) == 1:
                return path[path.index(following) :]
            elif following not in state:
                state[following] = 1
                path.append(following)
                todo.append(iter(edges.get(following, ())))
    return []


def _non_monotonic(history: Sequence[Recorded]) -> list[Anomaly]:
    """Committed reads of one client, one after the other, that go back."""
    found = []
    newest: dict[tuple[int, Any], int] = {}
    for txn in sorted(history, key=lambda each: each.begin):
        if txn.outcome != COMMITTED:
            continue
        for key, values in txn.reads():
            before = newest.get((txn.client, key), 0)
            if len(values) < before:
                found.append(
                    Anomaly("non-monotonic read", f"client {txn.client} read {before} of {key}, then {len(values)}")
                )
            newest[txn.client, key] = max(before, len(values))
    return found


def _atomic_view(
    history: Sequence[Recorded], orders: Mapping[Any, tuple[Any, ...]], writer: Mapping[Any, Recorded]
) -> list[Anomaly]:
    """OTV: once a transaction saw a change of another, it sees all of them."""
    places = {(key, value): place for key, values in orders.items() for place, value in enumerate(values)}
    found = []
    for txn in history:
        if txn.outcome == ABORTED:
            continue
        must: dict[Any, int] = {}  # key to the number of values that must be seen from now on
        for key, values in txn.reads():
            if len(values) < must.get(key, 0):
                found.append(
                    Anomaly(
                        "OTV",
                        f"client {txn.client} read {len(values)} of {key}, and had seen a commit with {must[key]}",
                    )
                )
            for value in values[-2:]:
                made = writer.get((key, value))
                if made is None or made is txn:
                    continue
                for other, appended in made.appended():
                    must[other] = max(must.get(other, 0), places.get((other, appended), -1) + 1)
    return found


def _stale(history: Sequence[Recorded]) -> list[Anomaly]:
    """Reads that miss what was acknowledged before their transaction began."""
    found = []
    done = sorted((txn for txn in history if txn.outcome == COMMITTED), key=lambda each: each.end)
    lengths: dict[Any, tuple[float, set[Any]]] = {}
    acknowledged: dict[Any, set[Any]] = defaultdict(set)
    waiting = sorted(history, key=lambda each: each.begin)
    place = 0
    for txn in waiting:
        while place < len(done) and done[place].end < txn.begin:
            for key, value in done[place].appended():
                acknowledged[key].add(value)
            place += 1
        if txn.outcome != COMMITTED:
            continue
        for key, values in txn.reads():
            missed = acknowledged[key] - set(values)
            if missed:
                found.append(
                    Anomaly(
                        "stale read", f"client {txn.client} missed {sorted(missed)[:3]} of {key}, acknowledged before"
                    )
                )
                break
    del lengths
    return found
