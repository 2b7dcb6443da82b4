"""Micro-benchmarks: pytest-benchmark over kernels and calls. `python -m pytest bench/micro --benchmark-only`."""
