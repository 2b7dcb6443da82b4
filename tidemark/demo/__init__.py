"""The demo of `make run`: TPC-H rows, changes from four threads, SIGKILL, restart, checks; then in bulk with Spark."""
