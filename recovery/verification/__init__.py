"""Finds damage in a store, and checks whether two copies hold the same rows.

Read `check` (one store, every structure) and `compare` (digests of two sides, ranges, differences; docs/verify.md).
"""
