"""Handles, by which Python refers to tables, fragments and indexes, and the free list of their descriptors.

Between two kernel calls a structure may be withdrawn, and its memory reused. A handle names a descriptor's block and
its generation. Every kernel that takes a handle compares the generation first. The call that withdraws the structure
changes the generation. A block that was a descriptor once never becomes a page or a node, so its generation can always
be read.
"""

# mypy: ignore-errors

from __future__ import annotations

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.memory.pool_kernels import take_block


@helper
def descriptor_of(mem, handle):
    """Return the address of the descriptor of a handle; 0 if the structure was withdrawn."""
    descriptor = (handle & A.HANDLE_BLOCK_MASK) << A.BLOCK_SHIFT
    if mem[descriptor + A.D_GENERATION] != handle >> A.HANDLE_BLOCK_BITS:
        return 0
    return descriptor


@helper
def handle_of(mem, descriptor):
    """Return the handle of a descriptor."""
    return (mem[descriptor + A.D_GENERATION] << A.HANDLE_BLOCK_BITS) | (descriptor >> A.BLOCK_SHIFT)


@helper
def take_descriptor(mem):
    """Take a zeroed block for a descriptor, with a generation it never had before; 0 if memory is exhausted."""
    descriptor = mem[A.S_FREE_DESCRIPTORS]
    if descriptor == 0:
        descriptor = take_block(mem, A.S_POOL)
        if descriptor != 0:
            mem[descriptor + A.D_GENERATION] = 1
        return descriptor
    mem[A.S_FREE_DESCRIPTORS] = mem[descriptor]
    mem[A.S_FREE_DESCRIPTOR_COUNT] -= 1
    generation = mem[descriptor + A.D_GENERATION]
    for i in range(A.BLOCK_WORDS):
        mem[descriptor + i] = 0
    mem[descriptor + A.D_GENERATION] = generation
    return descriptor


@helper
def free_descriptor(mem, descriptor):
    """Free a descriptor; every handle to it is stale."""
    mem[descriptor + A.D_GENERATION] += 1
    if mem[descriptor + A.D_GENERATION] >= A.GENERATION_MAX:
        return
    mem[descriptor] = mem[A.S_FREE_DESCRIPTORS]
    mem[A.S_FREE_DESCRIPTORS] = descriptor
    mem[A.S_FREE_DESCRIPTOR_COUNT] += 1


@helper
def renew_handle(mem, descriptor):
    """Make every existing handle of a descriptor stale; `next_handle` gives the new one."""
    mem[descriptor + A.D_GENERATION] += 1


@kernel("int64(int64[::1], int64)")
def withdraw(mem, handle):
    """Make every existing handle of an unlisted index or fragment stale. The caller frees the memory with the new
    handle (`next_handle`). Return OK, or ST_DROPPED if it was withdrawn before.
    """
    descriptor = descriptor_of(mem, handle)
    if descriptor == 0:
        return A.ST_DROPPED
    renew_handle(mem, descriptor)
    return A.OK


@kernel("int64(int64[::1], int64, int64)")
def descriptor_word(mem, handle, word):
    """Return one word of a descriptor, or ST_DROPPED; all words that Python reads are 0 or more."""
    descriptor = descriptor_of(mem, handle)
    return A.ST_DROPPED if descriptor == 0 else mem[descriptor + word]


@kernel("int64(int64[::1], int64, int64, int64)")
def set_descriptor_word(mem, handle, word, value):
    """Set one word of a descriptor. Return OK or ST_DROPPED."""
    descriptor = descriptor_of(mem, handle)
    if descriptor == 0:
        return A.ST_DROPPED
    mem[descriptor + word] = value
    return A.OK


@kernel("int64(int64[::1], int64, int64, int64[::1])")
def descriptor_words(mem, handle, word, out):
    """Copy out.size words of a descriptor from `word` on, as of one instant. Return OK or ST_DROPPED."""
    descriptor = descriptor_of(mem, handle)
    if descriptor == 0:
        return A.ST_DROPPED
    for i in range(out.size):
        out[i] = mem[descriptor + word + i]
    return A.OK


@kernel("int64(int64[::1], int64[::1], int64)")
def sum_words(mem, handles, word):
    """Return the sum of one word over the descriptors that are not withdrawn."""
    total = 0
    for i in range(handles.size):
        descriptor = descriptor_of(mem, handles[i])
        if descriptor != 0:
            total += mem[descriptor + word]
    return total
