"""SIGKILL of processes that load and restore by Spark, again and again: all is there, or nothing, and no file is left."""
