"""The network: sockets and servers of links, frames, handshake and sessions.

Read `wire` and `admission` (the only sockets between stores) and `server`, then `frames`, `handshake` and `sessions`,
which do no I/O.
"""
