"""System restart: reads the sysfile, loads the local checkpoint, replays the log and makes it durable.

Read `restart`, `load`, `replay`. `sysfile` gives the lower bound of every restart.
"""
