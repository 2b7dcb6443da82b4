"""Synchronous replicas inside a site: views, votes and leases as state machines. Design: docs/node-group.md."""
