"""Memory read ahead: a loop over rows asks for the cache lines that it will want."""

# mypy: ignore-errors

from __future__ import annotations

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

if numba.config.DISABLE_JIT:

    def read_ahead(words, at):
        """Ask the processor for the cache line of words[at], which need not be in the array."""

else:

    @intrinsic
    def read_ahead(context, words, at):
        """Ask the processor for the cache line of words[at], which need not be in the array."""

        def code(context, builder, signature, args):
            octet, number = ir.IntType(8), ir.IntType(32)
            array = context.make_array(signature.args[0])(context, builder, args[0])
            place = builder.bitcast(builder.gep(array.data, [args[1]]), octet.as_pointer())
            name = "llvm.prefetch.p0i8"
            known = builder.module.globals.get(name)
            kind = ir.FunctionType(ir.VoidType(), [octet.as_pointer(), number, number, number])
            function = known or ir.Function(builder.module, kind, name)
            # To be read, kept in all caches, as data.
            builder.call(function, [place, *[ir.Constant(number, each) for each in (0, 3, 1)]])
            return context.get_dummy_value()

        return types.void(words, types.int64), code
