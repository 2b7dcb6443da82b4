"""Calls of a client on a store in another process (docs/clients.md).

Read `conversation` (links and their server), `values` (values as bytes), `memory` (limits of memory).
"""
