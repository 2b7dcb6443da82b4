"""SIGKILL of processes that load and restore by Spark: all is there, or nothing, and no file is left."""
