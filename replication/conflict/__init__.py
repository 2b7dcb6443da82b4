"""Conflict handling: the decision about an incoming change, and the state kept for a channel. No I/O.

Read `functions` (the table of decisions) and `programs`; then `epochs` and `tracker` (what is kept).
"""
