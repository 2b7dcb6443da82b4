"""The demo of `make run`: TPC-H rows, refresh work from four threads, SIGKILL, restart, proof; then the same in
bulk.
"""
