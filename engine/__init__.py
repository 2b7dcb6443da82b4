"""The engine floor: rows, pages, indexes, logs, locks and transactions.

Imports nothing from the floors above (`recovery`, `replication`, `tidemark`).
"""
