"""The main job of `make run`: TPC-H rows, refresh work from four threads, SIGKILL, restart, proof; then in bulk."""
