"""The network: sockets and servers of links, frames, handshake and sessions.

Read `wire` and `server` (the only sockets between stores), then `frames`, `handshake` and `sessions`, which do no I/O.
"""
