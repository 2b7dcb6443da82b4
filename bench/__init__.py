"""Benchmarks: the goals next to their peers (`python -m bench`), micro-benchmarks (`bench/micro`), findings."""
