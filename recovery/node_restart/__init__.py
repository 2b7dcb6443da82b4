"""Node restart: a node that was away comes back while the other nodes keep writing (docs/internals/node-group.md)."""
