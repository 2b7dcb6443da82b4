"""`view.0` and `view.1`: the durable memory of a node of a group, or of its arbitrator.

Each change writes both copies, one after the other, before anything that depends on the change is sent. If only one
copy had a vote and were damaged, the node could vote again, for another candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidemark.engine.base.errors import ForeignFile, SchemaInvalid, ViewDamaged
from tidemark.engine.files.opened import Opened
from tidemark.engine.files.protocol import Files
from tidemark.engine.sealed.sealed_layout import KIND_VIEW, header_of, seal, store_of, write_seal
from tidemark.recovery.system_restart.two_copies import TwoCopies, check_of_one_store, read_sealed
from tidemark.replication.node_group.view import (
    ADDRESS_BYTES_MAX,
    MEMBERS_MAX,
    NODE_NUMBER_MAX,
    NUMBER_MAX,
    Ballot,
    Member,
    Record,
    View,
    check_view,
)
from tidemark.replication.node_group.view_layout import VIEW, VIEW_ADDRESS_BYTES, VIEW_BYTES, VIEW_MEMBERS

NAMES = ("view.0", "view.1")

assert (VIEW_MEMBERS, VIEW_ADDRESS_BYTES) == (MEMBERS_MAX, ADDRESS_BYTES_MAX)


def read_record(files: Files) -> Record | None:
    """Return the record of a directory; None if none was ever written. Raises: ViewDamaged, ForeignFile,
    Incompatible.
    """
    found = _read(files)
    return None if found is None else found[1]


def _read(files: Files) -> tuple[int, Record] | None:
    copies = [words for name in NAMES if (words := read_sealed(files, name, KIND_VIEW, VIEW_BYTES)) is not None]
    if not copies:
        if any(files.exists(name) and not _is_new(files, name) for name in NAMES):
            raise _damaged("is intact")
        return None
    check_of_one_store(map(store_of, copies), NAMES)
    return _record_of(max(copies, key=lambda words: int(header_of(words, VIEW)["generation"])))


def _is_new(files: Files, name: str) -> bool:
    """Whether a copy was created and never written, because a crash came before its first write."""
    with Opened(files, files.open(name, False)) as file:
        return not any(files.pread(file, 0, VIEW_BYTES))


def _record_of(words: Any) -> tuple[int, Record]:
    header = header_of(words, VIEW)
    arbitrator = _text(header["arbitrator"])
    number = int(header["number"])
    view = View(number, _members(header, "count", ""), int(header["primary"]), arbitrator)
    accepted_ballot = Ballot(int(header["accepted_round"]), int(header["accepted_node"]))
    accepted = None
    if header["accepted_count"]:
        members = _members(header, "accepted_count", "accepted_")
        accepted = View(number + 1, members, int(header["accepted_primary"]), arbitrator)
    record = Record(
        store=store_of(words),
        node=int(header["node"]),
        view=view,
        is_member=bool(header["is_member"]),
        promised=Ballot(int(header["promised_round"]), int(header["promised_node"])),
        accepted_ballot=accepted_ballot,
        accepted=accepted,
        epoch=int(header["epoch"]),
        sequence=int(header["sequence"]),
        joins=int(header["joins"]),
    )
    try:
        _check(record, int(header["generation"]))
    except SchemaInvalid as error:
        # The seal is valid, but no node can have written this content (F112).
        raise _damaged(f"is valid ({error.message})") from None
    return int(header["generation"]), record


def _damaged(what: str) -> ViewDamaged:
    return ViewDamaged(
        f"neither {NAMES[0]} nor {NAMES[1]} {what}, so the votes of this node are unknown; move both files to"
        " another place and start the node again, which then joins like a new one; start an arbitrator with the number"
        " of a living node (--living)",
        file=NAMES[0],
    )


def _check(record: Record, generation: int) -> None:
    """Raises: SchemaInvalid for a record that no node can have written."""
    for view in (record.view, record.accepted):
        if view is not None:
            check_view(view)
    nodes = (record.node, record.promised.node, record.accepted_ballot.node)
    if max(nodes) > NODE_NUMBER_MAX:
        raise SchemaInvalid(f"the number of a node must be at most {NODE_NUMBER_MAX}, got {max(nodes)}")
    rounds = (record.promised.round, record.accepted_ballot.round)
    if max(record.view.number, record.epoch, record.sequence, record.joins, generation, *rounds) >= NUMBER_MAX:
        raise SchemaInvalid(f"a number must be below {NUMBER_MAX}")


def _members(header: Any, count: str, prefix: str) -> tuple[Member, ...]:
    addresses = header[f"{prefix}addresses"].reshape(VIEW_MEMBERS, VIEW_ADDRESS_BYTES)
    numbers = header[f"{prefix}members"]
    # One more than fits, so that `check_view` rejects a count that is too large.
    most = min(int(header[count]), VIEW_MEMBERS + 1)
    return tuple(Member(int(numbers[at % VIEW_MEMBERS]), _text(addresses[at % VIEW_MEMBERS])) for at in range(most))


def _text(content: Any) -> str:
    return bytes(content).rstrip(b"\0").decode("ascii", "replace")


def _put_members(header: Any, view: View, count: str, prefix: str) -> None:
    header[count] = len(view.members)
    for at, member in enumerate(view.members):
        header[f"{prefix}members"][at] = member.number
        _put_text(header[f"{prefix}addresses"], at * VIEW_ADDRESS_BYTES, member.address)


def _put_text(field: Any, start: int, text: str) -> None:
    content = text.encode("ascii")
    field[start : start + len(content)] = np.frombuffer(content, dtype=np.uint8)


class ViewFile:
    """The record of one directory, held open. The caller holds the lock of the directory: no other process writes."""

    def __init__(self, files: Files, store: bytes) -> None:
        """Open both copies, and write an existing record again. Raises: ViewDamaged, ForeignFile if the record is of
        another store, Incompatible.
        """
        found = _read(files)
        if found is not None and found[1].store != store:
            raise ForeignFile(
                f"{NAMES[0]} belongs to another store; a node joins with a directory of its own site, or an empty one",
                file=NAMES[0],
            )
        self.record = None if found is None else found[1]
        self._files = files
        self._store = store
        self._generation = 0 if found is None else found[0]
        self._copies = TwoCopies(files, NAMES, VIEW_BYTES)
        if self.record is not None:
            # The copy that was read may be in the page cache only (F39), and the other may be torn or older.
            self.write(self.record)

    def write(self, record: Record) -> None:
        """Write a record. Durable on return, in both copies."""
        self._generation += 1
        words = np.zeros(VIEW_BYTES // 8, dtype=np.int64)
        header = header_of(words, VIEW)
        write_seal(header, KIND_VIEW, words.size, self._store, 0)
        view, accepted = record.view, record.accepted
        header["generation"] = self._generation
        header["node"] = record.node
        header["number"] = view.number
        header["primary"] = view.primary
        header["is_member"] = record.is_member
        header["epoch"] = record.epoch
        header["sequence"] = record.sequence
        header["joins"] = record.joins
        header["promised_round"], header["promised_node"] = record.promised
        header["accepted_round"], header["accepted_node"] = record.accepted_ballot
        _put_members(header, view, "count", "")
        if accepted is not None:
            header["accepted_primary"] = accepted.primary
            _put_members(header, accepted, "accepted_count", "accepted_")
        _put_text(header["arbitrator"], 0, view.arbitrator)
        seal(words, words.size)
        for number in range(len(NAMES)):
            self._copies.write(number, words)
        self.record = record

    def close(self) -> None:
        """Close both copies. A second call does nothing."""
        self._copies.close()
