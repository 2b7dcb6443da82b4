"""Planted defects: the faults that the oracle was made for, put back one by one.

Each has the run that finds it, and how much of that is enough.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One changed place. command: the arguments of `python -m tests.blackbox` that find it. is_quick: in seconds."""

    name: str
    module: str
    old: str
    new: str
    command: tuple[str, ...]
    is_compiled: bool = False
    is_quick: bool = False


def _programs(count: int, seed: int = 1) -> tuple[str, ...]:
    """So many programs are enough."""
    return "programs", "--whole", "--seed", str(seed), "--programs", str(count)


def _groups(event: str, events: int = 1) -> tuple[str, ...]:
    return "groups", "--only", event, "--events", str(events)


THREADS = ("histories", "--place", "threads", "--transactions", "6000", "--history", "2000")
SERVER = ("histories", "--place", "server", "--transactions", "6000", "--history", "2000", "--kills", "24")
DEFECTS = (
    Defect(
        "offsets of columns depend on which were dropped",
        "tidemark.engine.schema.row_shape",
        "key=lambda item: (-item[1].type.alignment, -item[1].type.width))",
        "key=lambda item: (-item[1].type.alignment, -item[1].type.width, item[0]))",
        _programs(30),
        is_quick=True,
    ),
    Defect(
        "an index that answers alone forgets the var part",
        "tidemark.engine.queries.index_only",
        "has_var = int(row_format.has_var)",
        "has_var = 0",
        _programs(200),
    ),
    Defect(
        "a lookup forgets the rest of its condition",
        "tidemark.engine.queries.index_choice",
        "    return len(names) == len(columns) and all(",
        "    return bool(names) or all(",
        _programs(60),
        is_quick=True,
    ),
    Defect(
        "a lookup does not see the changes of its transaction",
        "tidemark.engine.queries.lookups",
        "            found = read_keys(table, _primary_keys(table, lookup.keys), txn, False)",
        "            found = read_keys(table, _primary_keys(table, lookup.keys), None, False)",
        _programs(60),
        is_quick=True,
    ),
    Defect(
        "NumPy's times become integers",
        "tidemark.engine.types.base",
        "    if not isinstance(value, (np.datetime64, np.timedelta64)):\n        return value.item()\n",
        "    return value.item()\n",
        _programs(30),
        is_quick=True,
    ),
    Defect(
        "pandas.NaT is sent",
        "tidemark.replication.calls.values",
        "    if value != value:\n        raise TypeMismatch(f",
        "    if False:\n        raise TypeMismatch(f",
        _programs(30),
    ),
    Defect(
        "to_pandas makes floats of integers beside NULL",
        "tidemark.engine.rows.column_output",
        "        if _is_number(field.type) and field.nullable:",
        "        if False:",
        _programs(40),
        is_quick=True,
    ),
    Defect(
        "rows of a batch whose key came before are put off",
        "tidemark.engine.queries.unique_upserts",
        "        if not self.table.unique_columns:  # only rows with the same key depend on each other",
        "        if True:",
        _programs(200),
    ),
    Defect(
        "dead rows of older levels of a backup are restored",
        "tidemark.recovery.backup.chain",
        "                if dead.size:",
        "                if False:",
        _programs(100),
    ),
    Defect(
        "the end of a CSV file closes a quote",
        "tidemark.sources",
        "        if rows.is_in_quotes:",
        "        if False:",
        _programs(60),
    ),
    Defect(
        "rows of a large commit are seen one after the other",
        "tidemark.engine.rows.ticks_kernels",
        "    return tick != 0 and tick_of(mem, row) == tick and mem[row + 1] == mem[A.S_TICK_EPOCH]",
        "    return False",
        THREADS,
        is_compiled=True,
    ),
    Defect(
        "a call that reads in steps has no view",
        "tidemark.engine.txn.views",
        "        if self.epochs is None:\n            return view\n",
        "        return view\n",
        THREADS,
    ),
    Defect(
        "a transaction with a view of its own changes rows that were changed since",
        "tidemark.engine.txn.own_view",
        "        self.mem[self.desc + X_VIEW] = self.view.view",
        "        self.mem[self.desc + X_VIEW] = 0",
        THREADS,
    ),
    Defect(
        "the zero bytes that pad a value match no pattern",
        "tidemark.engine.programs.interpreter",
        "            flags |= self._padded(number)\n",
        "            flags |= 0\n",
        _programs(100),
    ),
    Defect(
        "NULL is in the group of 0",
        "tidemark.engine.programs.vm_groups_kernels",
        "            mask |= 1 << part\n            low = 0\n",
        "            mask |= 0\n            low = 0\n",
        _programs(120),
        is_compiled=True,
    ),
    Defect(
        "a group keeps eight bytes of its key",
        "tidemark.engine.programs.vm_groups_kernels",
        "    for done in range(0, length, 8):\n        work[at + (done >> 3)] =",
        "    for done in range(0, min(length, 8), 8):\n        work[at + (done >> 3)] =",
        _programs(60),
        is_compiled=True,
    ),
    Defect(
        "groups in reverse order begin with NULL",
        "tidemark.engine.programs.aggregates",
        '    return order[np.argsort(is_null[order] if is_reversed else ~is_null[order], kind="stable")]\n',
        '    return order[np.argsort(~is_null[order], kind="stable")]\n',
        _programs(60),
        is_quick=True,
    ),
    Defect(
        "every aggregate of a group counts the values of the first one",
        "tidemark.engine.programs.aggregates",
        "        first = at + output.at * p.ACCUMULATOR_WORDS\n        count = work[first]\n",
        "        first = at + output.at * p.ACCUMULATOR_WORDS\n        count = work[at]\n",
        _programs(60),
        is_quick=True,
    ),
    Defect(
        "MAXVALUE is not sent",
        "tidemark.replication.calls.values",
        '    (type(MAXVALUE), "maxvalue", lambda value: b""),\n',
        "",
        _programs(60),
    ),
    Defect(
        "a lone surrogate is of another type by a client",
        "tidemark.replication.calls.values",
        "    except UnicodeEncodeError as error:\n        raise ValueOutOfRange(",
        "    except UnicodeEncodeError as error:\n        raise TypeMismatch(",
        _programs(60),
    ),
    Defect(
        "an answer shows what a crash takes back",
        "tidemark.engine.log.redo",
        "        last = self.last_visible(epoch)\n",
        "        last = 0\n",
        SERVER,
    ),
    Defect(
        "a founder does not ask the other nodes",
        "tidemark.replication.node_group.node",
        "                store = search.store_unless_founding(self._is_alone, self._stop)",
        "                store = None",
        _groups("lose the founder", 2),
    ),
    Defect(
        "a node whose disk hangs keeps its clients",
        "tidemark.replication.node_group.life",
        "        is_well = machine.has_view(now) if self.is_leading else not machine.is_stalled(now)",
        "        is_well = True",
        _groups("hang", 2),
    ),
    Defect(
        "idle transactions of clients have no limit",
        "tidemark.engine.base.options",
        "    idle_transaction_ms: int = 30_000",
        "    idle_transaction_ms: int = 0",
        _groups("hung client"),
    ),
)
