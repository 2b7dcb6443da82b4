"""The only home of numba: how kernels and helpers are declared and compiled, and where compiled code is kept.

Read `kernel` first, then `registry`. `python -m tidemark.engine.jit` compiles everything.
"""
