"""A channel of a replica: it receives a source's binlog into a relay log and applies it.

Read `channel`, `endpoint` (an open store as other sites see it), `receiver`, `relay_log`.
"""
