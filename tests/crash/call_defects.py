"""Defects planted in what a call answers: stopped commits, full stores, drops, values of callers."""

from __future__ import annotations

from tests.crash.defects import Defect

CALL_DEFECTS: tuple[Defect, ...] = (
    # --- commits that are stopped ----------------------------------------------------------------------
    Defect(
        "store-fails-after-the-latch-is-released",
        "tidemark.engine.txn.transaction",
        "            else:\n                self._check_undone(status)\n            return status, log.sequence\n",
        "            ticket = log.sequence\n        if status <= OK:\n            self._check_undone(status)\n"
        "        return status, ticket\n",
        "commit-stopped",
    ),
    Defect(
        "store-fails-after-the-latch-of-a-small-commit-is-released",
        "tidemark.engine.txn.transaction",
        "            elif status == ST_INVARIANT:\n                self._check_undone(status)\n"
        "            ticket = log.sequence\n",
        "            ticket = log.sequence\n"
        "        if status == ST_INVARIANT:\n            self._check_undone(status)\n",
        "commit-stopped",
    ),
    Defect(
        "small-commit-returned-before-its-sync",
        "tidemark.engine.txn.transaction",
        "            if is_logged:\n                log.wait(ticket, self._txid)\n",
        "            if is_logged:\n",
        "states",
    ),
    Defect(
        "stopped-commit-of-a-spool-is-told-as-not-written",
        "tidemark.engine.txn.transaction",
        "        self.apply_logged(group)\n        self.ended(1)",
        "        self.apply_slices(group)\n        self.ended(1)",
        "commit-stopped",
    ),
    # --- changes of one row that wait for the disk --------------------------------------------------------
    Defect(
        "change-returned-before-its-sync",
        "tidemark.engine.point.changes",
        "                    log.wait(ticket, txid)\n",
        "                    pass\n",
        "durable-changes",
    ),
    Defect(
        "change-waits-for-the-group-before-its-own",
        "tidemark.engine.point.changes",
        "                            ticket = log.sequence\n",
        "                            ticket = log.sequence - 1\n",
        "durable-changes",
    ),
    Defect(
        "failed-sync-of-a-change-swallowed",
        "tidemark.engine.log.redo",
        "            failed = error if isinstance(error, StoreFailed) else self._had_no_memory()\n",
        "            return\n",
        "durable-changes",
    ),
    Defect(
        "failed-change-without-its-transaction",
        "tidemark.engine.point.changes",
        "self._place.txid = txid = int(self._buf[TXID_WORD])",
        "txid = int(self._buf[TXID_WORD - 1])",
        "durable-changes",
    ),
    Defect(
        "what-refused-a-row-is-not-durable",
        "tidemark.engine.point.changes",
        "                elif status == REFUSED:\n",
        "                elif False:\n",
        "durable-changes",
    ),
    Defect(
        "change-without-memory-at-its-end-is-told-as-not-made",
        "tidemark.engine.point.changes",
        "raise store.commit_out_of_memory(error, txid) if txid else",
        "raise store.commit_out_of_memory(error, txid) if False else",
        "durable-changes",
    ),
    Defect(
        "interrupted-change-is-plain-ctrl-c",
        "tidemark.engine.log.redo",
        "            if not txid:\n                raise\n",
        "            if txid:\n                raise\n",
        "durable-changes",
    ),
    # --- full stores -----------------------------------------------------------------------------------
    Defect(
        "bounds-of-a-drop-take-nothing-kept",
        "tidemark.engine.table.table",
        "makes_room=number in before",
        "makes_room=False",
        "full-partition",
    ),
    Defect(
        "room-of-dropped-tables-not-waited-for",
        "tidemark.engine.access.statuses",
        "            if not disk.has_dropped(table.fragments[0]):",
        "            if full:",
        "full-tablespace",
    ),
    # --- drops ---------------------------------------------------------------------------------------------
    Defect(
        "wake-up-of-the-last-user-is-lost",
        "tidemark.engine.txn.table_users",
        "        users.intersection_update(self._now())",
        "        pass",
        "left-user",
    ),
    # --- values of callers -----------------------------------------------------------------------------
    Defect(
        "exponent-of-a-condition-not-judged",
        "tidemark.engine.base.decimals",
        "        return _COMPARED.plus(value) if value.is_finite() else value",
        "        return value",
        "values-short",
    ),
    Defect(
        "exponents-of-rows-not-judged-before-arrow",
        "tidemark.engine.types.decimals",
        "values = [None if value is None else self.exact(value) for value in values]",
        "pass",
        "values-of-rows",
    ),
)

CALL_KERNEL_DEFECTS: tuple[Defect, ...] = (
    Defect(
        "change-takes-an-id-of-the-next-opening",
        "tidemark.engine.point.change_kernels",
        " or not has_txid(mem):",
        ":",
        "last-id",
    ),
    Defect(
        "blocks-never-become-pages",
        "tidemark.engine.memory.pool_kernels",
        "if mem[mem[A.S_BLOCK_COUNTS] + page] == A.BLOCKS_PER_PAGE:",
        "if mem[mem[A.S_BLOCK_COUNTS] + page] > A.BLOCKS_PER_PAGE:",
        "pool",
    ),
    Defect(
        "free-block-leads-back-to-one-that-is-taken",
        "tidemark.engine.memory.pool_kernels",
        "        mem[after + 1] = before\n",
        "        mem[after + 1] = mem[after + 1]\n",
        "pool",
    ),
    Defect(
        "cell-past-the-end",
        "tidemark.engine.memory.pool_kernels",
        "    if cell + A.CELL_WORDS > mem[A.S_CELL_LIMIT]:",
        "    if cell > mem[A.S_CELL_LIMIT]:",
        "pool",
    ),
    Defect(
        "scan-compares-no-handle",
        "tidemark.engine.access.versions_reads_kernels",
        """ST_MORE, ST_SPACE - words needed, ST_SPOOLED, ST_DROPPED, or ST_TOO_OLD.
    \"\"\"
    fragment = descriptor_of(mem, fragment)
    if fragment == 0:
        return A.ST_DROPPED
""",
        """ST_MORE, ST_SPACE - words needed, ST_SPOOLED, ST_DROPPED, or ST_TOO_OLD.
    \"\"\"
    fragment = (fragment & 0x7FFFFFFF) << 9
""",
        "withdrawn",
    ),
    Defect(
        "index-that-commits-leave-keeps-its-handle",
        "tidemark.engine.index.lists_kernels",
        "    renew_handle(mem, tree)\n",
        "",
        "withdrawn",
    ),
    Defect(
        "handle-comes-again",
        "tidemark.engine.memory.handles_kernels",
        "    mem[descriptor + A.D_GENERATION] = generation\n",
        "    mem[descriptor + A.D_GENERATION] = 1\n",
        "withdrawn",
    ),
)
