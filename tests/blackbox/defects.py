"""Planted defects: the faults that the oracle was made for, put back one by one.

Each has the run that finds it, and how much of that is enough.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defect:
    """One changed place. fault: its name in `known` while it is not mended; then nothing is planted. command: the
    arguments of `python -m tests.blackbox` that find it.
    """

    name: str
    fault: str
    module: str
    old: str
    new: str
    command: tuple[str, ...]
    is_compiled: bool = False


def _programs(count: int, seed: int = 1) -> tuple[str, ...]:
    """So many programs are enough."""
    return "programs", "--whole", "--seed", str(seed), "--programs", str(count)


def _groups(event: str, events: int = 1) -> tuple[str, ...]:
    return "groups", "--only", event, "--events", str(events)


SERVER = ("histories", "--place", "server", "--transactions", "6000", "--history", "2000", "--kills", "24")
DEFECTS = (
    Defect(
        "offsets of columns depend on which were dropped",
        "drop column",
        "tidemark.engine.schema.row_shape",
        "key=lambda item: (-item[1].type.alignment, -item[1].type.width))",
        "key=lambda item: (-item[1].type.alignment, -item[1].type.width, item[0]))",
        _programs(30),
    ),
    Defect(
        "an index that answers alone forgets the var part",
        "drop column",
        "tidemark.engine.access.index_only",
        "has_var = int(row_format.has_var)",
        "has_var = 0",
        _programs(200),
    ),
    Defect(
        "NumPy's times become integers",
        "NumPy times",
        "tidemark.engine.schema.types_base",
        "    if not isinstance(value, (np.datetime64, np.timedelta64)):\n        return value.item()\n",
        "    return value.item()\n",
        _programs(30),
    ),
    Defect(
        "pandas.NaT is sent",
        "NaT by a client",
        "tidemark.replication.calls.values",
        "    if value != value:\n        raise TypeMismatch(f",
        "    if False:\n        raise TypeMismatch(f",
        _programs(30),
    ),
    Defect(
        "to_pandas makes floats of integers beside NULL",
        "pandas rounds",
        "tidemark.engine.rows.column_output",
        "    if not any(_is_number(field.type) and field.nullable for field in table.schema):",
        "    if True:",
        _programs(40),
    ),
    Defect(
        "rows of a batch whose key came before are put off",
        "order of a batch",
        "tidemark.engine.access.unique_upserts",
        "        if not self.table.unique_columns:  # only rows with the same key depend on each other",
        "        if True:",
        _programs(200),
    ),
    Defect(
        "a row past the end of a live map is damage",
        "chain of backups",
        "tidemark.engine.rows.lcp_kernels",
        "    if bit < 0:\n        return -1",
        "    if bit < 0 or bit >> 6 >= live.size:\n        return -1",
        _programs(100),
        is_compiled=True,
    ),
    Defect(
        "the end of a CSV file closes a quote",
        "open quote",
        "tidemark.sources",
        "        if rows.is_in_quotes:",
        "        if False:",
        _programs(60),
    ),
    Defect(
        "an answer shows what a crash takes back",
        "read, then gone",
        "tidemark.engine.log.redo",
        "        last = self.last_visible(epoch)\n",
        "        last = 0\n",
        SERVER,
    ),
    Defect(
        "a founder asks nobody",
        "found again",
        "tidemark.replication.node_group.node",
        "                store = search.store_unless_founding(self._is_alone, self._stop)",
        "                store = None",
        _groups("lose the founder", 2),
    ),
    Defect(
        "a node whose disk hangs keeps its clients",
        "hung disk",
        "tidemark.replication.node_group.life",
        "        is_well = machine.has_view(now) if self.is_leading else not machine.is_stalled(now)",
        "        is_well = True",
        _groups("hang", 2),
    ),
    Defect(
        "idle transactions of clients have no limit",
        "hung client",
        "tidemark.engine.base.options",
        "    idle_transaction_ms: int = 30_000",
        "    idle_transaction_ms: int = 0",
        _groups("hung client"),
    ),
)
# Found in any run; the others need minutes.
QUICK = frozenset({"drop column", "NumPy times", "pandas rounds"})
