"""Errors, limits, number types, options, clock, the store's first failure: needed by every room, owned by none.

Read `errors`, `limits` and `ids` first: they are the vocabulary. `clock` is the only door to time and randomness.
"""
