"""Transactions: operations, locks, epochs, versions of rows, and the one commit.

Read `transaction` (`commit` says what is durable when), `operations_kernels`, `commit_kernels`, then `locks`, `epoch`
and `spool` (transactions larger than memory).
"""
