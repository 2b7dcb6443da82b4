"""Memory touched before it is needed, without the GIL, by an advice to the system (MADV_POPULATE_WRITE).

The advice changes no byte, so it may be given for memory that another thread writes meanwhile.
"""

# mypy: ignore-errors

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.jit.objects_kernels import emitted
from tidemark.engine.memory import arena_layout as A

# Words of the plan. Two places follow it: of the arena, and of the transaction's buffer.
W_STOP = 0  # 1: the call has ended
W_TXN = 1  # descriptor of the transaction
W_STATE = 2
W_ARENA = 3
W_BUFFER = 5
W_NEXT = 0  # of a place: the next word to touch
W_END = 1  # of a place
W_WORDS = 7

NOT_BEGUN = 0
WORKS = 1
ENDED = 2

STEP_WORDS = 1 << 18  # 2 MiB, a huge page: for so long the system may keep other threads from mapping memory
AHEAD_WORDS = 1 << 23  # 64 MiB
PAUSE_US = 500

_PAGE_BYTES = 4_096
_POPULATE_WRITE = 23

_BYTES = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_WORD = ir.IntType(64)


def _populate(context, builder, signature, values):
    words, at, count = values
    data = builder.ptrtoint(context.make_array(signature.args[0])(context, builder, words).data, _WORD)
    first = builder.add(data, builder.mul(at, _WORD(8)))
    down = _WORD(-_PAGE_BYTES)
    begin = builder.and_(builder.add(first, _WORD(_PAGE_BYTES - 1)), down)
    end = builder.and_(builder.add(first, builder.mul(count, _WORD(8))), down)
    size = builder.select(builder.icmp_signed(">", end, begin), builder.sub(end, begin), _WORD(0))
    kind = ir.FunctionType(_INT, [_BYTES, _WORD, _INT])
    function = cgutils.get_or_insert_function(builder.module, kind, "madvise")
    done = builder.call(function, [builder.inttoptr(begin, _BYTES), size, _INT(_POPULATE_WRITE)])
    return builder.sext(done, _WORD)


@emitted(_populate, types.int64, None, types.int64, types.int64)
def populate(words, at, count):
    """Make the system find memory for the whole pages within words[at : at + count]; return 0, or -1 if it refuses."""
    return 0


def _pause(context, builder, signature, values):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_INT, [_INT]), "usleep")
    return builder.sext(builder.call(function, [builder.trunc(values[0], _INT)]), _WORD)


@emitted(_pause, types.int64, types.int64)
def pause(us):
    """Sleep."""
    return 0


@helper
def _step(words, plan, place, used):
    """Touch the next piece of a place, given how far its words are in use. Return the words touched, 0 if it is far
    enough ahead, or -1.
    """
    at = max(plan[place + W_NEXT], used)
    plan[place + W_NEXT] = at
    count = min(STEP_WORDS, plan[place + W_END] - at)
    if count <= 0 or at > used + AHEAD_WORDS:
        return 0
    if populate(words, at, count) != 0:
        return -1
    plan[place + W_NEXT] = at + count
    return count


@kernel("int64(int64[::1], int64[::1], int64[::1])", nogil=True)
def touch_ahead(mem, buf, plan):
    """Touch memory of the arena and of a transaction's buffer, a bounded piece ahead of what is in use, until both
    places end, the system refuses, or plan[W_STOP] is set. Return the words touched.
    """
    total = 0
    plan[W_STATE] = WORKS
    while plan[W_STOP] == 0:
        pages = _step(mem, plan, W_ARENA, mem[A.S_POOL + A.P_HIGH] << A.PAGE_SHIFT)
        records = _step(buf, plan, W_BUFFER, mem[plan[W_TXN] + A.X_USED])
        if pages < 0 or records < 0:
            break
        total += pages + records
        if pages + records == 0:
            if plan[W_ARENA + W_NEXT] >= plan[W_ARENA + W_END] and plan[W_BUFFER + W_NEXT] >= plan[W_BUFFER + W_END]:
                break
            pause(PAUSE_US)
    plan[W_STATE] = ENDED
    return total


@kernel("void(int64[::1])", nogil=True)
def end_touch(plan):
    """End `touch_ahead` of a plan, and wait for it, unless it has not begun: then it ends at once, or never runs."""
    plan[W_STOP] = 1
    while plan[W_STATE] == WORKS:
        pause(PAUSE_US)
