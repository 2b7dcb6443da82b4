"""A store of another process: what its clients call, and what carries it out there (docs/clients.md)."""
