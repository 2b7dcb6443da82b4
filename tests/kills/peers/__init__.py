"""SIGKILL of a store that is served as a MySQL server, and of real replicas that follow it."""
