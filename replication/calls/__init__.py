"""Calls of a client on a store in another process (docs/internals/calls.md).

Read `conversation` (links and their server), `values` (values as bytes), `memory` (limits of memory).
"""
