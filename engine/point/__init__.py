"""Calls of one row, and selects of a few, in one kernel call; rows made by kernels (ADR 0031).

Read `plan`, then `values_kernels`, `get_kernels`, `change_kernels`, `selects` and `few`. A call that is not answered
here is left to the general path, `engine/access`, which answers every call.
"""
