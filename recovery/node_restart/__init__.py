"""Node restart: a node that was away comes back while the others keep writing (docs/node-group.md, 4)."""
