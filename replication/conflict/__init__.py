"""Conflict handling: the decision about an incoming change, and the state kept for a channel. No I/O."""
