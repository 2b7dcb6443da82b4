"""Instants: the order of commits within an epoch, as far as readers can tell them apart.

A row header has the epoch and the *tick* of the row's newest commit. A commit that is applied in one call takes the
tick of the commit before it, unless a view was opened in between. A large commit, which is applied in slices, has a
tick of its own: while it is unfinished, a row with that tick is not to be seen. Ticks are in memory only.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A


@helper
def tick_of(mem, row):
    """Return the tick of a row's newest commit."""
    return (mem[row] >> A.TICK_SHIFT) & A.TICK_MASK


@helper
def enter_epoch(mem, epoch):
    """Begin the ticks of an epoch, if its first commit or view is now."""
    if mem[A.S_TICK_EPOCH] < epoch:
        mem[A.S_TICK_EPOCH] = epoch
        mem[A.S_TICK] = 0
        mem[A.S_TICK_SEEN] = 0


@helper
def take_tick(mem, epoch):
    """Return the tick of a commit of an epoch that is applied in this call."""
    enter_epoch(mem, epoch)
    if mem[A.S_TICK_SEEN]:
        mem[A.S_TICK] += 1
        mem[A.S_TICK_SEEN] = 0
    return mem[A.S_TICK]


@helper
def tick_of_slice(mem, epoch):
    """Return the tick of a commit that this call applies in part, or as a whole if no large commit has begun."""
    return mem[A.S_UNFINISHED] if mem[A.S_UNFINISHED] != 0 else take_tick(mem, epoch)


@helper
def note_change(mem, fragment, epoch, tick):
    """Note that a row of a fragment changes at an instant."""
    table = mem[fragment + A.F_OWNER]
    mem[table + A.T_CHANGED_EPOCH] = epoch
    mem[table + A.T_CHANGED_TICK] = tick


@helper
def begin_unfinished(mem, epoch, kinds):
    """Begin a large commit. Its rows take the tick S_UNFINISHED, commits beside it take later ones."""
    enter_epoch(mem, epoch)
    mem[A.S_UNFINISHED] = mem[A.S_TICK] + 1
    mem[A.S_UNFINISHED_KINDS] = kinds
    mem[A.S_TICK] += 2
    mem[A.S_TICK_SEEN] = 0


@helper
def is_unfinished(mem, row):
    """Whether the newest commit of a row is the large one that is being applied."""
    tick = mem[A.S_UNFINISHED]
    return tick != 0 and tick_of(mem, row) == tick and mem[row + 1] == mem[A.S_TICK_EPOCH]


@helper
def adds_only(mem):
    """Whether the large commit that is being applied only adds rows. Then a row of it is absent for readers."""
    return mem[A.S_UNFINISHED_KINDS] & (A.X_UPDATES | A.X_DELETES) == 0


@helper
def seen_absent(mem):
    """Return what a reader that finds no row by its primary key reports: ST_MISSING, or ST_UNFINISHED if the large
    commit that is being applied may have removed it.
    """
    return A.ST_UNFINISHED if mem[A.S_UNFINISHED_KINDS] & A.X_DELETES else A.ST_MISSING


@helper
def seen_unfinished(mem):
    """Return what a reader that finds a row of the large commit reports: ST_MISSING if there was none before, else
    ST_UNFINISHED.
    """
    return A.ST_MISSING if adds_only(mem) else A.ST_UNFINISHED


@kernel("int64(int64[::1], int64, int64)")
def begin_large(mem, epoch, kinds):
    """Begin a large commit of an epoch, under the commit latch. kinds: as X_KINDS. Return OK, or ST_MORE with nothing
    done: the epoch must be closed first, since it has too few ticks left.
    """
    if mem[A.S_TICK_EPOCH] >= epoch and mem[A.S_TICK] >= A.TICKS_USED:
        return A.ST_MORE
    begin_unfinished(mem, epoch, kinds)
    return A.OK


@helper
def end_unfinished(mem):
    """Show all rows of the large commit, in one step."""
    mem[A.S_UNFINISHED] = 0
    mem[A.S_UNFINISHED_KINDS] = 0


@kernel("int64(int64[::1])")
def finish_large(mem):
    """Show all rows of the large commit, in one step. Idempotent."""
    end_unfinished(mem)
    return A.OK


# --- views ----------------------------------------------------------------------------------------
@helper
def is_after(mem, view, epoch, tick):
    """Whether a view, given by its address, does not show what was committed at an instant."""
    if epoch != mem[view + A.VW_EPOCH]:
        return epoch > mem[view + A.VW_EPOCH]
    return tick > mem[view + A.VW_TICK] or (tick == mem[view + A.VW_SKIPPED] and tick != 0)


@helper
def is_row_after(mem, view, row):
    """Whether a view does not show the newest commit of a row, or of a slot."""
    epoch = mem[row + 1]
    if epoch < mem[view + A.VW_EPOCH]:
        return False
    return is_after(mem, view, epoch, tick_of(mem, row))


@helper
def view_of(mem, view):
    """Return the address of an open view, 0 if it was closed or abandoned."""
    at = mem[A.S_VIEW_LIST] + (view & ((1 << A.VIEW_SHIFT) - 1)) * A.VW_WORDS
    return at if mem[at + A.VW_ID] == view else 0


@helper
def is_changed_since(mem, txn, row):
    """Whether a transaction reads by a view that does not show a row as it is; also if the view was abandoned."""
    view = mem[txn + A.X_VIEW]
    if view == 0:
        return False
    at = view_of(mem, view)
    return at == 0 or is_row_after(mem, at, row)


@helper
def check_view(mem, view, table):
    """Return OK if a view shows all rows of a table as they are, or if view is 0; else ST_CHANGED or ST_TOO_OLD."""
    if view == 0:
        return A.OK
    at = view_of(mem, view)
    if at == 0:
        return A.ST_TOO_OLD
    if mem[at + A.VW_SKIPPED] != 0 or is_after(mem, at, mem[table + A.T_CHANGED_EPOCH], mem[table + A.T_CHANGED_TICK]):
        return A.ST_CHANGED
    return A.OK
