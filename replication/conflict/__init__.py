"""Conflict handling: what is decided about an incoming change, and what is remembered of a channel. No I/O."""
