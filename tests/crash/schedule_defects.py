"""Defects that only show in some order of threads: one changed line each, seen by the scheduled lives.

The part is "schedule" and the arguments of `python -m tests.simulation.threads`, which must come to a finding.
"""

from __future__ import annotations

from tests.crash.defects import Defect

PART = "schedule"

SCHEDULE_DEFECTS: tuple[Defect, ...] = (
    # --- dropped objects are kept for the threads that use them -------------------------------------------
    Defect(
        "dropped-memory-goes-at-once",
        "tidemark.engine.txn.table_users",
        "        users = self._now()",
        "        users: set[object] = set()",
        f"{PART} --seeds 0:40 --actors historian,member",
    ),
    Defect(
        "user-that-leaves-under-the-schema-latch-is-forgotten",
        "tidemark.engine.txn.table_users",
        "        self._left.append(gone)",
        "        self.latch.locked() or self._left.append(gone)",
        f"{PART} --seeds 0:60 --actors background,historian",
    ),
    Defect(
        "snapshot-pins-nothing",
        "tidemark.engine.access.snapshot",
        "                resources.users.pin(snapshot)  #",
        "                # resources.users.pin(snapshot)  #",
        f"{PART} --seeds 0:40 --actors historian",
    ),
    Defect(
        "local-checkpoint-pins-nothing",
        "tidemark.recovery.local_checkpoint.writer",
        "        self._store.users.pin(self)",
        "        pass",
        f"{PART} --seeds 0:60 --actors keeper,background",
    ),
    Defect(
        "check-pins-nothing",
        "tidemark.recovery.verification.check",
        "    store.users.pin(pin)  #",
        "    # store.users.pin(pin)  #",
        # One life in some hundred: reads are sound until the memory was released and reused.
        f"{PART} --seeds 150:200 --actors checker --disk",
    ),
    # --- indexes -----------------------------------------------------------------------------------------
    Defect(
        "build-does-not-wait-for-older-transactions",
        "tidemark.engine.store.index_build",
        "            filling.wait_for_older(table)",
        "            set_descriptor_word(table.mem, filling.index.tree.handle, ix.I_STATE, ix.INDEX_BUILDING)",
        f"{PART} --seeds 0:60 --actors checker",
    ),
    Defect(
        "counter-is-read-after-the-version",
        "tidemark.engine.index.unique",
        "        now, entries, _, _ = self._counters()",
        "        now, entries = self._counters()[0], self._counters()[1]",
        f"{PART} --seeds 0:60 --actors checker",
    ),
    Defect(
        "entries-that-are-kept-are-counted",
        "tidemark.engine.txn.table_users",
        "        return any(each.table.handle == table.handle for each in dropped)",
        "        return False",
        f"{PART} --seeds 0:60 --actors checker,keeper,background",
    ),
    # --- channels ----------------------------------------------------------------------------------------
    Defect(
        "relay-log-thrown-away-under-the-applier",
        "tidemark.replication.channel.channel",
        "        with self._turn:\n            return self._begin(source)",
        "        return self._begin(source)",
        f"{PART} --seeds 0:60 --actors background,replica",
    ),
)
