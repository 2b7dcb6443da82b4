"""The program under test: what it is handed, what it promises, and how the store it uses is opened.

A program is two functions, given to every part of the harness as they are or as "module:function":

- `work(open_store, seed, ledger)` opens its store with `open_store(**options)`, as often as it likes, and uses it.
  Around each commit it tells the ledger: `ledger.begin(text)` before (wanted where a verification must know what may
  have been under way), `ledger.acknowledge(text)` once the commit has returned. The same seed gives the same work.
- `verify(db, ledger)` looks at a store that came back from a crash and returns every violation in words, none if all is
  well: what was acknowledged is there whole, and nothing else but what was under way, whole or not at all.

The harness drives stores through the public face. That is the floor above this one, so it is named here, not imported;
a wrapper of the user's own can stand in its place.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from tidemark.engine.base.clock import ManualClock
from tidemark.engine.base.errors import RedoOverloaded, SchemaInvalid
from tidemark.engine.base.options import Options
from tidemark.engine.schema.column import Column
from tidemark.engine.schema.types import Int64

if TYPE_CHECKING:
    from tidemark.engine.files.layer import CheckedFiles

OPEN_DIRECTORY = "tidemark:open"
OPEN_FILES = "tidemark.database:Database"

# Small, so that thousands of stores can be opened; time stands still, so that a run repeats from its seed.
SIMULATED: dict[str, Any] = {
    "data_memory": "4 MiB",
    "redo_log": "1 MiB",
    "undo_log": "1 MiB",
    "page_buffer": "64 KiB",  # 25 frames, the fewest there are
    "transaction_memory": "256 KiB",
    "transaction_limit": "256 KiB",  # none spools, but in `spool_history`
    "lock_timeout_ms": 0,
}
PROBE = "crash_harness.probe"
# What `RedoOverloaded` advises.
LCPS_OF_FULL_LOG = 2


class Violation(AssertionError):
    """A promise was broken. The message names part, seed and place, so that it can be seen again."""


class PowerOff(BaseException):
    """The machine is gone: raised out of a call of the disk, and of every call after it."""


def power_off() -> NoReturn:
    """Ends a call of the disk, in a rule of `FaultFiles`."""
    raise PowerOff


class Ledger:
    """What the program was promised so far. Lines are single lines of text; their meaning is the program's own."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.under_way: set[str] = set()
        # Set by a verification that has taken the digest of all rows: nobody need read them again for it.
        self.seen: str | None = None

    def begin(self, text: str) -> None:
        """From here on it may happen."""
        self.under_way.add(text)

    def acknowledge(self, text: str) -> None:
        """It has happened and is durable."""
        self.under_way.discard(text)
        self.acknowledged.append(text)


OpenStore = Callable[..., Any]
Work = Callable[[OpenStore, int, Ledger], None]
Verify = Callable[[Any, Ledger], list[str]]


def resolve(name: str) -> Any:
    """What "module:name" stands for. Raises: SchemaInvalid if it is not there."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise SchemaInvalid(f"{name!r} is no name of the form module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise SchemaInvalid(f"{name!r} cannot be imported: {error}") from error
    return found


def open_simulated(files: CheckedFiles, **options: Any) -> Any:
    """A store on simulated files, driven by hand: no thread, no timer."""
    parsed = Options.from_keywords({**SIMULATED, **options, "background": False})
    return resolve(OPEN_FILES)(files, parsed, ManualClock(), None, None)


# --- the oracle for programs of one thread -----------------------------------------------------------
def digest_of(state: Mapping[str, Iterable[tuple[Any, ...]]]) -> str:
    """Name of a whole state: rows of all tables by table name, in any order."""
    content = sorted((name, sorted(repr(tuple(row)) for row in rows)) for name, rows in state.items())
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


def state_of(db: Any) -> dict[str, list[tuple[Any, ...]]]:
    """All committed rows of all tables."""
    return {name: [tuple(row) for row in db[name].scan()] for name in db.tables() if name != PROBE}


def whole_state(db: Any, ledger: Ledger) -> list[str]:
    """The store is in the state acknowledged last or in the one under way, for programs whose lines are `digest_of`
    the state that follows. A program that has acknowledged nothing has an empty store.
    """
    found = ledger.seen = digest_of(state_of(db))
    last = ledger.acknowledged[-1] if ledger.acknowledged else digest_of({})
    if found in {last, *ledger.under_way}:
        return []
    known = ledger.acknowledged.index(found) if found in ledger.acknowledged else -1
    if known >= 0:
        return [f"the state after acknowledgement {known + 1} of {len(ledger.acknowledged)}: later ones are lost"]
    rows = {name: len(rows) for name, rows in state_of(db).items()}
    return [f"a state that never was (rows by table: {rows}), after {len(ledger.acknowledged)} acknowledgements"]


def probe(db: Any, number: int) -> None:
    """A restarted store takes work again: one row in a table of the harness's own, durable on return.

    A crash may have left a full log; then what the error advises is done first. Raises: Error, if the store takes none.
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
    """What `probe` wrote and the store still holds."""
    return {row[0] for row in db[PROBE].scan()} if PROBE in db else set()
