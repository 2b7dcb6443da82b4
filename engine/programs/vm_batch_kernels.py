"""Programs over batches of entries, as reads and scans build them: planes are filled, verdicts and outputs copied out.

Entries are in private memory, so no lock is held.
"""

# mypy: ignore-errors

from __future__ import annotations

import numpy as np

from tidemark.engine.jit.kernel import helper, kernel
from tidemark.engine.memory import arena_layout as A
from tidemark.engine.programs import program_layout as P
from tidemark.engine.programs.vm_columns_kernels import var_part_words
from tidemark.engine.programs.vm_run_kernels import run_rows
from tidemark.engine.rows import lcp_layout as E
from tidemark.engine.rows.disk_columns_kernels import is_var_part


@helper
def _fill_planes(entries, offsets, first, count, total, parameters, program, rows):
    """Fill the planes of the entries [first, first + count) of a batch, as far as the program needs them."""
    needs = program[P.H_NEEDS]
    fixed_words = program[P.H_FIXED_WORDS]
    size = entries.size
    for i in range(count):
        image = offsets[np.uint64(first + i)]
        if image < A.ENTRY_WORDS or image > size:
            rows[P.R_FIXED * P.VECTOR_ROWS + i] = -1
            continue
        step = np.uint64(i)
        rows[np.uint64(P.R_FIXED * P.VECTOR_ROWS) + step] = image
        rows[np.uint64(P.R_EPOCH * P.VECTOR_ROWS) + step] = entries[np.uint64(image - 2)]
        rows[np.uint64(P.R_AUTHOR * P.VECTOR_ROWS) + step] = entries[np.uint64(image - 1)] & E.ENTRY_AUTHOR_MASK
    if needs & (P.NEED_ROWID | P.NEED_FRAGMENT):
        for i in range(count):
            image = max(rows[P.R_FIXED * P.VECTOR_ROWS + i], A.ENTRY_WORDS)
            rows[P.R_ROWID * P.VECTOR_ROWS + i] = entries[image - A.ENTRY_WORDS] if size >= A.ENTRY_WORDS else 0
            word = entries[image - 1] if size >= A.ENTRY_WORDS else 0
            rows[P.R_FRAGMENT * P.VECTOR_ROWS + i] = (word >> E.ENTRY_FRAGMENT_SHIFT) & E.ENTRY_FRAGMENT_MASK
    if needs & (P.NEED_VAR | P.NEED_DISK):
        for i in range(count):
            image = rows[P.R_FIXED * P.VECTOR_ROWS + i]
            var = image + fixed_words if image >= 0 else 0
            rows[P.R_VAR * P.VECTOR_ROWS + i] = var if program[P.H_HAS_VAR] else 0
            if needs & P.NEED_DISK:
                disk = var
                if program[P.H_HAS_VAR] or is_var_part(entries, var):
                    words = var_part_words(entries, var)
                    disk = var + words if words else 0
                rows[P.R_DISK * P.VECTOR_ROWS + i] = disk
    for number in range(program[P.H_PARAMETERS]):
        for i in range(count):
            rows[(P.R_PARAMETERS + number) * P.VECTOR_ROWS + i] = parameters[number * total + first + i]


@kernel("int64(int64[::1], int64[::1], int64, int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])", nogil=True)
def run_batch(entries, offsets, count, parameters, program, rows, work, out):
    """Run a program over a batch of entries in private memory, as reads and scans build them; VECTOR_ROWS at a time.

    parameters: a plane of `count` words for each. out: planes of `count` words: verdicts, codes, then for each output
    low words, high words and NULLs. Returns the same as `run_rows`; after RUN_FULL work[W_GROUPS + GS_DONE] rows were
    run.
    """
    if program.size < P.PROGRAM_HEADER_WORDS or not 0 <= count <= offsets.size:
        return P.RUN_BROKEN
    planes = 2 + program[P.H_OUTPUTS] * P.OUTPUT_PLANES
    if out.size < planes * count or parameters.size < program[P.H_PARAMETERS] * count or rows.size < P.ROWS_WORDS:
        return P.RUN_BROKEN
    status = P.RUN_OK
    for first in range(0, count, P.VECTOR_ROWS):
        rest = min(P.VECTOR_ROWS, count - first)
        if status != P.RUN_OK:
            for i in range(rest):
                out[first + i] = P.VERDICT_NONE
                out[count + first + i] = 0
            continue
        _fill_planes(entries, offsets, first, rest, count, parameters, program, rows)
        status = run_rows(entries, rows, rest, program, work)
        if status == P.RUN_FULL:
            work[P.W_GROUPS + P.GS_DONE] = first
        if status == P.RUN_BROKEN or status == P.RUN_FULL:
            return status
        for plane in range(planes):
            source = np.uint64(P.W_VERDICT + plane * P.VECTOR_ROWS)
            if plane >= 2:
                source = np.uint64(P.W_OUTPUTS + (plane - 2) * P.VECTOR_ROWS)
            target = np.uint64(plane * count + first)
            for i in range(rest):
                out[target + np.uint64(i)] = work[source + np.uint64(i)]
    return status
