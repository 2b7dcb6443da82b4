"""The assembly: a store with its tables, changes of the schema, and groups of another node's log.

Read `store`. Floors above get a store's parts here.
"""
