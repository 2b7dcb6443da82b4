"""The program under test: its arguments, its obligations, and how its store is opened.

A program is two functions, given to every part of the harness as they are or as "module:function":

- `work(open_store, seed, ledger)` opens its store with `open_store(**options)`, any number of times, and uses it. It
  calls `ledger.acknowledge(text)` after each commit has returned, and `ledger.begin(text)` before it if `verify` must
  know what may have been under way. The same seed gives the same work.
- `verify(db, ledger)` checks a restarted store and returns a sentence for each violation. Acknowledged work must be
  complete; work that was under way must be there completely or not at all, and nothing else.

The harness opens stores through the public package. That is a floor above this one, so it is named here and not
imported; a user's wrapper can take its place.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import Error, RedoOverloaded, SchemaInvalid
from tidemark.engine.base.options import Options
from tidemark.engine.schema.column import Column
from tidemark.engine.types import Int64
from tidemark.recovery.crash_harness.disks.order import OrderViolation

if TYPE_CHECKING:
    from tidemark.engine.files.layer import CheckedFiles

OPEN_DIRECTORY = "tidemark:open"
OPEN_FILES = "tidemark.database:Database"

# Small, so that thousands of stores can be opened; the clock is manual, so that a run repeats from its seed.
SIMULATED: dict[str, Any] = {
    "data_memory": "4 MiB",
    "redo_log": "1 MiB",
    "undo_log": "1 MiB",
    "page_buffer": "64 KiB",  # 25 frames, the fewest there are
    "transaction_memory": "256 KiB",
    "transaction_limit": "256 KiB",  # no transaction spools, except in `spool_history`
    "lock_timeout_ms": 0,
}
PROBE = "crash_harness.probe"
# The number of local checkpoints that `RedoOverloaded` advises.
LCPS_OF_FULL_LOG = 2


class Violation(AssertionError):
    """A violated guarantee. The message has part, seed and place, so that the run can be repeated."""


@contextmanager
def judging(where: str) -> Iterator[None]:
    """Within the block, raise an error of the store, or a write in a wrong order, as a Violation."""
    try:
        yield
    except (Error, OrderViolation) as error:
        raise Violation(f"{where}: {type(error).__name__}: {error}") from error


class PowerOff(BaseException):
    """The machine is off: raised by a call of the disk and by every later one."""


def power_off() -> NoReturn:
    """Raise PowerOff from a call of the disk, in a rule of `FaultFiles`."""
    raise PowerOff


class Ledger:
    """The work that was acknowledged so far, and the work under way. An entry is one line of text; the program defines
    its meaning.
    """

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.under_way: set[str] = set()
        # The digest of all rows, if the verification computed it, so that the harness need not read them again.
        self.rows_digest: str | None = None

    def begin(self, text: str) -> None:
        """Record that the work may be under way from now on."""
        self.under_way.add(text)

    def acknowledge(self, text: str) -> None:
        """Record that the work is committed and durable."""
        self.under_way.discard(text)
        self.acknowledged.append(text)


OpenStore = Callable[..., Any]
Work = Callable[[OpenStore, int, Ledger], None]
Verify = Callable[[Any, Ledger], list[str]]


def judge(open_store: Callable[[], Any], verify: Verify, ledger: Ledger, where: str, closes: bool = False) -> Any:
    """Open a store, verify it, and return it. closes: close it, too. Raises: Violation."""
    with judging(where):
        db = open_store()
        try:
            found = verify(db, ledger)
        finally:
            if closes:
                db.close()
    if found:
        raise Violation(f"{where}: {found[0]}")
    return db


def resolve(name: str) -> Any:
    """Return the object that "module:name" refers to. Raises: SchemaInvalid if there is none."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise SchemaInvalid(f"{name!r} is not a name of the form module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SchemaInvalid(
            f"{name!r} cannot be imported ({error}); give module:function, with the module on the path"
        ) from error
    return found


def open_simulated(files: CheckedFiles, **options: Any) -> Any:
    """Open a store on simulated files, without threads and timers."""
    parsed = Options.from_keywords({**SIMULATED, **options, "background": False})
    return resolve(OPEN_FILES)(files, parsed, ManualClock(), None, None)


# --- the oracle for programs of one thread -----------------------------------------------------------
def digest_of(state: Mapping[str, Iterable[tuple[Any, ...]]]) -> str:
    """Return the digest of a state: the rows of all tables by table name. Their order does not matter."""
    content = sorted((name, sorted(repr(tuple(row)) for row in rows)) for name, rows in state.items())
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


def state_of(db: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Return all committed rows of all tables."""
    return {name: [tuple(row) for row in db[name].scan()] for name in db.tables() if name != PROBE}


def whole_state(db: Any, ledger: Ledger) -> list[str]:
    """Check that the store is in the state acknowledged last or in the one under way; return violations. For programs
    whose ledger entries are `digest_of` the state after the commit. Before the first one, the store is empty.
    """
    found = ledger.rows_digest = digest_of(state_of(db))
    last = ledger.acknowledged[-1] if ledger.acknowledged else digest_of({})
    if found in {last, *ledger.under_way}:
        return []
    known = ledger.acknowledged.index(found) if found in ledger.acknowledged else -1
    if known >= 0:
        return [f"the state after acknowledgement {known + 1} of {len(ledger.acknowledged)}: later ones are lost"]
    rows = {name: len(rows) for name, rows in state_of(db).items()}
    return [f"a state that never was (rows by table: {rows}), after {len(ledger.acknowledged)} acknowledgements"]


def probe(db: Any, number: int) -> None:
    """Check that a restarted store takes work again: write one row into the harness's table, durable on return. If the
    crash left a full log, make local checkpoints first. Raises: Error if the store takes no work.
    """
    for _ in range(LCPS_OF_FULL_LOG):
        try:
            _write_probe(db, number)
            return
        except RedoOverloaded:
            db.checkpoint()
    _write_probe(db, number)


def _write_probe(db: Any, number: int) -> None:
    if PROBE not in db:
        db.create_table(PROBE, [Column("id", Int64)], primary_key="id")
    db[PROBE].write((number,))


def probed(db: Any) -> set[int]:
    """Return the numbers that `probe` wrote and the store still has."""
    return {row[0] for row in db[PROBE].scan()} if PROBE in db else set()
