"""Benchmarks against peers, side by side in one run; see `python -m bench --help`."""
