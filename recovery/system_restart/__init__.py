"""System restart: the sysfile, local checkpoint loaded, log replayed and made durable.

Read `restart`, `load`, `replay`. `sysfile` is the floor of every restart.
"""
