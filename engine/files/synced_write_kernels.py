"""A write and the sync of its file in one call, which gives the GIL up once: a busy thread costs a commit one wait for
the GIL instead of two.

The system calls are libc's, the same as those of `os.pwrite` and `os.fdatasync`, and their errors are raised in the
same way: with no instruction of Python between the error and the exception, at which a signal could lose it (F33).
"""

# mypy: ignore-errors

from __future__ import annotations

import os

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tidemark.engine.jit.objects_kernels import OBJECT, c_function, emitted, none, object_kernel

_BYTES = ir.IntType(8).as_pointer()
_INT = ir.IntType(32)
_WORD = ir.IntType(64)


@c_function("PyEval_SaveThread", types.int64)
def save_thread():
    """Give the GIL up; return what `restore_thread` needs."""
    return 0


@c_function("PyEval_RestoreThread", types.void, types.int64)
def restore_thread(saved):
    """Take the GIL again. `errno` stays as it is."""


def _pwrite(context, builder, signature, values):
    descriptor, words, count, offset = values
    data = builder.bitcast(context.make_array(signature.args[1])(context, builder, words).data, _BYTES)
    kind = ir.FunctionType(_WORD, [_INT, _BYTES, _WORD, _WORD])
    function = cgutils.get_or_insert_function(builder.module, kind, "pwrite")
    return builder.call(function, [builder.trunc(descriptor, _INT), data, count, offset])


@emitted(_pwrite, types.int64, types.int64, None, types.int64, types.int64)
def pwrite(descriptor, words, count, offset):
    """Write the first `count` bytes of an array; return how many were written, -1 on an error."""
    return os.pwrite(descriptor, words.data.cast("B")[: int(count)], int(offset))


def _fdatasync(context, builder, signature, values):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_INT, [_INT]), "fdatasync")
    return builder.sext(builder.call(function, [builder.trunc(values[0], _INT)]), _WORD)


@emitted(_fdatasync, types.int64, types.int64)
def fdatasync(descriptor):
    """Sync a file; return 0, or -1 on an error."""
    os.fdatasync(descriptor)
    return 0


@c_function("PyErr_SetFromErrno", OBJECT, OBJECT)
def os_error(kind):
    """Set an error of class `kind` with `errno`; return no object. As plain Python the calls above have raised it."""


@object_kernel("object_(object_, int64, int64[::1], int64, int64, int64[::1])")
def write_and_sync(kind, descriptor, words, count, offset, written):
    """Write the first `count` bytes of `words` to a file and, if all were written, sync it.

    kind: OSError, the class of the error that is raised; if all bytes were written, the sync has failed. written: one
    word, the bytes that were written.
    """
    written[0] = 0
    if count < 0 or count > 8 * words.size:
        return none()
    saved = save_thread()
    done = pwrite(descriptor, words, count, offset)
    failed = done < 0
    if not failed:
        written[0] = done
        failed = done == count and fdatasync(descriptor) < 0
    restore_thread(saved)
    return os_error(kind) if failed else none()
