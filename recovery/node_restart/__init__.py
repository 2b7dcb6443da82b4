"""Node restart: a node that was away comes back while the other nodes keep writing (docs/node-group.md, 4)."""
