"""Benchmarks: the goals beside their peers (`python -m bench`), micro-benchmarks (`bench/micro`), findings."""
