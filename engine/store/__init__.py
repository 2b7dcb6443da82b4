"""The assembly: a store with its tables, schema changes, and groups of another node's log.

Read `store`. Floors above get the parts of a store here.
"""
