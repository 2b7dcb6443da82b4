"""Errors, limits, number types, options, clock and the store's first failure, used by every room.

Read `errors`, `limits` and `ids` first: they are the vocabulary. `clock` is the only door to time and randomness.
"""
