"""Programs over batches of entries, as reads and scans make them: planes filled, verdicts and outputs taken over.

Entries lie in private memory, so no lock of any kind is held.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from engine.jit.kernel import helper, kernel
from engine.memory.arena_layout import ENTRY_WORDS
from engine.programs import program_layout as p
from engine.programs.vm_columns_kernels import is_var_part, var_part_words
from engine.programs.vm_run_kernels import run_rows
from engine.rows.lcp_layout import ENTRY_AUTHOR_MASK, ENTRY_FRAGMENT_MASK, ENTRY_FRAGMENT_SHIFT


@helper
def _fill_planes(entries, offsets, first, count, total, parameters, program, rows):
    """Planes of the entries [first, first + count) of a batch, as far as the program needs them."""
    needs = program[p.H_NEEDS]
    fixed_words = program[p.H_FIXED_WORDS]
    size = entries.size
    for i in range(count):
        image = offsets[np.uint64(first + i)]
        if image < ENTRY_WORDS or image > size:
            rows[p.R_FIXED * p.VECTOR_ROWS + i] = -1
            continue
        step = np.uint64(i)
        rows[np.uint64(p.R_FIXED * p.VECTOR_ROWS) + step] = image
        rows[np.uint64(p.R_EPOCH * p.VECTOR_ROWS) + step] = entries[np.uint64(image - 2)]
        rows[np.uint64(p.R_AUTHOR * p.VECTOR_ROWS) + step] = entries[np.uint64(image - 1)] & ENTRY_AUTHOR_MASK
    if needs & (p.NEED_ROWID | p.NEED_FRAGMENT):
        for i in range(count):
            image = max(rows[p.R_FIXED * p.VECTOR_ROWS + i], ENTRY_WORDS)
            rows[p.R_ROWID * p.VECTOR_ROWS + i] = entries[image - ENTRY_WORDS] if size >= ENTRY_WORDS else 0
            word = entries[image - 1] if size >= ENTRY_WORDS else 0
            rows[p.R_FRAGMENT * p.VECTOR_ROWS + i] = (word >> ENTRY_FRAGMENT_SHIFT) & ENTRY_FRAGMENT_MASK
    if needs & (p.NEED_VAR | p.NEED_DISK):
        for i in range(count):
            image = rows[p.R_FIXED * p.VECTOR_ROWS + i]
            var = image + fixed_words if image >= 0 else 0
            rows[p.R_VAR * p.VECTOR_ROWS + i] = var if program[p.H_HAS_VAR] else 0
            if needs & p.NEED_DISK:
                disk = var
                if program[p.H_HAS_VAR] or is_var_part(entries, var):
                    words = var_part_words(entries, var)
                    disk = var + words if words else 0
                rows[p.R_DISK * p.VECTOR_ROWS + i] = disk
    for number in range(program[p.H_PARAMETERS]):
        for i in range(count):
            rows[(p.R_PARAMETERS + number) * p.VECTOR_ROWS + i] = parameters[number * total + first + i]


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def run_batch(entries, offsets, count, parameters, program, rows, work, out):
    """Run a program over a batch of entries in private memory, as reads and scans make them; VECTOR_ROWS at a time.

    parameters: a plane of `count` words for each. out: planes of `count` words: verdicts, codes, then for each output
    low words, high words and NULLs. Returns what `run_program` does.
    """
    if program.size < p.PROGRAM_HEADER_WORDS or not 0 <= count <= offsets.size:
        return p.RUN_BROKEN
    planes = 2 + program[p.H_OUTPUTS] * p.OUTPUT_PLANES
    if out.size < planes * count or parameters.size < program[p.H_PARAMETERS] * count or rows.size < p.ROWS_WORDS:
        return p.RUN_BROKEN
    status = p.RUN_OK
    for first in range(0, count, p.VECTOR_ROWS):
        rest = min(p.VECTOR_ROWS, count - first)
        if status != p.RUN_OK:
            for i in range(rest):
                out[first + i] = p.VERDICT_NONE
                out[count + first + i] = 0
            continue
        _fill_planes(entries, offsets, first, rest, count, parameters, program, rows)
        status = run_rows(entries, rows, rest, program, work)
        if status == p.RUN_BROKEN:
            return status
        for plane in range(planes):
            source = np.uint64(p.W_VERDICT + plane * p.VECTOR_ROWS)
            if plane >= 2:
                source = np.uint64(p.W_OUTPUTS + (plane - 2) * p.VECTOR_ROWS)
            target = np.uint64(plane * count + first)
            for i in range(rest):
                out[target + np.uint64(i)] = work[source + np.uint64(i)]
    return status
