"""Synchronous replicas inside a site: views, votes and leases as state machines; docs/node-group.md is their design."""
