"""What every room needs and no room owns: errors, limits, number types, options, clock, the store's first failure.

Read `errors`, `limits` and `ids` first: they are the vocabulary. `clock` is the only door to time and randomness.
"""
