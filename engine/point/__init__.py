"""Calls of one row in one kernel call, and rows made by kernels (ADR 0031).

Read `plan`, then `values_kernels` and `get_kernels`. A call that is not answered here is left to the general path,
`engine/access`, which answers every call.
"""
