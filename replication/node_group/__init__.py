"""Synchronous replicas inside a site: views, votes and leases as state machines (docs/internals/node-group.md)."""
